package offers

import (
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
)

func TestPauseEndsByItselfOrByHand(t *testing.T) {
	r, now := open(t, config(t, vfs.NewMem()), epoch()), epoch()
	register(t, r, now, offer("a"), offer("b"))
	_, err := r.Pause("c", 0, now)
	require.ErrorIs(t, err, fault.NotFound)
	_, err = r.Pause("a", MaxPause+1, now)
	require.ErrorIs(t, err, &fault.Error{Kind: fault.Invalid, Field: "for"})
	_, err = r.Resume("a", now)
	require.ErrorIs(t, err, fault.Conflict)

	a, err := r.Pause("a", time.Hour, now)
	require.NoError(t, err)
	require.Equal(t, &records.Pause{Since: now, Until: now.Add(time.Hour)}, a.Paused())
	b, err := r.Pause("b", 0, now)
	require.NoError(t, err)
	done(r, now, a, b)

	changed := offer("a")
	changed.Metadata.Name = "changed"
	updated, err := r.Update(changed, now.Add(time.Minute))
	require.NoError(t, err)
	require.Equal(t, a.Paused(), updated.Paused(), "an update keeps the pause")
	done(r, now.Add(time.Minute), updated)
	require.Empty(t, r.Due(now.Add(59*time.Minute), 9))
	again := r.Due(now.Add(time.Hour), 9)
	require.Equal(t, []string{"a"}, ids(again), "the end of the pause is due")
	require.Nil(t, again[0].Paused())
	require.Greater(t, again[0].Sequence(), updated.Sequence())
	done(r, now.Add(time.Hour), again...)

	refreshed := r.Due(now.Add(DefaultRefresh), 9)
	require.Equal(t, []string{"b"}, ids(refreshed))
	require.Equal(t, b.Paused(), refreshed[0].Paused(), "a refresh keeps the pause")
	b, err = r.Resume("b", now.Add(DefaultRefresh))
	require.NoError(t, err)
	require.Nil(t, b.Paused())
}

func TestStopLastsUntilTheNextStart(t *testing.T) {
	c, now := config(t, vfs.NewMem()), epoch()
	r, err := Open(c, now)
	require.NoError(t, err)
	before := register(t, r, now, offer("a"), offer("b"), offer("c"))
	paused, err := r.Pause("b", 0, now)
	require.NoError(t, err)
	_, err = r.Withdraw("c", now)
	require.NoError(t, err)

	last, err := r.Stop(now.Add(time.Minute))
	require.NoError(t, err)
	require.Equal(t, []string{"a"}, ids(last), "b is paused and c is withdrawn")
	require.True(t, last[0].Paused().Stopped)
	require.False(t, r.Foreign(last[0]))
	require.Empty(t, r.Due(now.Add(30*24*time.Hour), 9), "nothing brings it back while the peer stops")
	_, errs := r.Register([]records.Offer{offer("d")}, now)
	require.ErrorIs(t, errs[0], fault.Unavailable)
	again, err := r.Stop(now.Add(2 * time.Minute))
	require.NoError(t, err)
	require.Empty(t, again)
	require.NoError(t, r.Close())

	later := now.Add(time.Hour)
	r = open(t, c, later)
	back := r.Due(later, 9)
	byID := make(map[string]*records.Record)
	for _, v := range back {
		byID[v.Name().ID] = v
	}
	require.Nil(t, byID["a"].Paused())
	require.Greater(t, byID["a"].Sequence(), last[0].Sequence())
	require.Equal(t, created(before[0]), created(byID["a"]))
	require.Equal(t, paused.Paused(), byID["b"].Paused(), "the provider's own pause stays")
}
