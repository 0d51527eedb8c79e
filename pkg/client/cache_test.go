package client

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/blackhole/blackhole/internal/agent/agenttest"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// put registers an instance at the peer.
func (h *host) put(id string) {
	_, err := h.Register(h.t.Context(), agenttest.Web(id))
	require.NoError(h.t, err)
}

// add is put, and waits until all watches have the change.
func (h *host) add(id string) {
	h.put(id)
	synctest.Wait()
}

func discover(t *testing.T, s *Services, q instance.Query) instance.Result {
	t.Helper()
	r, err := s.Discover(t.Context(), q)
	require.NoError(t, err)
	return r
}

func TestDiscoverFromMemory(t *testing.T) {
	inBubble(t, func(t *testing.T, h *host, s *Services) {
		h.add("a")
		first := discover(t, s, agenttest.All())
		require.Len(t, first.Instances, 1)
		for range 10 {
			require.Same(t, first.View, discover(t, s, agenttest.All()).View)
		}
		h.add("b")
		require.Len(t, discover(t, s, agenttest.All()).Instances, 2, "the watch told")
		require.Equal(t, []int{0, 1}, []int{h.count("Discover"), h.count("Watch")})

		h.Lose("no majority")
		synctest.Wait()
		time.Sleep(3 * time.Second)
		r := discover(t, s, agenttest.All())
		require.Equal(t, []any{true, "no majority", 3 * time.Second}, []any{r.Stale, r.Reason, r.Age}, "the peer's own loss")
		h.Find()
		synctest.Wait()
		require.False(t, discover(t, s, agenttest.All()).Stale)

		q := agenttest.All()
		q.Consistency = instance.Linearizable
		discover(t, s, q)
		require.Equal(t, 1, h.count("Discover"), "goes to the peer")
		_, err := s.Discover(t.Context(), instance.Query{})
		require.Equal(t, "service", fault.FieldOf(err))
		q = agenttest.All()
		q.Version = "nonsense ^"
		_, err = s.Discover(t.Context(), q)
		require.Equal(t, "version", fault.FieldOf(err))
	})
}

// TestDiscoverWhileLost expects the last answer with its age.
func TestDiscoverWhileLost(t *testing.T) {
	inBubble(t, func(t *testing.T, h *host, s *Services) {
		h.add("a")
		h.add("b")
		require.Len(t, discover(t, s, agenttest.All()).Instances, 2)
		h.stop()
		synctest.Wait()
		for _, age := range []time.Duration{10 * time.Second, 5 * time.Minute} {
			time.Sleep(age - time.Second)
			r := discover(t, s, agenttest.All())
			require.Len(t, r.Instances, 2, "never empty because contact was lost")
			require.True(t, r.Stale)
			require.Contains(t, r.Reason, "does not answer")
			require.GreaterOrEqual(t, r.Age, age-time.Second)
			time.Sleep(time.Second)
		}
		_, err := s.Discover(t.Context(), agenttest.Up())
		require.ErrorIs(t, err, fault.Unavailable, "was never known")
		h.start()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		require.False(t, discover(t, s, agenttest.All()).Stale)
	})
}

// TestDiscoverWithoutWatches expects answers to be cached for a time if the peer refuses watches.
func TestDiscoverWithoutWatches(t *testing.T) {
	inBubble(t, func(t *testing.T, h *host, s *Services) {
		h.refusing(func(method string) error {
			if method == "Watch" {
				return fault.New("test", fault.LimitReached, "1024 watches are open already")
			}
			return nil
		})
		h.add("a")
		for range 10 {
			require.Len(t, discover(t, s, agenttest.All()).Instances, 1)
		}
		require.Equal(t, 1, h.count("Discover"))
		h.add("b")
		time.Sleep(29 * time.Second)
		require.Len(t, discover(t, s, agenttest.All()).Instances, 1)
		time.Sleep(2 * time.Second)
		require.Len(t, discover(t, s, agenttest.All()).Instances, 2)
		require.Equal(t, 2, h.count("Discover"))

		h.refusing(func(string) error { return fault.New("test", fault.Unavailable, "going down") })
		time.Sleep(31 * time.Second)
		r := discover(t, s, agenttest.All())
		require.Len(t, r.Instances, 2)
		require.True(t, r.Stale)
		require.Contains(t, r.Reason, "going down")
		h.refusing(func(string) error { return fault.New("test", fault.Forbidden, "not for you") })
		time.Sleep(2 * time.Second)
		_, err := s.Discover(t.Context(), agenttest.All())
		require.ErrorIs(t, err, fault.Forbidden)
		h.refusing(nil)
		time.Sleep(cacheTTL)
		synctest.Wait()
		require.False(t, discover(t, s, agenttest.All()).Stale)
		asked := h.count("Discover")
		h.add("c")
		require.Len(t, discover(t, s, agenttest.All()).Instances, 3)
		require.Equal(t, asked, h.count("Discover"), "a watch is there by now")
	})
}

// TestCacheIsBounded checks the number of entries and the lifetime of idle entries.
func TestCacheIsBounded(t *testing.T) {
	inBubble(t, func(t *testing.T, h *host, s *Services) {
		for i := range maxCached + 10 {
			q := agenttest.All()
			q.Tags = []string{string(rune('a'+i%26)) + string(rune('a'+i/26))}
			discover(t, s, q)
			time.Sleep(time.Millisecond)
		}
		entries := func() int {
			s.cache.mu.Lock()
			defer s.cache.mu.Unlock()
			return len(s.cache.entries)
		}
		require.Equal(t, maxCached, entries())
		for range 7 {
			time.Sleep(time.Minute)
			discover(t, s, agenttest.All())
		}
		require.Equal(t, 1, entries())
		time.Sleep(2 * cacheIdle)
		require.Zero(t, entries())
		discover(t, s, agenttest.All())
	})
}

// TestDiscoverGivesUp expects Discover to end with its context and with the client.
func TestDiscoverGivesUp(t *testing.T) {
	inBubble(t, func(t *testing.T, h *host, s *Services) {
		silent := h.client(Dial(grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			<-ctx.Done() // otherwise an answer could come first
			return nil, ctx.Err()
		})))
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := silent.Services().Discover(ctx, agenttest.All())
		require.ErrorIs(t, err, fault.Canceled)
		require.NoError(t, silent.Close())
		_, err = silent.Services().Discover(t.Context(), agenttest.All())
		require.ErrorIs(t, err, fault.Canceled)
	})
}

// TestWatchGoesOn expects no gap and no duplicate over lost connections.
func TestWatchGoesOn(t *testing.T) {
	inBubble(t, func(t *testing.T, h *host, s *Services) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		h.add("a")
		var seen []string
		step := 0
		for b, err := range s.Watch(ctx, agenttest.All(), 0) {
			if err != nil {
				require.ErrorIs(t, err, fault.Canceled)
				seen = append(seen, "end")
				continue
			}
			for _, e := range b.Events {
				seen = append(seen, e.Instance.ID)
			}
			switch {
			case b.Stale:
				seen = append(seen, "lost")
				h.put("c")
				h.start()
			case step == 0:
				go h.put("b")
			case step == 1:
				go h.stop()
			case step == 2:
				cancel()
			}
			if !b.Stale && len(b.Events) > 0 {
				step++
			}
		}
		require.Equal(t, []string{"a", "b", "lost", "c", "end"}, seen)
		h.Forget()
		h.put("d")
		for b := range s.Watch(t.Context(), agenttest.All(), 2) { // older than the remembered changes: a reset follows
			require.True(t, b.Reset)
			require.Len(t, b.Events, 4)
			break
		}
		for _, err := range s.Watch(t.Context(), instance.Query{Name: instance.Name{Service: "no name"}}, 0) {
			require.ErrorIs(t, err, fault.Invalid)
		}
	})
}

func TestFollowResults(t *testing.T) {
	inBubble(t, func(t *testing.T, h *host, s *Services) {
		h.add("b")
		q := agenttest.Up()
		var shown [][]string
		for r, err := range s.Follow(t.Context(), q) {
			require.NoError(t, err)
			var ids []string
			for _, i := range r.Instances {
				ids = append(ids, i.ID)
			}
			shown = append(shown, ids)
			switch len(shown) {
			case 1:
				go h.put("a")
			case 2:
				go func() { _, _ = h.SetStatus(t.Context(), agenttest.Web("b").Key, instance.StatusDown) }()
			case 3:
				go h.stop()
			}
			if r.Stale {
				break
			}
		}
		require.Equal(t, [][]string{{"b"}, {"a", "b"}, {"a"}, {"a"}}, shown)
		for _, err := range s.Follow(t.Context(), instance.Query{Selector: instance.Selector{Version: "^^"}}) {
			require.ErrorIs(t, err, fault.Invalid)
		}
	})
}
