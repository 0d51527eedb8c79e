package machine

import (
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/coord/directory"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// Result is the outcome of one command. It belongs to the caller of Apply: the machine keeps a copy for a repetition.
type Result struct {
	// Revision of the keyspace after the command.
	Revision coord.Revision
	// Err explains why the command changed nothing; nil after success. It is a *fault.Error with a
	// kind, mostly a field, and no value: the parts that members keep and compare.
	Err error
	// Answer is the response to the request, with the revision in its header; nil with Err. See Sign.
	Answer *coordv1.Result

	header *apiv1.Header // of Answer
}

// Sign completes the header of the answer with the member that answers.
func (r *Result) Sign(by coord.Header) {
	if r.header != nil {
		r.header.ClusterId, r.header.MemberId, r.header.RaftTerm = by.Group, by.Member, by.Term
	}
}

// refusal returns the error of a Result.
func refusal(kind fault.Kind, field, message string) error {
	return &fault.Error{Op: "coord.Apply", Kind: kind, Field: field, Err: text(message)}
}

// text is an error with only a message.
type text string

func (t text) Error() string { return string(t) }

// encodeAnswer returns an answer as a client keeps it. It is part of the state: a message of an answer gets a new field only with
// a new feature level.
func encodeAnswer(a *coordv1.Result) []byte {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(a)
	if err != nil {
		panic("machine: " + err.Error()) // impossible: what a decoded command names is text
	}
	return b
}

// decodeAnswer reads what encodeAnswer wrote, and returns the header in it.
func decodeAnswer(b []byte) (*coordv1.Result, *apiv1.Header, error) {
	a := new(coordv1.Result)
	if err := proto.Unmarshal(b, a); err != nil {
		return nil, nil, fault.As("", fault.Invalid, err)
	}
	response := coord.Enclosed(a)
	if response == nil {
		return nil, nil, fault.Refused(fault.Invalid, "result", "is no answer")
	}
	r, _ := response.(interface{ GetHeader() *apiv1.Header })
	return a, r.GetHeader(), nil
}

// Renewal is the result of renewing one lease.
type Renewal struct {
	ID coord.LeaseID
	// TTL is the remaining time to live from now on, in milliseconds; 0 means an unknown lease, or
	// another owner's.
	TTL int64
	// Published is the owner's publication, under the lease that the owner publishes with; otherwise
	// nil. It includes all batches answered before the keepalive was sent.
	Published *directory.Publication
}

// Message returns a version of a key as answers between peers have it; nil for none. Both share the value.
func Message(kv *coord.KeyValue) *apiv1.KeyVal {
	if kv == nil {
		return nil
	}
	out := new(apiv1.KeyVal)
	describe(kv, out)
	return out
}

// Messages are those of versions, in one piece of memory.
func Messages(all []*coord.KeyValue) []*apiv1.KeyVal {
	made, out := make([]apiv1.KeyVal, len(all)), make([]*apiv1.KeyVal, len(all))
	for i, kv := range all {
		out[i] = &made[i]
		describe(kv, out[i])
	}
	return out
}

func describe(kv *coord.KeyValue, out *apiv1.KeyVal) {
	out.Key, out.Value, out.Lease = []byte(kv.Key), kv.Value, int64(kv.Lease)
	out.CreateRevision, out.ModRevision, out.Version = int64(kv.CreateRevision), int64(kv.ModRevision), kv.Version
	if owner := kv.LeaseOwner(); owner != "" {
		out.LeaseOwner = proto.String(owner)
	}
}

// ApplyEffects are the changes of a command, for watchers and waiters. Its slices stay valid until
// the next Apply; their elements stay.
type ApplyEffects struct {
	// Events of the command, all at one revision, by key, at most one per key.
	Events []coord.Event
	// Grants are new holders; holders of one lock are sorted by token.
	Grants []Grant
	// Granted and Ended are the leases that begin and end.
	Granted []coord.Lease
	Ended   []coord.LeaseID
}

// Grant is a claim that now holds its lock.
type Grant struct {
	Lock  string
	Lease coord.LeaseID
	Token coord.Token
}
