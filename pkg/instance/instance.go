// Package instance defines the instance, one running copy of an application's
// service, its selector, its JSON view and the contract for registering,
// finding and watching instances.
//
// The fields are the union of the low-level design "Service Discovery" and of
// SAP-044 Registry. The package keeps no state and reads no clock.
package instance

import (
	"cmp"
	"encoding/json"
	"strings"
	"time"
)

// DefaultNamespace is the namespace of a request without one.
const DefaultNamespace = "default"

// Key identifies an instance in the cluster.
type Key struct {
	Namespace string // [a-z0-9-]{1,63}
	Service   string // [A-Za-z0-9._:-]{1,64}, compared as written; not "." and "..", which URLs use
	ID        string // the same in 1 to 128 bytes; not "instances" and "watch" either
}

// Name identifies a service.
type Name struct {
	Namespace string
	Service   string
}

// Name returns the service of the instance.
func (k Key) Name() Name { return Name{k.Namespace, k.Service} }

// Compare orders keys by namespace, service and id.
func (k Key) Compare(o Key) int {
	return cmp.Or(strings.Compare(k.Namespace, o.Namespace), strings.Compare(k.Service, o.Service), strings.Compare(k.ID, o.ID))
}

// String returns namespace/service/id.
func (k Key) String() string { return k.Namespace + "/" + k.Service + "/" + k.ID }

// Spec is the application's description of an instance.
type Spec struct {
	Host         string            // IP address or host name; "" with interfaces alone
	Port         int               // 1 to 65535; 0 for none, and without a host
	Version      string            // semantic version 2.0.0, or ""
	Interfaces   map[string]string // name (REST, gRPC, CLI, MCP, ...) to address, at most MaxInterfaces
	Metadata     map[string]string // at most MaxMetadata
	Tags         []string          // ascending, unique, at most MaxTags
	Dependencies []string          // services of the same namespace, ascending, unique, at most MaxDependencies
	Environment  string            // development, staging, production or ""
	Region       string            // at most 64 bytes, like Owner and Zone
	Owner        string
	Description  string // at most 500 bytes
	Zone         string // a DNS label, because DNS names contain it
	Weight       int    // share of requests, 1 to 100; 0 means DefaultWeight

	Check          *Check        // nil: heartbeats alone
	UnhealthyAfter time.Duration // time without a sign of life, MinTTL to MaxTTL; 0 means DefaultUnhealthyAfter
	RemoveAfter    time.Duration // time without a sign of life, at least UnhealthyAfter; Never; 0: see Normalize
	// Lasting instances have a check, and only heartbeats that stop remove them: while no heartbeat ever came, a failing
	// check leaves them registered. Normalize sets it for a check without a RemoveAfter.
	Lasting bool

	// Offer is the JSON of a record's offer, announced in the discovery plane
	// while the instance is UP; nil: none. This package does not parse it.
	Offer json.RawMessage

	// Note is what a front end for other clients keeps of the instance, at most MaxNote bytes of UTF-8. That front end
	// alone sets it: no view and no request of an application has it. Another member of the group may have written it,
	// so its reader trusts nothing in it.
	Note string

	// later are the fields of the encoded instance that only a later version knows. They stay when a peer of this
	// version adopts the instance; a new registration has none.
	later []byte
}

// Bounds and defaults of a Spec.
const (
	MaxInterfaces   = 16
	MaxMetadata     = 64
	MaxTags         = 64
	MaxDependencies = 64
	MaxNote         = 4 << 10
	MaxSize         = 16 << 10 // bytes of an encoded instance

	DefaultWeight         = 1
	DefaultUnhealthyAfter = 30 * time.Second
	defaultRemoveAfter    = 60 * time.Second
	MinTTL                = time.Second
	MaxTTL                = 24 * time.Hour

	// Never as RemoveAfter keeps an instance until it is deregistered. Any negative duration means it on the wire.
	Never time.Duration = -1
)

// Instance is a registered instance. It is immutable: each change makes a new
// one.
type Instance struct {
	Key
	Spec Spec

	Status       Status    // effective status: the override, or the result of heartbeats and checks
	Override     Status    // set by hand; StatusUnknown: none
	RegisteredAt time.Time // first registration since the last removal of the key; UTC
	Lease        string    // lease of its heartbeats
	Peer         string    // id of the peer that answers for it
	Principal    string    // "@" and the name of the authenticated caller that registered it; "" without a name
	Revision     uint64    // of its last change, counted by the answering peer
}

// CheckType is a kind of health check.
type CheckType string

// The check types, named by the low-level design "Service Discovery".
const (
	HTTP   CheckType = "HTTP"   // GET returns 2xx
	TCP    CheckType = "TCP"    // a connection opens
	GRPC   CheckType = "gRPC"   // the gRPC health checking protocol answers SERVING
	Script CheckType = "script" // a command from the peer's configuration exits with 0
)

// Check configures a health check.
type Check struct {
	Type CheckType

	// Endpoint is a path or a URL for HTTP, a port or host:port for TCP and
	// gRPC, optionally with /service for gRPC, and the name of the command for
	// a script. "" means the instance's own host and port, with path "/" for
	// HTTP.
	Endpoint           string
	Interval           time.Duration // between two checks, 1 s to 1 h; 0 means 10 s
	Timeout            time.Duration // of one check, 10 ms to Interval; 0 means 5 s or Interval
	HealthyThreshold   int           // consecutive passes until UP, 1 to 100; 0 means 1
	UnhealthyThreshold int           // consecutive failures until DOWN, 1 to 100; 0 means 3
}

// Status is the health of an instance.
type Status uint8

const (
	// StatusUnknown precedes the first result of a check, and after a restart
	// of the peer the first heartbeat.
	StatusUnknown Status = iota
	// StatusUp instances serve.
	StatusUp
	// StatusDown instances failed their checks. The event of a removal has this
	// status too.
	StatusDown
	// StatusOutOfService is set by hand.
	StatusOutOfService
	// StatusStarting is declared by the instance during its start.
	StatusStarting
	// StatusUnhealthy instances missed their heartbeats.
	StatusUnhealthy

	statuses // count, keep last
)
