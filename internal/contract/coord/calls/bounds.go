package calls

import (
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
)

const (
	maxMessage = 64 << 20 // bytes that a connection takes; the peer bounds what it is sent
	// window is that of a stream, in bytes. Without a fixed one gRPC measures the bandwidth by a PING for nearly each call.
	window = 1 << 20
)

// Bounds returns the gRPC options that every connection with a peer has.
func Bounds() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)),
		grpc.WithInitialWindowSize(window), grpc.WithInitialConnWindowSize(4 * window),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 20 * time.Second, Timeout: 5 * time.Second}),
	}
}
