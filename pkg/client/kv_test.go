package client

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/pkg/fault"
)

func (p *fixture) put(key, value string) {
	_, _, err := ops.Of(p.solo).Do(context.Background(), ops.Command{Op: &ops.Txn{
		Then: []ops.Step{{Put: &ops.Put{Key: key, Value: []byte(value)}}},
	}})
	require.NoError(p.t, err)
}

// TestFollow expects no gap and no duplicate across lost connections.
func TestFollow(t *testing.T) {
	bubble(t, func(t *testing.T, p *fixture) {
		c := p.open("alice")
		var writing sync.WaitGroup
		writing.Go(func() {
			for i := range 300 {
				p.put(fmt.Sprint("job/", i), "")
				p.put("other", "")
				time.Sleep(100 * time.Millisecond)
				if i%50 == 20 {
					p.restart()
				}
			}
		})
		seen := 0
		for batch, err := range c.KV().Watch(t.Context(), Watch{Span: Under("job/"), From: 1}) {
			require.NoError(t, err)
			for _, e := range batch.Events {
				require.Equal(t, fmt.Sprint("job/", seen), e.Key)
				seen++
			}
			if seen == 300 {
				break
			}
		}
		writing.Wait()
	})
}

func TestFollowFromNow(t *testing.T) {
	bubble(t, func(t *testing.T, p *fixture) {
		c := p.open("alice")
		p.put("a", "1")
		p.solo.Halt("no majority")
		time.AfterFunc(3*time.Second, p.solo.Resume)
		for batch, err := range c.KV().Watch(t.Context(), Watch{Span: Exactly("a"), Prev: true}) {
			require.NoError(t, err)
			if len(batch.Events) == 0 {
				p.put("a", "3")
				continue
			}
			require.Len(t, batch.Events, 1)
			require.Equal(t, "3", string(batch.Events[0].KV.Value))
			require.Equal(t, "1", string(batch.Events[0].Prev.Value))
			break
		}
	})
}

func TestFollowCompacted(t *testing.T) {
	bubble(t, func(t *testing.T, p *fixture) {
		for range 5 {
			p.put("a", "")
		}
		_, _, err := ops.Of(p.solo).Do(t.Context(), ops.Command{Op: &ops.Compact{Revision: 4}})
		require.NoError(t, err)
		rounds := 0
		for _, err := range p.open("alice").KV().Watch(t.Context(), Watch{From: 2}) {
			rounds++
			var past *Compacted
			require.ErrorAs(t, err, &past)
			require.Equal(t, Compacted{Revision: 4, Current: 6}, *past)
			require.ErrorIs(t, err, fault.NotFound)
		}
		require.Equal(t, 1, rounds)
	})
}

func TestFollowEnds(t *testing.T) {
	bubble(t, func(t *testing.T, p *fixture) {
		c := p.open("alice")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var last error
		for _, err := range c.KV().Watch(ctx, Watch{}) {
			last = err
		}
		require.ErrorIs(t, last, fault.Timeout)
		for _, err := range c.KV().Watch(t.Context(), Watch{From: -1}) {
			last = err
		}
		require.ErrorIs(t, last, fault.Invalid)
		require.NoError(t, c.Close())
		for _, err := range c.KV().Watch(t.Context(), Watch{}) {
			last = err
		}
		require.ErrorIs(t, last, fault.Canceled)
	})
}

// TestFollowEndsWhileAway expects the end of the context as the error while the peer is
// unreachable.
func TestFollowEndsWhileAway(t *testing.T) {
	bubble(t, func(t *testing.T, p *fixture) {
		p.solo.Halt("no majority")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var last error
		for _, err := range p.open("alice").KV().Watch(ctx, Watch{}) {
			last = err
		}
		require.ErrorIs(t, last, fault.Timeout)
	})
}

func TestCommon(t *testing.T) {
	for _, c := range []struct {
		span   coord.Span
		key    string
		prefix bool
	}{
		{coord.Exactly("a"), "a", false},
		{coord.Under("a/"), "a/", true},
		{coord.Span{}, "", true},
		{coord.Span{From: "ab", To: "ad"}, "a", true},
		{coord.Span{From: "ab"}, "", true},
		{coord.Span{To: "b"}, "", true},
		{coord.Under("ä"), "ä", true},
		{coord.Exactly("a\xff"), "a", true},
		{coord.Under("\xff"), "", true},
	} {
		w := coord.Watch{Span: c.span}
		require.Equal(t, []any{c.key, c.prefix}, []any{w.Request().GetKey(), w.Request().GetPrefix()}, "%q", c.span)
	}
}

func TestBounds(t *testing.T) {
	from, to := coord.Span{From: "a"}.Bounds()
	require.Equal(t, []string{"a", "\x00"}, []string{string(from), string(to)})
	from, to = coord.Span{To: "\x00"}.Bounds()
	require.Equal(t, string(from), string(to), "nothing is not everything")
}

func TestElection(t *testing.T) {
	bubble(t, func(t *testing.T, p *fixture) {
		c := p.open("alice")
		_, err := c.Locks().Leader(t.Context(), "sched")
		require.ErrorIs(t, err, fault.NotFound)
		ctx, cancel := context.WithCancel(t.Context())
		var told []string
		var observing sync.WaitGroup
		observing.Go(func() {
			for l, err := range c.Locks().Observe(ctx, "sched") {
				if err != nil {
					assert.ErrorIs(t, err, fault.Canceled)
					continue
				}
				told = append(told, string(l.Value))
			}
		})
		synctest.Wait()
		one, two := p.session(c, 10*time.Second), p.session(p.open("bob"), 10*time.Second)
		first, err := one.Campaign(t.Context(), "sched", []byte("one"))
		require.NoError(t, err)
		var waiting sync.WaitGroup
		var second *Leadership
		var secondErr error
		waiting.Go(func() { second, secondErr = two.Campaign(t.Context(), "sched", []byte("two")) })
		time.Sleep(time.Minute)
		require.NoError(t, first.Proclaim(t.Context(), []byte("uno")))
		p.restart()
		synctest.Wait() // until clients notice the lost connections
		l, err := c.Locks().Leader(t.Context(), "sched")
		require.NoError(t, err)
		require.Equal(t, []any{"uno", one.Lease()}, []any{string(l.Value), l.Lease})
		require.NoError(t, first.Resign(t.Context()))
		require.NoError(t, first.Resign(t.Context()))
		waiting.Wait()
		require.NoError(t, secondErr)
		require.Error(t, first.Context().Err())
		require.Greater(t, second.Token(), first.Token())
		require.Error(t, first.Proclaim(t.Context(), []byte("again")))
		require.NoError(t, two.Close(t.Context()))
		require.ErrorIs(t, second.Proclaim(t.Context(), nil), fault.Canceled)
		time.Sleep(3 * time.Second)
		cancel()
		observing.Wait()
		require.Equal(t, []string{"", "one", "uno", "", "two", ""}, told)
	})
}

// TestElectionDeposed expects a deposed leader to fail to proclaim.
func TestElectionDeposed(t *testing.T) {
	bubble(t, func(t *testing.T, p *fixture) {
		s := p.session(p.open("alice"), 10*time.Second)
		l, err := s.Campaign(t.Context(), "sched", nil)
		require.NoError(t, err)
		_, _, err = ops.Of(p.solo).Do(t.Context(), ops.Command{Owner: "alice", Op: &ops.Unlock{Name: "sched", Lease: coord.LeaseID(s.Lease()), Token: coord.Token(l.Token())}})
		require.NoError(t, err)
		require.ErrorIs(t, l.Proclaim(t.Context(), []byte("me")), fault.Conflict)
		require.NoError(t, l.Resign(t.Context()))
	})
}

func TestObserveSkipsTheForgotten(t *testing.T) {
	bubble(t, func(t *testing.T, p *fixture) {
		c := p.open("alice")
		var told []string
		for l, err := range c.Locks().Observe(t.Context(), "x") {
			require.NoError(t, err)
			told = append(told, string(l.Value))
			if string(l.Value) == "9" {
				break
			}
			if len(told) == 1 { // during the loss, the group compacts all changes
				p.wire.stop()
				for i := range 10 {
					p.put("x/leader", fmt.Sprint(i))
				}
				_, _, err := ops.Of(p.solo).Do(t.Context(), ops.Command{Op: &ops.Compact{Revision: 10}})
				require.NoError(t, err)
				p.mu.Lock()
				p.wire.start()
				p.mu.Unlock()
			}
		}
		require.Equal(t, []string{"", "9"}, told)
	})
}

func TestSince(t *testing.T) {
	events := []KeyEvent{{Revision: 3}, {Revision: 4}, {Revision: 5}}
	require.Len(t, since(events, 4), 2)
	require.Empty(t, since(events, 6))
}

// TestKV: every call answers, and repeats itself, over a peer that loses answers and connections; each change happens once.
func TestKV(t *testing.T) {
	bubble(t, func(t *testing.T, p *fixture) {
		c, ctx := p.open("alice"), t.Context()
		kv := c.KV()
		_, err := kv.Get(ctx, "absent")
		require.ErrorIs(t, err, fault.NotFound)

		p.mu.Lock()
		p.fault = func(_ string, n int) (before, after error) {
			if n%3 == 1 {
				return nil, unreachable()
			}
			return nil, nil
		}
		p.mu.Unlock()
		first, err := kv.Put(ctx, "a", []byte("1"))
		require.NoError(t, err)
		second, err := kv.Put(ctx, "a", []byte("2"))
		require.NoError(t, err)
		require.Equal(t, first+1, second, "each put happens once")
		got, err := kv.Get(ctx, "a")
		require.NoError(t, err)
		require.Equal(t, "2", string(got.Value))
		require.EqualValues(t, 2, got.Version)
		require.Equal(t, second, got.ModRevision)

		result, err := kv.Txn().If(WhileAt("a", first)).Then(Exactly("a").Delete()).Else(Under("").Read()).Commit(ctx)
		require.NoError(t, err)
		require.ErrorIs(t, result.Unmet, fault.Conflict)
		require.Len(t, result.Steps, 1)
		require.EqualValues(t, 1, result.Steps[0].Count)
		require.Equal(t, "a", result.Steps[0].Keys[0].Key)

		absent := kv.Txn().If(WhileAt("b", 0)).Then(Put("a/b", nil))
		result, err = kv.Txn().Then(Put("b", nil), absent.Step()).Commit(ctx)
		require.NoError(t, err)
		require.True(t, result.Steps[1].Then, "it looks at the state before")

		n, err := kv.Delete(ctx, Under("a"))
		require.NoError(t, err)
		require.Equal(t, 2, n)
		_, err = kv.Put(ctx, "", nil)
		require.ErrorIs(t, err, fault.Invalid)
	})
}

// TestListReadsOneRevision: the pages of a list are of one revision, whatever changes between them.
func TestListReadsOneRevision(t *testing.T) {
	bubble(t, func(t *testing.T, p *fixture) {
		for i := range 2500 {
			p.put(fmt.Sprintf("k/%04d", i), "")
		}
		c := p.open("alice")
		p.mu.Lock()
		p.hold = func(_ context.Context, _ string, n int) { p.put(fmt.Sprint("k/new", n), "") } // between two pages
		p.mu.Unlock()
		kvs, at, err := c.KV().List(t.Context(), Under("k/"))
		require.NoError(t, err)
		require.Len(t, kvs, 2500)
		require.Equal(t, kvs[2499].ModRevision, at)
		all, _, err := c.KV().List(t.Context(), Under(""))
		require.NoError(t, err)
		require.Greater(t, len(all), 2500)
	})
}

// TestKeyOfASession: a key under a session goes with it.
func TestKeyOfASession(t *testing.T) {
	bubble(t, func(t *testing.T, p *fixture) {
		c, ctx := p.open("alice"), t.Context()
		s, err := c.Locks().Session(ctx)
		require.NoError(t, err)
		_, err = c.KV().Under(s).Put(ctx, "mine", []byte("x"))
		require.NoError(t, err)
		require.NoError(t, s.Close(ctx))
		_, err = c.KV().Get(ctx, "mine")
		require.ErrorIs(t, err, fault.NotFound)
		_, err = c.KV().Under(s).Put(ctx, "mine", []byte("x"))
		require.Error(t, err)
	})
}
