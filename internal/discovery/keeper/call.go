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
	k     *Keeper
	pool  *rpc.Pool
	stats *statsCache
}

func newAsker(k *Keeper) *asker {
	return &asker{k: k, pool: newPool(&k.Config), stats: newStatsCache()}
}

// newPool returns the pool of streams to other keepers.
func newPool(c *Config) *rpc.Pool {
	return rpc.NewPool(rpc.PoolConfig{
		Host: c.Host, Protocol: Protocol, Service: service,
		Format:       rpc.Format{MaxSize: maxResponse, Check: responseBounds().check},
		CallsPerPeer: callsPerPeer, IdlePerPeer: idlePerPeer, Idle: idleStreams, IdleFor: idleFor,
		Prepare: withTimeout,
	})
}

// withTimeout returns a copy of a request that states how long the caller waits.
func withTimeout(m proto.Message, left time.Duration) proto.Message {
	return &pb.Request{TimeoutMs: uint32(min(left, serveMax).Milliseconds()), Op: m.(*pb.Request).Op}
}

// call sends a request to a keeper and returns its response. Refused reports that err is the
// keeper's own refusal. See rpc.Pool.Call for the other errors.
func (a *asker) call(ctx context.Context, id peer.ID, req *pb.Request) (_ *pb.Response, refused bool, _ error) {
	resp := new(pb.Response)
	if err := a.pool.Call(ctx, id, req, resp); err != nil {
		return nil, false, fault.Wrap("keeper.call", err)
	}
	err := faultOf("keeper.call", resp.Refusal)
	return resp, err != nil, err
}

// refusalOf returns the wire form of an error; nil for nil.
func refusalOf(err error) *pb.Refusal {
	if err == nil {
		return nil
	}
	kind, field, message := rpc.Describe(err)
	return &pb.Refusal{Kind: kind, Field: field, Message: message}
}

// faultOf returns the error of a refusal; nil for nil.
func faultOf(op string, r *pb.Refusal) error {
	if r == nil {
		return nil
	}
	return rpc.Restore(op, r.Kind, r.Field, r.Message)
}
