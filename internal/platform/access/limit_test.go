package access

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/pkg/fault"
)

func TestLimit(t *testing.T) {
	l, now := NewLimiter(100, 0), start()
	for range 100 {
		require.NoError(t, l.Take("a", 1, now))
	}
	err := l.Take("a", 1, now)
	require.ErrorIs(t, err, fault.LimitReached)
	wait, ok := RetryAfter(err)
	require.True(t, ok)
	require.Equal(t, time.Second, wait) // 600 ms, in whole seconds
	require.ErrorIs(t, l.Take("a", 1, now.Add(599*time.Millisecond)), fault.LimitReached)
	require.NoError(t, l.Take("a", 1, now.Add(600*time.Millisecond)))
	require.NoError(t, l.Take("b", 100, now), "others have their own")

	wait, ok = RetryAfter(l.Take("b", 60, now))
	require.True(t, ok)
	require.Equal(t, 36*time.Second, wait)

	_, ok = RetryAfter(l.Take("c", 101, now))
	require.False(t, ok, "never allowed at once")
	require.NoError(t, l.Take("c", 100, now), "what was refused does not count")
	_, ok = RetryAfter(errors.New("another"))
	require.False(t, ok)

	var off *Limiter
	require.Nil(t, NewLimiter(0, 0))
	require.NoError(t, off.Take("a", 1_000_000, now))
}

func TestLimiterIsBounded(t *testing.T) {
	l, now := NewLimiter(1, 3), start()
	for i := range 100_000 {
		require.NoError(t, l.Take(fmt.Sprint(i), 1, now))
	}
	require.Equal(t, 3, l.clients.Len())
	require.Error(t, l.Take("99999", 1, now))
	require.NoError(t, l.Take("0", 1, now), "forgotten")
}

// TestLimitAgainstModel compares with a bucket that is filled a tick at a time, and holds
// RetryAfter to its word.
func TestLimitAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		perMinute := rapid.IntRange(1, 300).Draw(t, "per minute")
		l := NewLimiter(perMinute, 2)
		now := start()
		const unit = 60_000 // of a registration: a millisecond brings perMinute of them
		full := perMinute * unit
		bucket := full
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			ms := rapid.SampledFrom([]int{0, 0, 1, 10, 700, 5000, 100_000}).Draw(t, "ms")
			now = now.Add(time.Duration(ms) * time.Millisecond)
			bucket = min(full, bucket+ms*perMinute)
			n := rapid.IntRange(1, perMinute).Draw(t, "n")
			err := l.Take("a", n, now)
			if short := n*unit - bucket; short > perMinute { // a millisecond's worth apart: no rounding decides
				require.ErrorIs(t, err, fault.LimitReached)
				wait, ok := RetryAfter(err)
				require.True(t, ok)
				if rapid.Bool().Draw(t, "patient") {
					now = now.Add(wait)
					require.NoError(t, l.Take("a", n, now))
					bucket = min(full, bucket+int(wait.Milliseconds())*perMinute) - n*unit
				}
				continue
			} else if short < -perMinute {
				require.NoError(t, err)
			}
			if err == nil {
				bucket -= n * unit
			}
		}
	})
}

// TestRetryAfterOfPools: a pool that knows when it has room says it as a rate does, in whole seconds.
func TestRetryAfterOfPools(t *testing.T) {
	full := fault.Exhausted("", "offers", true, "all are in use")
	_, ok := RetryAfter(full)
	require.False(t, ok)
	var refusal *fault.Error
	require.ErrorAs(t, full, &refusal)
	refusal.Value = 1500 * time.Millisecond
	after, ok := RetryAfter(fault.Wrap("discovery.Register", full))
	require.True(t, ok)
	require.Equal(t, 2*time.Second, after)
}

// TestLocalCallersHaveNoRate: a machine that restarts registers all it has at once, over a socket or loopback;
// another machine has a rate.
func TestLocalCallersHaveNoRate(t *testing.T) {
	l := NewLimiter(100, 0)
	for _, c := range []struct {
		addr  net.Addr
		local bool
	}{
		{&net.TCPAddr{IP: net.IPv4(127, 0, 0, 9), Port: 1}, true},
		{&net.TCPAddr{IP: net.IPv6loopback, Port: 1}, true},
		{&net.TCPAddr{IP: net.ParseIP("::ffff:127.0.0.1"), Port: 1}, true},
		{peerAddr{uid: 7, known: true}, true},
		{&remote{Addr: peerAddr{}}, true},
		{&remote{Addr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1}, user: &peerAddr{uid: 7, known: true}}, true},
		{&net.UnixAddr{Net: "unix"}, true},
		{&net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 1}, false},
		{&net.TCPAddr{IP: net.ParseIP("fe80::1"), Port: 1, Zone: "eth0"}, false},
		{&remote{Addr: &net.TCPAddr{IP: net.IPv4(192, 0, 2, 2), Port: 1}}, false},
		{nil, false},
	} {
		ctx := context.WithValue(t.Context(), connKey{}, c.addr)
		require.Equal(t, c.local, Local(ctx), "%v", c.addr)
		refused := 0
		for range 200 {
			if err := l.Of(ctx, start()); err != nil {
				require.ErrorIs(t, err, fault.LimitReached)
				refused++
			}
		}
		require.Equal(t, map[bool]int{true: 0, false: 100}[c.local], refused, "%v", c.addr)
	}
}
