package grpcapi

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/blackhole/blackhole/pkg/instance"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// Operator lets the operator examine and adjust this peer.
type Operator interface {
	// Debug passes the files for a report of a fault to send, without secrets.
	Debug(ctx context.Context, send func(name string, content []byte) error) error
	// SetLogLevel changes the level of the log. Errors: Invalid for an unknown level.
	SetLogLevel(level string) (previous string, err error)
	// LastChecks returns the ends of the last checks that this peer made of an instance, newest first. Errors: Unsupported
	// without the agent plane.
	LastChecks(k instance.Key) ([]instance.LastCheck, error)
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

// ListChecks implements api.OperatorServiceServer.
func (s *operatorService) ListChecks(_ context.Context, r *api.ListChecksRequest) (*api.ListChecksResponse, error) {
	ends, err := s.operator.LastChecks(toKey(r))
	return &api.ListChecksResponse{Checks: convert(ends, func(c instance.LastCheck) *api.Check {
		return &api.Check{
			At: timestamppb.New(c.At), Took: durationpb.New(time.Duration(c.TookMs * float64(time.Millisecond))),
			Passing: c.Passing, Status: instance.Status(c.Status).Proto(), Cause: c.Cause,
		}
	})}, err
}
