package transport

import (
	"context"
	"net"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/peer"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	grpcpeer "google.golang.org/grpc/peer"

	"github.com/blackhole/blackhole/pkg/fault"
)

// AuthInfo says which peer is at the other end of a gRPC connection.
type AuthInfo struct {
	credentials.CommonAuthInfo
	Peer peer.ID
}

// AuthType is "libp2p".
func (AuthInfo) AuthType() string { return "libp2p" }

// PeerOf gives the authenticated peer id of who makes the call that ctx is of. It is not ok for a
// call that did not come over libp2p.
func PeerOf(ctx context.Context) (string, bool) {
	p, ok := grpcpeer.FromContext(ctx)
	if !ok {
		return "", false
	}
	info, ok := p.AuthInfo.(AuthInfo)
	return info.Peer.String(), ok
}

// Credentials are those of connections of this package, whose peers libp2p has authenticated and
// whose bytes it encrypts. Other connections are left to base, so that one server can serve both; nil refuses them.
func Credentials(base credentials.TransportCredentials) credentials.TransportCredentials {
	return transportCredentials{base}
}

type transportCredentials struct {
	base credentials.TransportCredentials
}

// identify goes by the address, which is the same when a connection was wrapped, and not by the
// connection's type: a stranger's must never be taken for a local one.
func identify(c net.Conn) (credentials.AuthInfo, bool) {
	a, ok := c.RemoteAddr().(Addr)
	return AuthInfo{
		CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}, Peer: a.Peer,
	}, ok
}

func (t transportCredentials) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if info, ok := identify(c); ok {
		return c, info, nil
	}
	if t.base == nil {
		return nil, nil, errNotLibp2p
	}
	return t.base.ServerHandshake(c)
}

func (t transportCredentials) ClientHandshake(ctx context.Context, authority string, c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if info, ok := identify(c); ok {
		return c, info, nil
	}
	if t.base == nil {
		return nil, nil, errNotLibp2p
	}
	return t.base.ClientHandshake(ctx, authority, c)
}

// errNotLibp2p refuses a connection without an authenticated peer.
var errNotLibp2p = fault.New("transport.Credentials", fault.Unauthentic, "the connection is not libp2p's")

func (t transportCredentials) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "libp2p"}
}

func (t transportCredentials) Clone() credentials.TransportCredentials {
	if t.base == nil {
		return t
	}
	return transportCredentials{t.base.Clone()}
}

// OverrideServerName does nothing: a peer's name is its key.
func (t transportCredentials) OverrideServerName(string) error { return nil }

// Local are the credentials of connections within the machine, without any, as a base for Credentials.
func Local() credentials.TransportCredentials { return insecure.NewCredentials() }

// Target is the name under which gRPC knows a peer; see DialOptions.
func Target(p peer.ID) string { return "passthrough:///" + p.String() }

// DialOptions make gRPC connect to Targets over a host.
func DialOptions(h host.Host) []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithContextDialer(func(ctx context.Context, name string) (net.Conn, error) {
			id, err := peer.Decode(name)
			if err != nil {
				return nil, fault.Invalidf("target", name, "is not a peer id: %w", err)
			}
			return Dial(ctx, h, id)
		}),
		grpc.WithTransportCredentials(Credentials(nil)),
	}
}
