// Package instance is the noun of the agent plane, one running copy of an application's service,
// with its selector and the contract by which instances are registered, found and watched.
//
// The fields are the union of those of the low-level design "Service Discovery" and of the
// SAP-044 Registry. The package only describes: it keeps no state and reads no clock.
package instance

import (
	"encoding/json"
	"time"
)

// DefaultNamespace is the one of who names none.
const DefaultNamespace = "default"

// Key names an instance in the whole cluster.
type Key struct {
	Namespace string // [a-z0-9-]{1,63}
	Service   string // [a-z0-9-]{1,64}
	ID        string // [A-Za-z0-9._:-]{1,128}; not "instances", "watch", "." nor "..", which have a meaning in paths
}

// Name is a service in its namespace.
type Name struct {
	Namespace string
	Service   string
}

// Name gives the service that the instance is one of.
func (k Key) Name() Name { return Name{k.Namespace, k.Service} }

// String gives namespace/service/id.
func (k Key) String() string { return k.Namespace + "/" + k.Service + "/" + k.ID }

// Spec is what the application says about itself.
type Spec struct {
	Host         string            // IP address or host name; "" for one that is reached by its interfaces alone
	Port         int               // 1 to 65535; 0 without a host
	Version      string            // semantic version 2.0.0; "": none
	Interfaces   map[string]string // name (REST, gRPC, CLI, MCP, ...) to address, at most MaxInterfaces
	Metadata     map[string]string // at most MaxMetadata
	Tags         []string          // ascending, without doubles, at most MaxTags
	Dependencies []string          // services of the same namespace, ascending, without doubles, at most MaxDependencies
	Environment  string            // development, staging, production or ""
	Region       string            // at most 64 bytes, as Owner and Zone
	Owner        string
	Description  string // at most 500 bytes
	Zone         string // a DNS label, for it is part of names
	Weight       int    // share of requests among instances, 1 to 100; 0: DefaultWeight

	Check          *Check        // nil: none, heartbeats alone keep it
	UnhealthyAfter time.Duration // without a heartbeat or passed check, MinTTL to MaxTTL; 0: DefaultUnhealthyAfter
	RemoveAfter    time.Duration // the same, at least UnhealthyAfter; 0: see Normalize

	// Offer is a record's offer as JSON, announced in the discovery plane while the instance is
	// UP; nil: none. This package does not look inside.
	Offer json.RawMessage
}

// Bounds and defaults of a Spec.
const (
	MaxInterfaces   = 16
	MaxMetadata     = 64
	MaxTags         = 64
	MaxDependencies = 64
	MaxSize         = 16 << 10 // bytes of an encoded instance

	DefaultWeight         = 1
	DefaultUnhealthyAfter = 30 * time.Second
	DefaultRemoveAfter    = 60 * time.Second
	MinTTL                = time.Second
	MaxTTL                = 24 * time.Hour
)

// Instance is a registered instance. It is immutable: a change makes a new one.
type Instance struct {
	Key
	Spec

	Status       Status    // effective: the override, or what heartbeats and checks say
	Override     Status    // set by hand; StatusUnknown: none
	RegisteredAt time.Time // first registration under this key since it was last gone; UTC
	Lease        string    // that heartbeats name
	Peer         string    // id of the peer that checks it and renews on its behalf
	Revision     uint64    // of its last change, in the counter of whoever answers
}

// CheckType is how health is found out.
type CheckType string

// The types of checks, written as the low-level design "Service Discovery" writes them.
const (
	HTTP   CheckType = "HTTP"   // GET answers 2xx
	TCP    CheckType = "TCP"    // a connection opens
	GRPC   CheckType = "gRPC"   // the gRPC health checking protocol says SERVING
	Script CheckType = "script" // a command named in the configuration of the peer ends with 0
)

// Check says how a peer finds out whether an instance is healthy.
type Check struct {
	Type CheckType

	// Endpoint is for HTTP a path or a URL, for TCP and gRPC a port or host:port, for gRPC
	// optionally with /service behind, for script the name of the command. "" is the instance's own host
	// and port, and for HTTP its path "/".
	Endpoint           string
	Interval           time.Duration // between two checks, 1 s to 1 h; 0: 10 s
	Timeout            time.Duration // of one check, 10 ms to Interval; 0: 5 s or Interval
	HealthyThreshold   int           // passes in a row that make it UP, 1 to 100; 0: 1
	UnhealthyThreshold int           // failures in a row that make it DOWN, 1 to 100; 0: 3
}

// Status is the health of an instance.
type Status uint8

const (
	// StatusUnknown has not been checked or heard of: with a check until the first verdict, and after a
	// restart of its peer until the first heartbeat or check.
	StatusUnknown Status = iota
	// StatusUp serves.
	StatusUp
	// StatusDown failed its checks, or is gone: the status in the event that removes it.
	StatusDown
	// StatusOutOfService is set by hand.
	StatusOutOfService
	// StatusStarting is warming up, by its own word.
	StatusStarting
	// StatusUnhealthy missed its heartbeats.
	StatusUnhealthy

	statuses // count, keep last
)
