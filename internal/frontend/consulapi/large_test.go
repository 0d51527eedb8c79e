package consulapi_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/frontend/consulapi"
	"github.com/blackhole/blackhole/internal/platform/access"
)

// silent is a client that sends a request and reads nothing of the answer until it goes.
type silent struct {
	*httptest.ResponseRecorder
	goes chan struct{}
	held *atomic.Int64
}

// Write implements http.ResponseWriter.
func (s silent) Write(p []byte) (int, error) {
	if s.Code == http.StatusOK {
		s.held.Add(1)
		defer s.held.Add(-1)
		<-s.goes
	}
	return s.ResponseRecorder.Write(p)
}

// TestSilentReaders: readers of a large prefix that take nothing of their answers hold no more than the pool, the others are refused before anything
// of their answer is kept, and a call of the same client passes.
func TestSilentReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answers := access.NewPool("answer_bytes", 16<<20, nil)
		f := startWith(t, nil, func(c *consulapi.Config) { c.Answers = answers })
		value := strings.Repeat("x", 256<<10)
		for n := range 60 {
			f.yes("PUT", fmt.Sprintf("kv/big/%02d?flags=%d", n, n), value)
		}
		f.yes("PUT", "kv/small/a", "1")
		pairs := f.pairs("kv/big/?recurse")
		require.Len(t, pairs, 60, "more than a page, and than the pool lets one read at once")
		for n, p := range pairs {
			require.Equal(t, pair{Key: fmt.Sprintf("big/%02d", n), Flags: uint64(n), Value: []byte(value), CreateIndex: p.CreateIndex, ModifyIndex: p.CreateIndex}, p)
		}
		require.Equal(t, pairs[59].ModifyIndex, f.get("kv/big/?recurse").index)
		require.Zero(t, answers.Used())

		goes, held := make(chan struct{}), new(atomic.Int64)
		var refused atomic.Int64
		var all sync.WaitGroup
		for n := range 40 {
			path := []string{"kv/big/?recurse", "kv/?recurse", "kv/big/?recurse&stale", "kv/big/?recurse&wait=1s"}[n%4]
			all.Go(func() {
				w := silent{httptest.NewRecorder(), goes, held}
				r := httptest.NewRequestWithContext(t.Context(), "GET", "/v1/"+path, nil)
				r.RemoteAddr = "127.0.0.1:1"
				f.mux.ServeHTTP(w, r)
				if w.Code == http.StatusTooManyRequests {
					require.Contains(t, w.Body.String(), "answer bytes")
					refused.Add(1)
				}
			})
		}
		time.Sleep(5 * time.Second) // a large reader waits for others for a while
		require.Positive(t, held.Load())
		require.LessOrEqual(t, held.Load()*3<<20, int64(16<<20), "a page each")
		require.Equal(t, int64(40), held.Load()+refused.Load())
		require.Equal(t, held.Load()*3<<20, int64(answers.Used()))
		f.key("small/a")
		require.Len(t, f.pairs("kv/small/?recurse"), 1)
		require.Equal(t, `["small/a"]`, f.get("kv/small/?keys").body)
		f.yes("PUT", "kv/small/b", "2")
		require.Equal(t, http.StatusOK, f.put("txn", `[{"KV":{"Verb":"get-tree","Key":"small/"}}]`).code)
		require.Equal(t, http.StatusTooManyRequests, f.get("kv/big/?recurse").code)
		require.Equal(t, http.StatusTooManyRequests, f.put("txn", `[{"KV":{"Verb":"get-tree","Key":"big/"}}]`).code, "it changes nothing, so it may be refused")
		close(goes)
		all.Wait()
		require.Zero(t, answers.Used())
		require.Len(t, f.pairs("kv/big/?recurse"), 60)
	})
}

// TestWaitingReaders: a blocking query keeps nothing of what it read while it waits.
func TestWaitingReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answers := access.NewPool("answer_bytes", 16<<20, nil)
		f := startWith(t, nil, func(c *consulapi.Config) { c.Answers = answers })
		for n := range 20 {
			f.yes("PUT", fmt.Sprintf("kv/big/%02d", n), strings.Repeat("x", 256<<10))
		}
		index := f.get("kv/big/?recurse").index
		var waits []waiting
		for range 40 {
			waits = append(waits, f.wait(fmt.Sprint("kv/big/?recurse&wait=10m&index=", index)))
		}
		require.Zero(t, answers.Used())
		f.yes("PUT", "kv/big/00", "")
		for _, w := range waits {
			require.Equal(t, http.StatusOK, w.ends(t).code)
		}
		require.Zero(t, answers.Used())
	})
}
