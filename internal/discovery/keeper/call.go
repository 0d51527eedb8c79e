package keeper

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/platform/rpc"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/network"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

// Protocol returns the keepers' protocol of a network.
func Protocol(n network.Name) protocol.ID { return protocol.ID(n.Protocol("keeper", "1.0.0")) }

// service names the streams of the protocol to the resource manager.
const service = "blackhole.keeper"

// client sends requests to other keepers, and remembers how they answered. It is safe for concurrent use.
type client struct {
	*Env
	pool      streams
	suspected func(peer.ID) // hears of unresponsive peers
	stats     *statsCache
	clock     *clockCheck    // sampled by each response
	lacking   *lackingFields // fields that keepers do not know
}

// streams carries requests to other keepers. It is an rpc.Pool outside tests.
type streams interface {
	Call(ctx context.Context, id peer.ID, req, resp proto.Message) error
	Open(ctx context.Context, id peer.ID) (*rpc.Stream, error)
	Close()
}

// newClient returns a client. It reports unresponsive peers to suspected.
func newClient(e *Env, suspected func(peer.ID)) *client {
	c := &client{Env: e, suspected: suspected, stats: newStatsCache()}
	c.clock = &clockCheck{now: e.Now, steady: time.Now, prefixOf: c.prefixOf, conditions: e.Signals.Conditions}
	c.lacking = newLacking(e, c.prefixOf)
	c.pool = rpc.NewPool(rpc.PoolConfig{
		Host: e.Host, Protocol: Protocol(e.Network), Service: service,
		Format:       rpc.Format{MaxSize: maxResponse, Check: responseBounds().check},
		CallsPerPeer: callsPerPeer, IdlePerPeer: idlePerPeer, Idle: idleStreams, IdleFor: idleFor,
		Prepare: withTimeout,
	})
	return c
}

// withTimeout returns a copy of a request that states how long the caller waits.
func withTimeout(m proto.Message, left time.Duration) proto.Message {
	req := m.(*pb.Request)
	return &pb.Request{TimeoutMs: uint32(min(left, serveMax).Milliseconds()), Op: req.Op, Traceparent: req.Traceparent}
}

// call sends a request to a keeper and returns its response. Refused reports that err is the
// keeper's own refusal: Unsupported from a keeper of another version. See rpc.Pool.Call for the other
// errors.
func (c *client) call(ctx context.Context, id peer.ID, req *pb.Request) (_ *pb.Response, refused bool, err error) {
	ctx, req, span := asking(ctx, c.Signals.Tracer, id, req)
	defer func() { span.End(err) }()
	resp := new(pb.Response)
	start := c.clock.steady()
	if err := c.pool.Call(ctx, id, req, resp); err != nil {
		return nil, false, fault.Wrap("keeper.call", err)
	}
	c.clock.sample(id, resp.TimeMs, c.clock.steady().Sub(start))
	if err := c.refusal(id, resp); err != nil {
		return resp, true, err
	}
	return resp, false, nil
}

// refusal returns the refusal in a response, and Unsupported for a response without a known operation. No version sends an empty
// response to a request that it knows, and a response of another shape is not a lie.
func (c *client) refusal(id peer.ID, resp *pb.Response) error {
	if err := rpc.Restore("keeper.call", resp.Refusal); err != nil {
		c.lacking.note(id, err)
		return err
	}
	if resp.Op == nil {
		return fault.New("keeper.call", fault.Unsupported, "the peer answered in a form of a later version")
	}
	return nil
}

// observe updates the stats of a peer after a request.
func (c *client) observe(ctx context.Context, id peer.ID, took time.Duration, err error) {
	switch kind := fault.KindOf(err); {
	case err == nil || kind == fault.Unsupported: // of another version: it answered
		c.stats.observe(id, took)
	case kind == fault.Unauthentic:
		c.Recorder.Distrusted(kind.String())
		c.Logger.Warn("a keeper violated the protocol: it is asked last for a while", "peer", id, "error", err)
		c.stats.avoid(id, c.Now().Add(distrustFor))
	case (kind == fault.Canceled || ctx.Err() == context.Canceled) && took <= c.stats.hedgeDelay([]peer.ID{id}):
		// Keepers asked later were faster.
	default:
		c.stats.avoid(id, c.Now().Add(avoidFor))
		c.suspected(id)
	}
}

// avoided reports whether a peer failed a short time ago and is asked last.
func (c *client) avoided(id peer.ID) bool { return c.stats.avoided(id, c.Now()) }

// rank puts recently failed peers last, and before them peers of a network that an earlier one belongs to: an owner of many peers in
// one network is not asked twice before another owner. It keeps the order otherwise.
func (c *client) rank(ids []peer.ID) []peer.ID {
	seen := make(map[netip.Prefix]bool)
	var first, repeated, failed []peer.ID
	for _, id := range ids {
		if c.avoided(id) {
			failed = append(failed, id)
			continue
		}
		from, ok := c.prefixOf(id)
		if ok && seen[from] {
			repeated = append(repeated, id)
		} else {
			first = append(first, id)
		}
		seen[from] = true
	}
	return slices.Concat(first, repeated, failed)
}

// prefixOf returns the address prefix of a peer, from its connections or else from the
// peer store. It reports false for this peer, for loopback in a network of one machine, and for an unknown prefix.
func (c *client) prefixOf(id peer.ID) (netip.Prefix, bool) {
	if id == c.Self {
		return netip.Prefix{}, false
	}
	for _, conn := range c.Host.Network().ConnsToPeer(id) {
		s := c.Limits.sourceOf(conn)
		return s.prefix, !s.exempt && s.prefix.IsValid()
	}
	for _, at := range c.Host.Peerstore().Addrs(id) {
		if from := rpc.PrefixOf(at); from.IsValid() {
			return from, !(c.Limits.Loopback && rpc.AddrOf(at).IsLoopback())
		}
	}
	return netip.Prefix{}, false
}

// wrongClock describes the fault of this peer's clock; "" for a right or unknown clock.
func (c *client) wrongClock() string { return c.clock.wrong() }
