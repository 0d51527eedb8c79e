package lessor_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/lessor"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

const (
	s  = time.Second
	ms = time.Millisecond
)

func granted(id coord.LeaseID, ttl time.Duration) coord.Lease {
	return coord.Lease{ID: id, TTL: ttl.Milliseconds(), Granted: uint64(id)}
}

func many(n int, ttl time.Duration) []coord.Lease {
	all := make([]coord.Lease, n)
	for i := range all {
		all[i] = granted(coord.LeaseID(i+1), ttl)
	}
	return all
}

func leading(leases ...coord.Lease) *lessor.Lessor {
	l := lessor.New(lessor.Config{Grace: 1 * s})
	l.Promote(0, 7, leases)
	return l
}

func ref(id coord.LeaseID) *coordv1.LeaseRef {
	return &coordv1.LeaseRef{Id: int64(id), Granted: uint64(id)}
}

func TestPromotionGivesWholeTimeAndGrace(t *testing.T) {
	l := leading(granted(1, 10*s))
	require.Equal(t, uint64(7), l.Term())
	left, ok := l.Remaining(2*s, 1)
	require.True(t, ok)
	require.Equal(t, 9*s, left)
	require.Empty(t, l.Due(11*s-1))
	require.Equal(t, []*coordv1.LeaseRef{ref(1)}, l.Due(11*s))
}

func TestPromotionSpreadsDeadlines(t *testing.T) {
	const n = 15_000
	l := leading(many(n, 10*s)...)
	first, _ := l.Remaining(0, 1)
	last, _ := l.Remaining(0, n)
	require.Equal(t, 11*s, first)
	require.InDelta(t, (12 * s).Seconds(), last.Seconds(), 0.01, "three quarters of 20,000 in a second")
}

// TestThoseWaitedForComeFirst: who waits behind a lease does not wait behind a crowd of others.
func TestThoseWaitedForComeFirst(t *testing.T) {
	const n = 90_000
	l := lessor.New(lessor.Config{Awaited: func(id coord.LeaseID) bool { return id == n+1 || id == n+2 }})
	l.Promote(0, 7, nil)
	l.Granted(0, many(n, 10*s))
	l.Granted(0, []coord.Lease{granted(n+1, 10*s+100*ms), granted(n+2, 10*s+100*ms)})
	require.NotEmpty(t, l.Due(10*s))
	_, fate := l.Renew(10*s+50*ms, n+2)
	require.Equal(t, lessor.Renewed, fate)
	for now, given := 10*s+100*ms, 0; ; now += 50 * ms {
		for refs := l.Due(now); len(refs) > 0; refs = l.Due(now) {
			require.NotContains(t, refs, ref(n+2))
			if refs[0].GetId() == n+1 {
				require.LessOrEqual(t, now, 10*s+300*ms, "%d others ended before", given)
				return
			}
			given += len(refs)
		}
	}
}

func TestWhoDoesNotLeadKnowsNothing(t *testing.T) {
	l := lessor.New(lessor.Config{})
	for range 2 {
		l.Granted(0, many(3, s))
		require.Zero(t, l.Term())
		require.Zero(t, l.Len())
		require.Empty(t, l.Due(time.Hour))
		_, fate := l.Renew(0, 1)
		require.Equal(t, lessor.Unknown, fate)
		_, ok := l.Next()
		require.False(t, ok)
		l.Promote(0, 1, many(3, s))
		require.Equal(t, 3, l.Len())
		l.Demote()
	}
}

func TestRenewal(t *testing.T) {
	l := leading()
	l.Granted(0, []coord.Lease{granted(1, 10*s)})
	ttl, fate := l.Renew(9*s, 1)
	require.Equal(t, lessor.Renewed, fate)
	require.Equal(t, 10*s, ttl)
	require.Empty(t, l.Due(19*s-1))
	at, ok := l.Next()
	require.True(t, ok)
	require.Equal(t, 19*s, at)
	_, fate = l.Renew(9*s, 2)
	require.Equal(t, lessor.Unknown, fate)
}

func TestRenewalNeverShortens(t *testing.T) {
	l := leading(granted(1, 10*s)) // until 11 s
	_, fate := l.Renew(ms, 1)
	require.Equal(t, lessor.Renewed, fate)
	require.Empty(t, l.Due(11*s-1))
}

func TestRenewalWaitsWhileExpiring(t *testing.T) {
	l := leading(granted(1, 10*s), granted(2, 10*s))
	batch := l.Due(12 * s)
	require.Len(t, batch, 2)
	require.Empty(t, l.Due(12*s), "given out once")
	ttl, fate := l.Renew(12*s, 1)
	require.Equal(t, lessor.Expiring, fate)
	require.Zero(t, ttl)

	l.Ended([]coord.LeaseID{1}) // the entry was applied and had room for the first only
	l.Again(batch)
	_, fate = l.Renew(13*s, 1)
	require.Equal(t, lessor.Unknown, fate)
	_, fate = l.Renew(13*s, 2)
	require.Equal(t, lessor.Renewed, fate)
}

func TestRefusedBatchIsDueAgain(t *testing.T) {
	l := leading(many(3, 10*s)...)
	batch := l.Due(12 * s)
	require.Len(t, batch, 3)
	_, ok := l.Next()
	require.False(t, ok)
	l.Again(batch)
	at, ok := l.Next()
	require.True(t, ok)
	require.LessOrEqual(t, at, 12*s)
	require.Equal(t, batch, l.Due(12*s))
}

func TestRegrantedLeaseIsAnother(t *testing.T) {
	l := leading(granted(1, 10*s))
	batch := l.Due(12 * s)
	l.Ended([]coord.LeaseID{1})
	l.Granted(12*s, []coord.Lease{{ID: 1, TTL: 10_000, Granted: 99}})
	l.Again(batch)
	require.Empty(t, l.Due(22*s-1))
	require.Equal(t, []*coordv1.LeaseRef{{Id: 1, Granted: 99}}, l.Due(22*s))
	l.Again(batch)
	require.Empty(t, l.Due(22*s), "the former grant's batch says nothing about this one")
}

func TestOverdueCountsWhatIsExpiring(t *testing.T) {
	l := leading(granted(1, 10*s), granted(2, 20*s))
	require.Zero(t, l.Overdue(11*s))
	require.Equal(t, 2*s, l.Overdue(13*s))
	l.Due(13 * s)
	require.Equal(t, 3*s, l.Overdue(14*s))
	left, ok := l.Remaining(14*s, 1)
	require.True(t, ok)
	require.Zero(t, left)
	l.Ended([]coord.LeaseID{1})
	require.Zero(t, l.Overdue(14*s))
}

func TestBatchesAreBounded(t *testing.T) {
	weights := map[coord.LeaseID]int{1: 5000, 2: 600, 3: 300, 4: 200}
	l := lessor.New(lessor.Config{Keys: func(id coord.LeaseID) int { return weights[id] }})
	l.Promote(0, 1, many(2000, s))
	var sizes []int
	for now := 10 * s; l.Len() > 0; now += s {
		for batch := l.Due(now); len(batch) > 0; batch = l.Due(now) {
			sizes = append(sizes, len(batch))
			for _, r := range batch {
				l.Ended([]coord.LeaseID{coord.LeaseID(r.GetId())})
			}
		}
	}
	// 5000 keys alone; 600 and 300, not 200 more; then as many as a command looks at.
	require.Equal(t, []int{1, 2, 512, 512, 512, 461}, sizes)
}

// When 90,000 leases end together the group goes on with the rest of its work: the rate of
// deletions is bounded in every second, and not much lower than it may be.
func TestRateIsBounded(t *testing.T) {
	const n, keys, rate = 90_000, 2, 20_000
	l := lessor.New(lessor.Config{Keys: func(coord.LeaseID) int { return keys }})
	l.Promote(0, 1, nil)
	l.Granted(0, many(n, 10*s))
	perTenth := make(map[time.Duration]int)
	now, steps := 10*s, 0
	for ; l.Len() > 0; steps++ {
		at, ok := l.Next()
		require.True(t, ok)
		now = max(now, at)
		batch := l.Due(now)
		require.NotEmpty(t, batch, "Next is when something is due")
		perTenth[now/(100*ms)] += keys * len(batch)
		for _, r := range batch {
			l.Ended([]coord.LeaseID{coord.LeaseID(r.GetId())})
		}
	}
	for tenth, deleted := range perTenth {
		require.LessOrEqual(t, deleted, 2*rate/10+1000, "in %v", tenth*100*ms)
	}
	require.InDelta(t, float64(n*keys)/rate, (now - 10*s).Seconds(), 0.3)
}

func TestLongestTimeToLive(t *testing.T) {
	l := leading(coord.Lease{ID: 1, TTL: math.MaxInt64})
	require.Empty(t, l.Due(1000*time.Hour))
	ttl, fate := l.Renew(1000*time.Hour, 1)
	require.Equal(t, lessor.Renewed, fate)
	require.Greater(t, ttl, 50*365*24*time.Hour)
}

func BenchmarkLessor(b *testing.B) {
	const n = 100_000
	prepare := func(b *testing.B) *lessor.Lessor {
		l := lessor.New(lessor.Config{Rate: math.MaxInt32})
		l.Promote(0, 1, many(n, 10*s))
		b.ResetTimer()
		return l
	}
	b.Run("promote", func(b *testing.B) {
		leases := many(n, 10*s)
		l := prepare(b)
		for b.Loop() {
			l.Promote(0, 1, leases)
		}
	})
	b.Run("renew", func(b *testing.B) { // all leases every third of their time, Due asked every 25 ms
		l := prepare(b)
		now := time.Duration(0)
		for i := 0; b.Loop(); i++ {
			if now += 3 * s / n; i%833 == 0 {
				require.Empty(b, l.Due(now))
			}
			l.Renew(now, coord.LeaseID(i%n+1))
		}
	})
	b.Run("grant and end", func(b *testing.B) {
		l := prepare(b)
		one, id := make([]coord.Lease, 1), []coord.LeaseID{n + 1}
		for b.Loop() {
			one[0] = granted(n+1, 5*s)
			l.Granted(0, one)
			l.Ended(id)
		}
	})
	b.Run("expire", func(b *testing.B) {
		l := prepare(b)
		for b.Loop() {
			batch := l.Due(time.Hour)
			if len(batch) == 0 {
				b.Fatal("nothing due")
			}
			l.Again(batch)
		}
		b.ReportMetric(float64(b.Elapsed())/float64(b.N)/lessor.Batch, "ns/lease")
	})
}

func ExampleLessor() {
	l := lessor.New(lessor.Config{Grace: time.Second})
	l.Promote(0, 3, []coord.Lease{{ID: 1, TTL: 5000, Granted: 12}})
	now, _ := l.Next()
	for _, ref := range l.Due(now) { // for a coordv1.Expire
		fmt.Println(now, l.Term(), ref.GetId(), ref.GetGranted())
	}
	// Output: 6s 3 1 12
}
