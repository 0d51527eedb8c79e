package protocol

import (
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/platform/rpc"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

// Listen answers the requests of other peers with handle, until the caller closes the server.
func Listen(c Config, handle func(*rpc.Stream, proto.Message, error) (proto.Message, error)) *rpc.Server {
	return rpc.NewServer(rpc.ServerConfig{
		Host: c.Host, Protocol: Protocol(c.Network), Service: service,
		Request: new(pb.Request), Format: RequestFormat(), Handler: handle,
		Streams: c.Limits.Streams, StreamsPerPeer: c.Limits.StreamsPerPeer,
		IdleTimeout: streamIdle, FrameTimeout: FrameTime,
		Refused: func() { c.Signals.Metrics.Refused("busy") }, Logger: c.Logger,
	})
}

// RequestFormat bounds the requests on the wire.
func RequestFormat() rpc.Format { return rpc.Format{MaxSize: MaxRequest, Check: requestBounds().check} }

// ResponseFormat bounds the responses on the wire.
func ResponseFormat() rpc.Format {
	return rpc.Format{MaxSize: maxResponse, Check: responseBounds().check}
}
