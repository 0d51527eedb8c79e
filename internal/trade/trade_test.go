package trade

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/host"
	libp2pnet "github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/peerstore"
	quic "github.com/libp2p/go-libp2p/p2p/transport/quic"
	"github.com/libp2p/go-libp2p/x/simlibp2p"
	"github.com/marcopolo/simnet"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/platform/rpc"
	"github.com/blackhole/blackhole/internal/platform/script"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/network"
	"github.com/blackhole/blackhole/pkg/records"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	pb "github.com/blackhole/blackhole/proto/blackhole/trade/v1"
)

const name network.Name = "test"

// side is a peer with a desk.
type side struct {
	*Desk
	key    crypto.PrivKey
	mu     sync.Mutex
	offers map[string]*records.Record // guarded by mu
	lies   error                      // of Suspends
	news   chan string                // of Tell
}

func newHost(t *testing.T) (host.Host, crypto.PrivKey) {
	t.Helper()
	key, _, err := crypto.GenerateEd25519Key(rand.Reader)
	require.NoError(t, err)
	h, err := libp2p.New(libp2p.Identity(key), libp2p.ListenAddrStrings("/ip4/127.0.0.1/tcp/0"), libp2p.DisableMetrics(), libp2p.DisableRelay())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, h.Close()) })
	return h, key
}

// newSide makes a peer that knows others.
func newSide(t *testing.T, others ...*side) *side {
	t.Helper()
	h, key := newHost(t)
	s := &side{key: key, offers: map[string]*records.Record{}, news: make(chan string, 100)}
	for _, o := range others {
		require.NoError(t, h.Connect(t.Context(), peer.AddrInfo{ID: o.Host.ID(), Addrs: o.Host.Addrs()}))
	}
	s.Desk = s.open(t, h, t.TempDir()+"/trade")
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func (s *side) open(t *testing.T, h host.Host, dir string) *Desk {
	d, err := Open(Config{
		Network: name, Key: s.key, Host: h, Dir: dir, Shared: true, Own: s.own, All: s.all, Suspends: func() error { return s.lies },
		Tell: func(given bool, g *api.Grant) {
			select {
			case s.news <- fmt.Sprintf("given %t: %d %s %s", given, g.GetUnits(), g.GetState(), g.GetReason()):
			default:
			}
		},
	})
	require.NoError(t, err)
	return d
}

func (s *side) own(id string) (*records.Record, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.offers[id]; r != nil {
		return r, nil
	}
	return nil, fault.New("", fault.NotFound, "no such offer")
}

func (s *side) all() (list []*records.Record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.offers {
		list = append(list, r)
	}
	return list
}

// sell signs an offer of slots and returns its key.
func (s *side) sell(t *testing.T, total uint32) string {
	t.Helper()
	price := 0.4
	o := records.Offer{
		ID: "gpu", Metadata: records.Metadata{Type: "tool", Access: records.AccessPeer, Stock: &records.Stock{Unit: "slot", Total: total, MaxPerConsumer: total}},
		Pricing: &records.Pricing{Currency: "USDC", BasePrice: &price, PriceUnit: "per-hour"},
	}
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	before := uint64(0)
	if r := s.offers["gpu"]; r != nil {
		before = r.Sequence()
	}
	r, err := records.Sign(name, s.key, o, records.Stamp{Sequence: records.NextSequence(before, now), Issued: now, Expires: now.Add(time.Hour)})
	require.NoError(t, err)
	s.offers["gpu"] = r
	return r.Key().String()
}

// serve starts a service that answers each connection by f, and serves it.
func (s *side) serve(t *testing.T, f func(c *net.TCPConn)) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go f(c.(*net.TCPConn))
		}
	}()
	_, err = s.Serve(t.Context(), &api.ServeRequest{Id: "gpu", Address: l.Addr().String(), Connections: 2})
	require.NoError(t, err)
}

// echo says what it was told, and that it heard the end.
func echo(c *net.TCPConn) {
	defer c.Close()
	if _, err := io.Copy(c, c); err == nil {
		_, _ = io.WriteString(c, "end")
	}
}

func (s *side) reserve(t *testing.T, key string, change ...func(*api.ReserveRequest)) *api.Grant {
	t.Helper()
	r := &api.ReserveRequest{Key: key, TtlMs: 60_000}
	for _, f := range change {
		f(r)
	}
	resp, err := s.Reserve(t.Context(), r)
	require.NoError(t, err)
	return resp.GetGrant()
}

// answers collects the answers of Connect.
type answers struct {
	grpc.ServerStream
	ctx context.Context
	all chan *api.ConnectResponse
}

func (a answers) Context() context.Context { return a.ctx }

func (a answers) Send(r *api.ConnectResponse) error {
	select {
	case a.all <- proto.CloneOf(r):
	default:
	}
	return nil
}

// connect connects to what a grant is for, and returns the local address and the end of the call.
func (s *side) connect(t *testing.T, g *api.Grant) (address string, ended <-chan error, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	a := answers{ctx: ctx, all: make(chan *api.ConnectResponse, 1)}
	end := make(chan error, 1)
	go func() { end <- s.Connect(&api.ConnectRequest{Token: g.GetToken(), Listen: "127.0.0.1:0"}, a) }()
	t.Cleanup(cancel)
	select {
	case r := <-a.all:
		return r.GetListen(), end, cancel
	case err := <-end:
		require.NoError(t, err)
	}
	return "", nil, nil
}

func dialTo(t *testing.T, address string) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp", address)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c.(*net.TCPConn)
}

// cutOff expects that a connection is cut: on a busy machine before the caller hears that it was taken.
func cutOff(t *testing.T, address string) {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err == nil {
		defer c.Close()
		_, err = io.ReadAll(c)
	}
	require.Error(t, err)
}

// TestTrade: a consumer takes a unit and reaches the service on the provider's loopback. Each direction ends by
// itself, both sides count the bytes, and nothing passes after the release.
func TestTrade(t *testing.T) {
	seller := newSide(t)
	key := seller.sell(t, 4)
	seller.serve(t, echo)
	buyer := newSide(t, seller)
	g := buyer.reserve(t, key)
	require.Equal(t, buyer.Host.ID().String(), g.GetConsumerId())
	require.InDelta(t, 60_000, g.GetLeftMs(), 5_000)

	address, ended, _ := buyer.connect(t, g)
	c := dialTo(t, address)
	_, err := io.WriteString(c, "hello ")
	require.NoError(t, err)
	heard := make([]byte, 6)
	_, err = io.ReadFull(c, heard)
	require.NoError(t, err)
	require.Equal(t, "hello ", string(heard))
	require.NoError(t, c.CloseWrite())
	rest, err := io.ReadAll(c)
	require.NoError(t, err)
	require.Equal(t, "end", string(rest), "the service speaks after the end of the other direction")

	list, err := seller.ListGrants(t.Context(), nil)
	require.NoError(t, err)
	require.Equal(t, uint64(6), list.GetGiven()[0].GetSentBytes())
	require.Equal(t, uint64(9), list.GetGiven()[0].GetReceivedBytes())
	require.Equal(t, uint32(3), list.GetStocks()[0].GetFree())
	require.Len(t, buyer.heldGrants(), 1)

	c = dialTo(t, address)
	_, err = io.WriteString(c, "more")
	require.NoError(t, err)
	_, err = io.ReadFull(c, heard[:4])
	require.NoError(t, err)
	_, err = seller.Revoke(t.Context(), &api.RevokeRequest{Token: g.GetToken(), Reason: "maintenance"})
	require.NoError(t, err)
	_, err = io.ReadAll(c)
	require.Error(t, err, "a line that is cut does not end like one that was read to its end")
	cutOff(t, address)
	err = <-ended
	require.ErrorIs(t, err, fault.Gone)
	require.ErrorContains(t, err, "was revoked (maintenance)")
	require.Empty(t, buyer.heldGrants(), "the buyer knows that it holds nothing any more")
	_, err = net.Dial("tcp", address)
	require.Error(t, err, "nobody listens any more")
}

// TestNews: both sides hear of each grant and of its end, once, and count what they carry and refuse.
func TestNews(t *testing.T) {
	seller := newSide(t)
	key := seller.sell(t, 4)
	seller.serve(t, echo)
	buyer := newSide(t, seller)
	heard := func(s *side, want ...string) {
		t.Helper()
		for _, text := range want {
			require.Equal(t, text, <-s.news)
		}
		require.Empty(t, s.news)
	}
	_, err := buyer.Reserve(t.Context(), &api.ReserveRequest{Key: key, Units: 5})
	require.Error(t, err)
	once := func(r *api.ReserveRequest) { r.Units, r.RequestId = 2, "once" }
	g := buyer.reserve(t, key, once)
	buyer.reserve(t, key, once)
	_, err = buyer.Extend(t.Context(), &api.ExtendRequest{Token: g.GetToken()})
	require.NoError(t, err)
	heard(seller, "given true: 2 STATE_ACTIVE ")
	heard(buyer, "given false: 2 STATE_ACTIVE ")

	address, ended, _ := buyer.connect(t, g)
	c := dialTo(t, address)
	_, err = io.WriteString(c, "hello")
	require.NoError(t, err)
	_, err = io.ReadFull(c, make([]byte, 5))
	require.NoError(t, err)
	for _, s := range []*side{seller, buyer} {
		now := s.Stats()
		require.Equal(t, carried{1, 5, 5}, carried{now.Sold.Open + now.Bought.Open, now.Sold.Sent + now.Bought.Sent, now.Sold.Received + now.Bought.Received})
		require.Equal(t, 1, now.Given+now.Held)
	}
	require.Equal(t, uint64(5), buyer.heldGrants()[0].GetReceivedBytes())
	require.Equal(t, uint64(2), seller.Stats().Units)
	require.Equal(t, map[[2]string]uint64{{"limit_reached", "units"}: 1}, seller.Stats().Refused)
	_, err = seller.Revoke(t.Context(), &api.RevokeRequest{Token: g.GetToken(), Reason: "maintenance"})
	require.NoError(t, err)
	heard(seller, "given true: 2 STATE_REVOKED maintenance")
	_, err = io.ReadAll(c)
	require.Error(t, err)
	cutOff(t, address) // the next connection learns it, with the signature of the seller
	<-ended
	heard(buyer, "given false: 2 STATE_REVOKED maintenance")

	g = buyer.reserve(t, key)
	_, err = buyer.Release(t.Context(), &api.ReleaseRequest{Token: g.GetToken()})
	require.NoError(t, err)
	heard(seller, "given true: 1 STATE_ACTIVE ", "given true: 1 STATE_RELEASED ")
	heard(buyer, "given false: 1 STATE_ACTIVE ", "given false: 1 STATE_RELEASED ")
	require.Zero(t, buyer.Stats().Held+seller.Stats().Given)
}

// TestStrangers: without a live grant of their own, nobody gets a byte of the service, and the service hears of nobody.
// TEST_LONG tries 100,000 connections.
func TestStrangers(t *testing.T) {
	seller := newSide(t)
	key := seller.sell(t, 8)
	seller.serve(t, func(c *net.TCPConn) {
		t.Error("somebody reached the service")
		_ = c.Close()
	})
	buyer, thief := newSide(t, seller), newSide(t, seller)
	released, expired, revoked, foreign := buyer.reserve(t, key), buyer.reserve(t, key, func(r *api.ReserveRequest) { r.TtlMs = 1_000 }), buyer.reserve(t, key), thief.reserve(t, key)
	_, err := buyer.Release(t.Context(), &api.ReleaseRequest{Token: released.GetToken()})
	require.NoError(t, err)
	_, err = seller.Revoke(t.Context(), &api.RevokeRequest{Token: revoked.GetToken()})
	require.NoError(t, err)
	for seller.granter.current.Load().Left(expired.GetToken(), seller.now()) > 0 {
		<-time.After(10 * time.Millisecond)
	}
	rounds := 1
	if os.Getenv("TEST_LONG") != "" {
		rounds = 100_000/6 + 1
	}
	for what, token := range map[string]uint64{
		"none": 0, "invented": 1<<63 + 1, "released": released.GetToken(), "expired": expired.GetToken(), "revoked": revoked.GetToken(), "foreign": foreign.GetToken(),
	} {
		for range rounds {
			_, err := buyer.dial(t.Context(), heldName{seller.Host.ID(), token})
			require.Contains(t, []fault.Kind{fault.NotFound, fault.Gone}, fault.KindOf(err), "%s: %v", what, err)
		}
	}
	// Bytes behind the request of a stranger go nowhere.
	s, err := buyer.Host.NewStream(t.Context(), seller.Host.ID(), AccessProtocol(name))
	require.NoError(t, err)
	_, err = s.Write([]byte{2, 8, 7, 'G', 'E', 'T'})
	require.NoError(t, err)
	_, err = io.Copy(io.Discard, s)
	require.NoError(t, err, "a refusal, and the end")
	_, err = buyer.Extend(t.Context(), &api.ExtendRequest{Token: foreign.GetToken(), ProviderId: seller.Host.ID().String()})
	require.ErrorIs(t, err, fault.NotFound)
}

// TestConnectionsOfGrant are bounded, and the refusal names the numbers.
func TestConnectionsOfGrant(t *testing.T) {
	seller := newSide(t)
	key := seller.sell(t, 4)
	seller.serve(t, echo)
	buyer := newSide(t, seller)
	name := heldName{seller.Host.ID(), buyer.reserve(t, key, func(r *api.ReserveRequest) { r.Hold = true }).GetToken()}
	var open []libp2pnet.Stream
	for range 2 {
		s, err := buyer.dial(t.Context(), name)
		require.NoError(t, err)
		open = append(open, s)
	}
	require.Equal(t, api.Grant_STATE_ACTIVE, seller.granter.current.Load().Entries()[0].GetState(), "use confirms a hold")
	_, err := buyer.dial(t.Context(), name)
	require.ErrorContains(t, err, "has 2 connections, and the provider allows 2 of one grant")
	require.NoError(t, open[0].CloseWrite())
	_, err = io.ReadAll(open[0])
	require.NoError(t, err)
}

// TestRestart: grants survive their provider's process, with their full time. A machine whose identity is in doubt
// grants nothing.
func TestRestart(t *testing.T) {
	h, key := newHost(t)
	seller := &side{key: key, offers: map[string]*records.Record{}}
	dir := t.TempDir() + "/trade"
	seller.Desk = seller.open(t, h, dir)
	offer := seller.sell(t, 4)
	seller.serve(t, echo)
	buyer := newSide(t, seller)
	request := func(r *api.ReserveRequest) { r.RequestId = "once" }
	g := buyer.reserve(t, offer, request)
	require.NoError(t, seller.Close())
	seller.Desk = seller.open(t, h, dir)
	require.Equal(t, g.GetToken(), buyer.reserve(t, offer, request).GetToken(), "the repetition of a request")
	s, err := buyer.dial(t.Context(), heldName{h.ID(), g.GetToken()})
	require.NoError(t, err)
	_ = s.Reset()
	list, err := seller.ListGrants(t.Context(), nil)
	require.NoError(t, err)
	require.InDelta(t, 60_000, list.GetGiven()[0].GetLeftMs(), 10_000)

	seller.lies = fault.New("", fault.Unavailable, "another machine has this identity")
	_, err = buyer.Reserve(t.Context(), &api.ReserveRequest{Key: offer})
	require.ErrorContains(t, err, "another machine has this identity")
	_, err = buyer.Release(t.Context(), &api.ReleaseRequest{Token: g.GetToken()})
	require.NoError(t, err, "units may still come back")
	require.NoError(t, seller.Close())
}

// TestLateRepetition: a repeated request returns a grant whose time has been running. Its end at the consumer still
// comes before its end at the provider.
func TestLateRepetition(t *testing.T) {
	seller := newSide(t)
	key := seller.sell(t, 4)
	buyer := newSide(t, seller)
	once := func(r *api.ReserveRequest) { r.RequestId = "once" }
	name := heldName{seller.Host.ID(), buyer.reserve(t, key, once).GetToken()}
	left := func() time.Duration { return seller.granter.current.Load().Left(name.token, seller.now()) }
	for left() > 59_500*time.Millisecond {
		<-time.After(10 * time.Millisecond)
	}
	buyer.Desk.mu.Lock()
	delete(buyer.held, name) // as a buyer that had no answer
	buyer.Desk.mu.Unlock()
	before := left()
	g := buyer.reserve(t, key, once)
	require.Equal(t, name.token, g.GetToken())
	require.LessOrEqual(t, g.GetLeftMs(), uint64(before.Milliseconds()))
	require.LessOrEqual(t, buyer.leftOf(name), before)
	require.NotZero(t, buyer.leftOf(name))
}

// TestNewerVersion: a consumer that read an old version learns of the newest one.
func TestNewerVersion(t *testing.T) {
	seller := newSide(t)
	key := seller.sell(t, 4)
	old, err := seller.own("gpu")
	require.NoError(t, err)
	seller.sell(t, 4)
	buyer := newSide(t, seller)
	resp := &pb.Response{}
	require.NoError(t, buyer.pool.Call(t.Context(), seller.Host.ID(), &pb.Request{Op: &pb.Request_Reserve{Reserve: &api.ReserveRequest{
		Key: key, Sequence: old.Sequence(), RequestId: "r",
	}}}, resp))
	require.Contains(t, resp.GetRefusal().GetMessage(), fmt.Sprintf("names version %d of the offer", old.Sequence()))
	newest, err := records.Open(name, resp.GetRecord(), time.Now())
	require.NoError(t, err)
	require.Greater(t, newest.Sequence(), old.Sequence())
}

// TestSignatures: a grant of another network, or of another provider, is none.
func TestSignatures(t *testing.T) {
	s := newSide(t)
	g := &api.Grant{Token: 1, ProviderId: s.Host.ID().String()}
	signed, err := Sign(name, s.key, g)
	require.NoError(t, err)
	got, err := Verify(name, signed)
	require.NoError(t, err)
	require.True(t, proto.Equal(g, got))
	_, err = Verify("other", signed)
	require.ErrorIs(t, err, fault.Unauthentic)
	_, other := newHost(t)
	signed, err = Sign(name, other, g)
	require.NoError(t, err)
	_, err = Verify(name, signed)
	require.ErrorIs(t, err, fault.Unauthentic)
}

// TestQuote: a provider says what is free and what the asker may take of it, from memory, and why it says nothing of
// an offer. What comes back has one quote for each key, in order.
func TestQuote(t *testing.T) {
	seller := newSide(t)
	key := seller.sell(t, 8)
	buyer, other := newSide(t, seller), newSide(t, seller)
	g := other.reserve(t, key, func(r *api.ReserveRequest) { r.Units = 5 })
	newest, err := seller.own("gpu")
	require.NoError(t, err)
	unknown := key[:len(key)-len("gpu")] + "cpu"
	away := newSide(t)
	far := away.sell(t, 1)
	ask := func(s *side, keys ...string) []*api.Quote {
		resp, err := s.Quote(t.Context(), &api.QuoteRequest{Keys: keys})
		require.NoError(t, err)
		return resp.GetQuotes()
	}
	got := ask(buyer, unknown, key, far)
	require.True(t, proto.Equal(&api.Quote{
		Key: key, Sequence: newest.Sequence(), Free: 3, Total: 8, Most: 3, Price: g.Price, Currency: "USDC", PriceUnit: "per-hour",
	}, got[1]), "%v", got[1])
	require.Equal(t, unknown, got[0].GetKey())
	require.ErrorIs(t, rpc.Restore("", got[0].GetRefusal()), fault.NotFound)
	require.Equal(t, far, got[2].GetKey())
	require.ErrorContains(t, rpc.Restore("", got[2].GetRefusal()), "gave no quote", "a provider that nobody reaches")
	require.True(t, proto.Equal(got[1], ask(seller, key)[0]), "of an own offer")

	_, err = buyer.Quote(t.Context(), &api.QuoteRequest{Keys: []string{key, "/gpu"}})
	require.Equal(t, "keys[1]", fault.FieldOf(err))
	for _, keys := range [][]string{nil, make([]string, maxQuoted+1)} {
		_, err = buyer.Quote(t.Context(), &api.QuoteRequest{Keys: keys})
		require.Equal(t, "keys", fault.FieldOf(err))
	}
	_, err = buyer.quotesOf(t.Context(), seller.Host.ID(), []string{far})
	require.ErrorContains(t, err, "names another provider")
	_, err = buyer.quotesOf(t.Context(), seller.Host.ID(), slices.Repeat([]string{key}, maxQuotes+1))
	require.Equal(t, "keys", fault.FieldOf(err))
	require.Len(t, ask(buyer, slices.Repeat([]string{key}, maxQuotes+1)...), maxQuotes+1, "in two requests")

	seller.lies = fault.New("", fault.Unavailable, "another machine has this identity")
	require.ErrorContains(t, rpc.Restore("", ask(buyer, key)[0].GetRefusal()), "another machine", "who grants nothing has nothing free")
	seller.granter.outage.Store(nil)
	seller.lies = nil
	require.ErrorContains(t, rpc.Restore("", ask(buyer, key)[0].GetRefusal()), "reads its ledger")
}

// TestQuoteOfStrangers: all providers share two seconds. The caller learns that a silent provider is unknown, and that a
// provider lies whose quotes cannot be true. It gets the quotes of the others.
func TestQuoteOfStrangers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hosts, keys := newSimHosts(t, 4)
		sides := make([]*side, 2)
		for i := range sides {
			sides[i] = &side{key: keys[i], offers: map[string]*records.Record{}}
			sides[i].Desk = sides[i].open(t, hosts[i], t.TempDir()+"/trade")
			defer func() { require.NoError(t, sides[i].Close()) }()
		}
		hosts[2].SetStreamHandler(Protocol(name), func(libp2pnet.Stream) {})
		var lie *api.Quote
		liar := rpc.NewServer(rpc.ServerConfig{
			Host: hosts[3], Protocol: Protocol(name), Service: service, Request: new(pb.Request), Format: rpc.Format{MaxSize: maxMessage}, Streams: 8, StreamsPerPeer: 8,
			IdleTimeout: time.Minute, FrameTimeout: time.Minute, Logger: slog.New(slog.DiscardHandler),
			Handler: func(*rpc.Stream, proto.Message, error) (proto.Message, error) {
				return &pb.Response{Quotes: []*api.Quote{lie}}, nil
			},
		})
		defer liar.Close()
		honest := sides[1].sell(t, 8)
		silent := strings.Replace(honest, hosts[1].ID().String(), hosts[2].ID().String(), 1)
		lied := strings.Replace(honest, hosts[1].ID().String(), hosts[3].ID().String(), 1)
		nan := math.NaN()
		for _, lie = range []*api.Quote{
			{Key: honest}, {Key: lied, Free: 2, Total: 1}, {Key: lied, Most: 1}, {Key: lied, Price: &nan}, {Key: lied, Currency: "US\x1b[2J"},
		} {
			start := time.Now()
			resp, err := sides[0].Quote(t.Context(), &api.QuoteRequest{Keys: []string{silent, honest, lied}})
			require.NoError(t, err)
			require.Equal(t, quoteTime, time.Since(start))
			require.ErrorIs(t, rpc.Restore("", resp.GetQuotes()[0].GetRefusal()), fault.Timeout)
			require.Equal(t, uint32(8), resp.GetQuotes()[1].GetFree())
			require.ErrorIs(t, rpc.Restore("", resp.GetQuotes()[2].GetRefusal()), fault.Unauthentic, "%v", lie)
		}
	})
}

// newSimHosts returns n hosts of a bubble, 10 ms apart, that know each other.
func newSimHosts(t *testing.T, n int) (hosts []host.Host, keys []crypto.PrivKey) {
	t.Helper()
	settings := simnet.LinkSettings{BitsPerSecond: 100 * simlibp2p.OneMbps}
	net := &simnet.Simnet{LatencyFunc: simnet.StaticLatency(5 * time.Millisecond)}
	net.Start()
	for i := range n {
		key, _, err := crypto.GenerateEd25519Key(rand.Reader)
		require.NoError(t, err)
		h, err := libp2p.New(
			libp2p.Identity(key), libp2p.ListenAddrStrings(fmt.Sprintf("/ip4/%s/udp/4801/quic-v1", simnet.IntToPublicIPv4(i))),
			libp2p.Transport(quic.NewTransport), simlibp2p.QUICSimnet(net, simnet.NodeBiDiLinkSettings{Downlink: settings, Uplink: settings}),
			libp2p.DisableIdentifyAddressDiscovery(), // its timers would stall the bubble
			libp2p.ResourceManager(&libp2pnet.NullResourceManager{}), libp2p.DisableRelay(), libp2p.DisableMetrics())
		require.NoError(t, err)
		hosts, keys = append(hosts, h), append(keys, key)
	}
	for _, h := range hosts {
		for _, other := range hosts {
			h.Peerstore().AddAddrs(other.ID(), other.Addrs(), peerstore.PermanentAddrTTL)
		}
	}
	t.Cleanup(func() {
		for _, h := range hosts {
			require.NoError(t, h.Close())
		}
		net.Close()
	})
	return hosts, keys
}

// TestCommandsOverTheWire: the buyer gets the terms, the reason and what is handed over, and lists keep that to themselves.
// Nobody reaches the service before the commands agree.
func TestCommandsOverTheWire(t *testing.T) {
	seller := newSide(t)
	seller.hooks.Hooks = Hooks{OnPay: []string{"on_pay"}, OnGrant: []string{"on_grant"}, Limit: time.Minute}
	seller.hooks.run = func(_ context.Context, argv []string, in []byte) (script.Result, error) {
		var o occasion
		require.NoError(t, json.Unmarshal(in, &o))
		switch {
		case argv[0] == "on_pay" && len(o.Proof) == 0:
			return script.Result{Code: payCode, Out: []byte("1 USDC")}, nil
		case argv[0] == "on_grant" && string(o.Proof) == "bad":
			return script.Result{Code: 1, Err: []byte("no room")}, nil
		}
		return script.Result{Out: []byte("a key")}, nil
	}
	key := seller.sell(t, 4)
	seller.serve(t, echo)
	buyer := newSide(t, seller)
	_, err := buyer.Reserve(t.Context(), &api.ReserveRequest{Key: key, RequestId: "r", Proof: make([]byte, maxProof+1)})
	require.ErrorIs(t, err, &fault.Error{Kind: fault.Invalid, Field: "proof"})
	_, err = buyer.Reserve(t.Context(), &api.ReserveRequest{Key: key, RequestId: "r"})
	require.ErrorIs(t, err, fault.PaymentRequired)
	require.Equal(t, "1 USDC", string(fault.ValueOf(err).([]byte)))
	token := seller.granter.current.Load().Entries()[0].GetToken()
	_, err = buyer.dial(t.Context(), heldName{seller.Host.ID(), token})
	require.ErrorIs(t, err, fault.PaymentRequired)
	_, err = buyer.Extend(t.Context(), &api.ExtendRequest{Token: token, ProviderId: seller.Host.ID().String()})
	require.ErrorIs(t, err, fault.PaymentRequired)

	_, err = buyer.Reserve(t.Context(), &api.ReserveRequest{Key: key, RequestId: "bad", Proof: []byte("bad")})
	require.ErrorIs(t, err, fault.Gone)
	require.ErrorContains(t, err, "the grant is revoked: no room")
	g := buyer.reserve(t, key, func(r *api.ReserveRequest) { r.RequestId, r.Proof = "r", []byte("good") })
	require.Equal(t, "a key", g.GetHandover())
	require.Equal(t, token, g.GetToken())
	require.Empty(t, buyer.heldGrants()[0].GetHandover())
	list, err := seller.ListGrants(t.Context(), nil)
	require.NoError(t, err)
	require.Empty(t, list.GetGiven()[0].GetHandover())
	s, err := buyer.dial(t.Context(), heldName{seller.Host.ID(), token})
	require.NoError(t, err)
	_ = s.Reset()

	seller.hooks.OnPay = nil
	held := buyer.reserve(t, key, func(r *api.ReserveRequest) { r.Hold = true })
	require.Empty(t, held.GetHandover())
	longer, err := buyer.Extend(t.Context(), &api.ExtendRequest{Token: held.GetToken()})
	require.NoError(t, err)
	require.Equal(t, "a key", longer.GetGrant().GetHandover())
}
