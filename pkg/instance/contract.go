package instance

import (
	"context"
	"time"
)

// The contract of the agent plane, the same on every peer and over every wire.
//
// Errors beside those of the operations: Invalid, field by its API name; Unavailable when nothing
// can answer; Timeout and Canceled when the context ends first.

// Registrar changes what is registered.
type Registrar interface {
	// Register adds an instance, or replaces the one of the same key, which keeps its lease.
	// Errors: Exists when it is strict and there is one; Unprocessable, field
	// "metadata.dependencies" with a []string value, for dependencies that are not registered, where
	// that is looked at, and field "version" for one that is no semantic version; LimitReached;
	// Unavailable when it requires a commit that cannot be had.
	Register(ctx context.Context, r Registration) (Registered, error)
	// Deregister removes an instance at once. Errors: NotFound.
	Deregister(ctx context.Context, k Key) (Deregistered, error)
	// Heartbeat renews leases, at most MaxBeats at a time, and answers each in order. Errors of each:
	// NotFound; Gone, value the time.Time, for one that was deregistered or removed lately.
	Heartbeat(ctx context.Context, refs []Ref) ([]Beat, error)
	// SetStatus overrides the status of an instance by OutOfService, Down or Starting; Up and
	// Unknown end the override. Errors: NotFound.
	SetStatus(ctx context.Context, k Key, s Status) (*Instance, error)
}

// MaxBeats bounds the leases of one Heartbeat.
const MaxBeats = 4096

// Registration is a request to register. An empty ID is made up by the registry.
type Registration struct {
	Key
	Spec
	Status        Status // by its own word: Starting, or Unknown for none
	Strict        bool   // fail when it exists
	RequireCommit bool   // fail, and keep nothing, when the directory cannot take it now
	Local         bool   // it came from this host: its checks may go to loopback addresses
}

// Registered is the outcome of a registration.
type Registered struct {
	*Instance
	Created  bool          // it was not there before
	TTL      time.Duration // without a heartbeat until it is unhealthy
	Interval time.Duration // at which heartbeats are expected: TTL/3
	// Committed is whether the whole cluster knows; Revision of the instance is then the directory's.
	Committed bool
}

// Deregistered is the outcome of a deregistration.
type Deregistered struct {
	At time.Time
}

// Ref names an instance by its lease or its key.
type Ref struct {
	Lease string // "": by Key
	Key   Key
}

// Beat is the outcome of a heartbeat.
type Beat struct {
	Key     Key
	Lease   string
	Status  Status
	At      time.Time     // of the heartbeat
	TTL     time.Duration // from At until it is unhealthy
	Expires time.Time
	Err     error
}

// Catalog reads. Every answer comes from memory; linearizable ones first make sure of being new.
type Catalog interface {
	// Discover gives the instances of a service. A service that nobody knows has an empty result.
	Discover(ctx context.Context, q Query) (Result, error)
	// Await is Discover once the result's index is above after, or its state of contact changes.
	// When the context's deadline passes first it gives the result as it is, without an error.
	Await(ctx context.Context, q Query, after uint64) (Result, error)
	// List gives instances of all services of a namespace, by service and id.
	List(ctx context.Context, q ListQuery) (Result, error)
	// Services names those of a namespace that have instances, by name.
	Services(ctx context.Context, namespace string) (Services, error)
	// Watch gives send the changes of a result, until the context ends or send fails. The first
	// batch comes at once: with after 0, or one that is too old to go on from, it is a Reset with all
	// that there is. Batches without events come from time to time as marks of progress, and when contact
	// is lost or found. Errors: Invalid; LimitReached for too many watches; the error of send.
	Watch(ctx context.Context, q Query, after uint64, send func(Batch) error) error
	// LastBeat is when an instance was last heard of, if this peer answers for it.
	LastBeat(k Key) (time.Time, bool)
	// Expires is the first moment at which one of them becomes unhealthy unless it is heard of; the
	// zero time when this peer answers for none of them.
	Expires(list []*Instance) time.Time
}

// Consistency is how fresh an answer must be.
type Consistency uint8

const (
	// Local answers are what this peer knows; Stale tells when that may be old.
	Local Consistency = iota
	// Linearizable answers have all that was answered before the question anywhere.
	Linearizable
)

// Query asks for instances of one service. It is comparable by Canonical.
type Query struct {
	Name
	Selector
	Consistency Consistency
}

// ListQuery asks for instances of all services of a namespace; those of Selector.
type ListQuery struct {
	Namespace string
	Selector
	Consistency Consistency
}

// Contact is how far an answer can be trusted to be new.
type Contact struct {
	Stale    bool          // contact with the cluster is lost: nothing expires, nothing new is learnt
	Reason   string        // why, for people; "" when not stale
	Age      time.Duration // since contact was lost; 0 when not stale
	Revision uint64        // up to which everything is known
}

// Result is a View with how new it is.
type Result struct {
	*View
	Contact
}

// Services are the services of a namespace.
type Services struct {
	Index    uint64 // changes only when the list does
	Services []Summary
	Contact
}

// Summary is a service at a glance.
type Summary struct {
	Name      string
	Instances int
	Up        int
	Tags      []string // of any instance, ascending
}

// EventType says what became of an instance.
type EventType uint8

const (
	// Added is now in the result.
	Added EventType = iota + 1
	// Modified is still in it, and differs.
	Modified
	// Removed is no longer in it; Instance is its last state, with StatusDown when it is gone altogether.
	Removed
)

// Event is a change of a result.
type Event struct {
	Type     EventType
	Instance *Instance
	Revision uint64
}

// Batch is what happened up to an index. All events of a revision are in one batch.
type Batch struct {
	Reset  bool // what was sent before is void; Events are all there is
	Events []Event
	Index  uint64 // pass it to go on after this batch, at this or any other peer
	Contact
}
