package truth

import (
	"context"
	"crypto/rand"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/probe"
	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
)

// served is an offer with access through its provider's peer. Its endpoint is somebody else's.
func served(t *testing.T, provider crypto.PrivKey, protocols ...string) *records.Record {
	r, err := records.Sign("test", provider, records.Offer{ID: "gpu", Metadata: records.Metadata{
		Type: "tool", Access: records.AccessPeer, Stock: &records.Stock{Unit: "slot", Total: 1}, Protocols: protocols, Endpoints: []string{"https://example.com"},
	}}, records.Stamp{Sequence: 1, Issued: time.Now(), Expires: time.Now().Add(24 * time.Hour)})
	require.NoError(t, err)
	return r
}

// A stranger measures what an offer sells through its provider's peer, in the service's own protocol. Only the word of that
// peer that nothing serves, and the service itself, speak against it: never the way.
func TestServicesBehindPeers(t *testing.T) {
	const wayTime = 9 * time.Second // longer than a check of an endpoint lasts
	refused := func(kind fault.Kind) func(context.Context, func(net.Conn)) (net.Conn, error) {
		return func(context.Context, func(net.Conn)) (net.Conn, error) { return nil, fault.New("", kind, "no") }
	}
	reaches := func(ctx context.Context, serve func(net.Conn)) (net.Conn, error) {
		if pass(ctx, wayTime); ctx.Err() != nil {
			return nil, ctx.Err()
		}
		conn, service := net.Pipe()
		go serve(service)
		return conn, nil
	}
	for name, c := range map[string]struct {
		protocols []string
		dial      func(context.Context, func(net.Conn)) (net.Conn, error)
		serve     func(net.Conn) // nil: an HTTP server in all its dialects
		state     records.Reachability
		detail    string
		dead      bool
	}{
		"its own protocol":       {protocols: []string{"ollama"}, dial: reaches, state: records.Answers, detail: "answered 200 (through its provider's peer)"},
		"none named":             {dial: reaches, serve: says(""), state: records.Answers, detail: "connected (through its provider's peer)"},
		"another protocol":       {protocols: []string{"ollama"}, dial: reaches, serve: says("SSH-2.0-OpenSSH_9.6\r\n"), state: records.Wrong, detail: "speaks no HTTP (through its provider's peer)", dead: true},
		"a silent service":       {protocols: []string{"ollama"}, dial: reaches, serve: func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }, state: records.Silent, detail: "no answer in time (through its provider's peer)", dead: true},
		"a dead service":         {protocols: []string{"ollama"}, dial: refused(fault.Gone), state: records.Refuses, detail: "nothing listens (through its provider's peer)", dead: true},
		"no share of the checks": {protocols: []string{"ollama"}, dial: refused(fault.LimitReached), state: records.Unmeasured, detail: "this peer may not, or cannot, speak to it now (through its provider's peer)"},
		"an earlier version":     {protocols: []string{"ollama"}, dial: refused(fault.Unsupported), state: records.Unmeasured, detail: "this peer may not, or cannot, speak to it now (through its provider's peer)"},
		"a way without end": {protocols: []string{"ollama"}, state: records.Unmeasured, detail: "this peer may not, or cannot, speak to it now (through its provider's peer)", dial: func(ctx context.Context, _ func(net.Conn)) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}},
		"nobody to ask": {protocols: []string{"ollama"}, state: records.Unmeasured},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				key, _, err := crypto.GenerateEd25519Key(rand.Reader)
				require.NoError(t, err)
				web, server := newInlet(), &http.Server{Handler: http.HandlerFunc(page)}
				go func() { _ = server.Serve(web) }()
				serve := web.take
				if c.serve != nil {
					serve = c.serve
				}
				r, dials := served(t, key, c.protocols...), atomic.Int32{}
				config := Config{Prober: probe.New(probe.Config{}), Now: time.Now, Own: func(*records.Record) bool { return false }, Changed: func(*records.Record) {}}
				if c.dial != nil {
					config.Dial = func(ctx context.Context, provider peer.ID, offer string) (net.Conn, error) {
						require.Equal(t, r.Name(), records.Name{Provider: provider, ID: offer})
						dials.Add(1)
						return c.dial(ctx, serve)
					}
				}
				x := New(config)
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan struct{})
				go func() { defer close(ended); x.Run(ctx) }()
				for range 5 * 12 {
					x.Want([]*records.Record{r})
					time.Sleep(5 * time.Second)
				}
				_, dead := x.Dead(r)
				require.Equal(t, c.dead, dead)
				v := queries.Evidence{}
				row := x.Of(r, &v).Endpoint
				require.Equal(t, c.state, row.State)
				require.Equal(t, c.detail, row.Detail)
				require.Equal(t, c.dead, v.Failed)
				if c.state == records.Answers {
					require.GreaterOrEqual(t, row.RoundTrip, wayTime)
				}
				require.LessOrEqual(t, int(dials.Load()), 7, "once a minute, and again after a first failure")
				require.Equal(t, c.dial != nil, dials.Load() >= 4)
				cancel()
				<-ended
				_ = server.Close()
				_ = web.Close()
			})
		})
	}
}
