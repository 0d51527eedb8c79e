package main

import (
	"context"
	"errors"
	"flag"
	"io"
	"net"
	"path/filepath"
	"strings"
	"time"

	"github.com/ipfs/go-datastore"
	"github.com/ipfs/go-datastore/sync"
	libp2p "github.com/libp2p/go-libp2p/core/peer"
	"github.com/multiformats/go-multiaddr"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"

	"github.com/blackhole/blackhole/internal/coordination"
	"github.com/blackhole/blackhole/internal/coordination/bootstrap"
	"github.com/blackhole/blackhole/internal/coordination/transport"
	"github.com/blackhole/blackhole/internal/frontend/grpcapi"
	"github.com/blackhole/blackhole/internal/platform/p2p"
	"github.com/blackhole/blackhole/pkg/fault"
)

const (
	memberCommand = "member"       // as which this command is a member of a group
	ownerKey      = "bench-peer"   // gRPC metadata with the identity of a played peer
	identityFile  = "identity.key" // in a member's directory
	networkName   = "dev"
	manyWatches   = 100_000 // at a member
)

// member is a group member without the rest of a peer. It trusts its callers' claims of identity,
// and ends with its context. args begin with memberCommand.
func member(ctx context.Context, args []string, _, _ io.Writer) error {
	var data, listen, serve, contact, founders string
	f := flag.NewFlagSet(memberCommand, flag.ContinueOnError)
	f.StringVar(&data, "data", "", "`directory`")
	f.StringVar(&listen, "listen", "", "`multiaddr`")
	f.StringVar(&serve, "grpc", "", "`address`")
	f.StringVar(&contact, "contact", "", "`multiaddr` of a member, with its id")
	f.StringVar(&founders, "founders", "", "peer ids, with commas")
	if err := f.Parse(args[1:]); err != nil {
		return err
	}
	node, err := join(ctx, data, listen, contact)
	if err != nil {
		return err
	}
	plane, err := found(node, data, strings.Split(founders, ","))
	if err != nil {
		return errors.Join(err, node.Close())
	}
	calls, err := transport.Listen(node.Host(), networkName, transport.ListenLimits{})
	if err != nil {
		return errors.Join(err, plane.Close(), node.Close())
	}
	own, err := net.Listen("tcp", serve)
	if err != nil {
		return errors.Join(fault.As(memberCommand, fault.Unavailable, err), plane.Close(), node.Close())
	}
	at := plane.Member()
	server := grpcapi.New(grpcapi.Config{
		Coordination: &grpcapi.Coordination{Service: at, Admin: at, Owner: owner, Peers: true}, Places: grpcapi.Places{MaxWatches: manyWatches},
	})
	others := grpcapi.New(grpcapi.Config{
		Coordination: &grpcapi.Coordination{Service: at, Admin: at, Owner: at.Admit, Peers: true}, Credentials: transport.Credentials(nil),
	})
	go func() { _ = others.Serve(calls) }() // ends with Close
	go func() { _ = server.Serve(own) }()   // the same
	<-ctx.Done()
	server.Close()
	others.Close()
	return errors.Join(plane.Close(), node.Close())
}

// owner is the claimed identity of the caller.
func owner(ctx context.Context) (string, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	if is := md.Get(ownerKey); len(is) == 1 {
		return is[0], nil
	}
	return "", fault.New("owner", fault.Forbidden, "the caller must send its identity")
}

// said is gRPC metadata with each call.
type said struct{ key, value string }

var _ credentials.PerRPCCredentials = said{}

func (s said) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{s.key: s.value}, nil
}

func (s said) RequireTransportSecurity() bool { return false }

// join starts the network of a member.
func join(ctx context.Context, data, listen, contact string) (*p2p.Node, error) {
	key, err := p2p.LoadIdentity(filepath.Join(data, identityFile))
	if err != nil {
		return nil, err
	}
	at, err := multiaddr.NewMultiaddr(listen)
	if err != nil {
		return nil, fault.Invalidf("listen", listen, "%w", err)
	}
	var introducers []libp2p.AddrInfo
	if contact != "" {
		first, err := libp2p.AddrInfoFromString(contact)
		if err != nil {
			return nil, fault.Invalidf("contact", contact, "%w", err)
		}
		introducers = append(introducers, *first)
	}
	return p2p.New(ctx, p2p.Config{
		Network: networkName, Identity: key, Listen: []multiaddr.Multiaddr{at}, Bootstrap: introducers, Datastore: sync.MutexWrap(datastore.NewMapDatastore()),
		Protocols: append(p2p.Config{}.Protocols, transport.AskProtocol(networkName), transport.CallProtocol(networkName)),
	})
}

// found makes a node a member of the founders' group.
func found(node *p2p.Node, data string, founders []string) (*coordination.Seat, error) {
	key, err := p2p.LoadIdentity(filepath.Join(data, identityFile))
	if err != nil {
		return nil, err
	}
	network := bootstrap.Network{Name: networkName, Mode: bootstrap.Listed}
	for _, text := range founders {
		id, err := libp2p.Decode(text)
		if err != nil {
			return nil, fault.Invalidf("founders", text, "%w", err)
		}
		network.Founders = append(network.Founders, id)
	}
	return coordination.Open(coordination.Config{
		Host: node.Host(), PubSub: node.PubSub(), Key: key, Network: network, Voters: members, Replace: time.Hour,
		Dir: filepath.Join(data, "coordination"), Marks: data,
		Fatal: func(err error) { panic(err) },
	})
}
