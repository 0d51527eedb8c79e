package budget

import (
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/encoding"
	encodingproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/tap"

	"github.com/blackhole/blackhole/internal/platform/access"
)

// Bounds of a server. The defaults of gRPC allow two minutes for a handshake.
const (
	buffer    = 8 << 10   // of a connection, for reading and for writing
	window    = 256 << 10 // bytes of a stream that its method did not ask for yet
	handshake = 5 * time.Second
	pingQuiet = time.Minute // silence before a ping; a dead connection is closed
)

// Options returns the options of a server with a Budget: bounds, its codec, and the order in which a call arrives. begin takes its place
// among the begun ones, see Begun; requests has room for large messages on their way. c are the credentials of its connections.
func Options(c credentials.TransportCredentials, requests *access.Pool, begin tap.ServerInHandle) []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.Creds(arriving{c, requests.Twin("arriving_bytes")}), grpc.InTapHandle(begin), grpc.ForceServerCodecV2(codec{encoding.GetCodecV2(encodingproto.Name)}),
		grpc.ReadBufferSize(buffer), grpc.WriteBufferSize(buffer), grpc.InitialWindowSize(window), grpc.InitialConnWindowSize(4 * window),
		grpc.ConnectionTimeout(handshake), grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingQuiet}),
	}
}
