package protocol

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/platform/clock"
	"github.com/blackhole/blackhole/internal/platform/rpc"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/network"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

// Protocol returns the keepers' protocol of a network.
func Protocol(n network.Name) protocol.ID { return protocol.ID(n.Protocol("keeper", "1.0.0")) }

// service names the streams of the protocol to the resource manager.
const service = "blackhole.keeper"

// Client sends requests to other keepers, and remembers how they answered. It is safe for concurrent use.
type Client struct {
	*Life
	Pool      Streams // carries the requests; closed by the owner of the client
	host      host.Host
	limits    Limits
	suspected func(peer.ID)              // hears of unresponsive peers
	late      func(began time.Time) bool // this process ran late; nil never
	stats     *statsCache
	clock     *clockCheck    // sampled by each response
	lacking   *lackingFields // fields that keepers do not know
}

// Streams carries requests to other keepers. It is an rpc.Pool outside tests.
type Streams interface {
	Call(ctx context.Context, id peer.ID, req, resp proto.Message) error
	Close()
}

// NewClient returns a client. It reports unresponsive peers to suspected.
func NewClient(l *Life, config Config, suspected func(peer.ID)) *Client {
	c := &Client{Life: l, host: config.Host, limits: config.Limits, suspected: suspected, stats: newStatsCache()}
	if r, ok := config.Router.(interface{ Late(began time.Time) bool }); ok {
		c.late = r.Late
	}
	c.clock = &clockCheck{now: l.Now, steady: time.Now, prefixOf: c.PrefixOf, conditions: config.Signals.Conditions}
	c.lacking = newLacking(l.Now, config.Signals, c.PrefixOf)
	c.Pool = rpc.NewPool(rpc.PoolConfig{
		Host: config.Host, Protocol: Protocol(config.Network), Service: service,
		Format:       ResponseFormat(),
		CallsPerPeer: callsPerPeer, IdlePerPeer: idlePerPeer, Idle: idleStreams, IdleFor: idleFor,
		Prepare: withTimeout,
	})
	return c
}

// withTimeout returns a copy of a request that states how long the caller waits.
func withTimeout(m proto.Message, left time.Duration) proto.Message {
	req := m.(*pb.Request)
	return &pb.Request{TimeoutMs: uint32(min(left, ServeMax).Milliseconds()), Op: req.Op, Traceparent: req.Traceparent}
}

// Call sends a request to a keeper and returns its response. Refused reports that err is the
// keeper's own refusal: Unsupported from a keeper of another version. See rpc.Pool.Call for the other
// errors.
func (c *Client) Call(ctx context.Context, id peer.ID, req *pb.Request) (_ *pb.Response, refused bool, err error) {
	ctx, req, span := asking(ctx, c.signals.Tracer, id, req)
	defer func() { span.End(err) }()
	resp := new(pb.Response)
	start := c.clock.steady()
	if err := c.Pool.Call(ctx, id, req, resp); err != nil {
		return nil, false, fault.Wrap("keeper.call", err)
	}
	c.clock.sample(id, resp.TimeMs, c.clock.steady().Sub(start))
	if err := c.Refusal(id, resp); err != nil {
		return resp, true, err
	}
	return resp, false, nil
}

// Refusal returns the refusal in a response, and Unsupported for a response without a known operation. No version sends an empty
// response to a request that it knows, and a response of another shape is not a lie.
func (c *Client) Refusal(id peer.ID, resp *pb.Response) error {
	if err := rpc.Restore("keeper.call", resp.Refusal); err != nil {
		c.lacking.note(id, err)
		return err
	}
	if resp.Op == nil {
		return fault.New("keeper.call", fault.Unsupported, "the peer answered in a form of a later version")
	}
	return nil
}

// Observe updates the stats of a peer after a request.
func (c *Client) Observe(ctx context.Context, id peer.ID, took time.Duration, err error) {
	switch kind := fault.KindOf(err); {
	case err == nil || kind == fault.Unsupported: // of another version: it answered
		c.stats.observe(id, took)
	case kind == fault.Unauthentic:
		c.signals.Metrics.Distrusted(kind.String())
		c.Logger.Warn("a keeper violated the protocol: it is asked last for a while", "peer", id, "error", err)
		c.stats.avoid(id, c.Now().Add(distrustFor))
	case (kind == fault.Canceled || ctx.Err() == context.Canceled) && took <= c.stats.hedgeDelay([]peer.ID{id}):
		// Keepers asked later were faster.
	case c.RanLate(took): // the answer may wait unread: this peer is the slow one
	default:
		c.stats.miss(id, c.Now())
		c.suspected(id)
	}
}

// RanLate reports whether this process ran late in the time that a request took.
func (c *Client) RanLate(took time.Duration) bool {
	return c.late != nil && c.late(c.clock.steady().Add(-took))
}

// Avoid asks a peer last for a while, because it contradicts all others: it may be late, so it is no offence.
func (c *Client) Avoid(id peer.ID) { c.stats.avoid(id, c.Now().Add(avoidFor)) }

// Outdated asks a peer last for a while that lacks what others have had for long, and for longer if it does so again and again: one that
// hides records is asked last for most of the time.
func (c *Client) Outdated(id peer.ID) { c.stats.outdated(id, c.Now()) }

// Avoided reports whether a peer failed a short time ago and is asked last.
func (c *Client) Avoided(id peer.ID) bool { return c.stats.avoided(id, c.Now()) }

// Rank puts recently failed peers last, and before them peers of a network that an earlier one belongs to: an owner of many peers in
// one network is not asked twice before another owner. It keeps the order otherwise.
func (c *Client) Rank(ids []peer.ID) []peer.ID {
	seen := make(map[netip.Prefix]bool)
	var first, repeated, failed []peer.ID
	for _, id := range ids {
		if c.Avoided(id) {
			failed = append(failed, id)
			continue
		}
		from, ok := c.PrefixOf(id)
		if ok && seen[from] {
			repeated = append(repeated, id)
		} else {
			first = append(first, id)
		}
		seen[from] = true
	}
	return slices.Concat(first, repeated, failed)
}

// PrefixOf returns the address prefix of a peer, from its connections or else from the
// peer store. It reports false for this peer, for loopback in a network of one machine, and for an unknown prefix.
func (c *Client) PrefixOf(id peer.ID) (netip.Prefix, bool) {
	if id == c.Self {
		return netip.Prefix{}, false
	}
	for _, conn := range c.host.Network().ConnsToPeer(id) {
		s := c.limits.SourceOf(conn)
		return s.Prefix, !s.Exempt && s.Prefix.IsValid()
	}
	for _, at := range c.host.Peerstore().Addrs(id) {
		if from := rpc.PrefixOf(at); from.IsValid() {
			return from, !(c.limits.Loopback && rpc.AddrOf(at).IsLoopback())
		}
	}
	return netip.Prefix{}, false
}

// HedgeDelay returns how long to wait for some peers, this one left out, before others are asked too.
func (c *Client) HedgeDelay(ids []peer.ID) time.Duration {
	return c.stats.hedgeDelay(slices.DeleteFunc(slices.Clone(ids), func(id peer.ID) bool { return id == c.Self }))
}

// WrongClock describes the fault of this peer's clock; "" for a right or unknown clock.
func (c *Client) WrongClock() string { return c.clock.wrong() }

// Clock returns the estimated offset of this peer's clock from the clocks of the keepers.
func (c *Client) Clock() clock.Estimate { return c.clock.current() }

// Apart returns this peer's clock minus the time in a keeper's response, and whether the keeper's clock differs from the others' by more
// than clock.Warn. A keeper with a wrong clock refuses valid records.
func (c *Client) Apart(ms uint64) (apart time.Duration, off bool) {
	apart = c.Now().Sub(time.UnixMilli(int64(min(ms, latestTime))))
	e := c.clock.current()
	return apart, e.State == clock.Known && (apart-e.Offset).Abs() > clock.Warn
}

// FiltersOf returns the fields of a query that a keeper does not know.
func (c *Client) FiltersOf(id peer.ID) []string { return c.lacking.filtersOf(id) }

// TellLacking raises or clears the condition of older keepers.
func (c *Client) TellLacking() { c.lacking.tell(c.Now()) }
