// Package link connects to one peer over gRPC: address, credentials and traces, and the contracts of the planes as
// that peer serves them, each call one request without repetition. The SDK (pkg/client) stands on it, and so do
// peers that pass on calls of their applications.
package link

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/netip"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/blackhole/blackhole/internal/contract/coord/calls"
	"github.com/blackhole/blackhole/pkg/fault"
	agentv1 "github.com/blackhole/blackhole/proto/blackhole/agent/v1"
)

// DefaultAddress is the default gRPC address of a peer.
const DefaultAddress = "127.0.0.1:8502"

// Settings of a Link. The zero value suits a peer on loopback without TLS and without authentication.
type Settings struct {
	Token *string           // bearer token of each call; nil: none
	TLS   *tls.Config       // nil: no TLS
	Begin calls.BeginSpan   // nil: no traces
	Dial  []grpc.DialOption // more options of gRPC
	// Clock is of a client: the time since a fixed moment, for the lifetime of leases. Nil: the system's.
	Clock func() time.Duration
	// Over is an open link to use instead of a new one, which then belongs to the client.
	Over *Link
}

// Link is a connection to one peer. It is safe for concurrent use.
type Link struct {
	// Conn is for calls, Patient for those that last: watches and backups.
	Conn, Patient *grpc.ClientConn
	Agent         *Agent
	// Coordination is the contract of the coordination plane. The peer determines the owner of a call: the owner of
	// a command is not sent.
	Coordination *calls.Peer
}

// Open returns a link to the peer at a gRPC address: host:port, or unix:///path of a socket. An empty address means
// DefaultAddress. The first call connects, and later calls reconnect after a loss.
//
// Errors: Invalid, field "token" or none for the address.
func Open(address string, s Settings) (*Link, error) {
	const op = "link.Open"
	address = cmp.Or(address, DefaultAddress)
	opts := append(calls.Bounds(), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithConnectParams(reconnect()))
	opts = append(opts, s.Dial...)
	if s.TLS != nil {
		opts = append(opts, grpc.WithTransportCredentials(credentials.NewTLS(s.TLS)))
	}
	if s.Token != nil {
		if *s.Token == "" || strings.ContainsFunc(*s.Token, func(r rune) bool { return r <= ' ' || r > '~' }) {
			const why = "must be printable ASCII without spaces"
			return nil, &fault.Error{Op: op, Kind: fault.Invalid, Field: "token", Err: errors.New(why)}
		}
		opts = append(opts, grpc.WithPerRPCCredentials(bearer{*s.Token, isLocal(address)}))
	}
	opts = append(opts, calls.Traced(s.Begin)...)
	conn, err := grpc.NewClient(address, opts...)
	if err != nil {
		return nil, fault.As(op, fault.Invalid, err)
	}
	patient, err := grpc.NewClient(address, opts...)
	if err != nil { // impossible: the first connection was made with the same address
		return nil, fault.As(op, fault.Invalid, errors.Join(err, conn.Close()))
	}
	agent := &Agent{Service: agentv1.NewDiscoveryServiceClient(conn), watches: agentv1.NewDiscoveryServiceClient(patient)}
	return &Link{
		Conn: conn, Patient: patient, Agent: agent,
		Coordination: calls.NewPeer(calls.PeerConfig{Conn: conn, Patient: patient, Begin: s.Begin}),
	}, nil
}

// Close ends the connections and all their calls, and waits for its goroutines.
func (l *Link) Close() error {
	l.Coordination.Close()
	err := errors.Join(l.Conn.Close(), l.Patient.Close())
	l.Coordination.Wait()
	return fault.As("link.Close", fault.Internal, err)
}

// reconnect sets the times of reconnection. Peers are usually on the same host, and the leases
// of instances would expire during gRPC's default delay of two minutes.
func reconnect() grpc.ConnectParams {
	return grpc.ConnectParams{
		Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second},
		MinConnectTimeout: 5 * time.Second,
	}
}

// bearer adds a token to calls.
type bearer struct {
	token string
	plain bool // allowed without TLS
}

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + b.token}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials.
func (b bearer) RequireTransportSecurity() bool { return !b.plain }

// isLocal reports whether traffic to an address stays on this host.
func isLocal(address string) bool {
	if strings.HasPrefix(address, "unix:") || strings.HasPrefix(address, "unix-abstract:") {
		return true
	}
	if _, rest, ok := strings.Cut(address, ":///"); ok { // dns:/// or passthrough:///
		address = rest
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}
