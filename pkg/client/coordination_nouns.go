package client

import "github.com/blackhole/blackhole/pkg/coord"

// Types of package coord for users of sessions and watches, so that these need not import it.
type (
	// LeaseID names a lease.
	LeaseID = coord.LeaseID
	// Token is a fencing token.
	Token = coord.Token
	// Revision counts the changes of the key space.
	Revision = coord.Revision
	// Span is a range of keys: see Exactly and Under.
	Span = coord.Span
	// Watch selects keys: see Client.Follow.
	Watch = coord.Watch
	// Batch holds the events of complete revisions.
	Batch = coord.Batch
	// KeyEvent is one change of one key.
	KeyEvent = coord.Event
	// KeyValue is one version of a key.
	KeyValue = coord.KeyValue
	// Compacted is the cause of an error: the group has compacted the requested revision.
	Compacted = coord.Compacted
	// LeaseState is the state of a lease.
	LeaseState = coord.LeaseState
	// LeaseQuery selects leases.
	LeaseQuery = coord.LeaseQuery
	// LockState is the state of a lock.
	LockState = coord.LockState
	// LockQuery selects locks.
	LockQuery = coord.LockQuery
	// ClaimState is a claim in a lock's queue.
	ClaimState = coord.ClaimState
	// GroupState is the state of the group.
	GroupState = coord.GroupState
	// Member is a peer of the group.
	Member = coord.Member
)

// HiddenLease stands for the id of a lease that the peer does not tell this client.
const HiddenLease = coord.HiddenLease

// Exactly is the span of one key.
func Exactly(key string) Span { return coord.Exactly(key) }

// Under is the span of all keys that begin with prefix.
func Under(prefix string) Span { return coord.Under(prefix) }

// Modes of a claim.
const (
	ModeExclusive = coord.Exclusive
	ModeShared    = coord.Shared
	ModePermit    = coord.Permit
)
