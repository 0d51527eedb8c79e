package machine_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

func keys(t testing.TB, m interface {
	Range(machine.Query) (machine.Page, error)
}, q machine.Query) string {
	t.Helper()
	page, err := m.Range(q)
	require.NoError(t, err)
	var all []string
	for _, kv := range page.Keys {
		all = append(all, kv.Key+"="+string(kv.Value))
	}
	return strings.Join(all, " ")
}

func TestKeysHaveRevisionsAndVersions(t *testing.T) {
	l := newLog()
	l.must(t, write(put("a", "1", 0), put("b", "1", 0)))
	l.must(t, write(put("a", "2", 0)))
	kv, _ := l.Get("a")
	require.Equal(t, []any{"2", coord.Revision(2), coord.Revision(3), int64(2)}, []any{string(kv.Value), kv.CreateRevision, kv.ModRevision, kv.Version})
	r, _ := l.must(t, write(del(coord.Span{})))
	require.Equal(t, 2, r.Changed)
	require.Equal(t, coord.Revision(4), r.Revision, "two keys, one revision")
	l.must(t, write(put("a", "3", 0)))
	kv, _ = l.Get("a")
	require.Equal(t, []any{coord.Revision(5), int64(1)}, []any{kv.CreateRevision, kv.Version}, "a key made again is a new one")
}

func TestRevisionCountsCommandsThatChangeKeys(t *testing.T) {
	l := newLog()
	l.must(t, write(del(coord.Exactly("none"))))
	l.lease(t, alice)
	l.must(t, &apiv1.OpenClientRequest{})
	l.must(t, &coordv1.Configure{Limits: l.Limits().Message()})
	require.Equal(t, coord.FirstRevision, l.Revision())
	index, term := l.Index()
	require.Equal(t, []uint64{4, 1}, []uint64{index, term})
}

func TestRangeReadsEarlierRevisions(t *testing.T) {
	l := newLog()
	l.must(t, write(put("b", "2", 0)))                        // 2
	l.must(t, write(put("a", "3", 0), put("c", "3", 0)))      // 3
	l.must(t, write(put("b", "4", 0), del(coord.Under("c")))) // 4
	l.must(t, write(put("d", "5", 0)))                        // 5
	for at, want := range map[coord.Revision]string{
		0: "a=3 b=4 d=5", 1: "", 2: "b=2", 3: "a=3 b=2 c=3", 4: "a=3 b=4", 5: "a=3 b=4 d=5",
	} {
		require.Equal(t, want, keys(t, l, machine.Query{At: at}), "at %d", at)
	}
	require.Equal(t, "b=2 c=3", keys(t, l, machine.Query{At: 3, Span: coord.Span{From: "b"}}))
	require.Equal(t, "b=2", keys(t, l, machine.Query{At: 3, Span: coord.Exactly("b")}))
	page, err := l.Range(machine.Query{At: 3, Limit: 2})
	require.NoError(t, err)
	require.Equal(t, "c", page.Next)
	_, err = l.Range(machine.Query{At: 6})
	require.ErrorIs(t, err, fault.Invalid)
	_, err = l.Range(machine.Query{At: -1})
	require.ErrorIs(t, err, fault.Invalid)

	l.must(t, &coordv1.Compact{Revision: 3})
	require.Equal(t, "a=3 b=2 c=3", keys(t, l, machine.Query{At: 3}), "the compacted revision itself can be read")
	_, err = l.Range(machine.Query{At: 2})
	var compacted *coord.Compacted
	require.ErrorAs(t, err, &compacted)
	require.Equal(t, coord.Compacted{Revision: 3, Current: 5}, *compacted)
	require.ErrorIs(t, err, fault.NotFound)
}

func TestViewStaysAsItWas(t *testing.T) {
	l := newLog()
	for i := range 1000 {
		l.must(t, write(put(fmt.Sprint("k", i), "1", 0)))
	}
	view := l.View()
	want := keys(t, view, machine.Query{})
	before, err := view.Events(coord.Watch{From: 900})
	require.NoError(t, err)
	for i := range 1000 {
		l.must(t, write(put(fmt.Sprint("k", i), "2", 0)))
	}
	l.must(t, &coordv1.Compact{Revision: int64(l.Revision())})
	require.Equal(t, want, keys(t, view, machine.Query{}))
	after, err := view.Events(coord.Watch{From: 900})
	require.NoError(t, err)
	require.Equal(t, before, after)
	require.Equal(t, coord.Revision(1001), view.Revision())
	require.Equal(t, coord.Revision(2001), l.Compacted())
}

func TestWritesAreGuarded(t *testing.T) {
	l := newLog()
	id := l.leases(t, 2)
	l.must(t, &apiv1.TxnRequest{Compare: []*apiv1.Compare{coordtest.IfRevision("a", 0)}, Then: []*apiv1.TxnStep{put("a", "1", 0)}})
	held, _ := l.must(t, lock("db", id[0]))
	waits, _ := l.must(t, lock("db", id[1]))
	change := []*apiv1.TxnStep{put("a", "2", 0)}
	unmet := func(c *apiv1.Compare) {
		t.Helper()
		r, e := l.must(t, &apiv1.TxnRequest{Compare: []*apiv1.Compare{c}, Then: change})
		require.False(t, r.Txn.Succeeded)
		require.ErrorIs(t, r.Txn.Unmet(), fault.Conflict)
		require.Equal(t, "compare[0]", fault.FieldOf(r.Txn.Unmet()))
		require.Empty(t, e.Events)
	}
	for _, c := range []*apiv1.Compare{
		coordtest.IfRevision("a", 0), coordtest.IfRevision("b", 1), coordtest.IfHolds("db", waits.Lock.Token), coordtest.IfHolds("db", 0),
		coordtest.IfHolds("other", held.Lock.Token),
	} {
		unmet(c)
	}
	l.must(t, &apiv1.TxnRequest{Compare: []*apiv1.Compare{coordtest.IfRevision("a", 2), coordtest.IfHolds("db", held.Lock.Token)}, Then: change})
	l.must(t, unlock("db", id[0], held.Lock.Token))
	unmet(coordtest.IfHolds("db", held.Lock.Token))
}

func TestWriteRefusesBadInput(t *testing.T) {
	l := newLog()
	for _, c := range []struct {
		kind    fault.Kind
		field   string
		changes []*apiv1.TxnStep
	}{
		{fault.Invalid, "then", nil},
		{fault.Invalid, "then[0].step", []*apiv1.TxnStep{{}}},
		{fault.Invalid, "then[1].key", []*apiv1.TxnStep{put("a", "", 0), put("", "", 0)}},
		{fault.Invalid, "then[2].put", []*apiv1.TxnStep{put("a", "", 0), put("b", "", 0), put("a", "", 0)}},
		{fault.NotFound, "then[0].lease", []*apiv1.TxnStep{put("a", "", 9)}},
		{fault.NotFound, "then[0].lease", []*apiv1.TxnStep{put("a", "", -1)}},
	} {
		l.refused(t, c.kind, c.field, write(c.changes...))
	}
	r, _ := l.send(&coordv1.Command{Owner: alice})
	require.ErrorIs(t, r.Err, fault.Unsupported)
	require.Equal(t, "op", fault.FieldOf(r.Err))
	l.must(t, write(put("a", "", 0)))
	l.refused(t, fault.Invalid, "then[1].delete", write(put("a", "", 0), del(coord.Under("a"))))
	require.Equal(t, 1, l.Len())
}

// For every limit one command just fits and one fails.
func TestLimits(t *testing.T) {
	for name, c := range map[string]struct {
		set   func(*coord.Limits)
		fits  []proto.Message // by alice, with leases 1 and 2
		stops proto.Message
		kind  fault.Kind
	}{
		"keys":                  {func(l *coord.Limits) { l.Keys, l.Reserved = 2, 0 }, []proto.Message{write(put("a", "", 0)), lock("db", 1), write(put("a", "2", 0))}, write(put("b", "", 0)), fault.PoolExhausted},
		"keys, locks":           {func(l *coord.Limits) { l.Keys = 1 }, []proto.Message{lock("db", 1), lock("db", 1)}, lock("db", 2), fault.PoolExhausted},
		"bytes":                 {func(l *coord.Limits) { l.Bytes, l.Reserved = 400, 0 }, []proto.Message{write(put("a", "1", 0))}, write(put("a", strings.Repeat("x", 300), 0)), fault.PoolExhausted},
		"bytes, locks":          {func(l *coord.Limits) { l.Bytes = 400 }, []proto.Message{lock("db", 1)}, &apiv1.TryLockRequest{Name: "db", LeaseId: 1, Metadata: make([]byte, 300)}, fault.PoolExhausted},
		"key":                   {func(l *coord.Limits) { l.KeyBytes = 32 }, []proto.Message{write(put(strings.Repeat("k", 32), "", 0))}, write(put(strings.Repeat("k", 33), "", 0)), fault.TooLarge},
		"key, locks":            {func(l *coord.Limits) { l.KeyBytes = 32 }, []proto.Message{lock(strings.Repeat("k", 15), 1)}, lock(strings.Repeat("k", 16), 1), fault.TooLarge},
		"value":                 {func(l *coord.Limits) { l.ValueBytes = 2 }, []proto.Message{write(put("a", "12", 0))}, write(put("a", "123", 0)), fault.TooLarge},
		"owner":                 {func(l *coord.Limits) { l.OwnerBytes = 5 }, []proto.Message{&apiv1.LeaseRevokeRequest{Id: 2}}, &apiv1.OpenClientRequest{}, fault.TooLarge},
		"changes":               {func(l *coord.Limits) { l.Changes = 2 }, []proto.Message{write(put("a", "", 0), put("b", "", 0))}, write(put("a", "", 0), put("b", "", 0), put("c", "", 0)), fault.LimitReached},
		"changes, deletion":     {func(l *coord.Limits) { l.Changes = 2 }, []proto.Message{write(put("a", "", 0), put("b", "", 0)), write(del(coord.Span{})), write(put("a", "", 0), put("b", "", 0)), write(put("c", "", 0))}, write(del(coord.Span{})), fault.LimitReached},
		"leases":                {func(l *coord.Limits) { l.Leases = 3 }, []proto.Message{&apiv1.LeaseGrantRequest{TtlMs: 1}}, &apiv1.LeaseGrantRequest{TtlMs: 1}, fault.PoolExhausted},
		"lease keys":            {func(l *coord.Limits) { l.LeaseKeys = 2 }, []proto.Message{write(put("a", "", 1)), lock("db", 1), write(put("a", "2", 1))}, write(put("b", "", 1)), fault.LimitReached},
		"lease keys, locks":     {func(l *coord.Limits) { l.LeaseKeys = 1 }, []proto.Message{lock("db", 1)}, lock("other", 1), fault.LimitReached},
		"lease keys, one write": {func(l *coord.Limits) { l.LeaseKeys = 1 }, nil, write(put("a", "", 1), put("b", "", 1)), fault.LimitReached},
		"queue":                 {func(l *coord.Limits) { l.Queue = 1 }, []proto.Message{lock("db", 1), lock("db", 1), lock("other", 2)}, lock("db", 2), fault.PoolExhausted},
		"claims":                {func(l *coord.Limits) { l.Claims = 2 }, []proto.Message{lock("db", 1), lock("db", 1)}, lock("db", 1), fault.LimitReached},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLog()
			l.leases(t, 2)
			limits := l.Limits()
			c.set(&limits)
			l.must(t, &coordv1.Configure{Limits: limits.Message()})
			for _, op := range c.fits {
				l.must(t, op)
			}
			owner := alice
			if name == "owner" {
				owner = "carlos"
			}
			r, e := l.do(owner, c.stops)
			require.ErrorIs(t, r.Err, c.kind)
			require.Empty(t, e.Events)
		})
	}
}

func TestConfigureRefusesLimitsOfNoUse(t *testing.T) {
	l := newLog()
	for field, set := range map[string]func(*coord.Limits){
		"limits.keys":                    func(l *coord.Limits) { l.Keys = 0 },
		"limits.key_bytes":               func(l *coord.Limits) { l.KeyBytes = 17 },
		"limits.reserved_percent":        func(l *coord.Limits) { l.Reserved = 91 },
		"limits.per_owner.unleased_keys": func(l *coord.Limits) { l.PerOwner.UnleasedKeys = 0 },
		"limits.min_ttl_ms":              func(l *coord.Limits) { l.MinTTL = 0 },
		"limits.max_ttl_ms":              func(l *coord.Limits) { l.MaxTTL = l.MinTTL - 1 },
		"limits.history_events":          func(l *coord.Limits) { l.HistoryEvents = 0 },
	} {
		limits := coord.DefaultLimits()
		set(&limits)
		l.refused(t, fault.Invalid, field, &coordv1.Configure{Limits: limits.Message()})
	}
	require.NoError(t, coord.DefaultLimits().Validate())
}

func TestEntriesComeInOrder(t *testing.T) {
	l := newLog()
	l.must(t, write(put("a", "1", 0)))
	r, e := coordtest.Apply(l.Machine, 1, 1, coordtest.Command("", write(put("a", "2", 0))))
	require.ErrorIs(t, r.Err, fault.Internal)
	require.Empty(t, e.Events)
	require.Equal(t, "a=1", keys(t, l, machine.Query{}))
	r, _ = coordtest.Apply(l.Machine, 10, 2, coordtest.Command("", write(put("a", "2", 0))))
	require.NoError(t, r.Err)
}

// After a disaster no token repeats, whatever was lost.
func TestNewIncarnationRaisesTokens(t *testing.T) {
	l := newLog()
	id := l.leases(t, 3)
	first, _ := l.must(t, lock("db", id[0]))
	l.must(t, lock("db", id[2])) // the lost log may have given the lock to it, and to others after it
	l.refused(t, fault.Conflict, "incarnation", &coordv1.BumpIncarnation{})
	l.refused(t, fault.Conflict, "incarnation", &coordv1.BumpIncarnation{Incarnation: 2})
	l.must(t, &coordv1.BumpIncarnation{Incarnation: 1})
	l.refused(t, fault.Conflict, "incarnation", &coordv1.BumpIncarnation{Incarnation: 1})
	require.Equal(t, uint64(1), l.Incarnation())
	require.Equal(t, l.Revision(), l.Compacted()+1, "the claim that waited is gone")
	_, err := l.Events(coord.Watch{From: 1})
	require.ErrorIs(t, err, fault.NotFound)
	l.must(t, unlock("db", id[0], first.Lock.Token))
	second, _ := l.must(t, lock("db", id[1]))
	require.True(t, second.Lock.Granted)
	require.Greater(t, int64(second.Lock.Token), int64(1)<<40)
}

func TestSpans(t *testing.T) {
	require.True(t, coord.Span{}.Contains("x"))
	for _, c := range []struct {
		span coord.Span
		in   []string
		out  []string
	}{
		{coord.Exactly("a"), []string{"a"}, []string{"", "a\x00", "aa", "b"}},
		{coord.Under("a"), []string{"a", "a\xff", "ab"}, []string{"", "b", "`"}},
		{coord.Under("a\xff"), []string{"a\xff", "a\xffb"}, []string{"a", "b"}},
		{coord.Under("\xff"), []string{"\xff", "\xff\xff"}, []string{"\xfe"}},
		{coord.Under(""), []string{"", "\xff"}, nil},
		{coord.Span{From: "b", To: "a"}, nil, []string{"a", "b"}},
	} {
		for _, key := range c.in {
			require.True(t, c.span.Contains(key), "%q %q", c.span, key)
		}
		for _, key := range c.out {
			require.False(t, c.span.Contains(key), "%q %q", c.span, key)
		}
	}
}

// Algorithm 3 of the low-level design: the resource checks the tokens.
func TestFence(t *testing.T) {
	var f coord.Fence
	require.ErrorIs(t, f.Check(0), fault.Invalid)
	require.NoError(t, f.Check(100))
	require.NoError(t, f.Check(100))
	require.NoError(t, f.Check(101))
	require.ErrorIs(t, f.Check(100), fault.Conflict, "the paused holder wakes up")
	require.Equal(t, coord.Token(101), f.Highest)
}

func TestDeletedKeysFreeTheirRoom(t *testing.T) {
	l := newLog()
	limits := l.Limits()
	limits.Bytes, limits.Keys = 400, 2
	l.must(t, &coordv1.Configure{Limits: limits.Message()})
	id := l.lease(t, alice)
	for range 10 {
		l.must(t, write(put("a", "1", 0)))
		l.must(t, write(del(coord.Exactly("a"))))
		r, _ := l.must(t, lock("db", id))
		l.must(t, unlock("db", id, r.Lock.Token))
	}
}

// Readers use views and images while the machine applies (for the race detector).
func TestViewIsReadBesideApply(t *testing.T) {
	l := newLog()
	for i := range 600 {
		l.must(t, write(put(fmt.Sprint("k", i%50), "1", 0)))
	}
	var readers sync.WaitGroup
	for range 3 {
		view, image := l.View(), l.Image()
		readers.Go(func() {
			for range 5 {
				_, _ = view.Range(machine.Query{At: 300})
				_, _ = view.Events(coord.Watch{From: 1, Limit: 1000})
				image.Hash()
			}
		})
		id := l.lease(t, alice)
		for i := range 600 {
			l.must(t, write(put(fmt.Sprint("k", i%50), "2", id)))
		}
		l.must(t, &apiv1.LeaseRevokeRequest{Id: int64(id)})
	}
	readers.Wait()
}
