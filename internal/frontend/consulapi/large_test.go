package consulapi_test

import (
	"context"
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

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/frontend/consulapi"
	"github.com/blackhole/blackhole/internal/platform/access"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
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

// TestSilentReaders: readers of a large prefix that take nothing of their answers hold no more than the pool, the
// others are refused before anything of their answer is kept, and a call of the same client passes.
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

// observed is a coordination plane that tells each question and how many bytes of keys and values its answer has.
type observed struct {
	coord.Service
	before func()
	after  func(bytes int)
}

// Read implements coord.Service.
func (o observed) Read(ctx context.Context, q *coordv1.Question) (*coordv1.Answer, error) {
	o.before()
	a, err := o.Service.Read(ctx, q)
	size := 0
	for _, kv := range a.GetRange().GetKvs() {
		size += len(kv.GetKey()) + len(kv.GetValue())
	}
	o.after(size)
	return a, err
}

// TestRoomBeforeReading: a request has room for a page, and a transaction for all that it keeps too, before the page is
// read. A single key needs none while what was read is small. All is given back.
func TestRoomBeforeReading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answers := access.NewPool("answer_bytes", 64<<20, nil)
		var room, sizes []int // of the pages of a request
		f := startWith(t, nil, func(c *consulapi.Config) {
			c.Answers = answers
			c.Service = observed{c.Service, func() { room = append(room, answers.Used()) }, func(n int) { sizes = append(sizes, n) }}
		})
		for n := range 20 {
			f.yes("PUT", fmt.Sprintf("kv/big/%02d", n), strings.Repeat("x", 256<<10))
		}
		f.yes("PUT", "kv/small/a", "1")
		const small = `{"KV":{"Verb":"get","Key":"small/a"}}`
		const tree = `{"KV":{"Verb":"get-tree","Key":"big/"}}`
		const one = `{"KV":{"Verb":"get","Key":"big/00"}}`
		for _, c := range []struct {
			path, body string
			keeps      bool // what it read
			pages      int
			free       int // pages without room
		}{
			{"kv/big/?recurse", "", false, 6, 0}, // to look, and to answer
			{"kv/big/?keys", "", false, 1, 0},
			{"kv/big/00", "", false, 1, 1},
			{"txn", "[" + tree + "]", true, 6, 0}, // a transaction that changes nothing reads twice
			{"txn", "[" + small + "," + one + "," + tree + "]", true, 10, 4},
			{"txn", "[" + one + "," + small + "]", true, 4, 2},
			{"txn", "[" + small + "," + small + "]", true, 2, 2},
		} {
			room, sizes = nil, nil
			if c.body == "" {
				require.Equal(t, http.StatusOK, f.get(c.path).code)
			} else {
				require.Equal(t, http.StatusOK, f.put(c.path, c.body).code)
			}
			require.Len(t, sizes, c.pages, "%s %s", c.path, c.body)
			free, kept := 0, 0
			for n, size := range sizes {
				if c.body != "" && n == len(sizes)/2 {
					kept = 0
				}
				if room[n] == 0 {
					free++
				} else {
					require.GreaterOrEqual(t, room[n], kept+size, "%s %s, page %d", c.path, c.body, n)
				}
				if c.keeps {
					kept += size
				}
			}
			require.Equal(t, c.free, free, "%s %s", c.path, c.body)
			require.Zero(t, answers.Used())
		}
	})
}
