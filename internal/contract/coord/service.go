package coord

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// Service is the coordination plane: the same at every peer, and over every wire. A peer that does not lead the
// group forwards calls to the leader. An error keeps its kind, field, message and details on the way.
//
// Common errors: Unavailable without a reachable leader, or at a peer outside the plane; Timeout and Canceled at the
// end of the context; Forbidden for owners without access; LimitReached and PoolExhausted above the bounds of the peer or the group.
//
// Answers belong to their receiver.
type Service interface {
	// Execute executes a command and answers it with the response to its request. The plane may change the
	// message. After Timeout, Canceled or Unavailable a command without an attempt may have been applied; repeat
	// one with an attempt until its result arrives.
	//
	// A lock waits for its timeout_ms. Then, or at the end of the context, the claim is given back. A keepalive
	// renews at most MaxKeepAlive leases. The times count from before the call.
	//
	// Errors of a lock: NotFound for a claim lost while waiting, field "lease" together with its lease, otherwise
	// "token". Errors of a keepalive: Invalid, field "ids", above the bound. Otherwise those of the state machine.
	Execute(ctx context.Context, cmd *coordv1.Command) (*coordv1.Result, error)

	// Read answers a question. Every answer, except that of a local range, is linearizable: it includes all
	// changes answered before the question. A list of leases has those that the owner may use, with the owner
	// Everybody those of applications, and without an owner all.
	//
	// Errors: NotFound for an unknown lock or lease; as Keyspace.Range.
	Read(ctx context.Context, q *coordv1.Question) (*coordv1.Answer, error)

	// Watch passes answers with whole revisions to send, in order, and now and then one without events as progress,
	// until the context ends or send fails. The start 0 means the next revision. The first answer has no events and
	// comes at once: its next_revision is the start of the watch. With mark, an answer without events comes too as soon as the watch has caught up
	// with the state of the first answer, or a later one; a peer of an earlier version sends it later. watch_id, cancel and fragment belong to the stream
	// of a wire.
	//
	// Errors: Invalid; NotFound, wrapping *Compacted; the error of send.
	Watch(ctx context.Context, w *apiv1.WatchKeysRequest, send func(*apiv1.WatchKeysResponse) error) error
}

// Through is a Service that finds another one for each call.
type Through func() (Service, error)

// Execute implements Service.
func (t Through) Execute(ctx context.Context, cmd *coordv1.Command) (*coordv1.Result, error) {
	s, err := t()
	if err != nil {
		return nil, err
	}
	return s.Execute(ctx, cmd)
}

// Read implements Service.
func (t Through) Read(ctx context.Context, q *coordv1.Question) (*coordv1.Answer, error) {
	s, err := t()
	if err != nil {
		return nil, err
	}
	return s.Read(ctx, q)
}

// Watch implements Service.
func (t Through) Watch(ctx context.Context, w *apiv1.WatchKeysRequest, send func(*apiv1.WatchKeysResponse) error) error {
	s, err := t()
	if err != nil {
		return err
	}
	return s.Watch(ctx, w, send)
}

// CommandOf returns the command of an owner with a request, and its attempt. A message that is none makes a command without a request,
// which the group refuses.
func CommandOf(owner string, request proto.Message) *coordv1.Command {
	m := &coordv1.Command{Owner: owner}
	enclose(m, request)
	if r, ok := request.(interface{ GetAttempt() *apiv1.Attempt }); ok {
		m.Attempt = r.GetAttempt()
	}
	if r := m.GetCloseClient(); r != nil { // the attempt names the client, with its last sequence
		m.Attempt = &apiv1.Attempt{Client: r.GetClient(), Sequence: ^uint64(0)}
	}
	return m
}

// QuestionOf returns the question of an owner with a request.
func QuestionOf(owner string, request proto.Message) *coordv1.Question {
	q := &coordv1.Question{Owner: owner}
	enclose(q, request)
	return q
}

// enclose puts a request into the field of an envelope that has its type.
func enclose(envelope, request proto.Message) {
	m, r := envelope.ProtoReflect(), request.ProtoReflect()
	fields := m.Descriptor().Oneofs().Get(0).Fields()
	for i := range fields.Len() {
		if f := fields.Get(i); f.Message() == r.Descriptor() {
			m.Set(f, protoreflect.ValueOfMessage(r))
		}
	}
}

// Enclosed returns the request in a command or a question, and the response in a result or an answer; nil for none.
func Enclosed(envelope proto.Message) proto.Message {
	m := envelope.ProtoReflect()
	if f := m.WhichOneof(m.Descriptor().Oneofs().Get(0)); f != nil {
		return m.Get(f).Message().Interface()
	}
	return nil
}

// MaxKeepAlive bounds the leases of one keepalive.
const MaxKeepAlive = 4096

// Renewed returns the leases of a keepalive in order, and refuses too many. Errors: Invalid, field "ids".
func Renewed(r *apiv1.LeaseKeepAliveRequest) ([]LeaseID, error) {
	n := 1 + len(r.GetIds())
	if n > MaxKeepAlive {
		return nil, fault.Invalidf("ids", n, "must be at most %d", MaxKeepAlive)
	}
	ids := make([]LeaseID, 1, n)
	ids[0] = LeaseID(r.GetId())
	for _, id := range r.GetIds() {
		ids = append(ids, LeaseID(id))
	}
	return ids, nil
}

// Request returns the request for a page of the keys in a span, 0: of the peer's size.
func (s Span) Request(limit uint32) *apiv1.RangeRequest {
	from, to := s.Bounds()
	return &apiv1.RangeRequest{Key: from, RangeEnd: to, Limit: limit}
}

// Range reads a page of keys.
func Range(ctx context.Context, s Service, r *apiv1.RangeRequest) (*apiv1.RangeResponse, error) {
	q := &struct {
		all coordv1.Question
		one coordv1.Question_Range
	}{one: coordv1.Question_Range{Range: r}}
	q.all.Request = &q.one
	a, err := s.Read(ctx, &q.all)
	return a.GetRange(), err
}

// WaitOf is a time to wait as a request for a lock has it: at least 1 ms, and -1 without a limit.
func WaitOf(wait time.Duration) int64 {
	if wait < 0 {
		return -1
	}
	return max(1, int64((wait+time.Millisecond-1)/time.Millisecond))
}

// PutStep is the step of a transaction that puts a key under a lease; 0: none.
func PutStep(key string, value []byte, lease LeaseID) *apiv1.TxnStep {
	return &apiv1.TxnStep{Step: &apiv1.TxnStep_Put{Put: &apiv1.TxnPut{Key: []byte(key), Value: value, Lease: int64(lease)}}}
}

// DeleteStep is the step of a transaction that deletes the keys of a span.
func (s Span) DeleteStep() *apiv1.TxnStep {
	from, to := s.Bounds()
	return &apiv1.TxnStep{Step: &apiv1.TxnStep_Delete{Delete: &apiv1.TxnDelete{Key: from, RangeEnd: to}}}
}

// ReadStep is the step of a transaction that reads the keys of a span.
func (s Span) ReadStep() *apiv1.TxnStep {
	from, to := s.Bounds()
	return &apiv1.TxnStep{Step: &apiv1.TxnStep_Range{Range: &apiv1.TxnRange{Key: from, RangeEnd: to}}}
}

// WhileHeld holds while the claim with the token, above 0, holds the lock. After a later token has been granted, the
// comparison with an exclusive claim's token fails.
func WhileHeld(lock string, token Token) *apiv1.Compare {
	return &apiv1.Compare{Target: apiv1.Compare_HOLDS, Lock: lock, FencingToken: int64(token)}
}

// WhileAt holds while key was last changed at a revision; 0: while it is absent.
func WhileAt(key string, mod Revision) *apiv1.Compare {
	return &apiv1.Compare{Key: []byte(key), Number: int64(mod)}
}

// Unmet returns a Conflict with the first comparison of a transaction that does not hold, or nil.
func Unmet(r *apiv1.TxnResponse) error {
	if r.GetFailed() == 0 {
		return nil
	}
	return &fault.Error{Op: "coord.Txn", Kind: fault.Conflict, Field: fmt.Sprintf("compare[%d]", r.GetFailed()-1), Err: errors.New(r.GetReason())}
}
