package httpapi

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/agent/catalog"
	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/internal/discovery/discoverytest"
	"github.com/blackhole/blackhole/pkg/instance"
)

// BenchmarkQueryCached asks over loopback what is in the cache, one request at a time on
// one connection. The client's share is in it.
func BenchmarkQueryCached(b *testing.B) {
	for _, n := range []int{1, 10, 100} {
		b.Run(fmt.Sprintf("results=%d", n), func(b *testing.B) {
			a, url := listening(b)
			for i := range n {
				a.Foreign(b, discoverytest.Offer(fmt.Sprint("s", i)))
			}
			question := []byte(`{"type":"compute","near":{"latitude":52.5,"longitude":13.4,"radius_km":100}}`)
			a.ok(b, 200, "POST", ask, string(question))
			c := &http.Client{Transport: &http.Transport{}}
			defer c.CloseIdleConnections()
			var took []time.Duration
			for b.Loop() {
				start := time.Now()
				resp, err := c.Post(url+ask, "application/json", bytes.NewReader(question))
				require.NoError(b, err)
				_, err = io.Copy(io.Discard, resp.Body)
				require.NoError(b, err)
				resp.Body.Close()
				took = append(took, time.Since(start))
			}
			again := a.ok(b, 200, "POST", ask, string(question))
			require.Equal(b, "cache", again["source"])
			require.Len(b, again["results"], n)
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-us")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-us")
		})
	}
}

// known is a catalog without a registry.
type known struct{ *catalog.Catalog }

// LastBeat knows none.
func (known) LastBeat(instance.Key) (time.Time, bool) { return time.Time{}, false }

// Expires knows none.
func (known) Expires([]*instance.Instance) time.Time { return time.Time{} }

// Heartbeat renews what it is asked to.
func (known) Heartbeat(_ context.Context, refs []instances.Ref) ([]instances.Beat, error) {
	beats := make([]instances.Beat, len(refs))
	for n, r := range refs {
		beats[n] = instances.Beat{Lease: r.Lease, Key: r.Key, Status: instance.StatusUp, TTL: 30 * time.Second}
	}
	return beats, nil
}

// Deregister and the methods below are unused.
func (known) Deregister(context.Context, instance.Key) (instances.Removal, error) {
	panic("not asked for")
}

// Register is not asked for.
func (known) Register(context.Context, instance.Registration) (instances.Registered, error) {
	panic("not asked for")
}

// SetStatus is not asked for.
func (known) SetStatus(context.Context, instance.Key, instance.Status) (*instance.Instance, error) {
	panic("not asked for")
}

// serveKnown serves n instances of payment on a socket.
func serveKnown(b testing.TB, n int) string {
	_, addr := serveCatalog(b, n)
	return addr
}

// serveCatalog is serveKnown with the catalog, for changes.
func serveCatalog(b testing.TB, n int) (*catalog.Catalog, string) {
	b.Helper()
	c := catalog.New(catalog.Config{})
	all := make([]*instance.Instance, n)
	for i := range all {
		all[i] = &instance.Instance{
			Key:  instance.Key{Namespace: "default", Service: "payment", ID: fmt.Sprintf("payment-%04d", i)},
			Spec: instance.Spec{Host: fmt.Sprintf("10.0.%d.%d", i/256, i%256), Port: 8080, Version: "2.1.0", Zone: "us-east-1a", Weight: 1, Tags: []string{"v2"}}, Status: instance.StatusUp,
		}
	}
	require.NoError(b, c.Reset(2, all))
	h := discoverytest.New(b)
	s := New(Config{Registrar: h, Finder: h, Node: h.Node, Metrics: http.NotFoundHandler(), Agent: &Agent{Registrar: known{c}, Catalog: known{c}}})
	l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	require.NoError(b, err)
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	b.Cleanup(func() {
		s.Close()
		require.NoError(b, <-done)
	})
	return c, l.Addr().String()
}

// BenchmarkInstances asks for the healthy instances of a service, one request after the other on
// each of the connections. The client is cheap: it writes one text and finds the end of the answer by its length.
func BenchmarkInstances(b *testing.B) {
	for _, conns := range []int{1, 16} {
		for _, n := range []int{10, 100, 1000} {
			b.Run(fmt.Sprintf("conns=%d/instances=%d", conns, n), func(b *testing.B) {
				askAgain(b, serveKnown(b, n), conns, "GET /v1/services/payment/instances HTTP/1.1\r\nHost: localhost\r\n\r\n")
			})
		}
	}
}

// BenchmarkHeartbeats sends heartbeats likewise.
func BenchmarkHeartbeats(b *testing.B) {
	askAgain(b, serveKnown(b, 1), 16, "PUT /v1/leases/lease-00000000000000000000000000000001/renew HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")
}

// askAgain sends b.N requests over some connections, and tells the median of a part of them.
func askAgain(b *testing.B, addr string, conns int, request string) {
	var left atomic.Int64
	left.Store(int64(b.N))
	var all sync.WaitGroup
	var took sample
	b.ResetTimer()
	for range conns {
		all.Go(func() {
			c, err := net.Dial("tcp", addr)
			if err != nil {
				b.Error(err)
				return
			}
			defer c.Close()
			in, buf := bufio.NewReaderSize(c, 64<<10), []byte(request)
			for left.Add(-1) >= 0 {
				start := time.Now()
				if _, err := c.Write(buf); err != nil {
					b.Error(err)
					return
				}
				if err := skipAnswer(in); err != nil {
					b.Error(err)
					return
				}
				took.Add(time.Since(start))
			}
		})
	}
	all.Wait()
	b.ReportMetric(float64(took.median().Microseconds()), "p50-us")
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "req/s")
}

// sample keeps the last durations that it is given.
type sample struct {
	next  atomic.Int64
	times [1 << 12]atomic.Int64
}

// Add keeps one.
func (s *sample) Add(d time.Duration) { s.times[s.next.Add(1)%int64(len(s.times))].Store(int64(d)) }

// median returns the median of the kept times.
func (s *sample) median() time.Duration {
	kept := make([]int64, min(s.next.Load(), int64(len(s.times))))
	for n := range kept {
		kept[n] = s.times[n].Load()
	}
	slices.Sort(kept)
	return time.Duration(kept[len(kept)/2])
}

// skipAnswer reads an answer that has a length.
func skipAnswer(in *bufio.Reader) error {
	length := 0
	for first := true; ; first = false {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return err
		}
		if first && !bytes.HasPrefix(line, []byte("HTTP/1.1 200")) {
			return fmt.Errorf("the answer is %q", line)
		}
		if text, ok := bytes.CutPrefix(line, []byte("Content-Length: ")); ok {
			length, _ = strconv.Atoi(string(bytes.TrimSpace(text)))
		}
		if len(line) == 2 {
			_, err := in.Discard(length)
			return err
		}
	}
}
