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
	"github.com/blackhole/blackhole/pkg/network"
)

// AuthInfo names the remote peer of a gRPC connection.
type AuthInfo struct {
	credentials.CommonAuthInfo
	Addr // of the remote peer
}

// AuthType returns "libp2p".
func (AuthInfo) AuthType() string { return "libp2p" }

// PeerOf returns the authenticated peer of a call's sender; false for a call outside libp2p.
func PeerOf(ctx context.Context) (Addr, bool) {
	p, ok := grpcpeer.FromContext(ctx)
	if !ok {
		return Addr{}, false
	}
	info, ok := p.AuthInfo.(AuthInfo)
	return info.Addr, ok
}

// Credentials returns the credentials of connections of this package, whose peers libp2p authenticates and
// whose bytes it encrypts. base handles other connections, so that one server can serve both; nil refuses
// them.
func Credentials(base credentials.TransportCredentials) credentials.TransportCredentials {
	return transportCredentials{base}
}

type transportCredentials struct {
	base credentials.TransportCredentials
}

// identify uses the address, which survives the wrapping of a connection, instead of its type: a stranger's
// connection must never count as local.
func identify(c net.Conn) (credentials.AuthInfo, bool) {
	a, ok := c.RemoteAddr().(Addr)
	return AuthInfo{
		CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}, Addr: a,
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

// errNotLibp2p rejects a connection without an authenticated peer.
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

// OverrideServerName does nothing: a peer's key is its name.
func (t transportCredentials) OverrideServerName(string) error { return nil }

// Local returns empty credentials for connections within the machine, as a base for Credentials.
func Local() credentials.TransportCredentials { return insecure.NewCredentials() }

// Target returns gRPC's name of a peer; see DialOptions.
func Target(p peer.ID) string { return "passthrough:///" + p.String() }

// DialOptions makes gRPC dial Targets of a network over a host.
func DialOptions(h host.Host, n network.Name) []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithContextDialer(func(ctx context.Context, name string) (net.Conn, error) {
			id, err := peer.Decode(name)
			if err != nil {
				return nil, fault.Invalidf("target", name, "is not a peer id: %w", err)
			}
			return Dial(ctx, h, n, id)
		}),
		grpc.WithTransportCredentials(Credentials(nil)),
	}
}
