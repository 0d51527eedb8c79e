package client

import "github.com/blackhole/blackhole/pkg/coord"

// What users of sessions and watches need of package coord, so that they need not import it.
type (
	// LeaseID names a lease.
	LeaseID = coord.LeaseID
	// Token is a fencing token.
	Token = coord.Token
	// Revision counts the changes of the keyspace.
	Revision = coord.Revision
	// Span is a range of keys: see Exactly and Under.
	Span = coord.Span
	// Watch says what to follow: see Client.Follow.
	Watch = coord.Watch
	// Batch is what a watch gives: events of whole revisions.
	Batch = coord.Batch
	// KeyEvent is one change of one key.
	KeyEvent = coord.Event
	// KeyValue is one version of a key.
	KeyValue = coord.KeyValue
	// Compacted is the cause of an error: the past that was asked for is forgotten.
	Compacted = coord.Compacted
	// LeaseState is a lease as it stands.
	LeaseState = coord.LeaseState
	// LeaseQuery asks for leases.
	LeaseQuery = coord.LeaseQuery
	// LockState is a lock as it stands.
	LockState = coord.LockState
	// LockQuery asks for locks.
	LockQuery = coord.LockQuery
	// ClaimState is a place in a lock's queue.
	ClaimState = coord.ClaimState
	// GroupState is how the group stands.
	GroupState = coord.GroupState
	// Member is a peer of the group.
	Member = coord.Member
)

// Exactly is the span of one key.
func Exactly(key string) Span { return coord.Exactly(key) }

// Under is the span of all keys that begin with prefix.
func Under(prefix string) Span { return coord.Under(prefix) }

// How a claim shares its lock.
const (
	ModeExclusive = coord.Exclusive
	ModeShared    = coord.Shared
	ModePermit    = coord.Permit
)
