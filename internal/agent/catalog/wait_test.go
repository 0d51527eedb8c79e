package catalog

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// awaited runs Await and concurrent changes in virtual time.
func awaited(t *testing.T, c *Catalog, after uint64, during func(cancel func())) (instance.Result, time.Duration, error) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	begun := time.Now()
	var res instance.Result
	var err error
	var took time.Duration
	done := make(chan struct{})
	go func() {
		defer close(done)
		res, err = c.Await(ctx, healthy("a"), after)
		took = time.Since(begun)
	}()
	synctest.Wait()
	during(cancel)
	<-done
	require.Zero(t, c.Stats().Watches)
	return res, took, err
}

func TestAwait(t *testing.T) {
	type step func(t *testing.T, c *Catalog, cancel func())
	cases := []struct {
		name  string
		after uint64
		first step          // during the wait
		delay time.Duration // between first and then
		then  step
		index uint64
		took  time.Duration
		stale bool
		kind  error
	}{
		{name: "none yet", after: 0, index: 2},
		{name: "older", after: 1, index: 2},
		{name: "deadline", after: 2, index: 2, took: time.Minute},
		{name: "canceled", after: 2, delay: time.Second, then: func(_ *testing.T, _ *Catalog, cancel func()) { cancel() },
			took: time.Second, kind: fault.Canceled},
		{name: "a change", after: 2, delay: time.Second, then: func(t *testing.T, c *Catalog, _ func()) {
			apply(t, c, 3, put(3, "a", "2"))
		}, index: 3, took: time.Second},
		{name: "other changes", after: 2, first: func(t *testing.T, c *Catalog, _ func()) {
			apply(t, c, 3, put(3, "b", "1"))
			apply(t, c, 4, put(4, "a", "9", instance.StatusDown))
			apply(t, c, 9)
		}, delay: 3 * time.Second, then: func(t *testing.T, c *Catalog, _ func()) {
			apply(t, c, 10, instances.Change{Key: key("a", "1")})
		}, index: 10, took: 3 * time.Second},
		{name: "contact lost", after: 2, delay: time.Second, then: func(_ *testing.T, c *Catalog, _ func()) {
			c.Freeze("no leader", time.Now().Add(-time.Second))
		}, index: 2, took: time.Second, stale: true},
		{name: "ahead, caught up", after: 5, first: func(t *testing.T, c *Catalog, _ func()) {
			apply(t, c, 5, put(5, "a", "2")) // seen at another peer
		}, delay: 5 * time.Second, then: func(t *testing.T, c *Catalog, _ func()) {
			apply(t, c, 6, put(6, "a", "3"))
		}, index: 6, took: 5 * time.Second},
		{name: "ahead, never reached", after: 5, index: 2, took: 2 * time.Second},
		{name: "ahead, into a gap", after: 5, first: func(t *testing.T, c *Catalog, _ func()) {
			require.NoError(t, c.Reset(9, []*instance.Instance{put(2, "a", "1").Instance}))
		}, index: 2, took: 2 * time.Second},
		{name: "numbering begins anew", after: 2, first: func(t *testing.T, c *Catalog, _ func()) {
			require.NoError(t, c.Reset(1, nil))
		}, index: 1},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := New(Config{})
				apply(t, c, 2, put(2, "a", "1"))
				res, took, err := awaited(t, c, tc.after, func(cancel func()) {
					if tc.first != nil {
						tc.first(t, c, cancel)
					}
					time.Sleep(tc.delay)
					if tc.then != nil {
						tc.then(t, c, cancel)
					}
				})
				require.Equal(t, tc.took, took)
				if tc.kind != nil {
					require.ErrorIs(t, err, tc.kind)
					return
				}
				require.NoError(t, err)
				require.Equal(t, tc.index, res.Index)
				require.Equal(t, tc.stale, res.Stale)
			})
		})
	}
}

func TestAwaitOfAnUnknownService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(Config{History: 4})
		res, took, err := awaited(t, c, 1, func(func()) {
			for rev := uint64(2); rev < 30; rev++ { // sweeps do not disturb waiters
				apply(t, c, rev, put(rev, "b", "1", instance.Status(rev%2)))
			}
			time.Sleep(time.Second)
			apply(t, c, 30, put(30, "a", "1"))
		})
		require.NoError(t, err)
		require.Equal(t, time.Second, took)
		require.EqualValues(t, 30, res.Index)

		_, _, err = awaited(t, c, 30, func(cancel func()) { cancel() })
		require.ErrorIs(t, err, fault.Canceled)
		empty := healthy("never")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = c.Await(ctx, empty, c.Stats().Revision)
		require.ErrorIs(t, err, fault.Canceled)
		require.Nil(t, c.streams.get(empty.Name), "waiting leaves nothing behind")
	})
}

// TestFrozenContact checks that a stale answer is complete and has an age.
func TestFrozenContact(t *testing.T) {
	now := time.Unix(1000, 0)
	c := New(Config{Now: func() time.Time { return now }})
	apply(t, c, 2, put(2, "a", "1"))
	require.Equal(t, instance.Contact{Revision: 2}, discover(t, c, "a").Contact)
	c.Freeze("no leader", now)
	now = now.Add(time.Second)
	c.Freeze("no peers", now) // since the first Freeze
	now = now.Add(time.Second)
	res := discover(t, c, "a")
	require.Equal(t, instance.Contact{Stale: true, Reason: "no peers", Age: 2 * time.Second, Revision: 2}, res.Contact)
	require.Len(t, res.Instances, 1)
	apply(t, c, 3, put(3, "a", "2")) // local changes still count
	require.Len(t, discover(t, c, "a").Instances, 2)
	c.Thaw()
	require.False(t, discover(t, c, "a").Stale)
}

// follow runs Watch until the test ends and collects batches.
func follow(t *testing.T, c *Catalog, after uint64) func() []instance.Batch {
	var mu sync.Mutex
	var batches []instance.Batch
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- c.Watch(ctx, healthy("a"), after, func(b instance.Batch) error {
			mu.Lock()
			defer mu.Unlock()
			batches = append(batches, b)
			return nil
		})
	}()
	t.Cleanup(func() {
		cancel()
		require.ErrorIs(t, <-done, fault.Canceled)
	})
	return func() []instance.Batch {
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		defer func() { batches = nil }()
		return batches
	}
}

func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(Config{})
		apply(t, c, 2, put(2, "a", "1"))
		got := follow(t, c, 0)
		first := got()
		require.Len(t, first, 1)
		require.True(t, first[0].Reset)
		require.Len(t, first[0].Events, 1)
		require.EqualValues(t, 2, first[0].Index)

		apply(t, c, 3, put(3, "a", "2"), put(3, "a", "3"))
		apply(t, c, 4, put(4, "b", "1"))
		next := got()
		require.Len(t, next, 1, "only what concerns it")
		require.Len(t, next[0].Events, 2, "all of a revision together")

		apply(t, c, 50)
		require.Empty(t, got())
		time.Sleep(10 * time.Second)
		mark := got()
		require.Len(t, mark, 1)
		require.Empty(t, mark[0].Events)
		require.EqualValues(t, 50, mark[0].Index)

		c.Freeze("no leader", time.Now())
		lost := got()
		require.Len(t, lost, 1)
		require.True(t, lost[0].Stale)
		require.Empty(t, lost[0].Events)
		require.False(t, lost[0].Reset)
		c.Thaw()
		require.False(t, got()[0].Stale)
	})
}

func TestWatchAhead(t *testing.T) {
	for name, catchUp := range map[string]func(*testing.T, *Catalog){
		"never reached":           nil,
		"caught up":               func(t *testing.T, c *Catalog) { apply(t, c, 5) },
		"caught up with a change": func(t *testing.T, c *Catalog) { apply(t, c, 5, put(5, "b", "1")) },
		"caught up with all of it": func(t *testing.T, c *Catalog) { // and a gap up to there
			require.NoError(t, c.Reset(5, []*instance.Instance{put(2, "a", "1").Instance, put(4, "a", "2").Instance}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := New(Config{})
				apply(t, c, 2, put(2, "a", "1"))
				got := follow(t, c, 5)
				require.EqualValues(t, 5, got()[0].Index, "at once, though there is nothing to say")
				time.Sleep(time.Second)
				apply(t, c, 4, put(4, "a", "2"))
				require.Empty(t, got(), "the reader has it")
				if catchUp != nil {
					catchUp(t, c)
					require.Empty(t, got()[0].Events)
					apply(t, c, 6, put(6, "a", "3"))
					require.Len(t, got()[0].Events, 1)
					return
				}
				time.Sleep(time.Second)
				reset := got()
				require.Len(t, reset, 1)
				require.True(t, reset[0].Reset)
				require.EqualValues(t, 4, reset[0].Index)
				require.Len(t, reset[0].Events, 2)
			})
		})
	}
}

// TestSlowWatcherIsReset checks that a slow watcher holds one number only, and
// gets a Reset after the log moved on.
func TestSlowWatcherIsReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(Config{Log: 8})
		apply(t, c, 2, put(2, "a", "1"))
		r := &reader{q: question{Name: healthy("a").Name}, has: modelState{}}
		free := make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			done <- c.Watch(ctx, healthy("a"), 0, func(b instance.Batch) error {
				<-free
				return r.take(b)
			})
		}()
		synctest.Wait()
		for rev := uint64(3); rev < 40; rev++ {
			apply(t, c, rev, put(rev, "a", fmt.Sprint(rev)))
		}
		close(free)
		synctest.Wait()
		require.Equal(t, 2, r.n)
		require.True(t, r.last.Reset)
		require.Len(t, r.has, 38)
		cancel()
		require.ErrorIs(t, <-done, fault.Canceled)
	})
}

func TestWatchLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(Config{Watches: 1})
		got := follow(t, c, 0)
		require.Len(t, got(), 1)
		none := func(instance.Batch) error { return nil }
		require.ErrorIs(t, c.Watch(t.Context(), healthy("b"), 0, none), fault.PoolExhausted)
		_, err := c.Await(t.Context(), healthy("b"), 1)
		require.ErrorIs(t, err, fault.PoolExhausted)
		require.Nil(t, c.streams.get(healthy("b").Name))
	})
	c := New(Config{Watches: 1})
	broken := errors.New("broken pipe")
	for range 3 { // each frees its place
		require.ErrorIs(t, c.Watch(t.Context(), healthy("b"), 0, func(instance.Batch) error { return broken }), broken)
	}
	require.Zero(t, c.Stats().Watches)
}

// TestConcurrentReaders is for the race detector: one feeder, many readers,
// waiters and watchers, one final state.
func TestConcurrentReaders(t *testing.T) {
	c := New(Config{Log: 16, History: 64, Results: 2})
	const last = 2000
	var wg sync.WaitGroup
	for n := range 8 {
		q := question{Name: healthy("a").Name, Selector: instance.Selector{AnyStatus: n%2 == 0}}
		wg.Go(func() {
			if err := watchTo(t.Context(), c, q, key("a", "last")); err != nil {
				t.Errorf("watch: %v", err)
			}
		})
		wg.Go(func() {
			if err := awaitTo(t.Context(), c, q, last); err != nil {
				t.Errorf("await: %v", err)
			}
		})
	}
	for rev := uint64(2); rev < last; rev++ {
		apply(t, c, rev, put(rev, "a", fmt.Sprint(rev%7), instance.Status(rev%3)), put(rev, fmt.Sprint("s", rev%50), "1", instance.Status(rev%2)), instances.Change{Key: key(fmt.Sprint("s", (rev+25)%50), "1")})
		if rev%10 == 0 {
			c.Freeze("often", time.Unix(0, 0))
			c.Thaw()
		}
	}
	apply(t, c, last, put(last, "a", "last"))
	wg.Wait()
}

// watchTo applies batches until an instance appears, and compares.
func watchTo(ctx context.Context, c *Catalog, q question, k instance.Key) error {
	end := errors.New("seen")
	r := &reader{q: q, has: modelState{}}
	err := c.Watch(ctx, instance.Query{Name: q.Name, Selector: q.Selector}, 0, func(b instance.Batch) error {
		if b.Index < r.at {
			return fmt.Errorf("index %d after %d", b.Index, r.at)
		}
		if err := r.take(b); err != nil || r.has[k] == nil {
			return err
		}
		return end
	})
	if !errors.Is(err, end) {
		return err
	}
	res, err := c.Discover(ctx, instance.Query{Name: q.Name, Selector: q.Selector})
	if err == nil && !alike(res.Instances, r.list()) {
		err = fmt.Errorf("there are %v, applied %v", ids(res.Instances), ids(r.list()))
	}
	return err
}

// awaitTo awaits one index after another.
func awaitTo(ctx context.Context, c *Catalog, q question, last uint64) error {
	for at := uint64(0); at < last; {
		res, err := c.Await(ctx, instance.Query{Name: q.Name, Selector: q.Selector}, at)
		if err != nil {
			return err
		}
		if res.Index < at {
			return fmt.Errorf("index %d after %d", res.Index, at)
		}
		at = res.Index
		if _, err := c.Services(ctx, "default"); err != nil {
			return err
		}
		if _, err := c.List(ctx, instances.ListQuery{Namespace: "default"}); err != nil {
			return err
		}
	}
	return nil
}
