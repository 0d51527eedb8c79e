package offer

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/blackhole/blackhole/internal/cli/exit"
	"github.com/blackhole/blackhole/internal/cli/remote"
	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/internal/operator"
	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	pb "github.com/blackhole/blackhole/proto/blackhole/discovery/v1"
	peerv1 "github.com/blackhole/blackhole/proto/blackhole/peer/v1"
)

const seller = "12D3KooWLnf1GdmD17qaAn8sYACPYggSSps1gQD1aL3gpEUuqCVB"

func keyOf(id string) string { return "/blackhole/services/compute/gpu/u33db2/" + seller + "/" + id }

// stall is a peer that knows four offers: of a, of b whose provider has a newer version, of c whose provider is
// silent, and of d without stock. a and b have two units each.
type stall struct {
	api.UnimplementedRecordServiceServer
	api.UnimplementedTradeServiceServer
	extend func(n int) error // of the n-th extension
	times  chan time.Time    // of extensions
	n      int
	mu     sync.Mutex
	freed  []string // guarded by mu
}

func (s *stall) Query(_ context.Context, r *api.QueryRequest) (*api.QueryResponse, error) {
	a := &api.QueryResponse{Complete: true, Source: "network"}
	price := 0.4
	for _, id := range []string{"a", "b", "c", "d"} {
		m := &pb.ServiceMetadata{Type: "compute", Stock: &pb.Stock{Unit: "gpu", Total: 8}}
		if id == "d" {
			m.Stock = nil
		}
		if id != "d" || len(r.GetQuery().GetWhere()) == 0 {
			a.Results = append(a.Results, &api.QueryResult{Record: &api.Record{Key: keyOf(id), Service: &pb.ServiceRecord{
				Id: id, ProviderId: seller, Sequence: 7, Metadata: m, Pricing: &pb.PricingInfo{Currency: "USDC", BasePrice: &price, PriceUnit: "per-hour"},
			}}})
		}
	}
	a.Total = uint64(len(a.Results))
	return a, nil
}

func (s *stall) Quote(_ context.Context, r *api.QuoteRequest) (*api.QuoteResponse, error) {
	a := &api.QuoteResponse{}
	for _, key := range r.GetKeys() {
		price, q := 0.4, &api.Quote{Key: key, Sequence: 7, Free: 2, Total: 8, Most: 2, Currency: "USDC", PriceUnit: "per-hour"}
		switch q.Price = &price; key {
		case keyOf("b"):
			price, q.Sequence, q.Free, q.Most = 0.3, 8, 4, 2
		case keyOf("c"):
			q = &api.Quote{Key: key, Refusal: &peerv1.Refusal{Code: peerv1.Code_CODE_TIMEOUT, Message: "the provider gave no quote within 2s"}}
		}
		a.Quotes = append(a.Quotes, q)
	}
	return a, nil
}

func (s *stall) Reserve(_ context.Context, r *api.ReserveRequest) (*api.ReserveResponse, error) {
	if r.GetKey() == keyOf("c") {
		return nil, grpcstatus.Error(codes.Unavailable, "the provider was not reached")
	}
	return &api.ReserveResponse{Grant: &api.Grant{Token: uint64(r.GetKey()[len(r.GetKey())-1]), ProviderId: seller, Key: r.GetKey(), Units: r.GetUnits(), TtlMs: 60_000}}, nil
}

func (s *stall) Extend(_ context.Context, r *api.ExtendRequest) (*api.ExtendResponse, error) {
	left := uint64(60_000)
	g := &api.Grant{Token: r.GetToken(), ProviderId: seller, Key: keyOf(string(rune(r.GetToken()))), Units: 2, TtlMs: left, LeftMs: &left, State: api.Grant_STATE_ACTIVE}
	s.n++
	if s.extend == nil {
		return &api.ExtendResponse{Grant: g}, nil
	}
	s.times <- time.Now()
	return &api.ExtendResponse{Grant: g}, s.extend(s.n)
}

func (s *stall) Release(_ context.Context, r *api.ReleaseRequest) (*api.ReleaseResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.freed = append(s.freed, string(rune(r.GetToken())))
	return &api.ReleaseResponse{}, nil
}

func (s *stall) Connect(_ *api.ConnectRequest, out grpc.ServerStreamingServer[api.ConnectResponse]) error {
	if err := out.Send(&api.ConnectResponse{Listen: "127.0.0.1:1", LeftMs: 60_000}); err != nil {
		return err
	}
	<-out.Context().Done()
	return out.Context().Err()
}

// visit returns a client of a stall, and a command of it that prints to a text.
func visit(t *testing.T, s *stall) (*operator.Client, *remote.Peer, *bytes.Buffer) {
	often := grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true})
	l, server, done := bufconn.Listen(1<<20), grpc.NewServer(often), make(chan error, 1)
	api.RegisterRecordServiceServer(server, s)
	api.RegisterTradeServiceServer(server, s)
	go func() { done <- server.Serve(l) }()
	c, err := operator.New("passthrough:///peer", operator.Dial(grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) })))
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, c.Close())
		server.Stop()
		require.NoError(t, <-done)
	})
	var text bytes.Buffer
	return c, remote.New(&term.Console{Stdout: &text, Stderr: &text}, &cobra.Command{}, 0), &text
}

// TestFresh: the columns say what is free, what of it the buyer may take, and the price now; also why something is
// not known, and that the provider has a newer version than the one found.
func TestFresh(t *testing.T) {
	c, r, text := visit(t, &stall{})
	answer, err := c.Offers().Query(t.Context(), query.Query{Type: "compute"})
	require.NoError(t, err)
	doc, err := quoted(t.Context(), c, answer, answerTable(answer, time.Time{}))
	require.NoError(t, err)
	require.NoError(t, r.Print(doc))
	for _, line := range []string{
		`PRICE +FREE +PRICE NOW`, `a .* 0.4 USDC per-hour +2 of 8 gpu +0.4 USDC per-hour`, `b .* 0.4 USDC per-hour +4 of 8 gpu, 2 for you +0.3 USDC per-hour`,
		`\n    the provider has version 8 of the offer, and version 7 was found: blackholed offer show ` + keyOf("b"),
		`c .* unknown +unknown`, `\n    no quote: the provider gave no quote within 2s`, `d .* none +none`,
	} {
		require.Regexp(t, line, text.String())
	}
	text.Reset()
	r.Format = term.AsJSON
	require.NoError(t, r.Print(doc))
	for _, part := range []string{`"free":4,"total":8,"most":2,"price":0.3`, `"refusal":"the provider gave no quote within 2s"`, `"quote":null`, `"complete":true`} {
		require.Contains(t, strings.NewReplacer(" ", "", "\n", "").Replace(text.String()), strings.ReplaceAll(part, " ", ""))
	}
	require.Equal(t, 4, strings.Count(text.String(), `"quote"`), "each result once")

	answer.Results = slices.Repeat(answer.Results[:1], client.MaxQuotes+1)
	doc, err = quoted(t.Context(), c, answer, answerTable(answer, time.Time{}))
	require.NoError(t, err)
	r.Format = term.AsTable
	text.Reset()
	require.NoError(t, r.Print(doc))
	require.Equal(t, client.MaxQuotes, strings.Count(text.String(), "2 of 8 gpu"))
	require.Equal(t, 1, strings.Count(text.String(), "no quote: not asked: 100 offers are at most"))
}

// TestReserveFound: units come from as few offers as needed; with too few units each refusal is told, and nothing stays.
func TestReserveFound(t *testing.T) {
	s := &stall{}
	c, r, text := visit(t, s)
	require.NoError(t, reserveFound(t.Context(), r, c, query.Query{Type: "compute"}, client.Want{Units: 4}))
	require.Regexp(t, `held +97 +a +2 +active(.|\n)*held +98 +b +2 +active`, text.String())
	require.Empty(t, s.freed)
	text.Reset()
	err := reserveFound(t.Context(), r, c, query.Query{Type: "compute"}, client.Want{Units: 5})
	require.ErrorContains(t, err, "4 of 5 units were to be had of 3 offers")
	require.NotZero(t, exit.CodeOf(err))
	require.Contains(t, text.String(), "c of …pEUuqCVB: the provider was not reached")
	require.ElementsMatch(t, []string{"a", "b"}, s.freed)
	err = reserveFound(t.Context(), r, c, query.Query{Type: "compute"}, client.Want{})
	require.Equal(t, "--reserve", fault.FieldOf(err))
}

// TestRenewal: an extension that fails is repeated with growing pauses, and not after a refusal for good.
func TestRenewal(t *testing.T) {
	for last, want := range map[error]string{
		grpcstatus.Error(codes.FailedPrecondition, "another price"): "[41s 42s 44s 48s 56s]", nil: "[41s 42s 44s 48s 56s 1m37s 1m38s]",
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &stall{times: make(chan time.Time, 100), extend: func(n int) error {
				switch {
				case n == 5:
					return last
				case n > 6:
					return grpcstatus.Error(codes.NotFound, "over")
				}
				return grpcstatus.Error(codes.Unavailable, "not reached")
			}}
			c, r, text := visit(t, s)
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
			defer cancel()
			start := time.Now()
			g := client.Grant{Token: 'a', ProviderID: seller, TTLMs: 60_000}
			conn, state, err := c.Offers().Connect(ctx, g, "")
			require.NoError(t, err)
			n := &connector{Peer: r, renew: true}
			require.ErrorIs(t, n.follow(ctx, c, conn, state, g), fault.Timeout)
			close(s.times)
			var at []time.Duration
			for when := range s.times {
				at = append(at, when.Sub(start).Truncate(time.Second))
			}
			require.Equal(t, want, fmt.Sprint(at))
			require.Contains(t, text.String(), "was not extended, and ends in")
			require.Contains(t, text.String(), "was not extended and will not be")
		})
	}
}
