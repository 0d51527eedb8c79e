package instance

import (
	"context"
	"time"
)

// The contract of the agent plane, the same at every peer and over every
// protocol.
//
// All methods return these errors besides their own: Invalid, with the API name
// of the field; Unavailable without a peer that can answer; Timeout and
// Canceled at the end of the context.

// Registrar changes registrations.
type Registrar interface {
	// Register adds an instance or replaces the instance of the same key, which
	// keeps its lease. Errors: Exists for a strict registration of an existing
	// key; Unprocessable, field "metadata.dependencies" with a []string value,
	// for unregistered dependencies at peers that validate them, and field
	// "version" for an invalid semantic version; LimitReached; Unavailable for
	// a required commit without a leader.
	Register(ctx context.Context, r Registration) (Registered, error)
	// Deregister removes an instance at once. Its result has At alone. Errors: NotFound.
	Deregister(ctx context.Context, k Key) (Removal, error)
	// Heartbeat renews up to MaxBeats leases and returns one Beat for each, in
	// order. Errors of a Beat: NotFound; Gone, value the time.Time, after a
	// recent removal.
	Heartbeat(ctx context.Context, refs []Ref) ([]Beat, error)
	// SetStatus overrides the status of an instance by OutOfService, Down or
	// Starting. Up and Unknown end the override. Errors: NotFound.
	SetStatus(ctx context.Context, k Key, s Status) (*Instance, error)
}

// MaxBeats bounds the leases of one Heartbeat.
const MaxBeats = 4096

// Registration is a request to register. The registry generates an empty ID.
type Registration struct {
	Key
	Spec          Spec
	Status        Status // declared by the instance: Starting, or Unknown for none
	Strict        bool   // fail for an existing key
	RequireCommit bool   // fail without a commit of the directory, and keep nothing
	Local         bool   // sent from this host: its checks may use loopback addresses
	Principal     string // of Instance; the agent sets it
	Client        string // of whose share of the peer's instances it is, until the peer restarts; "": of nobody's. The agent sets it
}

// Registered is the result of a registration.
type Registered struct {
	*Instance
	Created  bool          // the key is new
	TTL      time.Duration // time without a heartbeat until the instance is unhealthy
	Interval time.Duration // recommended time between heartbeats: TTL/3
	// Committed reports whether the directory contains the instance, whose
	// Revision is then the directory's.
	Committed bool
	// Warnings say, for people, what is wrong with the instance although it is registered.
	Warnings []string
}

// Removal is the end of an instance. Each peer remembers the last ends for an hour.
type Removal struct {
	*Instance           // before its end
	At        time.Time // UTC
	Cause     string    // for people
	// LastCheck is the end of its last check; nil without one, for callers that are no operators of its peer, and at other
	// peers.
	LastCheck *LastCheck
}

// Ref names an instance by its lease or its key.
type Ref struct {
	Lease string // "" means by Key
	Key   Key
}

// Beat is the result of a heartbeat.
type Beat struct {
	Key     Key
	Lease   string
	Status  Status
	At      time.Time     // time of the heartbeat
	TTL     time.Duration // from At until the instance is unhealthy
	Expires time.Time
	Err     error
}

// Catalog reads instances. All answers come from memory; linearizable reads
// wait until memory is up to date.
type Catalog interface {
	// Discover returns the instances of a service. An unknown service has an
	// empty result.
	Discover(ctx context.Context, q Query) (Result, error)
	// Await returns the result of Discover as soon as its index is above after
	// or the contact changes. At the deadline of the context it returns the
	// present result without an error.
	Await(ctx context.Context, q Query, after uint64) (Result, error)
	// List returns instances of all services of a namespace, by service and id.
	List(ctx context.Context, q ListQuery) (Result, error)
	// Services lists the services of a namespace that have instances, by name.
	Services(ctx context.Context, namespace string) (Services, error)
	// Watch calls send with the changes of a result until ctx ends or send
	// fails. The first batch follows at once: for after 0, or an index too old
	// to continue from, it is a Reset with the complete result. Batches without
	// events mark progress at intervals and report changes of the contact.
	// A query without a service watches all services of its namespace.
	// Errors: Invalid; PoolExhausted for too many watches; the error of send.
	Watch(ctx context.Context, q Query, after uint64, send func(Batch) error) error
	// LastBeat returns the last sign of life of an instance of this peer.
	LastBeat(k Key) (time.Time, bool)
	// Expires returns the first time at which one of the instances becomes
	// unhealthy without a heartbeat; zero if none is registered at this peer.
	Expires(list []*Instance) time.Time
}

// Consistency is the required freshness of an answer.
type Consistency uint8

const (
	// Local answers from this peer's memory; Stale marks an answer that may be
	// old.
	Local Consistency = iota
	// Linearizable answers reflect all earlier answers of any peer.
	Linearizable
)

// Query asks for instances of one service. Canonical makes queries comparable.
type Query struct {
	Name
	Selector
	Consistency Consistency
}

// ListQuery asks for instances of all services of a namespace.
type ListQuery struct {
	Namespace string
	Selector
	Consistency Consistency
}

// Contact describes the freshness of an answer.
type Contact struct {
	Stale    bool          // no contact to the cluster: no instance expires and no change arrives
	Reason   string        // for people; "" if not stale
	Age      time.Duration // time without contact; 0 if not stale
	Revision uint64        // the answer contains all changes up to it
}

// Result is a View with its freshness.
type Result struct {
	*View
	Contact
}

// Services is the service list of a namespace.
type Services struct {
	Index    uint64 // changes only together with the list
	Services []Summary
	Contact
}

// Summary summarises a service.
type Summary struct {
	Name      string   `json:"name"`
	Instances int      `json:"instances"`
	Up        int      `json:"up"`
	Tags      []string `json:"tags,omitempty"` // of all instances, ascending
}

// Bytes returns about how many bytes a rendering of the summary has.
func (s Summary) Bytes() int {
	const numbers, one = 64, 8 // numbers, names and marks of all; marks of a text
	n := numbers + len(s.Name)
	for _, tag := range s.Tags {
		n += one + len(tag)
	}
	return n
}

// EventType is the kind of a change, with the number that it has on the wire.
type EventType uint8

const (
	// Added instances enter the result.
	Added EventType = iota + 1
	// Modified instances stay in the result.
	Modified
	// Removed instances leave the result. The event has the last state, with
	// StatusDown after the end of the instance.
	Removed
)

// Event is a change of a result.
type Event struct {
	Type     EventType
	Instance *Instance
	Revision uint64
}

// Batch contains the changes up to an index. It contains all events of a
// revision.
type Batch struct {
	Reset  bool // Events are the complete result and replace all earlier batches
	Events []Event
	Index  uint64 // continues after this batch, at any peer
	Contact
}
