// Package discovery is the contract of the discovery plane: register services, find services of other peers,
// watch changes. Front ends and the operator's client share its types and interfaces. The engine is internal/discovery.
// Applications use the SDK, or run the plane by pkg/discovery.
package discovery

import (
	"context"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// MaxBatch bounds the offers of one RegisterBatch.
const MaxBatch = 10_000

// Writer changes the services that this peer offers.
type Writer interface {
	// Register announces a service. Errors: Invalid with the field, Exists, LimitReached.
	Register(ctx context.Context, o records.Offer) (records.Receipt, error)
	// RegisterBatch announces 1 to MaxBatch services, each with its own outcome, in order.
	RegisterBatch(ctx context.Context, offers []records.Offer) ([]Outcome, error)
	// Update replaces the content of a service. Errors: Invalid, NotFound, Conflict for the offer of an instance.
	Update(ctx context.Context, o records.Offer) (records.Receipt, error)
	// Withdraw ends a service everywhere. Errors: NotFound, Conflict for the offer of an instance.
	Withdraw(ctx context.Context, id string) (records.Receipt, error)
	// Pause leaves a service out of all answers: for a time, or with 0 until Resume. Errors: NotFound, Invalid naming "for".
	Pause(ctx context.Context, id string, length time.Duration) (records.Receipt, error)
	// Resume ends a pause. Errors: NotFound, Conflict for a service without a pause.
	Resume(ctx context.Context, id string) (records.Receipt, error)
}

// Registrar writes and reads this peer's own services.
type Registrar interface {
	Writer
	// Own returns one own record. Error: NotFound.
	Own(id string) (*records.Record, error)
	// OwnAll returns the own records by id.
	OwnAll() []*records.Record
}

// Finder finds services of all peers.
type Finder interface {
	// Query finds services. Errors: Invalid with the field, Timeout, Unavailable.
	Query(ctx context.Context, q query.Query) (*query.Answer, error)
	// Resolve returns the live record under a key. Errors: Invalid, NotFound, Timeout.
	Resolve(ctx context.Context, key string) (*records.Record, error)
	// Watch follows a query from a cursor, or from the current matches. Errors: Invalid, LimitReached.
	Watch(ctx context.Context, q query.Query, after string) (Watcher, error)
}

// Watcher is one watch. One goroutine at a time may use it.
type Watcher interface {
	// Next waits for the next event. Errors: ctx's, Unavailable after the plane's Close.
	Next(ctx context.Context) (query.Event, error)
	// Close ends the watch and waits for its goroutine.
	Close()
}

// Node describes the peer behind the contract.
type Node interface {
	// Status describes the peer now.
	Status() Status
	// Peers lists the connected peers.
	Peers() []PeerInfo
	// Ready returns nil for a peer that can serve, otherwise Unavailable with the reason.
	Ready() error
}

// Note says what changed at a peer and why, for people.
type Note struct {
	At      time.Time `json:"at"`                // when this peer learned of it; a position in the history
	Since   time.Time `json:"since,omitzero"`    // when it happened; absent if nobody knows, or if At is the same
	Kind    string    `json:"kind"`              // peer, leader, voters, quorum, condition, instance, lock, offer
	Subject string    `json:"subject,omitempty"` // id or name of what changed; empty for several
	Text    string    `json:"text"`
}

// Status describes a peer. Its JSON form is part of the API.
type Status struct {
	PeerID string `json:"peer_id"`
	// IdentityNew: this start made the id, because the data directory had none.
	IdentityNew bool   `json:"identity_new,omitempty"`
	Name        string `json:"name,omitempty"` // that the peer gives itself, for people: a claim, no identity
	Network     string `json:"network"`        // name of its network
	// NetworkClosed: every connection with the peer needs the key of the network.
	NetworkClosed bool   `json:"network_closed,omitempty"`
	Profile       string `json:"profile"`
	// Mode is server (keeps records for others), client (others cannot connect directly, so it keeps none) or leaf
	// (only dials out).
	Mode          string   `json:"mode"`
	Listen        []string `json:"listen"` // multiaddrs with /p2p/ID
	UptimeSeconds float64  `json:"uptime_seconds"`
	Version       string   `json:"version"`
	Peers         int      `json:"peers"`         // connected
	RoutingTable  int      `json:"routing_table"` // peers in the DHT's table
	RecordsKept   int      `json:"records_kept"`  // in this peer's index
	RecordsOwn    int      `json:"records_own"`
	// RecordsUnstored are the ids of the own records that no keeper holds. This peer announces them again.
	RecordsUnstored []string `json:"records_unstored,omitempty"`
	// RecordsAnnouncing counts the changes of own records, withdrawals included, that some keeper has not taken.
	// Another peer's complete answer may lack them. This peer announces them again, at first after a second.
	RecordsAnnouncing int  `json:"records_announcing,omitempty"`
	Ready             bool `json:"ready"`
	// ClockOffset is this peer's clock minus the clocks of its keepers, in seconds; nil: unknown.
	ClockOffset *float64 `json:"clock_offset_seconds,omitempty"`
	Reach       Reach    `json:"reach"`
	// Conditions limit what this peer knows or can do now; sorted by name.
	Conditions []Condition `json:"conditions,omitempty"`
	Group      *Group      `json:"group,omitempty"` // nil: the peer takes no part in coordination
}

// Group describes the coordination group as a peer knows it without asking others, so it may be some 10 s old.
type Group struct {
	ID         string `json:"group_id"` // hex; empty without a group
	Role       string `json:"role"`     // leader, voter, learner or client; founding, joining or outlived without a role
	Term       uint64 `json:"term"`
	Leader     string `json:"leader"` // peer id; empty if unknown
	LeaderName string `json:"leader_name,omitempty"`
	// Survives is the number of voters that may fail now without a loss of the majority; 0 also while unknown.
	// Tolerance says it in words; empty while unknown.
	Survives  int    `json:"failures_survived"`
	Tolerance string `json:"tolerance,omitempty"`
	Missing   string `json:"missing,omitempty"` // reason of an outage
}

// Condition is a cause that limits a peer now. RELIABILITY.md lists the names.
type Condition struct {
	Name    string `json:"name"`
	Message string `json:"message"` // the whole problem as one text
	fault.Problem
}

// Reach says how strangers reach a peer.
type Reach struct {
	// State is public (directly), relayed (through a relay, or a hole punched with its help), unreachable,
	// checking (after the start) or local (the profile expects no NAT).
	State string    `json:"state"`
	Text  string    `json:"text"` // one sentence: the step that holds or fails
	Since time.Time `json:"since"`
	// Relays are the peers that relay for this one.
	Relays  []string `json:"relays,omitempty"`
	Direct  int      `json:"direct"`  // connections without a relay
	Relayed int      `json:"relayed"` // connections through a relay
	// Punched counts the hole punches that led to a direct connection, Unpunched the others.
	Punched   int `json:"punched"`
	Unpunched int `json:"unpunched"`
}

// PeerInfo is a connected peer.
type PeerInfo struct {
	ID        string   `json:"id"`
	Addrs     []string `json:"addrs"`
	Agent     string   `json:"agent,omitempty"`
	LatencyMs float64  `json:"latency_ms,omitempty"` // 0: not measured
	Name      string   `json:"name,omitempty"`       // that the peer gives itself, for people; known of those that this peer shares a group with
}

// PageLink leads to the web page of a peer.
type PageLink struct {
	URL     string    `json:"url"`                 // with a code that works once, for a caller with a name
	Expires time.Time `json:"expires_at,omitzero"` // of the code
}

// Outcome is the result of one batch entry: a receipt, or an error.
type Outcome struct {
	Receipt records.Receipt
	Err     error
}
