package operator

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/blackhole/blackhole/internal/contract/coord/calls"
	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// maxDebugFiles bounds the files that Debug accepts.
const maxDebugFiles = 64

// DebugFile is a file for a report of a fault.
type DebugFile struct {
	Name    string
	Content []byte
}

// Debug returns files for a report of a fault, without secrets: settings, metrics, goroutines and the last log lines.
// Errors: Forbidden without the role admin.
func (c *Client) Debug(ctx context.Context) ([]DebugFile, error) {
	const op = "operator.Debug"
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends a stream that is not read to its end
	stream, err := api.NewOperatorServiceClient(c.link.Conn).Debug(ctx, &api.DebugRequest{})
	if err != nil {
		return nil, calls.Fault(op, err)
	}
	var files []DebugFile
	for len(files) < maxDebugFiles {
		f, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return files, calls.Fault(op, err)
		}
		files = append(files, DebugFile{Name: f.GetName(), Content: f.GetContent()})
	}
	return files, nil
}

// SetLogLevel changes the level of the peer's log (debug, info, warn or error) until the peer stops, and returns the
// level before. Errors: Invalid for another level, Forbidden without the role admin.
func (c *Client) SetLogLevel(ctx context.Context, level string) (previous string, err error) {
	resp, err := api.NewOperatorServiceClient(c.link.Conn).SetLogLevel(ctx, &api.SetLogLevelRequest{Level: level})
	return resp.GetPrevious(), calls.Fault("operator.SetLogLevel", err)
}

// LastChecks returns the ends of the last checks of an instance, newest first, at most instance.MaxLastChecks. Only
// the peer of the instance checks it: others return none. Errors: Forbidden without the role admin, Unsupported by
// a peer without the agent plane.
func (c *Client) LastChecks(ctx context.Context, k instance.Key) ([]instances.LastCheck, error) {
	const op = "operator.LastChecks"
	of := &api.ListChecksRequest{ServiceName: k.Service, InstanceId: k.ID, Namespace: k.Namespace}
	resp, err := api.NewOperatorServiceClient(c.link.Conn).ListChecks(ctx, of)
	if err != nil {
		return nil, calls.Fault(op, err)
	}
	ends := make([]instances.LastCheck, min(len(resp.GetChecks()), instances.MaxLastChecks))
	for i := range ends {
		one := resp.GetChecks()[i]
		status, err := instance.StatusFromProto(one.GetStatus())
		if err != nil {
			return nil, fault.As(op, fault.Internal, err)
		}
		ends[i] = instances.LastCheck{
			At: one.GetAt().AsTime(), TookMs: float64(one.GetTook().AsDuration()) / float64(time.Millisecond),
			Passing: one.GetPassing(), State: one.GetState(), Status: status, Cause: one.GetCause(),
		}
	}
	return ends, nil
}
