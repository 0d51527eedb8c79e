package offers

import (
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
)

// elsewhere opens the registry of another machine with the same key.
func elsewhere(t testing.TB, now time.Time) *Registry { return open(t, config(t, vfs.NewMem()), now) }

func TestForeign(t *testing.T) {
	now := epoch()
	r, other := open(t, config(t, vfs.NewMem()), now), elsewhere(t, now)
	first := register(t, r, now, offer("a"))[0]
	second, err := r.Update(at(offer("a"), 52, 13), now.Add(time.Hour)) // leaves a tombstone
	require.NoError(t, err)
	gone, err := r.Withdraw("a", now.Add(2*time.Hour))
	require.NoError(t, err)
	for _, v := range []*records.Record{first, second, gone} {
		require.False(t, r.Foreign(v), "own versions, old ones too")
	}
	same := register(t, other, now, at(offer("a"), 1, 1))[0]
	later, err := other.Update(offer("a"), now.Add(3*time.Hour))
	require.NoError(t, err)
	ended, err := other.Withdraw("a", now.Add(4*time.Hour))
	require.NoError(t, err)
	require.True(t, r.Foreign(later))
	require.True(t, r.Foreign(ended))
	require.True(t, r.Foreign(register(t, other, now, offer("b"))[0]), "an id that this registry never had")
	require.Equal(t, first.Sequence(), same.Sequence())

	fresh := elsewhere(t, now)
	own := register(t, fresh, now, offer("a"))[0]
	require.False(t, fresh.Foreign(own))
	require.True(t, fresh.Foreign(same), "another record with the same sequence")
	stranger := config(t, vfs.NewMem())
	stranger.Key = key(t, 2)
	require.False(t, r.Foreign(register(t, open(t, stranger, now), now, offer("a"))[0]), "another provider")
}

// A deleted service is no evidence against this machine.
func TestLapsedServiceIsNotForeign(t *testing.T) {
	r, now := open(t, config(t, vfs.NewMem()), epoch()), epoch()
	v := register(t, r, now, offer("a"))[0]
	gone, err := r.Withdraw("a", now.Add(time.Hour))
	require.NoError(t, err)
	r.Due(gone.Expires(), 9)
	require.Empty(t, r.services)
	require.False(t, r.Foreign(v))
	require.False(t, r.Foreign(gone))
}

func TestSuspend(t *testing.T) {
	c, now := config(t, vfs.NewMem()), epoch()
	r, err := Open(c, now)
	require.NoError(t, err)
	own := register(t, r, now, offer("a"), offer("b"))
	done(r, now, own...)
	other := elsewhere(t, now)
	foreign := register(t, other, now.Add(time.Second), offer("a"))[0]

	first, err := r.Suspend(foreign, now)
	require.NoError(t, err)
	require.True(t, first)
	first, err = r.Suspend(foreign, now)
	require.NoError(t, err)
	require.False(t, first)
	for _, after := range []time.Duration{0, DefaultRefresh, DefaultTTL, 100 * DefaultTTL} {
		require.Empty(t, r.Due(now.Add(after), 9))
		_, ok := r.NextDue()
		require.False(t, ok)
	}
	require.Equal(t, []string{"a", "b"}, ids(r.List()), "the offers stay")
	require.NoError(t, r.Close())

	r, err = Open(c, now.Add(time.Hour))
	require.NoError(t, err)
	e, ok := r.Suspended()
	require.True(t, ok, "a restart changes nothing")
	require.Equal(t, Evidence{ID: "a", Sequence: foreign.Sequence(), Issued: foreign.Issued()}, e)
	require.Empty(t, r.Due(now.Add(DefaultRefresh), 9))
	later, err := other.Update(offer("a"), now.Add(2*time.Hour))
	require.NoError(t, err)
	first, err = r.Suspend(later, now)
	require.NoError(t, err)
	require.False(t, first)
	e, _ = r.Suspended()
	require.True(t, e.Later, "signed after this start: no older copy explains it")
	require.NoError(t, r.Close())
}

func TestReclaim(t *testing.T) {
	c, now := config(t, vfs.NewMem()), epoch()
	r, err := Open(c, now)
	require.NoError(t, err)
	own := register(t, r, now, offer("a"), offer("b"))
	require.NoError(t, r.Close())
	_, err = Reclaim(c, now)
	require.ErrorIs(t, err, fault.Conflict, "not suspended")

	other := elsewhere(t, now)
	register(t, other, now, offer("a"))
	foreign, err := other.Update(offer("a"), now.Add(48*time.Hour)) // a fast clock
	require.NoError(t, err)
	r, err = Open(c, now)
	require.NoError(t, err)
	_, err = r.Suspend(foreign, now)
	require.NoError(t, err)
	require.NoError(t, r.Close())

	now = now.Add(time.Minute)
	n, err := Reclaim(c, now)
	require.NoError(t, err)
	require.Equal(t, 2, n)
	r = open(t, c, now)
	require.False(t, r.Foreign(foreign), "superseded")
	require.True(t, r.Stale(now))
	due := r.Due(now, 9)
	require.Len(t, due, 2)
	for i, v := range due {
		require.Greater(t, v.Sequence(), foreign.Sequence())
		require.Equal(t, created(own[i]), created(v))
	}
	require.False(t, r.Stale(now))
	again, err := other.Update(offer("a"), now.Add(49*time.Hour))
	require.NoError(t, err)
	require.True(t, r.Foreign(again), "the other machine goes on")
}
