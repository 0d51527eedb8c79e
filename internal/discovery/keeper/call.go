package keeper

import (
	"context"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/platform/rpc"
	"github.com/blackhole/blackhole/pkg/fault"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

// asker sends requests to other keepers and chooses among them. It is safe for concurrent use.
type asker struct {
	k         *Keeper
	pool      streams
	stats     *statsCache
	clock     *clockCheck    // sampled by each response
	lacking   *lackingFields // fields that keepers do not know
	following chan struct{}  // semaphore of the followed streams
}

// streams carries requests to other keepers. It is an rpc.Pool outside tests.
type streams interface {
	Call(ctx context.Context, id peer.ID, req, resp proto.Message) error
	Open(ctx context.Context, id peer.ID) (*rpc.Stream, error)
	Close()
}

func newAsker(k *Keeper) *asker {
	return &asker{
		k: k, pool: newPool(&k.Config), stats: newStatsCache(), clock: &clockCheck{k: k, steady: time.Now}, lacking: newLacking(k),
		following: make(chan struct{}, maxOwnWatches),
	}
}

// newPool returns the pool of streams to other keepers.
func newPool(c *Config) *rpc.Pool {
	return rpc.NewPool(rpc.PoolConfig{
		Host: c.Host, Protocol: Protocol(c.Network), Service: service,
		Format:       rpc.Format{MaxSize: maxResponse, Check: responseBounds().check},
		CallsPerPeer: callsPerPeer, IdlePerPeer: idlePerPeer, Idle: idleStreams, IdleFor: idleFor,
		Prepare: withTimeout,
	})
}

// withTimeout returns a copy of a request that states how long the caller waits.
func withTimeout(m proto.Message, left time.Duration) proto.Message {
	req := m.(*pb.Request)
	return &pb.Request{TimeoutMs: uint32(min(left, serveMax).Milliseconds()), Op: req.Op, Traceparent: req.Traceparent}
}

// call sends a request to a keeper and returns its response. Refused reports that err is the
// keeper's own refusal: Unsupported from a keeper of another version. See rpc.Pool.Call for the other
// errors.
func (a *asker) call(ctx context.Context, id peer.ID, req *pb.Request) (_ *pb.Response, refused bool, err error) {
	ctx, req, span := asking(ctx, a.k.Signals.Tracer, id, req)
	defer func() { span.End(err) }()
	resp := new(pb.Response)
	start := a.clock.steady()
	if err := a.pool.Call(ctx, id, req, resp); err != nil {
		return nil, false, fault.Wrap("keeper.call", err)
	}
	a.clock.sample(id, resp.TimeMs, a.clock.steady().Sub(start))
	if err := rpc.Restore("keeper.call", resp.Refusal); err != nil {
		a.lacking.note(id, err)
		return resp, true, err
	}
	if err := laterForm(resp); err != nil {
		return nil, true, err
	}
	return resp, false, nil
}

// laterForm returns Unsupported for a response without a known operation. No version sends an empty response to a
// request that it knows, and a response of another shape is not a lie.
func laterForm(resp *pb.Response) error {
	if resp.Op != nil {
		return nil
	}
	return fault.New("keeper.call", fault.Unsupported, "the peer answered in a form of a later version")
}
