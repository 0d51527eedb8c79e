package machine_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

func events(t testing.TB, l *log, w coord.Watch) coord.Batch {
	t.Helper()
	b, err := l.Events(w)
	require.NoError(t, err)
	return b
}

func TestWatchReportsWholeRevisions(t *testing.T) {
	l := newLog()
	l.must(t, write(put("c", "", 0), put("a", "", 0), put("b", "", 0)))
	l.must(t, write(put("a", "2", 0), del(coord.Exactly("b"))))
	b := events(t, l, coord.Watch{From: 1, Limit: 1})
	require.Len(t, b.Events, 3, "the limit does not cut a revision")
	require.Equal(t, []string{"a", "b", "c"}, []string{b.Events[0].Key, b.Events[1].Key, b.Events[2].Key})
	require.Equal(t, coord.Revision(3), b.Next)
	require.True(t, b.More)
	b = events(t, l, coord.Watch{From: b.Next, Prev: true})
	require.Len(t, b.Events, 2)
	require.Equal(t, "2", string(b.Events[0].KV.Value))
	require.Equal(t, coord.Revision(2), b.Events[0].Prev.ModRevision)
	require.True(t, b.Events[1].Deletes())
	require.False(t, b.More)
	require.Nil(t, events(t, l, coord.Watch{From: 3}).Events[0].Prev, "not asked for")
}

func TestWatchOfTheFutureIsSilent(t *testing.T) {
	l := newLog()
	l.must(t, write(put("a", "", 0)))
	require.Equal(t, coord.Batch{Next: 7}, events(t, l, coord.Watch{From: 7}))
	require.Equal(t, coord.Batch{Next: 3}, events(t, l, coord.Watch{From: 1, Span: coord.Exactly("b")}), "progress without events")
	_, err := l.Events(coord.Watch{})
	require.ErrorIs(t, err, fault.Invalid)
}

func TestWatchIsToldWhatIsCompacted(t *testing.T) {
	l := newLog()
	limits := l.Limits()
	limits.HistoryEvents = 3
	l.must(t, &coordv1.Configure{Limits: limits.Message()})
	l.must(t, write(put("a", "", 0), put("b", "", 0)))
	l.must(t, write(put("a", "", 0)))
	require.Zero(t, l.Compacted())
	l.must(t, write(put("a", "", 0)))
	require.Equal(t, coord.Revision(2), l.Compacted(), "a revision falls out as a whole")
	_, err := l.Events(coord.Watch{From: 1})
	var compacted *coord.Compacted
	require.ErrorAs(t, err, &compacted)
	require.Equal(t, coord.Compacted{Revision: 2, Current: 4}, *compacted)
	require.Len(t, events(t, l, coord.Watch{From: 3}).Events, 2)

	l.must(t, write(put("a", "", 0), put("b", "", 0), put("c", "", 0), put("d", "", 0)))
	require.Len(t, events(t, l, coord.Watch{From: 5}).Events, 4, "the last revision stays, however large")
	l.refused(t, fault.Invalid, "revision", &coordv1.Compact{Revision: 6})
	l.refused(t, fault.Invalid, "revision", &coordv1.Compact{Revision: -1})
	l.must(t, &coordv1.Compact{Revision: 1})
	require.Equal(t, coord.Revision(4), l.Compacted())
	limits.HistoryEvents, limits.HistoryBytes = 100, 1
	l.must(t, &coordv1.Configure{Limits: limits.Message()})
	l.must(t, write(put("a", "", 0)))
	require.Equal(t, coord.Revision(5), l.Compacted())
}

// A watcher of one key among many others is served in bounded steps.
func TestWatchLooksAtABoundedNumberOfEvents(t *testing.T) {
	l := newLog()
	for i := range 20_000 {
		l.must(t, write(put(fmt.Sprint("k", i%7), "", 0)))
	}
	l.must(t, write(put("mine", "", 0)))
	w := coord.Watch{From: 1, Span: coord.Exactly("mine")}
	calls := 0
	for ; ; calls++ {
		b := events(t, l, w)
		if len(b.Events) > 0 {
			require.Equal(t, coord.Revision(20_003), b.Next)
			break
		}
		require.True(t, b.More)
		require.Greater(t, b.Next, w.From)
		w.From = b.Next
	}
	require.Positive(t, calls)
}
