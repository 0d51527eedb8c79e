package coord

import (
	"context"
	"time"
)

// The contract of the coordination plane, the same on every peer and over every wire: a peer
// that is no member of the group, or does not lead it, passes on what it is asked.
//
// Errors beside those of the operations: Unavailable while the group has no leader that can
// be reached, or the peer takes no part; Timeout and Canceled when the context ends first;
// Forbidden for an owner that may not be a client; LimitReached above the bounds of the peer.

// Header says who answered, and in which state of the group.
type Header struct {
	Group    uint64 // the first eight bytes of the group's id
	Member   uint64 // that answered
	Revision Revision
	Term     uint64 // of Raft
}

// Writer changes the state.
type Writer interface {
	// Do executes a command. The error is that of the result, if it has one. When a command
	// without Client ends with Timeout, Canceled or Unavailable it may have been applied; one with
	// Client can be repeated until its result is known.
	Do(ctx context.Context, cmd Command) (Result, Header, error)

	// Acquire executes a command whose Op is *Lock with Wait and returns when the claim holds. When
	// it does not within the time to wait, or the context ends first, the claim is
	// given back: without an error, and not Granted, in the first case. A wait of 0 or less lasts
	// as long as the context. Errors: Invalid, field "op", for any other command; NotFound when the
	// claim goes while it waits, field "lease" if with its lease, otherwise "token".
	Acquire(ctx context.Context, cmd Command, wait time.Duration) (Result, Header, error)

	// KeepAlive renews the leases of an owner, at most MaxKeepAlive of them, and answers each, in
	// order. The times count from before the call. Errors: Invalid, field "ids", for more than those.
	KeepAlive(ctx context.Context, owner string, ids []LeaseID) ([]Renewal, Header, error)
}

// MaxKeepAlive bounds the leases renewed by one call of KeepAlive.
const MaxKeepAlive = 4096

// Renewal is what became of the renewal of one lease.
type Renewal struct {
	ID LeaseID
	// TTL is the time that the lease lives from now on, milliseconds; 0: there is no such lease,
	// or it is another owner's.
	TTL int64
	// Published is what the owner has in the directory, if this is the lease under which it
	// publishes; otherwise nil. It has all batches answered before the keepalive was sent.
	Published *Publication
}

// Reader tells of the state. Every answer but a Local one is linearizable: it has all that was
// answered before the question.
type Reader interface {
	// Leases gives one lease with its keys, or those of all ids after an id, in order, without keys.
	// Errors: NotFound.
	Leases(ctx context.Context, q LeaseQuery) ([]LeaseState, Header, error)

	// Locks gives one lock, or those under a prefix. Errors: NotFound.
	Locks(ctx context.Context, q LockQuery) ([]LockState, Header, error)

	// Range reads keys. Errors: as Keyspace.Range.
	Range(ctx context.Context, q Query, c Consistency) (Page, Header, error)

	// Watch gives send each batch of events in turn, and from time to time an empty one as a mark
	// of progress, until the context ends or send fails. From 0 is the revision after the
	// present. The first batch is empty and comes at once: its Next is where the
	// watch begins. Errors: Invalid; NotFound, wrapping *Compacted; the error of send.
	Watch(ctx context.Context, w Watch, send func(Batch, Header) error) error
}

// Consistency is how fresh an answer must be.
type Consistency uint8

const (
	// Linearizable answers have all that was answered before the question.
	Linearizable Consistency = iota
	// Local answers are those of the nearest member as it is, and may be old.
	Local
)

// LeaseQuery asks for leases: one by its ID, or with ID 0 at most Limit (0 is 1000) after After.
type LeaseQuery struct {
	ID    LeaseID
	After LeaseID
	Limit int
}

// LeaseState is a lease as it stands.
type LeaseState struct {
	Lease
	Remaining int64    // time left on the leader's clock, milliseconds; 0 when it is about to end
	Keys      []string // bound to it, ascending; of a query by ID only
}

// LockQuery asks for locks: one by its Name, or with Name "" at most Limit (0 is 1000) whose names begin
// with Prefix and come after After.
type LockQuery struct {
	Name   string
	Prefix string
	After  string
	Limit  int
}

// LockState is a lock as it stands.
type LockState struct {
	Name    string
	Holding []ClaimState // by token
	Waiting []ClaimState // the next one first
}

// ClaimState is a claim as it stands.
type ClaimState struct {
	Claim
	Key         string
	Lease       LeaseID
	Token       Token // create revision of its key
	ModRevision Revision
	Version     int64
	Age         time.Duration // since the claim was made, as the member that answers saw it; 0: not known
}

// Admin tells of the group itself.
type Admin interface {
	// Group tells how the group stands, as far as this peer knows. It does not fail for want of a
	// group: the state says what is missing.
	Group(ctx context.Context) (GroupState, error)

	// Transfer hands the leadership to a voter. Errors: NotFound, field "peer_id", when the peer is
	// none; Unavailable when it did not happen.
	Transfer(ctx context.Context, peer string) error
}

// GroupState is how the group stands.
type GroupState struct {
	ID          string   `json:"group_id"`          // hex; empty while there is none
	Phase       string   `json:"phase"`             // off, founding, joining, member, client, outlived
	Missing     string   `json:"missing,omitempty"` // what is, when the group cannot serve
	Term        uint64   `json:"term"`
	Leader      string   `json:"leader"` // peer id; empty when none is known
	Voters      []Member `json:"voters"`
	Learners    []Member `json:"learners"`
	Revision    Revision `json:"revision"`
	Incarnation uint64   `json:"incarnation"`
	Leases      int      `json:"leases"`
	Locks       int      `json:"locks"`
	Keys        int      `json:"keys"`
}

// Member is a peer of the group.
type Member struct {
	Peer    string `json:"peer_id"`
	ID      uint64 `json:"member_id,string"`
	Applied uint64 `json:"applied,omitempty"` // index, as the leader knows it; 0: not known
	Active  bool   `json:"active"`            // heard of by the leader within an election timeout
}
