package machine_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

func hide(span coord.Span, before coord.Revision) *apiv1.TxnRequest {
	from, to := span.Bounds()
	step := &apiv1.TxnHide{Key: from, RangeEnd: to, Revision: int64(before)}
	return &apiv1.TxnRequest{Then: []*apiv1.TxnStep{{Step: &apiv1.TxnStep_Hide{Hide: step}}}}
}

// TestHiddenHistory: a range whose history is hidden reads as after a compaction, other ranges as before, and the
// revision stays. A restored member answers the same.
func TestHiddenHistory(t *testing.T) {
	l := newLog()
	for n := range 5 {
		l.must(t, write(put("front/a", fmt.Sprint(n), 0), put("own", fmt.Sprint(n), 0)))
	}
	now := l.Revision()
	view := l.View()
	l.must(t, hide(coord.Under("front/"), now-1))
	require.Equal(t, now, l.Revision())
	restored, err := machine.Restore(l.Snapshot())
	require.NoError(t, err)
	for _, m := range []*machine.Machine{l.Machine, restored} {
		for _, c := range []struct {
			span coord.Span
			at   coord.Revision
			ok   bool
		}{
			{coord.Exactly("front/a"), now - 2, false},
			{coord.Under("front/"), now - 2, false},
			{coord.Under("front/"), now - 1, true},
			{coord.Exactly("front/a"), 0, true},
			{coord.Exactly("own"), now - 2, true},
			{coord.Under("front"), now - 2, true},
			{coord.Span{}, now - 2, true},
		} {
			_, err := m.Range(machine.Query{Span: c.span, At: c.at})
			past := new(coord.Compacted)
			require.Equal(t, !c.ok, errors.As(err, &past), "%v at %d: %v", c.span, c.at, err)
			if !c.ok {
				require.Equal(t, coord.Compacted{Revision: now - 1, Current: now}, *past)
			}
		}
		b, err := m.Events(coord.Watch{Span: coord.Under("front/"), From: now - 2, Prev: true})
		require.NoError(t, err, "a watch goes on")
		require.Len(t, b.Events, 3)
		require.Nil(t, b.Events[1].Prev, "what a key was before is hidden too")
		require.Equal(t, "3", string(b.Events[2].Prev.Value))
	}
	_, err = view.Range(machine.Query{Span: coord.Exactly("front/a"), At: now - 2})
	require.NoError(t, err, "a view stays as it was")

	for _, c := range []struct {
		kind error
		req  *apiv1.TxnRequest
	}{
		{fault.NotFound, hide(coord.Under("front/"), now-1)},
		{fault.NotFound, hide(coord.Exactly("front/a"), now-2)},
		{fault.Invalid, hide(coord.Under("front/"), now+1)},
	} {
		r, _ := l.do(alice, c.req)
		require.ErrorIs(t, r.Err, c.kind)
		require.Contains(t, fault.FieldOf(r.Err), "then[0].revision")
	}
	for n := range 15 {
		l.must(t, hide(coord.Under(fmt.Sprintf("%02d", n)), now))
	}
	r, _ := l.do(alice, hide(coord.Under("more"), now))
	require.ErrorIs(t, r.Err, fault.LimitReached)
	l.must(t, hide(coord.Under("front/"), now))
}

// TestHiddenHistoryIsFreed: events that are older than what is hidden by more than a watch may lag are gone, for all who would
// need them; other keys keep theirs. A restored member answers the same.
func TestHiddenHistoryIsFreed(t *testing.T) {
	l := newLog()
	value := strings.Repeat("x", 1000)
	for range 3000 {
		l.must(t, write(put("front/a", value, 0)))
	}
	l.must(t, write(put("own", "1", 0)))
	l.must(t, write(put("own", "2", 0)))
	own := l.Revision()
	for range 3000 {
		l.must(t, write(put("front/a", value, 0)))
	}
	now := l.Revision()
	size := len(l.Snapshot())
	l.must(t, hide(coord.Under("front/"), now))
	require.Less(t, len(l.Snapshot()), size/5)
	restored, err := machine.Restore(l.Snapshot())
	require.NoError(t, err)
	first := now - 1024 // with all events
	for _, m := range []*machine.Machine{l.Machine, restored} {
		for _, c := range []struct {
			span coord.Span
			from coord.Revision
			ok   bool
		}{
			{coord.Under("front/"), first, true},
			{coord.Under("front/"), first - 1, false},
			{coord.Span{}, first, true},
			{coord.Span{}, first - 1, false},
			{coord.Under("own"), own - 1, true},
			{coord.Under("g"), 2, true},
		} {
			b, err := m.Events(coord.Watch{Span: c.span, From: c.from})
			past := new(coord.Compacted)
			require.Equal(t, !c.ok, errors.As(err, &past), "%v from %d: %v", c.span, c.from, err)
			if c.ok {
				require.Equal(t, c.span == coord.Under("g"), len(b.Events) == 0)
				continue
			}
			require.Equal(t, coord.Compacted{Revision: first - 1, Current: now}, *past)
			_, err = m.Range(machine.Query{Span: c.span, At: c.from})
			require.ErrorAs(t, err, &past)
		}
		page, err := m.Range(machine.Query{Span: coord.Under("own"), At: own - 1})
		require.NoError(t, err)
		require.Equal(t, "1", string(page.Keys[0].Value))
	}
	require.Equal(t, l.Snapshot(), restored.Snapshot())
}
