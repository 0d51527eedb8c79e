package grpcapi

import (
	"context"
	"slices"

	"google.golang.org/grpc"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// LeaseKeepAlive implements api.LockServiceServer. Requests that arrive during a call share the next one:
// asking the group is expensive.
func (c *coordination) LeaseKeepAlive(stream grpc.BidiStreamingServer[api.LeaseKeepAliveRequest, api.LeaseKeepAliveResponse]) error {
	if _, err := c.Owner(stream.Context()); err != nil {
		return err
	}
	ctx, cancel := untilClosing(stream.Context(), c.closing)
	defer cancel()
	k := renewals{in: receive(ctx, inboxRoom, stream.Recv, renewable)}
	for {
		batch, err := k.batch(ctx)
		if len(batch) == 0 || err != nil {
			return orClosing(c.closing, "grpcapi.LeaseKeepAlive", err)
		}
		answers, err := c.renew(ctx, batch)
		if err != nil {
			return orClosing(c.closing, "grpcapi.LeaseKeepAlive", err)
		}
		for _, resp := range answers {
			if err := stream.Send(resp); err != nil {
				return err
			}
		}
	}
}

// renewals cuts the requests of a stream into batches.
type renewals struct {
	in   *inbox[api.LeaseKeepAliveRequest]
	next *api.LeaseKeepAliveRequest // without room in the last batch
}

// batch waits for a request and returns it with the requests that already wait, up to coord.MaxKeepAlive leases. An
// empty batch means the end of the stream.
func (q *renewals) batch(ctx context.Context) ([]*api.LeaseKeepAliveRequest, error) {
	first := q.next
	if q.next = nil; first == nil {
		select {
		case req, ok := <-q.in.C:
			if !ok {
				return nil, q.in.err
			}
			first = req
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	batch, size := []*api.LeaseKeepAliveRequest{first}, weight(first)
	for {
		select {
		case req, ok := <-q.in.C:
			if !ok {
				return batch, nil // the next call reports the end
			}
			if size += weight(req); size > coord.MaxKeepAlive {
				q.next = req
				return batch, nil
			}
			batch = append(batch, req)
		default:
			return batch, nil
		}
	}
}

// renew answers requests by one command.
func (c *coordination) renew(ctx context.Context, batch []*api.LeaseKeepAliveRequest) (answers []*api.LeaseKeepAliveResponse, err error) {
	all := &api.LeaseKeepAliveRequest{Id: batch[0].GetId(), Ids: slices.Clone(batch[0].GetIds())}
	for _, req := range batch[1:] {
		all.Ids = append(append(all.Ids, req.GetId()), req.GetIds()...)
	}
	result, err := c.Execute(ctx, coord.CommandOf("", all))
	if err != nil || len(batch) == 1 {
		return []*api.LeaseKeepAliveResponse{result.GetKeepAlive()}, err
	}
	r := result.GetKeepAlive()
	ttls := append([]int64{r.GetTtlMs()}, r.GetTtlsMs()...)
	for _, req := range batch {
		n := weight(req)
		one := &api.LeaseKeepAliveResponse{Header: r.GetHeader(), Id: req.GetId(), Ttl: ttls[0] / 1000, TtlMs: ttls[0], TtlsMs: ttls[1:n]}
		for _, p := range r.GetPublished() {
			if p.GetLeaseId() == req.GetId() || slices.Contains(req.GetIds(), p.GetLeaseId()) {
				one.Published = append(one.Published, p)
			}
		}
		answers, ttls = append(answers, one), ttls[n:]
	}
	return answers, nil
}

// weight returns the number of leases in a request.
func weight(req *api.LeaseKeepAliveRequest) int { return 1 + len(req.GetIds()) }

func renewable(req *api.LeaseKeepAliveRequest) error {
	if n := weight(req); n > coord.MaxKeepAlive {
		return fault.Wrap("grpcapi.LeaseKeepAlive", fault.Invalidf("ids", n, "at most %d in one request", coord.MaxKeepAlive))
	}
	return nil
}
