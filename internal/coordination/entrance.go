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
	"github.com/blackhole/blackhole/internal/coordination/routing"
	"github.com/blackhole/blackhole/internal/coordination/transport"
	"github.com/blackhole/blackhole/pkg/coord/calls"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/network"
)

// Network defines the peers that are eligible for a group bootstrap.
type Network = bootstrap.Network

// Modes of a Network.
const (
	Listed   = bootstrap.Listed   // the founders of a list
	Unlisted = bootstrap.Unlisted // any trusted peers, as many as expected; with 1 the first peer of the network
)

// Access defines the peers that may call this peer's member, besides the eligible ones of a list, and the peers that
// it believes.
type Access struct {
	Open  bool     // every peer
	Allow []string // peer ids
	// Proves returns nil for a connected peer that has the key of the network. It may ask the peer. Forbidden: the peer
	// has no key. nil: no peer is a client by its key.
	Proves func(context.Context, peer.ID) error
	// Trusts returns nil for a connected peer whose word on the group counts, besides founders and members. It may ask
	// the peer. nil: every peer's word counts if Open.
	Trusts func(context.Context, peer.ID) error
}

// DHTNamespace returns the first segment of the DHT keys of a network's group announcements.
func DHTNamespace(n network.Name) string { return announce.Namespace(n) }

// NewDHTValidator returns the validator of DHTNamespace. refused counts rejected values of the network.
func NewDHTValidator(n Network, now func() time.Time, refused func(error)) (*announce.Validator, error) {
	if err := n.Validate(); err != nil {
		return nil, err
	}
	return announce.NewValidator(n, now, refused), nil
}

// IsTopic returns a function that reports whether a GossipSub topic carries announcements of any group of a network.
func IsTopic(n network.Name) func(topic string) bool {
	return func(topic string) bool { return announce.IsTopic(n, topic) }
}

// Protocols returns the libp2p protocols between peers of different roles. Members add one for Raft.
func Protocols(n network.Name) []protocol.ID {
	return []protocol.ID{transport.AskProtocol(n), transport.CallProtocol(n)}
}

// groupKey is the gRPC metadata that names the intended group of a call.
const groupKey = "blackhole-group"

// DialTarget returns the gRPC target and the options for calls to a peer's member that are meant for a group.
func DialTarget(h host.Host, n network.Name, to peer.ID, group string) (string, []grpc.DialOption) {
	return transport.Target(to), append(transport.DialOptions(h, n), grpc.WithPerRPCCredentials(intendedGroup(group)))
}

// dial returns the member at another peer, for calls meant for this peer's group.
func (p *Plane) dial(to peer.ID) (routing.Remote, error) {
	if p.config.dial != nil {
		return p.config.dial(to)
	}
	var begin calls.BeginSpan
	if p.config.Spans != nil {
		begin = p.config.Spans(to)
	}
	target, options := DialTarget(p.config.Host, p.config.Network.Name, to, p.ID())
	return routing.Connect(target, options, begin)
}

// Credentials returns the credentials of a gRPC server for connections of Serving.Listen; others for all other
// connections, nil refuses them.
func Credentials(others credentials.TransportCredentials) credentials.TransportCredentials {
	return transport.Credentials(others)
}

// intendedGroup puts the group, and the feature levels of this program, into calls.
type intendedGroup string

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (g intendedGroup) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{groupKey: string(g), levelsKey: announceLevels()}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials. The group is not a secret.
func (intendedGroup) RequireTransportSecurity() bool { return false }

// Listen accepts the gRPC connections of other peers.
func (s Serving) Listen() (net.Listener, error) {
	c := s.now().config
	return transport.Listen(c.Host, c.Network.Name, transport.ListenLimits{Known: func(id peer.ID) bool { return s.now().knows(id) }})
}

// Admit returns the peer id of a caller. Errors: Unauthentic for a connection without a peer; Unavailable for a
// call that is meant for another group; Unsupported, field "level", for a peer that does not support the feature
// level of the group; Forbidden.
func (s Serving) Admit(ctx context.Context) (string, error) {
	const op = "group.Admit"
	from, ok := transport.PeerOf(ctx)
	if !ok {
		return "", fault.New(op, fault.Unauthentic, "the connection names no peer")
	}
	p := s.now()
	group := p.ID()
	if named := metadata.ValueFromIncomingContext(ctx, groupKey); len(named) != 1 || named[0] != group {
		return "", fault.New(op, fault.Unavailable, "WRONG_GROUP: the call is meant for %q, this peer belongs to %q", named, group)
	}
	if err := p.config.Access.admit(ctx, p.config.Network, from.Peer); err != nil {
		return "", fault.Wrap(op, err)
	}
	err := p.levels.admit(from.Peer, metadata.ValueFromIncomingContext(ctx, levelsKey))
	return from.String(), fault.Wrap(op, err)
}

// Vouches returns nil if the word of a calling peer on its applications counts: it is listed, a founder or a member, or
// Access.Trusts says so. Errors: Unauthentic for a connection without a peer; Forbidden.
func (s Serving) Vouches(ctx context.Context) error {
	const op = "group.Vouches"
	from, ok := transport.PeerOf(ctx)
	if !ok {
		return fault.New(op, fault.Unauthentic, "the connection names no peer")
	}
	if r := s.now().roster; !r.lists(from.Peer) {
		return fault.Wrap(op, r.trusts(ctx, from.Peer))
	}
	return nil
}

// names reports whether a peer is admitted without a proof.
func (a Access) names(n Network, p peer.ID) bool {
	return a.Open || slices.Contains(a.Allow, p.String()) || slices.Contains(n.Founders, p)
}

// admit refuses a peer that may not call this member.
func (a Access) admit(ctx context.Context, n Network, p peer.ID) error {
	if a.names(n, p) {
		return nil
	}
	remedy := "add it to coordination.allow"
	if a.Proves != nil {
		err := a.Proves(ctx, p)
		if err == nil || fault.KindOf(err) != fault.Forbidden {
			return err
		}
		remedy = "it does not prove the key of the network; join it by an invitation, or add it to coordination.allow"
	}
	return &fault.Error{
		Kind: fault.Forbidden, Field: "peer", Value: p.String(), Err: fault.New("", fault.Forbidden, "not a client of this group: %s", remedy).Err,
	}
}
