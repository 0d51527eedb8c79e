package grpcapi

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"

	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// inboxRoom is how many requests of a stream are received before they are looked at.
const inboxRoom = 256

// inbox is the requests of a stream.
type inbox[T any] struct {
	C   chan *T // closed at the end
	err error   // of the end, once C is closed; nil when the client has said all
}

// receive fills an inbox with requests that pass check, until one does not or the stream ends.
// The goroutine ends with the call that it belongs to: only then does Recv return.
func receive[T any](ctx context.Context, recv func() (*T, error), check func(*T) error) *inbox[T] {
	in := &inbox[T]{C: make(chan *T, inboxRoom)}
	go func() {
		defer close(in.C)
		for {
			req, err := recv()
			if err != nil {
				if !errors.Is(err, io.EOF) {
					in.err = err
				}
				return
			}
			if in.err = check(req); in.err != nil {
				return
			}
			select {
			case in.C <- req:
			case <-ctx.Done():
				in.err = ctx.Err()
				return
			}
		}
	}()
	return in
}

// LeaseKeepAlive implements api.LockServiceServer. What came while the last call was under way
// is one call: the cost of asking the group is shared.
func (c *coordination) LeaseKeepAlive(stream grpc.BidiStreamingServer[api.LeaseKeepAliveRequest, api.LeaseKeepAliveResponse]) error {
	owner, err := c.Owner(stream.Context())
	if err != nil {
		return err
	}
	ctx, cancel := c.untilClosing(stream.Context())
	defer cancel()
	k := keeper{in: receive(ctx, stream.Recv, renewable)}
	for {
		batch, err := k.batch(ctx)
		if len(batch) == 0 || err != nil {
			return c.orClosing("grpcapi.LeaseKeepAlive", err)
		}
		renewals, h, err := c.Actor.KeepAlive(ctx, owner, asked(batch))
		if err != nil {
			return c.orClosing("grpcapi.LeaseKeepAlive", err)
		}
		header := fromHeader(h)
		for _, req := range batch {
			var resp *api.LeaseKeepAliveResponse
			resp, renewals = renewed(req, renewals)
			resp.Header = header
			if err := stream.Send(resp); err != nil {
				return err
			}
		}
	}
}

// keeper cuts the requests of a stream into batches.
type keeper struct {
	in   *inbox[api.LeaseKeepAliveRequest]
	next *api.LeaseKeepAliveRequest // had no room in the last batch
}

// batch waits for a request and takes those that wait behind it, as many as one call may
// renew. None are left when it is empty.
func (k *keeper) batch(ctx context.Context) ([]*api.LeaseKeepAliveRequest, error) {
	first := k.next
	if k.next = nil; first == nil {
		select {
		case req, ok := <-k.in.C:
			if !ok {
				return nil, k.in.err
			}
			first = req
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	batch, ids := []*api.LeaseKeepAliveRequest{first}, weight(first)
	for {
		select {
		case req, ok := <-k.in.C:
			if !ok {
				return batch, nil // the end is found next time
			}
			if ids += weight(req); ids > coord.MaxKeepAlive {
				k.next = req
				return batch, nil
			}
			batch = append(batch, req)
		default:
			return batch, nil
		}
	}
}

// weight is how many leases a request renews.
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
	resp := &api.LeaseKeepAliveResponse{Id: req.GetId(), Ttl: all[0].TTL / 1000, TtlMs: all[0].TTL}
	if n > 1 {
		resp.TtlsMs = make([]int64, n-1)
		for i, r := range all[1:n] {
			resp.TtlsMs[i] = r.TTL
		}
	}
	return resp, all[n:]
}
