package trade

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/host"
	libp2p "github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/client"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/platform/clean"
	"github.com/blackhole/blackhole/internal/platform/rpc"
	"github.com/blackhole/blackhole/internal/trade/ledger"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/network"
	"github.com/blackhole/blackhole/pkg/records"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	pb "github.com/blackhole/blackhole/proto/blackhole/trade/v1"
)

const (
	maxHeld    = 1000             // grants that this peer remembers
	askTime    = 8 * time.Second  // for one attempt of a request
	askFor     = 20 * time.Second // for all: a provider that has just started is not found at once
	firstPause = 500 * time.Millisecond
	quoteTime  = 2 * time.Second // for all quotes of one call
	maxQuoted  = 100             // keys of one call
	maxTerms   = 64              // bytes of a currency or unit
	punchTime  = 8 * time.Second // for a direct way, before a relay carries bytes
	tellEvery  = time.Second
	maxLocal   = 256 // connections of one Connect at a time
	protectTag = "blackhole.access"
)

// heldName names a grant that this peer holds.
type heldName struct {
	provider peer.ID
	token    uint64
}

// held is a grant of another peer. Its end here comes before its end there: it counts from before the request.
type held struct {
	grant *api.Grant
	until time.Duration
	*counters
}

// Reserve implements api.TradeServiceServer.
func (d *Desk) Reserve(ctx context.Context, r *api.ReserveRequest) (*api.ReserveResponse, error) {
	const op = "trade.Reserve"
	key, err := records.ParseKey(r.GetKey())
	switch {
	case err != nil:
		return nil, fault.Wrap(op, err)
	case key.Name.Provider == d.Host.ID():
		return nil, fault.Wrap(op, fault.Refused(fault.Conflict, "key", "names an offer of this peer itself"))
	}
	r = proto.CloneOf(r)
	r.RequestId = cmp.Or(r.RequestId, rand.Text())
	grant, signed, err := d.ask(ctx, key.Name.Provider, &pb.Request{Op: &pb.Request_Reserve{Reserve: r}})
	if err == nil && grant.GetRequestId() != r.RequestId {
		err = fault.New("", fault.Unauthentic, "the provider answered another request")
	}
	if err != nil {
		return nil, fault.Wrap(op, err)
	}
	return &api.ReserveResponse{Grant: grant, Signed: signed}, nil
}

// Quote implements api.TradeServiceServer. It asks all providers at once, each once.
func (d *Desk) Quote(ctx context.Context, r *api.QuoteRequest) (*api.QuoteResponse, error) {
	const op = "trade.Quote"
	keys := r.GetKeys()
	if len(keys) == 0 || len(keys) > maxQuoted {
		return nil, fault.Wrap(op, fault.Invalidf("keys", len(keys), "must be 1 to %d", maxQuoted))
	}
	of := map[peer.ID][]int{}
	for i, text := range keys {
		key, err := records.ParseKey(text)
		if err != nil {
			return nil, fault.Wrap(op, fault.Invalidf(fmt.Sprintf("keys[%d]", i), text, "%s", fault.Message(err)))
		}
		of[key.Name.Provider] = append(of[key.Name.Provider], i)
	}
	all := make([]*api.Quote, len(keys))
	ctx, cancel := context.WithTimeout(ctx, quoteTime)
	defer cancel()
	var work sync.WaitGroup
	for provider, places := range of {
		for part := range slices.Chunk(places, maxQuotes) {
			work.Go(func() {
				asked := make([]string, len(part))
				for n, i := range part {
					asked[n] = keys[i]
				}
				quotes, err := d.quotesOf(ctx, provider, asked)
				for n, i := range part {
					if all[i] = (&api.Quote{Key: keys[i], Refusal: rpc.Refuse(err)}); err == nil {
						all[i] = quotes[n]
					}
				}
			})
		}
	}
	work.Wait()
	return &api.QuoteResponse{Quotes: all}, nil
}

// quotesOf asks one provider. Errors: of the provider; Unavailable and Timeout without an answer; Unauthentic.
func (d *Desk) quotesOf(ctx context.Context, of peer.ID, keys []string) ([]*api.Quote, error) {
	if of == d.Host.ID() {
		return d.quotes(ledger.Consumer{ID: of.String()}, keys)
	}
	resp := &pb.Response{}
	req := &pb.Request{Op: &pb.Request_Quote{Quote: &api.QuoteRequest{Keys: keys}}}
	if err := d.pool.Call(ctx, of, req, resp); err != nil {
		return nil, fault.New("", fault.KindOf(err), "the provider gave no quote within %v: %s", quoteTime, fault.Message(err))
	}
	if err := rpc.Restore("", resp.GetRefusal()); err != nil {
		return nil, err
	}
	fits := len(resp.GetQuotes()) == len(keys)
	for i, q := range resp.GetQuotes() {
		fits = fits && q.GetKey() == keys[i] && q.GetFree() <= q.GetTotal() && q.GetMost() <= q.GetFree()
		fits = fits && records.CheckNumber("price", q.Price, 0, math.MaxFloat64) == nil
		for _, text := range []string{q.GetCurrency(), q.GetPriceUnit()} {
			fits = fits && len(text) <= maxTerms && !strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' })
		}
		q.Refusal = rpc.Refuse(rpc.Restore("", q.GetRefusal())) // its text is cleaned
	}
	if !fits {
		return nil, fault.New("", fault.Unauthentic, "the provider %s gave quotes that cannot be", of)
	}
	return resp.GetQuotes(), nil
}

// Extend implements api.TradeServiceServer.
func (d *Desk) Extend(ctx context.Context, r *api.ExtendRequest) (*api.ExtendResponse, error) {
	const op = "trade.Extend"
	name, err := d.heldBy(r.GetProviderId(), r.GetToken())
	if err != nil {
		return nil, fault.Wrap(op, err)
	}
	r = proto.CloneOf(r)
	r.RequestId, r.ProviderId = cmp.Or(r.RequestId, rand.Text()), name.provider.String()
	grant, signed, err := d.ask(ctx, name.provider, &pb.Request{Op: &pb.Request_Extend{Extend: r}})
	return &api.ExtendResponse{Grant: grant, Signed: signed}, fault.Wrap(op, err)
}

// Release implements api.TradeServiceServer.
func (d *Desk) Release(ctx context.Context, r *api.ReleaseRequest) (*api.ReleaseResponse, error) {
	const op = "trade.Release"
	name, err := d.heldBy(r.GetProviderId(), r.GetToken())
	if err != nil {
		return nil, fault.Wrap(op, err)
	}
	d.mu.Lock()
	d.end(name, api.Grant_STATE_RELEASED, "") // before the provider may give the units to somebody else
	d.mu.Unlock()
	r = proto.CloneOf(r)
	r.ProviderId = name.provider.String()
	grant, _, err := d.ask(ctx, name.provider, &pb.Request{Op: &pb.Request_Release{Release: r}})
	return &api.ReleaseResponse{Grant: grant}, fault.Wrap(op, err)
}

// ask sends a request, which is safe to repeat, and remembers the grant in the answer. Errors: of the provider;
// Unavailable and Timeout without an answer: the request may have had its effect; Unauthentic.
func (d *Desk) ask(ctx context.Context, to peer.ID, req *pb.Request) (*api.Grant, []byte, error) {
	sent := d.now()
	resp := &pb.Response{}
	all, cancel := context.WithTimeout(ctx, askFor)
	defer cancel()
	for pause := firstPause; ; pause *= 2 {
		within, cancel := context.WithTimeout(all, askTime)
		err := d.pool.Call(within, to, req, resp)
		cancel()
		if err == nil {
			break
		}
		if kind := fault.KindOf(err); kind == fault.Unauthentic || kind == fault.TooLarge || kind == fault.Unsupported {
			return nil, nil, err
		}
		select {
		case <-time.After(pause):
		case <-all.Done():
		}
		if ctx.Err() != nil {
			return nil, nil, fault.Wrap("", ctx.Err())
		}
		if all.Err() != nil {
			return nil, nil, fault.New("", fault.Unavailable, "the provider %s was not reached: %w", to, err)
		}
	}
	if err := rpc.Restore("", resp.GetRefusal()); fault.KindOf(err) == fault.PaymentRequired {
		terms := clean.Lines(string(resp.GetTerms()), maxProof)
		return nil, nil, &fault.Error{Kind: fault.PaymentRequired, Field: "proof", Value: []byte(terms), Err: err}
	} else if err != nil {
		return nil, nil, err
	}
	grant, err := Verify(d.Network, resp.GetGrant())
	if err == nil && (grant.GetProviderId() != to.String() || grant.GetConsumerId() != d.Host.ID().String() || grant.GetToken() == 0) {
		err = fault.New("", fault.Unauthentic, "the provider %s answered with a grant of somebody else", to)
	}
	if err != nil {
		return nil, nil, err
	}
	signed, err := proto.Marshal(resp.GetGrant())
	if err != nil {
		return nil, nil, fault.As("", fault.Internal, err)
	}
	grant.Handover = clean.Lines(grant.GetHandover(), ledger.MaxHandover)
	grant = d.remember(to, grant, sent, time.Duration(resp.GetLeftMs())*time.Millisecond)
	if req.GetRelease() == nil && !ledger.Live(grant.GetState()) {
		state := strings.ToLower(strings.TrimPrefix(grant.GetState().String(), "STATE_"))
		reason := cmp.Or(clean.Text(grant.GetReason(), maxReason), "no reason is known")
		return nil, nil, fault.New("", fault.Gone, "the grant is %s: %s", state, reason)
	}
	return grant, signed, nil
}

// remember keeps a grant that is live, from the time when it was asked for, and forgets one that its provider ended.
// left is what the provider says: less than the time of the grant if an earlier request with the same id got it.
func (d *Desk) remember(from peer.ID, grant *api.Grant, sent, left time.Duration) *api.Grant {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.now()
	d.endExpired(now)
	name := heldName{from, grant.GetToken()}
	if !ledger.Live(grant.GetState()) {
		d.end(name, grant.GetState(), grant.GetReason())
		return grant
	}
	carried := &counters{}
	if h := d.held[name]; h != nil {
		carried = h.counters
	} else if len(d.held) < maxHeld {
		d.Tell(false, grant)
	} else {
		return grant
	}
	until := sent + min(left, time.Duration(min(grant.GetTtlMs(), uint64(records.MaxGrantTTL.Milliseconds())))*time.Millisecond)
	d.held[name] = &held{grant, until, carried}
	return withLeft(grant, until-now)
}

func withLeft(grant *api.Grant, left time.Duration) *api.Grant {
	grant = proto.CloneOf(grant)
	ms := uint64(max(left, 0).Milliseconds())
	grant.LeftMs = &ms
	return grant
}

// end forgets a grant that this peer holds, and tells why. The caller has d.mu.
func (d *Desk) end(name heldName, as api.Grant_State, reason string) {
	if h := d.held[name]; h != nil {
		delete(d.held, name)
		g := proto.CloneOf(h.grant)
		g.State, g.Reason = as, reason
		d.Tell(false, g)
	}
}

// endExpired ends the grants whose time is over. The caller has d.mu.
func (d *Desk) endExpired(now time.Duration) {
	for name, h := range d.held {
		if h.until <= now {
			d.end(name, api.Grant_STATE_EXPIRED, "")
		}
	}
}

// heldBy returns the name of a grant. Without a provider it must be one that this peer holds.
func (d *Desk) heldBy(provider string, token uint64) (name heldName, err error) {
	name.token = token
	if provider != "" {
		name.provider, err = peerOf("provider_id", provider)
		return name, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for known := range d.held {
		if known.token != token {
			continue
		}
		if name.provider != "" {
			return name, fault.Invalidf("provider_id", nil, "is missing: several providers gave a grant with the token %d", token)
		}
		name = known
	}
	if name.provider == "" {
		return name, fault.Refused(fault.NotFound, "token", "%d names no grant that this peer holds since its start", token)
	}
	return name, nil
}

// leftOf returns the rest of a grant's time; 0 for one that this peer does not hold.
func (d *Desk) leftOf(name heldName) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	if h := d.held[name]; h != nil {
		return max(h.until-d.now(), 0)
	}
	return 0
}

func (d *Desk) heldGrants() (all []*api.Grant) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, h := range d.held {
		if left := h.until - d.now(); left > 0 {
			g := withLeft(h.grant, left)
			g.Handover, g.SentBytes, g.ReceivedBytes = "", h.sent.Load(), h.received.Load()
			all = append(all, g)
		}
	}
	slices.SortFunc(all, func(a, b *api.Grant) int {
		return cmp.Or(cmp.Compare(a.ProviderId, b.ProviderId), cmp.Compare(a.Token, b.Token))
	})
	return all
}

// connection is one Connect: a local listener whose connections go to the service behind a grant.
type connection struct {
	desk *Desk
	name heldName
	near chan struct{} // closed when a direct way was found, or looked for
	counters

	mu    sync.Mutex // guards the fields below
	lines map[line]struct{}
	last  string // failure
}

// Connect implements api.TradeServiceServer.
func (d *Desk) Connect(r *api.ConnectRequest, out grpc.ServerStreamingServer[api.ConnectResponse]) error {
	const op = "trade.Connect"
	name, err := d.heldBy(r.GetProviderId(), r.GetToken())
	if err != nil {
		return fault.Wrap(op, err)
	}
	if d.leftOf(name) == 0 {
		return fault.Wrap(op, fault.Refused(fault.NotFound, "token", "%d names no grant that this peer holds since its start", name.token))
	}
	host, _, err := net.SplitHostPort(r.GetListen())
	if ip := net.ParseIP(host); err != nil || !ip.IsLoopback() && host != "localhost" {
		return fault.Wrap(op, fault.Invalidf("listen", r.GetListen(), "must be HOST:PORT of loopback, such as 127.0.0.1:0: who reaches it has what you bought"))
	}
	ctx, cancel := context.WithCancel(out.Context())
	defer cancel()
	defer context.AfterFunc(d.life, cancel)()
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", r.GetListen())
	if err != nil {
		return fault.Wrap(op, fault.Invalidf("listen", r.GetListen(), "%w", err))
	}
	d.Host.ConnManager().Protect(name.provider, protectTag)
	defer d.Host.ConnManager().Unprotect(name.provider, protectTag)
	c := &connection{desk: d, name: name, near: make(chan struct{}), lines: map[line]struct{}{}}
	var work sync.WaitGroup
	work.Go(func() { c.listen(ctx, listener, &work) })
	work.Go(func() {
		d.approach(ctx, name.provider)
		close(c.near)
	})
	err = c.tell(ctx, listener.Addr().String(), out.Send)
	cancel()
	_ = listener.Close()
	c.cut()
	work.Wait()
	return fault.Wrap(op, err)
}

// tell reports until the grant or the call ends.
func (c *connection) tell(ctx context.Context, listen string, send func(*api.ConnectResponse) error) error {
	tick := time.NewTicker(tellEvery)
	defer tick.Stop()
	var last *api.ConnectResponse
	for {
		now := c.state(listen)
		left := c.desk.leftOf(c.name)
		if left == 0 {
			if now.GetError() != "" {
				return fault.New("", fault.Gone, "%w; the last connection failed: %s", errEnded, now.GetError())
			}
			return fault.As("", fault.Gone, errEnded)
		}
		if last != nil {
			last.LeftMs, last.RoundTripUs = now.LeftMs, now.RoundTripUs // they change all the time
		}
		if !proto.Equal(last, now) {
			if err := send(now); err != nil {
				return err
			}
			last = now
		}
		end := time.NewTimer(left)
		select {
		case <-ctx.Done():
			end.Stop()
			return fault.Wrap("", ctx.Err())
		case <-tick.C:
		case <-end.C:
		}
		end.Stop()
	}
}

// state describes the connection now.
func (c *connection) state(listen string) *api.ConnectResponse {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := &api.ConnectResponse{
		Listen: listen, LeftMs: uint64(c.desk.leftOf(c.name).Milliseconds()), Connections: uint32(len(c.lines)), Error: c.last,
		SentBytes: c.sent.Load(), ReceivedBytes: c.received.Load(),
		RoundTripUs: uint64(c.desk.Host.Peerstore().LatencyEWMA(c.name.provider).Microseconds()),
	}
	for _, conn := range c.desk.Host.Network().ConnsToPeer(c.name.provider) {
		stat := conn.Stat()
		if !stat.Limited {
			s.Path, s.RelayBytes, s.RelayMs = "direct", 0, 0
			break
		}
		select {
		case <-c.near:
			s.Path = "relayed"
		default: // a direct way is still looked for
			continue
		}
		if most, ok := stat.Extra[client.StatLimitData].(uint64); ok {
			s.RelayBytes = most
		}
		if most, ok := stat.Extra[client.StatLimitDuration].(time.Duration); ok {
			s.RelayMs = uint64(most.Milliseconds())
		}
	}
	return s
}

// listen carries local connections until the listener closes.
func (c *connection) listen(ctx context.Context, l net.Listener, work *sync.WaitGroup) {
	places := make(chan struct{}, maxLocal)
	for {
		conn, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of descriptors, for example
			select {
			case <-ctx.Done():
				return
			case <-time.After(tellEvery):
			}
			continue
		}
		select {
		case places <- struct{}{}:
			work.Go(func() {
				defer func() { <-places }()
				c.carry(ctx, conn.(*net.TCPConn))
			})
		default:
			_ = conn.Close()
		}
	}
}

// carry carries one local connection.
func (c *connection) carry(ctx context.Context, conn *net.TCPConn) {
	<-c.near // at the latest at the end of ctx
	s, err := c.desk.dial(ctx, c.name)
	l := line{s, conn}
	c.desk.mu.Lock()
	h := c.desk.held[c.name]
	c.desk.mu.Unlock()
	c.mu.Lock()
	if c.last = ""; err != nil {
		c.last = fault.Message(err)
	}
	if err == nil && ctx.Err() == nil && h != nil {
		c.lines[l] = struct{}{}
		c.mu.Unlock()
		l.pump(conn, s, &c.counters, h.counters, &c.desk.bought)
		c.mu.Lock()
		delete(c.lines, l)
		c.mu.Unlock()
		return
	}
	c.mu.Unlock()
	_ = conn.SetLinger(0) // the program learns that it failed
	_ = conn.Close()
	if err == nil {
		_ = s.Reset()
	}
	if fault.KindOf(err) == fault.Gone && h != nil { // before its time: the provider signs why
		get := &pb.GetRequest{RequestId: h.grant.GetRequestId()}
		_, _, _ = c.desk.ask(ctx, c.name.provider, &pb.Request{Op: &pb.Request_Get{Get: get}})
	}
}

func (c *connection) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for l := range c.lines {
		l.cut()
	}
}

// dial opens a stream to the service behind a grant. Errors: of the provider; Unavailable, Timeout, Canceled.
func (d *Desk) dial(ctx context.Context, name heldName) (libp2p.Stream, error) {
	ctx, cancel := context.WithTimeout(ctx, openTime+punchTime)
	defer cancel()
	if d.Host.Network().Connectedness(name.provider) == libp2p.NotConnected {
		d.approach(ctx, name.provider)
	}
	return begin(ctx, d.Host, d.Network, name.provider, &pb.OpenRequest{Token: name.token})
}

// begin opens a stream to a service, over a relay if there is no direct way yet. The fields of a refusal are those of
// the request. Errors: as of dial.
func begin(
	ctx context.Context, h host.Host, n network.Name, provider peer.ID, req *pb.OpenRequest,
) (libp2p.Stream, error) {
	proposals := rpc.Proposals(h, provider, AccessProtocol(n))
	s, err := h.NewStream(libp2p.WithAllowLimitedConn(ctx, accessService), provider, proposals...)
	if err != nil {
		return nil, rpc.Classify(ctx, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = s.Reset() })
	codec, err := opening(s, false)
	if err == nil {
		err = codec.WriteMessage(req)
	}
	resp := &pb.OpenResponse{}
	if err == nil {
		err = codec.ReadMessage(resp)
	}
	if err == nil {
		err = rpc.Restore("", resp.GetRefusal())
	}
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		_ = s.Reset()
		return nil, rpc.Classify(ctx, err)
	}
	_ = s.SetDeadline(time.Time{})
	return &opened{s, codec}, nil
}

// approach looks for a direct way to a provider: a relay carries bytes as the last resort. The two peers punch a
// hole as soon as a relay has brought them together.
func (d *Desk) approach(ctx context.Context, to peer.ID) {
	n := d.Host.Network()
	if n.Connectedness(to) == libp2p.Connected {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, punchTime)
	defer cancel()
	if err := d.Host.Connect(libp2p.WithAllowLimitedConn(ctx, accessService), peer.AddrInfo{ID: to}); err != nil {
		return // the stream finds out why
	}
	direct := make(chan struct{}, 1)
	hear := &libp2p.NotifyBundle{ConnectedF: func(_ libp2p.Network, c libp2p.Conn) {
		if c.RemotePeer() == to && !c.Stat().Limited {
			select {
			case direct <- struct{}{}:
			default:
			}
		}
	}}
	n.Notify(hear)
	defer n.StopNotify(hear)
	if n.Connectedness(to) == libp2p.Connected {
		return
	}
	select {
	case <-direct:
	case <-ctx.Done():
	}
}
