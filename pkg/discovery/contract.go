package discovery

import (
	"context"

	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// Registrar is the half of the contract that speaks of this peer's own services. Front
// ends are written against it.
type Registrar interface {
	// Register announces a service. Errors: Invalid (names the field), Exists, LimitReached.
	Register(ctx context.Context, o records.Offer) (Receipt, error)
	// RegisterBatch announces 1 to MaxBatch services, each with its own outcome, in order.
	RegisterBatch(ctx context.Context, offers []records.Offer) ([]Outcome, error)
	// Update replaces the content of a service. Errors: Invalid, NotFound.
	Update(ctx context.Context, o records.Offer) (Receipt, error)
	// Withdraw ends a service everywhere. Errors: NotFound.
	Withdraw(ctx context.Context, id string) (Receipt, error)
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
	Watch(ctx context.Context, q query.Query, after string) (*Watcher, error)
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

var (
	_ Registrar = (*Service)(nil)
	_ Finder    = (*Service)(nil)
)

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
