package offers

import (
	"strconv"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/records"
)

func TestDueIsBoundedAndHandsOut(t *testing.T) {
	r, now := open(t, config(t, vfs.NewMem()), epoch()), epoch()
	register(t, r, now, offer("a"), offer("b"), offer("c"))
	require.Empty(t, r.Due(now.Add(ackTimeout-1), 9))
	now = now.Add(ackTimeout)
	require.Empty(t, r.Due(now, 0))
	require.Empty(t, r.Due(now, -1))
	require.Equal(t, []string{"a", "b"}, ids(r.Due(now, 2)))
	require.Equal(t, []string{"c"}, ids(r.Due(now, 2)))
	require.Empty(t, r.Due(now.Add(ackTimeout-1), 9))
	at, ok := r.NextDue()
	require.True(t, ok)
	require.Equal(t, now.Add(ackTimeout), at)
	require.Equal(t, []string{"a", "b", "c"}, ids(r.Due(now.Add(ackTimeout), 9)))
}

// TestNewVersionsAreHandedOutToTheirCaller runs a refresh loop beside a caller that announces its own changes.
func TestNewVersionsAreHandedOutToTheirCaller(t *testing.T) {
	bad := offer("bad")
	bad.Metadata.Type = "No Type"
	for name, change := range map[string]func(t *testing.T, r *Registry, now time.Time) *records.Record{
		"register": func(t *testing.T, r *Registry, now time.Time) *records.Record {
			made, errs := r.Register([]records.Offer{bad, offer("b")}, now)
			require.Error(t, errs[0])
			require.NoError(t, errs[1])
			return made[1]
		},
		"update": func(t *testing.T, r *Registry, now time.Time) *records.Record {
			v, err := r.Update(offer("a"), now)
			require.NoError(t, err)
			return v
		},
		"withdraw": func(t *testing.T, r *Registry, now time.Time) *records.Record {
			v, err := r.Withdraw("a", now)
			require.NoError(t, err)
			return v
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, now := open(t, config(t, vfs.NewMem()), epoch()), epoch()
			done(r, now, register(t, r, now, offer("a"))...)

			made := change(t, r, now)
			require.Empty(t, r.Due(now, 9))
			failed(r, now, made)
			now = now.Add(backoffMin)
			require.Equal(t, []*records.Record{made}, r.Due(now, 9), "a reported failure ends the ack timeout")
			done(r, now, made)
			require.Empty(t, r.Due(now.Add(ackTimeout), 9))

			r, now = open(t, config(t, vfs.NewMem()), epoch()), epoch()
			done(r, now, register(t, r, now, offer("a"))...)
			made = change(t, r, now)
			at, _ := r.NextDue()
			require.Equal(t, now.Add(ackTimeout), at)
			require.Empty(t, r.Due(at.Add(-1), 9))
			require.Equal(t, []*records.Record{made}, r.Due(at, 9), "its caller is gone")
		})
	}
}

func TestRetriesBackOff(t *testing.T) {
	r, now := open(t, config(t, vfs.NewMem()), epoch()), epoch()
	pending := register(t, r, now, offer("a"))
	first := pending[0]
	for _, wait := range []time.Duration{1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300} {
		failed(r, now, pending...)
		at, _ := r.NextDue()
		require.Equal(t, wait*time.Second, at.Sub(now))
		require.Empty(t, r.Due(at.Add(-1), 1))
		now = at
		pending = r.Due(now, 1)
		require.Len(t, pending, 1)
		require.Same(t, first, pending[0], "a retry is not a new version")
	}
	done(r, now, pending...)
	at, _ := r.NextDue()
	require.Equal(t, epoch().Add(DefaultRefresh), at, "the refresh interval starts at the signature")

	// The next failure starts the backoff again.
	failed(r, at, r.Due(at, 1)...)
	again, _ := r.NextDue()
	require.Equal(t, time.Second, again.Sub(at))
}

func TestNothingStoredIsAFailure(t *testing.T) {
	r, now := open(t, config(t, vfs.NewMem()), epoch()), epoch()
	v := register(t, r, now, offer("a"))[0]
	r.Announced(v.Name(), v.Sequence(), records.Stored{}, now)
	at, _ := r.NextDue()
	require.Equal(t, time.Second, at.Sub(now))
}

func TestRefresh(t *testing.T) {
	r, now := open(t, config(t, vfs.NewMem()), epoch()), epoch()
	o := offer("a")
	o.Metadata.Attributes = map[string]string{"rack": "7"}
	last := register(t, r, now, o)[0]
	done(r, now, last)
	for range 10 {
		at, _ := r.NextDue()
		require.Equal(t, now.Add(DefaultRefresh), at)
		now = at
		due := r.Due(now, 1)
		require.Len(t, due, 1)
		fresh := due[0]
		require.Greater(t, fresh.Sequence(), last.Sequence())
		require.Equal(t, now.Add(DefaultTTL), fresh.Expires())
		require.Equal(t, epoch(), created(fresh), "a refresh is not a registration")
		require.Equal(t, records.OfferOf(last.Service()), records.OfferOf(fresh.Service()))
		got, _ := r.Get("a")
		require.Same(t, fresh, got)
		require.Empty(t, r.Due(now, 1), "a tombstone is handed out like other versions")
		done(r, now, last) // too late: the version is superseded
		at, _ = r.NextDue()
		require.Equal(t, now.Add(ackTimeout), at)
		done(r, now, fresh)
		last = fresh
	}
}

func TestOfflineForDays(t *testing.T) {
	r, now := open(t, config(t, vfs.NewMem()), epoch()), epoch()
	pending := register(t, r, now, offer("a"))
	for end := now.Add(72 * time.Hour); now.Before(end); pending = r.Due(now, 10) {
		require.Len(t, pending, 1)
		_, err := records.Open("test", pending[0].Envelope(), now)
		require.NoError(t, err, "due versions are valid")
		failed(r, now, pending...)
		at, _ := r.NextDue()
		require.Positive(t, at.Sub(now))
		require.LessOrEqual(t, at.Sub(now), backoffMax, "a renewal keeps the retry schedule")
		now = at
	}
	require.Greater(t, r.scheduler.tasks[versionOf(r.List()[0])].failures, 100)
}

func TestUpdateSupersedesAnnouncement(t *testing.T) {
	r, now := open(t, config(t, vfs.NewMem()), epoch()), epoch()
	pending := register(t, r, now, offer("a"))
	now = now.Add(ackTimeout)
	require.Equal(t, pending, r.Due(now, 1))
	fresh, err := r.Update(offer("a"), now)
	require.NoError(t, err)
	failed(r, now, pending...)
	done(r, now, pending...)
	stranger := records.Name{Provider: peer.ID("somebody"), ID: "a"}
	r.Announced(stranger, fresh.Sequence(), records.Stored{On: 1, Of: 1}, now)
	require.Empty(t, r.Due(now.Add(ackTimeout-1), 9))
	require.Equal(t, []*records.Record{fresh}, r.Due(now.Add(ackTimeout), 9))
}

func TestTombstoneIsAnnouncedUntilItLapses(t *testing.T) {
	c := config(t, vfs.NewMem())
	now := epoch()
	r, err := Open(c, now)
	require.NoError(t, err)
	register(t, r, now, offer("a"))
	tombstone, err := r.Withdraw("a", now)
	require.NoError(t, err)
	var told []time.Duration
	for pending := []*records.Record{tombstone}; len(pending) > 0; pending = r.Due(now, 9) {
		require.Len(t, pending, 1)
		require.Equal(t, tombstone.Digest(), pending[0].Digest())
		told = append(told, now.Sub(epoch()))
		done(r, now, pending...)
		require.Empty(t, r.Due(now, 9))
		now, _ = r.NextDue()
		require.NoError(t, r.Close())
		r, err = Open(c, now)
		require.NoError(t, err)
	}
	require.NoError(t, r.Close())
	require.Equal(t, []time.Duration{0, 6 * time.Hour, 12 * time.Hour, 18 * time.Hour}, told)
	require.Equal(t, tombstone.Expires(), now)
	require.Empty(t, r.services)
}

func TestRestart(t *testing.T) {
	c := config(t, vfs.NewMem())
	now := epoch()
	r, err := Open(c, now)
	require.NoError(t, err)
	before := register(t, r, now, offer("a"))[0]
	require.Empty(t, r.Due(now, 9))
	require.NoError(t, r.Close())

	// At once: the ack timeout does not survive the process.
	r, err = Open(c, now)
	require.NoError(t, err)
	pending := r.Due(now, 9)
	require.Len(t, pending, 1)
	require.Equal(t, before.Envelope(), pending[0].Envelope())
	done(r, now, pending...)
	require.NoError(t, r.Close())

	// Soon: the same version again, for keepers that lost it.
	r, err = Open(c, now.Add(time.Hour))
	require.NoError(t, err)
	same := r.Due(now.Add(time.Hour), 9)
	require.Len(t, same, 1)
	require.Equal(t, before.Envelope(), same[0].Envelope())
	require.NoError(t, r.Close())

	// After its expiry: a new version.
	late := before.Expires().Add(time.Hour)
	r = open(t, c, late)
	fresh := r.Due(late, 9)
	require.Len(t, fresh, 1)
	require.Greater(t, fresh[0].Sequence(), before.Sequence())
	require.False(t, fresh[0].Expired(late))
	require.Equal(t, created(before), created(fresh[0]))
}

func TestShorterTTLOfNewConfiguration(t *testing.T) {
	c := config(t, vfs.NewMem())
	now := epoch()
	r, err := Open(c, now)
	require.NoError(t, err)
	first := register(t, r, now, offer("a"))[0]
	require.NoError(t, r.Close())

	c.TTL, c.Refresh = time.Hour, time.Minute
	r = open(t, c, now)
	short := r.Due(now.Add(time.Minute), 1)[0]
	require.True(t, short.Expires().Before(first.Expires()))
	tombstone, err := r.Withdraw("a", now.Add(time.Minute))
	require.NoError(t, err)
	require.False(t, tombstone.Expires().Before(first.Expires()), "the tombstone outlives all versions, not only the last")
}

// TestManyServices runs a refresh loop for two days of virtual time and counts announcements.
func TestManyServices(t *testing.T) {
	const services = 100
	c := config(t, vfs.NewMem())
	seed := uint64(1)
	c.Jitter = func() float64 { // xorshift: any fixed uniform stream suffices
		seed ^= seed << 13
		seed ^= seed >> 7
		seed ^= seed << 17
		return float64(seed>>11) / (1 << 53)
	}
	r, now := open(t, c, epoch()), epoch()
	var offers []records.Offer
	for i := range services {
		offers = append(offers, offer(strconv.Itoa(i)))
	}
	register(t, r, now, offers...)
	now = now.Add(ackTimeout) // without an announcement
	start := now
	announcements, largest := 0, 0
	for now.Before(epoch().Add(48 * time.Hour)) {
		due := r.Due(now, 32)
		require.LessOrEqual(t, len(due), 32)
		done(r, now, due...)
		announcements += len(due)
		if now.After(start) {
			largest = max(largest, len(due))
		}
		now, _ = r.NextDue()
	}
	require.InDelta(t, services*8.5, announcements, services/2, "eight refreshes in the mean, and the first one")
	require.Less(t, largest, 8, "jitter spreads simultaneous registrations")
	for _, v := range r.List() {
		require.False(t, v.Expired(now))
		require.Equal(t, epoch(), created(v))
	}
}
