package flood

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protodelim"

	"github.com/blackhole/blackhole/pkg/records"
	keeperv1 "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
	peerv1 "github.com/blackhole/blackhole/proto/blackhole/peer/v1"
)

// ended returns a context that has ended.
func ended(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

// TestStore: a keeper gets signed records of 100 for each provider, and the report counts what it answers.
func TestStore(t *testing.T) {
	loopback := netip.MustParseAddr("127.0.0.1")
	keeper, err := newHost(loopback, nil)
	require.NoError(t, err)
	defer keeper.Close()
	var mu sync.Mutex // guards of
	of := map[string]int{}
	done, in := io.Pipe()
	keeper.SetStreamHandler("/blackhole/main/keeper/1.0.0", func(s network.Stream) {
		defer s.Close()
		for r := bufio.NewReader(s); ; {
			req := new(keeperv1.Request)
			if protodelim.UnmarshalFrom(r, req) != nil {
				return
			}
			mu.Lock()
			resp := &keeperv1.StoreResponse{}
			for i, item := range req.GetStore().GetItems() {
				record, err := records.Open("main", item.Envelope, time.Now())
				if err == nil && len(item.Cells) == len(record.Cells()) {
					of[record.Name().Provider.String()]++
				}
				result := &keeperv1.StoreResult{}
				if i%2 == 1 {
					result.Refusal = &peerv1.Refusal{Code: peerv1.Code_CODE_LIMIT_REACHED}
				}
				resp.Results = append(resp.Results, result)
			}
			enough := len(of) > 2
			mu.Unlock()
			if _, err := protodelim.MarshalTo(s, &keeperv1.Response{Op: &keeperv1.Response_Store{Store: resp}}); err != nil {
				return
			}
			if enough {
				_ = in.Close()
			}
		}
	})
	order, err := json.Marshal(Order{
		Row: "store", Network: "main", From: []netip.Addr{loopback}, Most: time.Minute, Part: 1,
		Target: []string{keeper.Addrs()[0].String() + "/p2p/" + keeper.ID().String()},
	})
	require.NoError(t, err)
	var out bytes.Buffer
	require.NoError(t, Run(t.Context(), []string{string(order)}, done, &out))
	line, err := out.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, Ready+"\n", line)
	var r Report
	require.NoError(t, json.NewDecoder(&out).Decode(&r))
	require.Equal(t, 1, r.Hosts)
	require.GreaterOrEqual(t, r.Accepted, int64(2*recordsOfProvider/2))
	require.Equal(t, r.Accepted, r.Refused["CODE_LIMIT_REACHED"])
	mu.Lock()
	defer mu.Unlock()
	full := 0
	for _, n := range of {
		require.LessOrEqual(t, n, recordsOfProvider)
		if n == recordsOfProvider {
			full++
		}
	}
	require.GreaterOrEqual(t, full, 2)
}

// TestLies: a keeper that withholds tells less in the form of the whole; one that repeats knows no change.
func TestLies(t *testing.T) {
	q := &keeperv1.QueryResponse{Total: 8}
	for i := range 8 {
		q.Envelopes = append(q.Envelopes, []byte{byte(i)})
	}
	resp := &keeperv1.Response{Op: &keeperv1.Response_Query{Query: q}}
	withhold(resp)
	require.Len(t, q.Envelopes, int(q.Total))
	require.Less(t, len(q.Envelopes), 8)

	old := map[uint64][]byte{}
	req := &keeperv1.Request{Op: &keeperv1.Request_Resolve{Resolve: &keeperv1.ResolveRequest{Key: "k"}}}
	answer := func(text string) *keeperv1.Response {
		return &keeperv1.Response{Op: &keeperv1.Response_Resolve{Resolve: &keeperv1.ResolveResponse{Envelope: []byte(text)}}}
	}
	require.Equal(t, "first", string(repeat(old, req, answer("first")).GetResolve().GetEnvelope()))
	require.Equal(t, "first", string(repeat(old, req, answer("second")).GetResolve().GetEnvelope()))
}

// TestOffersAreValid: what attackers sign is what an honest provider could.
func TestOffersAreValid(t *testing.T) {
	for _, offer := range []func(int) records.Offer{spam, bare, stuffed} {
		for i := range 3 {
			require.NoError(t, offer(i).Validate())
		}
	}
}
