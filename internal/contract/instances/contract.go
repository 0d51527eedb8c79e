// Package instances is the contract of the agent plane, the same at every peer and over every protocol:
// registering, finding and watching instances, their JSON view, and the questions of requirements. Package instance
// has the nouns.
//
// All methods return these errors besides their own: Invalid, with the API name of the field; Unavailable without a
// peer that can answer; Timeout and Canceled at the end of the context.
package instances

import (
	"context"
	"time"

	"github.com/blackhole/blackhole/pkg/instance"
)

// Registrar changes registrations.
type Registrar interface {
	// Register adds an instance or replaces the instance of the same key, which
	// keeps its lease. Errors: Exists for a strict registration of an existing
	// key; Unprocessable, field "metadata.dependencies" with a []string value,
	// for unregistered dependencies at peers that validate them, and field
	// "version" for an invalid semantic version; LimitReached; Unavailable for
	// a required commit without a leader.
	Register(ctx context.Context, r instance.Registration) (Registered, error)
	// Deregister removes an instance at once. Its result has At alone. Errors: NotFound.
	Deregister(ctx context.Context, k instance.Key) (Removal, error)
	// Heartbeat renews up to MaxBeats leases and returns one Beat for each, in
	// order. Errors of a Beat: NotFound; Gone, value the time.Time, after a
	// recent removal.
	Heartbeat(ctx context.Context, refs []Ref) ([]Beat, error)
	// SetStatus overrides the status of an instance by OutOfService, Down or
	// Starting. Up and Unknown end the override. Errors: NotFound.
	SetStatus(ctx context.Context, k instance.Key, s instance.Status) (*instance.Instance, error)
}

// MaxBeats bounds the leases of one Heartbeat.
const MaxBeats = 4096

// Registered is the result of a registration.
type Registered struct {
	*instance.Instance
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
	*instance.Instance           // before its end
	At                 time.Time // UTC
	Cause              string    // for people
	// LastCheck is the end of its last check; nil without one, for callers that are no operators of its peer, and
	// at other peers.
	LastCheck *LastCheck
}

// Ref names an instance by its lease or its key.
type Ref struct {
	Lease string // "" means by Key
	Key   instance.Key
}

// Beat is the result of a heartbeat.
type Beat struct {
	Key     instance.Key
	Lease   string
	Status  instance.Status
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
	Discover(ctx context.Context, q instance.Query) (instance.Result, error)
	// Await returns the result of Discover as soon as its index is above after
	// or the contact changes. At the deadline of the context it returns the
	// present result without an error.
	Await(ctx context.Context, q instance.Query, after uint64) (instance.Result, error)
	// List returns instances of all services of a namespace, by service and id.
	List(ctx context.Context, q ListQuery) (instance.Result, error)
	// Services lists the services of a namespace that have instances, by name.
	Services(ctx context.Context, namespace string) (instance.Services, error)
	// Watch calls send with the changes of a result until ctx ends or send
	// fails. The first batch follows at once: for after 0, or an index too old
	// to continue from, it is a Reset with the complete result. Batches without
	// events mark progress at intervals and report changes of the contact.
	// A query without a service watches all services of its namespace.
	// Errors: Invalid; PoolExhausted for too many watches; the error of send.
	Watch(ctx context.Context, q instance.Query, after uint64, send func(instance.Batch) error) error
	// LastBeat returns the last sign of life of an instance of this peer.
	LastBeat(k instance.Key) (time.Time, bool)
	// Expires returns the first time at which one of the instances becomes
	// unhealthy without a heartbeat; zero if none is registered at this peer.
	Expires(list []*instance.Instance) time.Time
}

// ListQuery asks for instances of all services of a namespace.
type ListQuery struct {
	Namespace string
	instance.Selector
	Consistency instance.Consistency
}

// Change is a change of an instance, on its way from the registry of its peer to
// the directory of the group and to the catalogs.
type Change struct {
	instance.Key
	Instance *instance.Instance // nil after its end
	Last     *instance.Instance // of the registry: the instance before its end; nil otherwise
	Revision uint64             // of the registry, the same as the Instance's; 0 from elsewhere
	Reason   Reason             // of the registry; "" from elsewhere
}

// Reason is the cause of a change.
type Reason string

// The reasons. After ReasonRegistered alone a peer takes the instance over from
// another peer.
const (
	ReasonRegistered   Reason = "registered"
	ReasonDeregistered Reason = "deregistered"
	ReasonHeartbeat    Reason = "heartbeat" // a heartbeat after silence, or the end of starting
	ReasonChecked      Reason = "checked"   // new state of its check
	ReasonOverridden   Reason = "overridden"
	ReasonSilent       Reason = "silent" // silent for UnhealthyAfter
	ReasonLost         Reason = "lost"   // silent for RemoveAfter
)
