package lessor_test

import (
	"cmp"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/lessor"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// dumb is a Lessor that looks at all leases each time.
type dumb struct {
	leads  bool
	leases []*dumbLease
	free   time.Duration
}

type dumbLease struct {
	coord.Lease
	deadline time.Duration
	expiring bool
}

func (l *dumbLease) ref() *coordv1.LeaseRef {
	return &coordv1.LeaseRef{Id: int64(l.ID), Granted: l.Granted}
}
func (l *dumbLease) whole() time.Duration { return time.Duration(l.TTL) * ms }

// The numbers are those of the package: 100 ms to catch up, 20,000 keys a second, 1000 in a batch.
const keyTime = s / 20_000

func keysOf(id coord.LeaseID) int { return int(id%4) * 150 }

func (d *dumb) promote(now time.Duration, leases []coord.Lease) {
	*d = dumb{leads: true, free: now - 100*ms}
	for _, l := range leases {
		d.leases = append(d.leases, &dumbLease{Lease: l, deadline: now + 1*s + time.Duration(l.TTL)*ms})
	}
	d.sort()
	for i := 1; i < len(d.leases); i++ {
		d.leases[i].deadline = max(d.leases[i].deadline, d.leases[i-1].deadline+keyTime*4/3)
	}
}

func (d *dumb) sort() {
	slices.SortFunc(d.leases, func(a, b *dumbLease) int {
		return cmp.Or(cmp.Compare(a.deadline, b.deadline), cmp.Compare(a.ID, b.ID))
	})
}

func (d *dumb) find(id coord.LeaseID) *dumbLease {
	if i := slices.IndexFunc(d.leases, func(l *dumbLease) bool { return l.ID == id }); i >= 0 {
		return d.leases[i]
	}
	return nil
}

func (d *dumb) end(id coord.LeaseID) {
	d.leases = slices.DeleteFunc(d.leases, func(l *dumbLease) bool { return l.ID == id })
}

func (d *dumb) due(now time.Duration) (refs []*coordv1.LeaseRef) {
	if now < d.free {
		return nil
	}
	d.sort()
	keys := 0
	for _, l := range d.leases {
		if l.expiring || l.deadline > now {
			continue
		}
		weight := max(1, keysOf(l.ID))
		if len(refs) == 512 || len(refs) > 0 && keys+weight > 1000 {
			break
		}
		l.expiring, keys, refs = true, keys+weight, append(refs, l.ref())
	}
	d.free = max(d.free, now-100*ms) + time.Duration(keys)*keyTime
	return refs
}

func (d *dumb) next() (at time.Duration, ok bool) {
	d.sort()
	for _, l := range d.leases {
		if !l.expiring {
			return max(l.deadline, d.free), true
		}
	}
	return 0, false
}

func (d *dumb) overdue(now time.Duration) (most time.Duration) {
	for _, l := range d.leases {
		most = max(most, now-l.deadline)
	}
	return most
}

func (d *dumb) renew(now time.Duration, id coord.LeaseID) (time.Duration, lessor.KeepAliveResult) {
	l := d.find(id)
	switch {
	case l == nil:
		return 0, lessor.Unknown
	case l.expiring:
		return 0, lessor.Expiring
	}
	l.deadline = max(l.deadline, now+l.whole())
	return l.whole(), lessor.Renewed
}

// pair is a Lessor and a dumb one to which the same is done.
type pair struct {
	lessor  *lessor.Lessor
	dumb    dumb
	now     time.Duration
	index   uint64
	batches [][]*coordv1.LeaseRef
}

var _ rapid.StateMachine = (*pair)(nil)

func (p *pair) leases(t *rapid.T, atMost int) (all []coord.Lease) {
	ids := rapid.SliceOfNDistinct(rapid.Int64Range(1, 9), 0, atMost, rapid.ID).Draw(t, "ids")
	for _, id := range ids {
		p.index++
		ttl := rapid.Int64Range(1, 4).Draw(t, "ttl") * 500
		all = append(all, coord.Lease{ID: coord.LeaseID(id), TTL: ttl, Granted: p.index})
	}
	return all
}

func (p *pair) Promote(t *rapid.T) {
	leases := p.leases(t, 9)
	p.lessor.Promote(p.now, 1, leases)
	p.dumb.promote(p.now, leases)
	p.batches = nil
}

func (p *pair) Demote(*rapid.T) {
	p.lessor.Demote()
	p.dumb = dumb{}
}

func (p *pair) Granted(t *rapid.T) {
	leases := p.leases(t, 5)
	p.lessor.Granted(p.now, leases)
	for _, l := range leases {
		if p.dumb.leads {
			p.dumb.end(l.ID)
			p.dumb.leases = append(p.dumb.leases, &dumbLease{Lease: l, deadline: p.now + time.Duration(l.TTL)*ms})
		}
	}
}

func (p *pair) Ended(t *rapid.T) {
	for _, id := range rapid.SliceOfN(rapid.Int64Range(1, 9), 0, 4).Draw(t, "ended") {
		p.lessor.Ended([]coord.LeaseID{coord.LeaseID(id)})
		p.dumb.end(coord.LeaseID(id))
	}
}

func (p *pair) Renew(t *rapid.T) {
	for _, id := range rapid.SliceOfN(rapid.Int64Range(1, 9), 1, 3).Draw(t, "ids") {
		p.renew(t, coord.LeaseID(id))
	}
}

func (p *pair) renew(t *rapid.T, id coord.LeaseID) {
	ttl, fate := p.lessor.Renew(p.now, id)
	wantTTL, wantFate := p.dumb.renew(p.now, id)
	require.Equal(t, wantFate, fate)
	require.Equal(t, wantTTL, ttl)
}

func (p *pair) Due(t *rapid.T) {
	got, want := p.lessor.Due(p.now), p.dumb.due(p.now)
	require.Equal(t, want, got)
	if len(got) > 0 {
		p.batches = append(p.batches, got)
	}
}

func (p *pair) Again(t *rapid.T) {
	if len(p.batches) == 0 {
		t.Skip("nothing was given out")
	}
	batch := rapid.SampledFrom(p.batches).Draw(t, "batch")
	p.lessor.Again(batch)
	for _, ref := range batch {
		if l := p.dumb.find(coord.LeaseID(ref.GetId())); l != nil && l.Granted == ref.GetGranted() {
			l.expiring = false
		}
	}
}

func (p *pair) Wait(t *rapid.T) {
	p.now += time.Duration(rapid.IntRange(0, 1000).Draw(t, "ms")) * ms
}

func (p *pair) Check(t *rapid.T) {
	require.Equal(t, len(p.dumb.leases), p.lessor.Len())
	at, ok := p.lessor.Next()
	wantAt, want := p.dumb.next()
	require.Equal(t, want, ok)
	require.Equal(t, wantAt, at)
	require.Equal(t, p.dumb.overdue(p.now), p.lessor.Overdue(p.now))
	for _, l := range p.dumb.leases {
		left, ok := p.lessor.Remaining(p.now, l.ID)
		require.True(t, ok)
		require.Equal(t, max(0, l.deadline-p.now), left)
	}
}

func TestLessorIsTheDumbOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := &pair{lessor: lessor.New(lessor.Config{Grace: s, Keys: keysOf}), now: time.Hour}
		p.Promote(t)
		t.Repeat(rapid.StateMachineActions(p))
	})
}
