// Package discovery is the contract of the discovery plane: register services, find services of other
// peers, watch changes. Front ends, the SDK and applications share its types, interfaces and errors.
// The engine behind it is internal/discovery.
package discovery

import (
	"context"
	"time"

	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// MaxBatch is the most offers that one RegisterBatch accepts.
const MaxBatch = 10_000

// Writer changes the services that this peer offers.
type Writer interface {
	// Register announces a service. Errors: Invalid (names the field), Exists, LimitReached.
	Register(ctx context.Context, o records.Offer) (Receipt, error)
	// RegisterBatch announces 1 to MaxBatch services, each with its own outcome, in order.
	RegisterBatch(ctx context.Context, offers []records.Offer) ([]Outcome, error)
	// Update replaces the content of a service. Errors: Invalid, NotFound.
	Update(ctx context.Context, o records.Offer) (Receipt, error)
	// Withdraw ends a service everywhere. Errors: NotFound.
	Withdraw(ctx context.Context, id string) (Receipt, error)
}

// Registrar is the half of the contract about this peer's own services. Front ends are written against it.
type Registrar interface {
	Writer
	// Own gives one own record. Errors: NotFound.
	Own(id string) (*records.Record, error)
	// OwnAll gives the own records by id.
	OwnAll() []*records.Record
}

// Finder is the half of the contract that finds services of others.
type Finder interface {
	// Query finds services. Errors: Invalid (names the field), Timeout, Unavailable.
	Query(ctx context.Context, q query.Query) (*query.Answer, error)
	// Resolve gives the live record under a key. Errors: Invalid, NotFound, Timeout.
	Resolve(ctx context.Context, key string) (*records.Record, error)
	// Watch follows a query from a cursor, or from the current matches. Errors: Invalid, LimitReached.
	Watch(ctx context.Context, q query.Query, after string) (Watcher, error)
}

// Watcher is one watch. One goroutine at a time may use it.
type Watcher interface {
	// Next waits for the next event. It fails with ctx's error, or Unavailable when the plane closes.
	Next(ctx context.Context) (Event, error)
	// Close ends the watch and waits for its goroutine.
	Close()
}

// Node tells of the peer that serves the contract.
type Node interface {
	// Status describes the peer now.
	Status() Status
	// Peers lists those it is connected to.
	Peers() []PeerInfo
	// Ready is nil when the peer can serve, otherwise Unavailable with the reason.
	Ready() error
}

// Status is what a peer says of itself. Its JSON form is the API's.
type Status struct {
	PeerID        string   `json:"peer_id"`
	Profile       string   `json:"profile"`
	Listen        []string `json:"listen"` // multiaddrs with /p2p/ID
	UptimeSeconds float64  `json:"uptime_seconds"`
	Version       string   `json:"version"`
	Peers         int      `json:"peers"`         // connected
	RoutingTable  int      `json:"routing_table"` // peers in the DHT's table
	RecordsKept   int      `json:"records_kept"`  // in this peer's index
	RecordsOwn    int      `json:"records_own"`
	Ready         bool     `json:"ready"`
}

// PeerInfo is a connected peer.
type PeerInfo struct {
	ID        string   `json:"id"`
	Addrs     []string `json:"addrs"`
	Agent     string   `json:"agent,omitempty"`
	LatencyMs float64  `json:"latency_ms,omitempty"` // 0: not measured
}

// Receipt tells what became of an announcement. The service is registered, durable and
// will be announced again until every keeper has it, whatever Stored says.
type Receipt struct {
	ID        string         `json:"id"`
	Key       string         `json:"key"`
	Sequence  uint64         `json:"sequence"`
	ExpiresAt time.Time      `json:"expires_at"`
	Stored    records.Stored `json:"stored"`
}

// Outcome is one entry of a batch: a receipt, or the error that kept the offer out.
type Outcome struct {
	Receipt Receipt
	Err     error
}

// EventKind says what happened to a record in the eyes of one watch.
type EventKind string

// The events of a watch.
const (
	Added     EventKind = "added"     // matches now
	Updated   EventKind = "updated"   // matched and still does, with new content
	Withdrawn EventKind = "withdrawn" // its provider ended it
	Expired   EventKind = "expired"   // its provider did not renew it
	Removed   EventKind = "removed"   // lives, but matches no more: new content, or its provider does not answer
	Progress  EventKind = "progress"  // nothing: the cursor is current
	Reset     EventKind = "reset"     // the cursor was too old: the current matches follow, forget what you had
)

// Event is one change to what a watch matches.
type Event struct {
	Kind   EventKind
	Cursor string          // resumes after this event; empty while a state is sent in parts, until its Progress
	Record *records.Record // nil for Progress and Reset
}
