package health_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/agent/health"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// fixture is a Checker with a fake network and all its reports.
type fixture struct {
	*health.Checker
	t *testing.T

	mu      sync.Mutex
	shift   time.Duration              // of the clock
	reports map[string][]health.Report // by id of the instance
	dials   map[string][]time.Time     // by address
	answer  map[string]func(context.Context) error
	open    int
	most    int
}

func newFixture(t *testing.T, change func(*health.Config)) *fixture {
	l := &fixture{
		t: t, reports: map[string][]health.Report{}, dials: map[string][]time.Time{},
		answer: map[string]func(context.Context) error{},
	}
	cfg := health.Config{
		Report: l.report, Dial: l.dial, Random: rand.NewPCG(1, 2).Uint64,
		Now: l.now,
	}
	if change != nil {
		change(&cfg)
	}
	c := health.New(cfg)
	l.Checker = c
	t.Cleanup(c.Close)
	return l
}

func (l *fixture) now() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Now().Add(l.shift)
}

func (l *fixture) report(r health.Report) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reports[r.Key.ID] = append(l.reports[r.Key.ID], r)
}

// dial connects to each address without an answer of its own.
func (l *fixture) dial(ctx context.Context, _, address string) (net.Conn, error) {
	l.mu.Lock()
	l.dials[address] = append(l.dials[address], time.Now())
	l.open++
	l.most = max(l.most, l.open)
	answer := l.answer[address]
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.open--
	}()
	if answer != nil {
		if err := answer(ctx); err != nil {
			return nil, err
		}
	}
	client, server := net.Pipe()
	return client, server.Close()
}

// set defines the answer of an address.
func (l *fixture) set(address string, answer func(context.Context) error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.answer[address] = answer
}

func (l *fixture) of(id string) []health.Report {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]health.Report(nil), l.reports[id]...)
}

func (l *fixture) dialled(address string) []time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]time.Time(nil), l.dials[address]...)
}

func refuse(context.Context) error { return fmt.Errorf("dial: %w", syscall.ECONNREFUSED) }

// hang never answers.
func hang(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

func after(d time.Duration) func(context.Context) error {
	return func(ctx context.Context) error {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(d):
			return nil
		}
	}
}

func target(n int) health.Target {
	return health.Target{
		Key:   instance.Key{Namespace: "default", Service: "web", ID: fmt.Sprint("web-", n)},
		Host:  fmt.Sprintf("10.0.%d.%d", n/250, n%250+1),
		Port:  80,
		Check: instance.Check{Type: instance.TCP},
	}
}

func address(t health.Target) string {
	return netip.AddrPortFrom(netip.MustParseAddr(t.Host), uint16(t.Port)).String()
}

// marks formats reports: a mark for each status, and ! at changes.
func marks(list []health.Report) string {
	var b strings.Builder
	for _, r := range list {
		b.WriteByte(r.Status.String()[1])
		if r.Changed {
			b.WriteByte('!')
		}
	}
	return b.String()
}

func TestResultsAndReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, one := newFixture(t, nil), target(1)
		one.Check.HealthyThreshold = 2
		require.NoError(t, l.Set(one))
		synctest.Wait()
		first := l.of("web-1")
		require.Len(t, first, 1, "the first check is made at once")
		require.True(t, first[0].Passing)
		require.Equal(t, instance.StatusUnknown, first[0].Status)

		time.Sleep(20 * time.Second)
		l.set(address(one), refuse)
		time.Sleep(40 * time.Second)
		l.set(address(one), nil)
		time.Sleep(20 * time.Second)
		synctest.Wait()
		all := l.of("web-1")
		require.Equal(t, "NP!PPPO!OOP!", marks(all))
		require.False(t, all[5].Passing)
		require.ErrorIs(t, all[5].Err, fault.Unavailable)
		for i := 2; i < len(all); i++ {
			require.Equal(t, 10*time.Second, all[i].At.Sub(all[i-1].At), "moments keep their distance")
		}

		m, ok := l.Measured(one.Key)
		require.True(t, ok)
		require.Equal(t, 9, m.Checks)
		require.Equal(t, 4, m.Failed)
		require.Equal(t, uint32(4444), m.ErrorRate)
		require.InDelta(t, 100*5/9.0, m.UptimePercent, 1e-9)
		require.Equal(t, all[8].At, m.Last)
	})
}

func TestTimeoutIsFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, one := newFixture(t, nil), target(1)
		one.Check.Timeout = 3 * time.Second
		l.set(address(one), hang)
		require.NoError(t, l.Set(one))
		time.Sleep(33 * time.Second)
		synctest.Wait()
		all := l.of("web-1")
		require.Equal(t, "NNO!", marks(all)[:4])
		require.Equal(t, 3*time.Second, all[0].Took)
		require.ErrorIs(t, all[0].Err, fault.Timeout)
	})
}

// TestLateIsSkipped checks that a check that ends after the next moment skips
// it.
func TestLateIsSkipped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, one := newFixture(t, func(cfg *health.Config) { cfg.Workers, cfg.Slow = 1, 2 }), target(1)
		one.Check = instance.Check{Type: instance.TCP, Interval: time.Second, Timeout: time.Second}
		l.set(address(one), hang)
		require.NoError(t, l.Set(one))
		time.Sleep(20*time.Second + time.Millisecond)
		synctest.Wait()
		require.Equal(t, 1, l.most, "one check of a target at a time")
		require.GreaterOrEqual(t, len(l.dialled(address(one))), 10)
		require.LessOrEqual(t, len(l.dialled(address(one))), 21)
	})
}

// requireRegular checks that the checks of a target after a moment are one
// interval apart.
func (l *fixture) requireRegular(n int, since time.Time) {
	l.t.Helper()
	all := l.of(target(n).Key.ID)
	require.NotEmpty(l.t, all)
	for i := 1; i < len(all); i++ {
		if all[i-1].At.After(since) {
			require.InDelta(l.t, 10, all[i].At.Sub(all[i-1].At).Seconds(), 2, "target %d, check %d", n, i)
		}
	}
	require.WithinDuration(l.t, time.Now(), all[len(all)-1].At, 12*time.Second)
}

// TestSlowDoNotDelayOthers lets half of all targets hang, more than all lanes
// hold: the others keep their schedule, and hanging targets get their turns.
func TestSlowDoNotDelayOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 100
		l := newFixture(t, func(cfg *health.Config) { cfg.Workers, cfg.Slow = 4, 12 })
		for i := range n {
			one := target(i)
			if i%2 == 0 {
				l.set(address(one), hang)
			}
			require.NoError(t, l.Set(one))
		}
		time.Sleep(time.Minute)
		since := time.Now()
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		require.LessOrEqual(t, l.most, 16)
		for i := range n {
			if i%2 == 1 {
				l.requireRegular(i, since)
				continue
			}
			all := l.of(target(i).Key.ID)
			require.GreaterOrEqual(t, len(all), 5, "target %d hangs and starves", i)
			require.Equal(t, instance.StatusDown, all[len(all)-1].Status)
		}
	})
}

// TestSlowLeaveRoom checks that new hanging checks find room beside old ones.
func TestSlowLeaveRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 60
		l := newFixture(t, func(cfg *health.Config) { cfg.Workers, cfg.Slow = 1, 12 })
		for i := range n {
			one := target(i)
			if i < n/2 {
				one.Check.Interval, one.Check.Timeout = time.Minute, time.Minute
				l.set(address(one), hang)
			}
			require.NoError(t, l.Set(one))
		}
		time.Sleep(5 * time.Minute)
		since := time.Now()
		for i := n / 2; i < n/2+3; i++ {
			l.set(address(target(i)), hang)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		for i := n/2 + 3; i < n; i++ {
			l.requireRegular(i, since)
		}
	})
}

// TestSuddenHang checks that targets hanging at once do not stop the rest.
func TestSuddenHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 60
		l := newFixture(t, func(cfg *health.Config) { cfg.Workers, cfg.Slow = 4, 40 })
		for i := range n {
			require.NoError(t, l.Set(target(i)))
		}
		time.Sleep(30 * time.Second)
		for i := range n / 2 {
			l.set(address(target(i)), hang)
		}
		time.Sleep(45 * time.Second)
		synctest.Wait()
		for i := range n {
			all := l.of(target(i).Key.ID)
			require.Equal(t, i >= n/2, all[len(all)-1].Status == instance.StatusUp, "target %d", i)
			if i >= n/2 {
				require.GreaterOrEqual(t, len(all), 8)
			}
		}
	})
}

// TestSpread checks that first and later checks are spread.
func TestSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 10_000
		l := newFixture(t, nil)
		start := time.Now()
		for i := range n {
			require.NoError(t, l.Set(target(i)))
		}
		time.Sleep(30 * time.Second)
		synctest.Wait()
		counts := map[int]int{}
		for i := range n {
			all := l.of(target(i).Key.ID)
			require.GreaterOrEqual(t, len(all), 3)
			for _, r := range all {
				counts[int(r.At.Sub(start)/(100*time.Millisecond))]++
			}
		}
		for at, count := range counts {
			require.LessOrEqual(t, count, 300, "tenth of a second %d", at)
		}
	})
}

// TestSuspension suspends the process or the host for five minutes during
// checks.
func TestSuspension(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 100
		l := newFixture(t, nil)
		for i := range n {
			l.set(address(target(i)), after(4*time.Second))
			require.NoError(t, l.Set(target(i)))
		}
		time.Sleep(57 * time.Second)
		for i := range n {
			l.set(address(target(i)), hang)
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		before, resumed := 0, time.Now().Add(5*time.Minute)
		for i := range n {
			before += len(l.of(target(i).Key.ID))
			l.set(address(target(i)), nil)
		}
		l.mu.Lock()
		require.NotZero(t, l.open, "checks are under way, and will look as if they had timed out")
		l.shift = 5 * time.Minute
		l.mu.Unlock()
		time.Sleep(20 * time.Second)
		synctest.Wait()
		total := 0
		for i := range n {
			all := l.of(target(i).Key.ID)
			total += len(all)
			for _, r := range all {
				require.True(t, r.Passing, "nothing failed for our sleep")
			}
			require.True(t, all[len(all)-1].At.After(resumed))
		}
		require.Less(t, total-before, 2*n+n/2, "nothing is made up for")
		bunches := map[time.Time]int{}
		for i := range n {
			for _, at := range l.dialled(address(target(i))) {
				bunches[at]++
			}
		}
		for at, count := range bunches {
			require.LessOrEqual(t, count, 3, "all at once at %s", at)
		}
	})
}

// TestLackOfDescriptors checks that a lack of resources at this peer is not a
// failure of the target.
func TestLackOfDescriptors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, one := newFixture(t, nil), target(1)
		require.NoError(t, l.Set(one))
		synctest.Wait()
		l.set(address(one), func(context.Context) error {
			return &net.OpError{Op: "dial", Err: os.NewSyscallError("socket", syscall.EMFILE)}
		})
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Len(t, l.of("web-1"), 1)
		require.Len(t, l.dialled(address(one)), 7, "six checks had no result")
		l.set(address(one), nil)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		require.Equal(t, "P!P", marks(l.of("web-1")))
	})
}

func TestSetAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, one := newFixture(t, nil), target(1)
		require.NoError(t, l.Set(one))
		time.Sleep(95 * time.Second)
		synctest.Wait()
		count := len(l.of("web-1"))

		same := one
		same.Local = true
		same.Check.Interval = instance.DefaultCheckInterval // the default
		require.NoError(t, l.Set(same))
		synctest.Wait()
		m, _ := l.Measured(one.Key)
		require.Equal(t, count, m.Checks, "history stays")
		require.Len(t, l.of("web-1"), count, "and so do the moments")

		for _, change := range []func(*health.Target){
			func(t *health.Target) { t.Check.UnhealthyThreshold = 1 },
			func(t *health.Target) { t.Host = "10.9.9.9" },
			func(t *health.Target) { t.Port = 81 },
		} {
			other := one
			change(&other)
			require.NoError(t, l.Set(other))
			time.Sleep(time.Second / health.FirstChecks)
			synctest.Wait()
			m, _ = l.Measured(one.Key)
			require.Equal(t, 1, m.Checks, "another check starts anew")
		}
	})
}

func TestUnmeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, one := newFixture(t, nil), target(1)
		one.Unmeasured = true
		require.NoError(t, l.Set(one))
		measured := func(unmeasured bool) (int, bool) {
			one.Unmeasured = unmeasured
			require.NoError(t, l.Set(one))
			time.Sleep(20 * time.Second)
			synctest.Wait()
			m, ok := l.Measured(one.Key)
			require.Equal(t, ok, !m.Last.IsZero())
			return m.Checks, ok
		}
		for range 2 { // without a window: no measurements; with one: they continue
			n, ok := measured(true)
			require.False(t, ok)
			require.Zero(t, n)
			n, ok = measured(false)
			require.True(t, ok)
			require.Equal(t, 2, n)
			n, ok = measured(false)
			require.True(t, ok)
			require.Equal(t, 4, n)
		}
		require.NotContains(t, marks(l.of("web-1"))[2:], "!", "the status stays") // the first check makes it up
	})
}

func TestRemove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newFixture(t, func(cfg *health.Config) { cfg.Workers = 1 })
		ended := make(chan struct{}, 1)
		l.set(address(target(0)), func(ctx context.Context) error {
			defer func() { ended <- struct{}{} }()
			return hang(ctx)
		})
		for i := range 3 { // one running, one waiting for a worker, one waiting for its moment
			require.NoError(t, l.Set(target(i)))
			time.Sleep(2 * time.Millisecond)
			synctest.Wait()
		}
		l.Remove(target(2).Key)
		l.Remove(target(1).Key)
		l.Remove(target(0).Key)
		l.Remove(target(0).Key)
		synctest.Wait()
		require.Len(t, ended, 1, "the check under way is cancelled at once")
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Empty(t, l.reports)
		_, ok := l.Measured(target(0).Key)
		require.False(t, ok)

		require.NoError(t, l.Set(target(1)))
		synctest.Wait()
		require.Len(t, l.of("web-1"), 1, "the worker came back")
	})
}

// TestSlowReport checks that a slow Report delays only its own target, and that
// reports of a target are in order.
func TestSlowReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var order []string
		slow := make(chan struct{})
		c := health.New(health.Config{
			Random: rand.NewPCG(1, 2).Uint64,
			Dial:   func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("refused") },
			Report: func(r health.Report) {
				if r.Key.ID == "web-1" {
					<-slow
				}
				mu.Lock()
				defer mu.Unlock()
				order = append(order, r.Key.ID)
			},
		})
		require.NoError(t, c.Set(target(1)))
		require.NoError(t, c.Set(target(2)))
		time.Sleep(60 * time.Second)
		synctest.Wait()
		mu.Lock()
		require.NotContains(t, order, "web-1")
		require.GreaterOrEqual(t, len(order), 6)
		mu.Unlock()
		close(slow)
		c.Close()
		c.Close()
		require.ErrorIs(t, c.Set(target(3)), fault.Unavailable)
	})
}

func TestFlappingIsHeldDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, one := newFixture(t, nil), target(1)
		one.Check.UnhealthyThreshold = 1
		var n int
		l.set(address(one), func(context.Context) error {
			if n++; n%2 == 0 && n < 12 {
				return errors.New("refused")
			}
			return nil
		})
		require.NoError(t, l.Set(one))
		time.Sleep(6 * time.Minute)
		synctest.Wait()
		all := l.of("web-1")
		require.True(t, strings.HasPrefix(marks(all), "P!O!P!O!P!O!OOOOOOO"), marks(all))
		require.True(t, all[6].Damped && all[6].Passing)
		require.False(t, all[7].Damped)
		require.Equal(t, instance.StatusUp, all[len(all)-1].Status)
	})
}

func TestBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newFixture(t, func(cfg *health.Config) { cfg.Targets = 2 })
		require.NoError(t, l.Set(target(1)))
		require.NoError(t, l.Set(target(2)))
		require.ErrorIs(t, l.Set(target(3)), fault.PoolExhausted)
		require.NoError(t, l.Set(target(2)))
		l.Remove(target(1).Key)
		require.NoError(t, l.Set(target(3)))
	})
}
