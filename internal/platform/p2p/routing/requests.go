package routing

import (
	"context"
	"time"

	dhtpb "github.com/libp2p/go-libp2p-kad-dht/pb"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"

	"github.com/blackhole/blackhole/internal/platform/p2p/dial"
	"github.com/blackhole/blackhole/internal/platform/rpc"
)

// Bounds of the requests of lookups.
const (
	lookupCalls   = 16               // under way to one peer: lookups of all cells of one record
	lookupIdle    = 2                // idle streams to one peer
	lookupIdleAll = 256              // idle streams in total
	lookupIdleFor = 30 * time.Second // lifetime of an idle stream; less than the minute after which kad-dht closes it
)

// requests sends the requests of lookups. kad-dht's own sender has one stream for each peer, and each request waits for the answer to
// the one before: of a dozen lookups at once, as for the cells of one record, the last one waits many round trips. A
// frame of package rpc is one of kad-dht's. Everything but requests goes to kad-dht's sender.
type requests struct {
	dhtpb.MessageSender
	host host.Host
	pool *rpc.Pool
}

func newRequests(other dhtpb.MessageSender, h host.Host, served protocol.ID) *requests {
	return &requests{MessageSender: other, host: h, pool: rpc.NewPool(rpc.PoolConfig{
		Host: dial.QuickHost{Host: h}, Protocol: served, Service: "blackhole.lookup", Format: rpc.Format{MaxSize: network.MessageSizeMax},
		CallsPerPeer: lookupCalls, IdlePerPeer: lookupIdle, Idle: lookupIdleAll, IdleFor: lookupIdleFor,
	})}
}

// SendRequest implements dhtpb.MessageSender.
func (r *requests) SendRequest(ctx context.Context, id peer.ID, m *dhtpb.Message) (*dhtpb.Message, error) {
	answer, start := new(dhtpb.Message), time.Now()
	if err := r.pool.Call(ctx, id, m, answer); err != nil {
		return nil, err
	}
	r.host.Peerstore().RecordLatency(id, time.Since(start))
	return answer, nil
}
