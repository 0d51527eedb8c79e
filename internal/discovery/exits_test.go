package discovery_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/query"
)

// A peer that stops says so: its offers leave the answers and the watches of others, with the reason, whatever is cached.
func TestExitIsSaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.close()
		_, err := f.Register(t.Context(), offer("a", 1))
		require.NoError(t, err)
		_, err = f.Register(t.Context(), offer("b", 1))
		require.NoError(t, err)
		require.Len(t, f.ask(storage()).Results, 2)
		watch, _ := f.follow(storage(), "")
		defer watch.Close()

		_, err = f.Pause(t.Context(), "b", time.Hour)
		require.NoError(t, err)
		ev := f.next(watch)
		require.Equal(t, query.Removed, ev.Kind)
		require.Contains(t, ev.Reason, "paused by its provider until ")
		a := f.ask(storage())
		require.Len(t, a.Results, 1)
		require.Len(t, a.Excluded, 1)
		require.Equal(t, "b", a.Excluded[0].ID)
		require.Equal(t, ev.Reason, a.Excluded[0].Reason)

		f.Leave(t.Context())
		ev = f.next(watch)
		require.Equal(t, "stopped by its provider", ev.Reason)
		a = f.ask(storage())
		require.True(t, a.Complete, a.Reason)
		require.Empty(t, a.Results)
		require.Equal(t, 2, a.ExcludedTotal)
		require.Equal(t, []string{"", "b"}, []string{a.Excluded[0].ID, a.Excluded[1].ID})
		require.Equal(t, "stopped by its provider", a.Excluded[0].Reason)

		all := storage()
		all.Health = query.HealthAny
		a = f.ask(all)
		require.Len(t, a.Results, 2)
		require.Zero(t, a.ExcludedTotal)
		_, err = f.Resume(t.Context(), "b")
		require.Error(t, err, "a peer that stops changes nothing any more")
	})
}
