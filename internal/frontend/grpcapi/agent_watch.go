package grpcapi

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
	agentv1 "github.com/blackhole/blackhole/proto/blackhole/agent/v1"
)

// Watch implements agentv1.DiscoveryServiceServer. Each batch ends with INITIAL or PROGRESS, which
// reports the contact to the group. A client resumes after the revision of that message: within a
// batch it could lose the rest of a revision.
func (a *agent) Watch(req *agentv1.WatchRequest, out grpc.ServerStreamingServer[agentv1.WatchResponse]) error {
	const op = "grpcapi.Watch"
	q, err := toQuery(req.GetQuery())
	if err != nil {
		return fault.Wrap(op, fault.In("query", err))
	}
	release, err := a.watches.Take(out.Context(), op)
	if err != nil {
		return err
	}
	defer release()
	ctx, cancel := untilClosing(out.Context(), a.closing)
	defer cancel()
	if err := out.SendHeader(metadata.MD{}); err != nil {
		return err
	}
	err = a.Catalog.Watch(ctx, q, req.GetRevision(), func(b instance.Batch) error { return sendBatch(out, b) })
	return orClosing(a.closing, op, err)
}

func sendBatch(out grpc.ServerStreamingServer[agentv1.WatchResponse], b instance.Batch) error {
	reset := b.Reset
	for _, e := range b.Events {
		err := out.Send(&agentv1.WatchResponse{
			Type: agentv1.EventType(e.Type), Instance: e.Instance.Proto(), Revision: e.Revision, Reset_: reset,
		})
		if err != nil {
			return err
		}
		reset = false
	}
	end := &agentv1.WatchResponse{
		Type: agentv1.EventType_EVENT_TYPE_PROGRESS, Revision: b.Index, Reset_: reset, Stale: b.Stale, Reason: b.Reason,
	}
	if b.Stale {
		end.Age = durationpb.New(b.Age)
	}
	if b.Reset {
		end.Type = agentv1.EventType_EVENT_TYPE_INITIAL
	}
	return out.Send(end)
}
