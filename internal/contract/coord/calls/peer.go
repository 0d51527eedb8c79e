package calls

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// Peer is the contract of the coordination plane as served by a peer: each call is one request without repetition.
//
// It opens the stream of calls with the first one. A failure of the stream fails its calls, and the next call opens a new one.
//
// It implements coord.Service and coord.Admin. It is safe for concurrent use.
type Peer struct {
	service coordv1.CallServiceClient
	watches apiv1.LockServiceClient
	admin   apiv1.CoordinationServiceClient
	methods Methods
	speaks  bool
	begin   BeginSpan

	// Commands that wait for locks have places of their own: the holders of these locks need the others.
	short, long chan struct{}

	mu      sync.Mutex
	current *stream // nil: the next call opens one
	closed  bool
	streams sync.WaitGroup
}

// PeerConfig configures a Peer.
type PeerConfig struct {
	Conn    grpc.ClientConnInterface // stays the caller's
	Patient grpc.ClientConnInterface // a separate connection for watches and backups, the caller's too

	// Speaks sends the owners of commands and questions. Peers of a group do so, which pass on the calls of their
	// applications. A peer refuses it from an application, and determines the owner of its calls itself.
	Speaks bool
	Begin  BeginSpan // of calls that share a stream; nil makes no spans
}

// NewPeer returns the contract at the other end of the connections.
func NewPeer(c PeerConfig) *Peer {
	return &Peer{
		service: coordv1.NewCallServiceClient(c.Conn), watches: apiv1.NewLockServiceClient(c.Patient),
		admin: apiv1.NewCoordinationServiceClient(c.Patient), speaks: c.Speaks, begin: c.Begin, methods: NewMethods(),
		short: make(chan struct{}, maxUnanswered), long: make(chan struct{}, maxUnanswered),
	}
}

// Close refuses new calls and ends the stream of calls. Wait waits for its goroutines, after the end of the connections.
func (p *Peer) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if s := p.current; s != nil {
		s.cancel()
	}
}

// Wait waits for the goroutines of the stream of calls. Call it after Close and the end of the connections.
func (p *Peer) Wait() { p.streams.Wait() }

// Execute implements coord.Service for all commands except the commands of members. Lifetimes of leases start at the
// sending of the request.
//
// Errors: Unsupported for commands of members.
func (p *Peer) Execute(ctx context.Context, cmd *coordv1.Command) (*coordv1.Result, error) {
	const op = "calls.Execute"
	method, request := p.methods.Of(cmd)
	if method == "" {
		return nil, fault.Wrap(op, fault.Refused(fault.Unsupported, "op", "no peer takes this command from a client"))
	}
	if err := checkText(request); err != nil {
		return nil, fault.Wrap(op, err)
	}
	if r := cmd.GetKeepAlive(); r != nil {
		if _, err := coord.Renewed(r); err != nil {
			return nil, fault.Wrap(op, err)
		}
	}
	if !p.speaks {
		cmd.Owner = ""
	}
	room := p.short
	if cmd.GetLock() != nil {
		room = p.long
	}
	reply, err := p.call(ctx, room, method, &coordv1.Call{Body: &coordv1.Call_Command{Command: cmd}})
	r := reply.GetResult()
	if err == nil && r == nil {
		err = errNoReply
	}
	if err == nil && len(r.GetKeepAlive().GetTtlsMs()) != len(cmd.GetKeepAlive().GetIds()) {
		err = fault.New("", fault.Internal, "the peer answered for other leases")
	}
	return r, Fault(op, err)
}

// Read implements coord.Service.
func (p *Peer) Read(ctx context.Context, q *coordv1.Question) (*coordv1.Answer, error) {
	const op = "calls.Read"
	method, request := p.methods.Of(q)
	if request != nil {
		if err := checkText(request); err != nil {
			return nil, fault.Wrap(op, err)
		}
	}
	if !p.speaks {
		q.Owner = ""
	}
	reply, err := p.call(ctx, p.short, method, &coordv1.Call{Body: &coordv1.Call_Question{Question: q}})
	if err == nil && reply.GetAnswer() == nil {
		err = errNoReply
	}
	return reply.GetAnswer(), Fault(op, err)
}

// checkText refuses a request with a text that a message cannot carry.
func checkText(req proto.Message) (err error) {
	text := func(field, s string) error {
		if utf8.ValidString(s) {
			return nil
		}
		return fault.Invalidf(field, nil, "must be UTF-8")
	}
	req.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.Kind() != protoreflect.StringKind:
		case f.IsList():
			for i := range v.List().Len() {
				err = cmp.Or(err, text(string(f.Name()), v.List().Get(i).String()))
			}
		default:
			err = text(string(f.Name()), v.String())
		}
		return err == nil
	})
	if txn, ok := req.(*apiv1.TxnRequest); ok {
		for i, c := range txn.GetCompare() {
			err = cmp.Or(err, text(fmt.Sprintf("compare[%d].lock", i), c.GetLock()))
		}
	}
	return err
}

// Watch implements coord.Service.
func (p *Peer) Watch(ctx context.Context, w *apiv1.WatchKeysRequest, send func(*apiv1.WatchKeysResponse) error) error {
	const op = "calls.Watch"
	if err := checkText(w); err != nil {
		return fault.Wrap(op, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the stream after a failed send
	stream, err := p.watches.Watch(ctx)
	if err != nil {
		return Fault(op, err)
	}
	if err := stream.Send(w); err != nil && !errors.Is(err, io.EOF) { // EOF: Recv returns the cause
		return Fault(op, err)
	}
	if err := stream.CloseSend(); err != nil { // no further requests
		return Fault(op, err)
	}
	for whole := (*apiv1.WatchKeysResponse)(nil); ; {
		resp, err := stream.Recv()
		if err != nil {
			return Fault(op, err)
		}
		if err := ended(op, resp); err != nil {
			return err
		}
		if whole != nil {
			resp.Events = append(whole.GetEvents(), resp.GetEvents()...)
		}
		if whole = resp; resp.GetFragment() {
			continue
		}
		whole = nil
		if err := send(resp); err != nil {
			return err
		}
	}
}

// ended returns the cause if an answer is the last of a watch: an event of an unknown kind ends it too, because
// nothing else may be lost without a word.
func ended(op string, resp *apiv1.WatchKeysResponse) error {
	kind := fault.Kind(resp.GetError().GetKind())
	switch {
	case resp.GetCompactRevision() > 0:
		return fault.As(op, fault.NotFound, CompactedOf(resp))
	case resp.GetCanceled() && resp.GetError() != nil && kind != fault.LimitReached && kind != fault.PoolExhausted:
		return Restored(op, resp.GetError(), nil)
	case resp.GetCanceled(): // also a full peer, which has room later
		return fault.New(op, fault.Unavailable, "the peer ended the watch: %s", resp.GetReason())
	}
	for _, e := range resp.GetEvents() {
		if _, known := apiv1.KeyEvent_Type_name[int32(e.GetType())]; !known {
			return fault.New(op, fault.Unsupported, "the peer sent an event of a kind that this version does not know: %d", e.GetType())
		}
	}
	return nil
}

// Group implements coord.Admin.
func (p *Peer) Group(ctx context.Context) (coord.GroupState, error) {
	resp, err := p.admin.Group(ctx, &apiv1.GroupRequest{})
	if err != nil {
		return coord.GroupState{}, Fault("calls.Group", err)
	}
	return coord.GroupState{
		ID: resp.GetGroupId(), Phase: resp.GetPhase(), Missing: resp.GetMissing(), Term: resp.GetTerm(), Leader: resp.GetLeader(),
		Voters: convert(resp.GetVoters(), toMember), Learners: convert(resp.GetLearners(), toMember),
		Revision: coord.Revision(resp.GetRevision()), Incarnation: resp.GetIncarnation(),
		Leases: int(resp.GetLeases()), Locks: int(resp.GetLocks()), Keys: int(resp.GetKeys()),
		Survives: int(resp.GetFailuresSurvived()), Tolerance: resp.GetTolerance(), Removed: resp.GetRemoved(),
		Level: resp.GetFeatureLevel(), HeldBackBy: convert(resp.GetHeldBackBy(), func(h *apiv1.HeldBack) coord.HeldBack {
			return coord.HeldBack{Peer: h.GetPeerId(), Levels: coord.Levels{Min: h.GetMinLevel(), Max: h.GetMaxLevel()}}
		}),
	}, nil
}

// ChangeMembers implements coord.Admin.
func (p *Peer) ChangeMembers(ctx context.Context, c coord.MemberChange) (coord.MemberOutcome, error) {
	resp, err := p.admin.ChangeMembers(ctx, &apiv1.ChangeMembersRequest{
		Action: string(c.Action), PeerId: c.Peer, With: c.With, DryRun: c.DryRun, Force: c.Force, By: c.By,
	})
	if err != nil {
		return coord.MemberOutcome{}, Fault("calls.ChangeMembers", err)
	}
	return coord.MemberOutcome{
		Done: resp.GetDone(), Steps: resp.GetSteps(), Before: resp.GetBefore(), After: resp.GetAfter(), Standing: coord.Standing(resp.GetStanding()),
	}, nil
}

// Backup implements coord.Admin.
func (p *Peer) Backup(ctx context.Context, w io.Writer) error {
	const op = "calls.Backup"
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the stream after a failed write
	stream, err := p.admin.Backup(ctx, &apiv1.BackupRequest{})
	if err != nil {
		return Fault(op, err)
	}
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return Fault(op, err)
		}
		if _, err := w.Write(part.GetData()); err != nil {
			return fault.As(op, fault.Canceled, err)
		}
	}
}

// convert gives a list in another form; an empty one is nil.
func convert[From, To any](list []From, one func(From) To) []To {
	if len(list) == 0 {
		return nil
	}
	out := make([]To, len(list))
	for i, v := range list {
		out[i] = one(v)
	}
	return out
}

func toMember(m *apiv1.GroupMember) coord.Member {
	return coord.Member{
		Peer: m.GetPeerId(), ID: m.GetMemberId(), Applied: m.GetApplied(), Active: m.GetActive(),
		Name: m.GetName(), Address: m.GetAddress(), Lag: m.GetLag(), Silent: int64(m.GetSilentMs()), Etcd: m.GetEtcdUrl(),
	}
}
