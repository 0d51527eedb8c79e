package transport

import (
	"context"
	"net"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/peer"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	grpcpeer "google.golang.org/grpc/peer"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/network"
)

// AuthInfo names the remote peer of a gRPC connection.
type AuthInfo struct {
	credentials.CommonAuthInfo
	Addr // of the remote peer
	conn net.Conn
}

// Cut closes the connection, for a server whose peer does not read.
func (a AuthInfo) Cut() { _ = a.conn.Close() }

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
// whose bytes it encrypts. They refuse all other connections.
func Credentials() credentials.TransportCredentials { return transportCredentials{} }

type transportCredentials struct{}

// identify uses the address, which survives the wrapping of a connection, instead of its type.
func identify(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	a, ok := c.RemoteAddr().(Addr)
	if !ok {
		return nil, nil, fault.New("transport.Credentials", fault.Unauthentic, "the connection is not libp2p's")
	}
	return c, AuthInfo{CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}, Addr: a, conn: c}, nil
}

func (transportCredentials) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return identify(c)
}

func (transportCredentials) ClientHandshake(_ context.Context, _ string, c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return identify(c)
}

func (transportCredentials) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "libp2p"}
}

func (t transportCredentials) Clone() credentials.TransportCredentials { return t }

// OverrideServerName does nothing: a peer's key is its name.
func (transportCredentials) OverrideServerName(string) error { return nil }

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
		grpc.WithTransportCredentials(Credentials()),
	}
}
