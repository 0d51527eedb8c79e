package coordination

import (
	"context"
	"net"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"

	"github.com/blackhole/blackhole/internal/coordination/announce"
	"github.com/blackhole/blackhole/internal/coordination/bootstrap"
	"github.com/blackhole/blackhole/internal/coordination/transport"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Network defines the peers that are eligible for a group bootstrap.
type Network = bootstrap.Network

// Modes of a Network.
const (
	Listed = bootstrap.Listed // the founders of a list
	Home   = bootstrap.Home   // any peer of a local network
)

// Access defines the peers that may call this peer's member, besides the eligible ones of a list.
type Access struct {
	Open  bool     // every peer
	Allow []string // peer ids
}

// DHTNamespace is the first segment of the DHT keys of group announcements.
const DHTNamespace = announce.Namespace

// NewDHTValidator returns the validator of DHTNamespace. refused counts rejected values of the network.
func NewDHTValidator(n Network, refused func(error)) (*announce.Validator, error) {
	if err := n.Validate(); err != nil {
		return nil, err
	}
	return announce.NewValidator(n, time.Now, refused), nil
}

// IsTopic reports whether a GossipSub topic carries group announcements, of any network.
func IsTopic(topic string) bool { return announce.IsTopic(topic) }

// Protocols returns the libp2p protocols between peers of different roles. Members add one for Raft.
func Protocols() []protocol.ID { return []protocol.ID{transport.AskProtocol, transport.CallProtocol} }

// groupKey is the gRPC metadata that names the intended group of a call.
const groupKey = "blackhole-group"

// DialTarget returns the gRPC target and the options for calls to a peer's member that are meant for a group.
func DialTarget(h host.Host, to peer.ID, group string) (string, []grpc.DialOption) {
	return transport.Target(to), append(transport.DialOptions(h), grpc.WithPerRPCCredentials(intendedGroup(group)))
}

// Credentials returns the credentials of a gRPC server for connections of Serving.Listen; others for all other
// connections, nil refuses them.
func Credentials(others credentials.TransportCredentials) credentials.TransportCredentials {
	return transport.Credentials(others)
}

// intendedGroup puts the group into calls.
type intendedGroup string

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (g intendedGroup) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{groupKey: string(g)}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials. The group is not a secret.
func (intendedGroup) RequireTransportSecurity() bool { return false }

// Listen accepts the gRPC connections of other peers.
func (s Serving) Listen() (net.Listener, error) {
	return transport.Listen(s.plane.config.Host, transport.ListenLimits{})
}

// Admit returns the peer id of a caller. Errors: Unauthentic for a connection without a peer; Unavailable for a
// call that is meant for another group; Forbidden.
func (s Serving) Admit(ctx context.Context) (string, error) {
	const op = "group.Admit"
	id, ok := transport.PeerOf(ctx)
	if !ok {
		return "", fault.New(op, fault.Unauthentic, "the connection names no peer")
	}
	group := s.plane.ID()
	if named := metadata.ValueFromIncomingContext(ctx, groupKey); len(named) != 1 || named[0] != group {
		return "", fault.New(op, fault.Unavailable, "WRONG_GROUP: the call is meant for %q, this peer belongs to %q", named, group)
	}
	access := s.plane.config.Access
	if access.Open || slices.Contains(access.Allow, id) {
		return id, nil
	}
	if from, err := peer.Decode(id); err == nil && slices.Contains(s.plane.config.Network.Founders, from) {
		return id, nil
	}
	return "", &fault.Error{
		Op: op, Kind: fault.Forbidden, Field: "peer", Value: id,
		Err: fault.New("", fault.Forbidden, "not a client of this group: add it to coordination.clients").Err,
	}
}
