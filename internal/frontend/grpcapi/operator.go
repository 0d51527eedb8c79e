package grpcapi

import (
	"context"

	"google.golang.org/grpc"

	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// Operator lets the operator examine and adjust this peer.
type Operator interface {
	// Debug passes the files for a report of a fault to send, without secrets.
	Debug(ctx context.Context, send func(name string, content []byte) error) error
	// SetLogLevel changes the level of the log. Errors: Invalid for an unknown level.
	SetLogLevel(level string) (previous string, err error)
}

// maxDebugFile bounds a file of Debug. The end of a longer one is cut off.
const maxDebugFile = 1 << 20

type operatorService struct {
	api.UnimplementedOperatorServiceServer
	operator Operator
}

// Debug implements api.OperatorServiceServer.
func (s *operatorService) Debug(_ *api.DebugRequest, out grpc.ServerStreamingServer[api.DebugResponse]) error {
	return s.operator.Debug(out.Context(), func(name string, content []byte) error {
		return out.Send(&api.DebugResponse{Name: name, Content: content[:min(len(content), maxDebugFile)]})
	})
}

// SetLogLevel implements api.OperatorServiceServer.
func (s *operatorService) SetLogLevel(_ context.Context, r *api.SetLogLevelRequest) (*api.SetLogLevelResponse, error) {
	previous, err := s.operator.SetLogLevel(r.GetLevel())
	return &api.SetLogLevelResponse{Previous: previous}, err
}
