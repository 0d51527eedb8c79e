package grpcapi

import (
	"google.golang.org/grpc"

	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// LeaseKeepAlive implements api.LockServiceServer. Requests that arrive during a call share the next one:
// asking the group is expensive.
func (c *coordination) LeaseKeepAlive(stream grpc.BidiStreamingServer[api.LeaseKeepAliveRequest, api.LeaseKeepAliveResponse]) error {
	caller, err := c.Owner(stream.Context())
	if err != nil {
		return err
	}
	ctx, cancel := untilClosing(stream.Context(), c.closing)
	defer cancel()
	k := queue[api.LeaseKeepAliveRequest]{in: receive(ctx, inboxRoom, stream.Recv, renewable), size: weight, limit: coord.MaxKeepAlive}
	for {
		batch, err := k.batch(ctx)
		if len(batch) == 0 || err != nil {
			return orClosing(c.closing, "grpcapi.LeaseKeepAlive", err)
		}
		renewals, h, err := c.Writer.KeepAlive(ctx, caller, asked(batch))
		if err != nil {
			return orClosing(c.closing, "grpcapi.LeaseKeepAlive", err)
		}
		for _, req := range batch {
			var resp *api.LeaseKeepAliveResponse
			resp, renewals = renewed(req, renewals)
			resp.Header = fromHeader(h)
			if err := stream.Send(resp); err != nil {
				return err
			}
		}
	}
}

// weight returns the number of leases in a request.
func weight(req *api.LeaseKeepAliveRequest) int { return 1 + len(req.GetIds()) }

func renewable(req *api.LeaseKeepAliveRequest) error {
	if n := weight(req); n > coord.MaxKeepAlive {
		return fault.Wrap("grpcapi.LeaseKeepAlive", fault.Invalidf("ids", n, "at most %d in one request", coord.MaxKeepAlive))
	}
	return nil
}

func asked(batch []*api.LeaseKeepAliveRequest) []coord.LeaseID {
	n := 0
	for _, req := range batch {
		n += weight(req)
	}
	ids := make([]coord.LeaseID, 0, n)
	for _, req := range batch {
		ids = append(ids, coord.LeaseID(req.GetId()))
		for _, id := range req.GetIds() {
			ids = append(ids, coord.LeaseID(id))
		}
	}
	return ids
}

// renewed makes the answer to a request of the first renewals, and gives the others.
func renewed(req *api.LeaseKeepAliveRequest, all []coord.Renewal) (*api.LeaseKeepAliveResponse, []coord.Renewal) {
	n := weight(req)
	resp := &api.LeaseKeepAliveResponse{Id: req.GetId(), Ttl: all[0].TTL / 1000, TtlMs: all[0].TTL, Published: publications(all[:n])}
	if n > 1 {
		resp.TtlsMs = make([]int64, n-1)
		for i, r := range all[1:n] {
			resp.TtlsMs[i] = r.TTL
		}
	}
	return resp, all[n:]
}
