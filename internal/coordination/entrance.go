package coordination

import (
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/peer"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/coord/calls"
	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/internal/coordination/routing"
	"github.com/blackhole/blackhole/internal/coordination/transport"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/network"
)

// gRPC metadata of a call between peers.
const (
	groupKey  = "blackhole-group"  // the intended group
	levelsKey = "blackhole-levels" // the feature levels that the calling peer supports, as MIN-MAX
)

// DialTarget returns the gRPC target and the options for calls to a peer's member that are meant for a group.
func DialTarget(h host.Host, n network.Name, to peer.ID, group string) (string, []grpc.DialOption) {
	return transport.Target(to), append(transport.DialOptions(h, n), grpc.WithPerRPCCredentials(intendedGroup(group)))
}

// dial returns the member at another peer, for calls meant for this peer's group.
func (p *plane) dial(to peer.ID) (routing.Remote, error) {
	if p.config.dial != nil {
		return p.config.dial(to)
	}
	var begin calls.BeginSpan
	if p.config.Spans != nil {
		begin = p.config.Spans(to)
	}
	target, options := DialTarget(p.config.Host, p.config.Network.Name, to, p.view.ID())
	return routing.Connect(target, options, begin)
}

// intendedGroup puts the group, and the feature levels of this program, into calls.
type intendedGroup string

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (g intendedGroup) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	own := machine.Current().Levels
	return map[string]string{groupKey: string(g), levelsKey: fmt.Sprintf("%d-%d", own.Min, own.Max)}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials. The group is not a secret.
func (intendedGroup) RequireTransportSecurity() bool { return false }

// Serving is the contract at this peer's own member, for other peers. It forwards nothing: operations of the leader fail with
// Unavailable at other members. It implements coord.Service and coord.Admin.
type Serving struct {
	coord.Through
	now func() *plane
}

// Member returns the contract at this peer's own member.
func (s *Seat) Member() Serving {
	m := Serving{now: s.plane.Load}
	m.Through = func() (coord.Service, error) { return m.at() }
	return m
}

func (s Serving) at() (*local, error) {
	if l := s.now().here.Load(); l != nil {
		return l, nil
	}
	return nil, fault.New("coordination", fault.Unavailable, "this peer is not a member of the group")
}

// Group implements coord.Admin.
func (s Serving) Group(ctx context.Context) (coord.GroupState, error) {
	l, err := s.at()
	if err != nil {
		return coord.GroupState{}, err
	}
	return l.Group(ctx)
}

// ChangeMembers implements coord.Admin. The order of a peer counts if that peer may be a member: a mere client of the group does
// not decide on its members.
func (s Serving) ChangeMembers(ctx context.Context, c coord.MemberChange) (coord.MemberOutcome, error) {
	l, err := s.at()
	if err != nil {
		return coord.MemberOutcome{}, err
	}
	via, err := peer.Decode(c.Via)
	if err != nil || !s.now().roster.Admits(ctx, via) {
		return coord.MemberOutcome{}, fault.New("coordination.ChangeMembers", fault.Forbidden,
			"peer %s is not eligible: order changes of the group at a peer that is", c.Via)
	}
	return l.ChangeMembers(ctx, c)
}

// Backup implements coord.Admin.
func (s Serving) Backup(ctx context.Context, w io.Writer) error {
	l, err := s.at()
	if err != nil {
		return err
	}
	return l.Backup(ctx, w)
}

// Listen accepts the gRPC connections of other peers.
func (s Serving) Listen() net.Listener {
	c := s.now().config
	return transport.Listen(c.Host, c.Network.Name, transport.ListenLimits{Known: func(id peer.ID) bool { return s.now().knows(id) }})
}

// Admit returns the peer id of a caller. Errors: Unauthentic for a connection without a peer; Unavailable for a
// call that is meant for another group; Unsupported, field "level", for a peer that does not support the feature
// level of the group; Forbidden.
func (s Serving) Admit(ctx context.Context) (string, error) {
	const op = "coordination.Admit"
	from, ok := transport.PeerOf(ctx)
	if !ok {
		return "", fault.New(op, fault.Unauthentic, "the connection names no peer")
	}
	p := s.now()
	group := p.view.ID()
	if named := metadata.ValueFromIncomingContext(ctx, groupKey); len(named) != 1 || named[0] != group {
		return "", fault.New(op, fault.Unavailable, "WRONG_GROUP: the call is meant for %q, this peer belongs to %q", named, group)
	}
	err := p.roster.Calls(ctx, from.Peer)
	if err != nil {
		return "", fault.Wrap(op, err)
	}
	if l := p.here.Load(); l != nil {
		var theirs coord.Levels
		if said := metadata.ValueFromIncomingContext(ctx, levelsKey); len(said) == 1 {
			low, high, _ := strings.Cut(said[0], "-")
			least, _ := strconv.ParseUint(low, 10, 32) // a failure leaves an invalid range
			most, _ := strconv.ParseUint(high, 10, 32)
			theirs = coord.Levels{Min: uint32(least), Max: uint32(most)}
		}
		err = l.levels.Called(from.Peer, theirs, l.level())
	}
	return from.String(), fault.Wrap(op, err)
}

// Vouches returns nil if the word of a calling peer on its applications counts: it is listed, a founder or a member, or
// Access.Trusts says so. Errors: Unauthentic for a connection without a peer; Forbidden.
func (s Serving) Vouches(ctx context.Context) error {
	const op = "coordination.Vouches"
	from, ok := transport.PeerOf(ctx)
	if !ok {
		return fault.New(op, fault.Unauthentic, "the connection names no peer")
	}
	if r := s.now().roster; !r.Lists(from.Peer) {
		return fault.Wrap(op, r.Trusts(ctx, from.Peer))
	}
	return nil
}
