package index_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/internal/discovery/index"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// model is a naive index without limits.
type model struct {
	known map[records.Name]*memory
}

type memory struct {
	record *records.Record
	live   bool
	until  time.Time
}

func (m *model) put(r *records.Record, now time.Time) (index.Outcome, fault.Kind) {
	const none = fault.Internal
	known := m.known[r.Name()]
	fresh := memory{record: r, live: !r.Withdrawn(), until: r.Expires()}
	switch {
	case r.Expired(now):
		return index.Unchanged, fault.Invalid
	case known == nil:
		m.known[r.Name()] = &fresh
	case records.Compare(r, known.record) == 0:
		return index.Unchanged, none
	case records.Compare(r, known.record) < 0:
		return index.Unchanged, fault.Exists
	default:
		if known.until.After(fresh.until) {
			fresh.until = known.until
		}
		m.known[r.Name()] = &fresh
		if fresh.live && known.live {
			return index.Updated, none
		}
	}
	if fresh.live {
		return index.Added, none
	}
	return index.Withdrawn, none
}

func (m *model) expire(now time.Time) (lapsed int) {
	for name, k := range m.known {
		if k.live && k.record.Expired(now) {
			k.live = false
			lapsed++
		}
		if !k.live && !now.Before(k.until) {
			delete(m.known, name)
		}
	}
	return lapsed
}

func (m *model) live() []*records.Record {
	var all []*records.Record
	for _, k := range m.known {
		if k.live {
			all = append(all, k.record)
		}
	}
	return all
}

// machine applies the same operations to an index and its model.
type machine struct {
	x       *index.Index
	m       model
	keys    []crypto.PrivKey
	ids     []peer.ID
	at      time.Duration // since epoch
	history []*records.Record
}

func newMachine(t testing.TB) *machine {
	m := &machine{x: index.New(index.Config{}), m: model{known: make(map[records.Name]*memory)}}
	for n := range 5 {
		key := keyOf(t, n)
		m.keys, m.ids = append(m.keys, key), append(m.ids, idOf(t, key))
	}
	return m
}

func (m *machine) now() time.Time { return epoch().Add(m.at) }

// sign draws a version of one of few services. Low sequences make stale and equivocating
// versions likely.
func (m *machine) sign(t testing.TB, s source) *records.Record {
	n := s(len(m.keys))
	id := fmt.Sprint("s", s(20))
	ttl := time.Duration(1+s(20)) * time.Minute
	r := sign(t, m.keys[n], offer(s, id, pick(s, kinds()...)), stamp(1+uint64(s(30)), m.at, ttl))
	if s(6) > 0 {
		return r
	}
	return tombstone(t, m.keys[n], r, stamp(r.Sequence()+1, m.at, ttl))
}

func (m *machine) put(t require.TestingT, r *records.Record) {
	want, kind := m.m.put(r, m.now())
	got, err := m.x.Put(r, m.now())
	require.Equal(t, want, got)
	if kind == fault.Internal {
		require.NoError(t, err)
	} else {
		require.ErrorIs(t, err, kind)
	}
	m.history = append(m.history, r)
}

func (m *machine) remove(n records.Name) {
	if m.x.Remove(n) {
		delete(m.m.known, n)
	}
}

func (m *machine) check(t require.TestingT) {
	live := m.m.live()
	require.Equal(t, len(live), m.x.Len())
	require.ElementsMatch(t, live, slices.Collect(m.x.All()))
	for name, k := range m.m.known {
		latest, ok := m.x.Latest(name)
		require.True(t, ok)
		require.Same(t, k.record, latest)
		_, ok = m.x.Get(name)
		require.Equal(t, k.live, ok)
	}
	require.Equal(t, len(m.m.known)-len(live), m.x.Stats().Remembered)
}

func TestSearchEqualsScan(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := newMachine(t)
		s := seeded(rapid.Uint64().Draw(rt, "seed"))
		m.x = index.NewInline(index.Config{}, rapid.SampledFrom([]int{1, 8, 40, 1 << 20}).Draw(rt, "swift"))
		rt.Repeat(map[string]func(*rapid.T){
			"remove": func(*rapid.T) {
				if len(m.history) > 0 {
					m.remove(m.history[s(len(m.history))].Name())
				}
			},
			"put": func(rt *rapid.T) {
				for range 10 {
					m.put(rt, m.sign(t, s))
				}
			},
			"replay": func(rt *rapid.T) {
				if len(m.history) > 0 {
					m.put(rt, m.history[s(len(m.history))])
				}
			},
			"pass": func(*rapid.T) { m.at += time.Duration(s(5)) * time.Minute },
			"expire": func(rt *rapid.T) {
				require.Equal(rt, m.m.expire(m.now()), m.x.Expire(m.now()))
				if next, ok := m.x.NextExpiry(); ok {
					require.True(rt, next.After(m.now()))
				}
			},
			"search": func(rt *rapid.T) {
				for range 5 {
					q := question(s)
					if s(8) == 0 {
						q.ProviderID = m.ids[0].String()
					}
					o := index.SearchOptions{Now: m.now().Add(time.Duration(s(3)-1) * time.Minute), Cells: cells(s)}
					p := plan(t, q)
					want := scan(m.m.live(), p, o)
					requireSame(rt, want, m.x.Search(p, o))
					o.AtLeast = true
					requireAtLeast(rt, want, m.x.Search(p, o))
				}
			},
			"": func(rt *rapid.T) { m.check(rt) },
		})
	})
}

// TestSearchEqualsScanAtSize searches an index of several blocks during and after filling,
// partly with merges running.
func TestSearchEqualsScanAtSize(t *testing.T) {
	if testing.Short() {
		t.Skip("plays at size what shorter tests play")
	}
	s, key := seeded(1), keyOf(t, 1)
	versions := make([]*records.Record, 4000)
	for i := range versions {
		kind := "compute"
		if s(10) == 0 {
			kind = "cdn"
		}
		if i%500 == 0 {
			key = keyOf(t, i)
		}
		o, ttl := offer(s, fmt.Sprint("s", s(800)), kind), time.Duration(1+s(100))*time.Minute
		versions[i] = sign(t, key, o, stamp(uint64(i+1), 0, ttl))
	}
	for _, swift := range []int{1 << 20, 500, 30} {
		t.Run(fmt.Sprint("swift ", swift), func(t *testing.T) {
			searchAtSize(t, index.NewInline(index.Config{MaxPerProvider: 1000}, swift), versions)
		})
	}
}

func searchAtSize(t *testing.T, x *index.Index, versions []*records.Record) {
	var live []*records.Record
	slots, s := make(map[records.Name]int), seeded(2)
	for i, r := range versions {
		_, err := x.Put(r, epoch())
		require.NoError(t, err)
		if slot, ok := slots[r.Name()]; ok {
			live[slot] = r
		} else {
			slots[r.Name()] = len(live)
			live = append(live, r)
		}
		if i%7 == 0 {
			searchOnce(t, x, live, s)
		}
	}
	for range 1000 {
		searchOnce(t, x, live, s)
	}
	require.Equal(t, len(live), x.Len())
	lapsed := x.Expire(epoch().Add(30 * time.Minute))
	require.Equal(t, len(live)-lapsed, x.Len())
	live = slices.DeleteFunc(live, func(r *records.Record) bool { return r.Expired(epoch().Add(30 * time.Minute)) })
	require.ElementsMatch(t, live, slices.Collect(x.All()))
	for range 200 {
		searchOnce(t, x, live, s)
	}
}

// searchOnce compares one search with a scan of all live records.
func searchOnce(t *testing.T, x *index.Index, live []*records.Record, s source) {
	q := question(s)
	q.Type = "compute"
	p, o := plan(t, q), index.SearchOptions{Now: epoch().Add(time.Duration(s(20)) * time.Minute), Cells: cells(s)}
	want := scan(live, p, o)
	requireSame(t, want, x.Search(p, o))
	o.AtLeast = true
	requireAtLeast(t, want, x.Search(p, o))
}

func TestPutRefusesLapsed(t *testing.T) {
	x := index.New(index.Config{})
	r := sign(t, keyOf(t, 1), cdn("a"), stamp(1, 0, time.Minute))
	_, err := x.Put(r, epoch().Add(time.Minute))
	require.ErrorIs(t, err, fault.Invalid)
	require.Equal(t, "expires_at", fault.FieldOf(err))
	require.Zero(t, x.Len())
	out, err := x.Put(r, epoch().Add(time.Minute-1))
	require.NoError(t, err)
	require.Equal(t, index.Added, out)
}

func TestSearchLeavesOutLapsedBeforeExpire(t *testing.T) {
	x := index.New(index.Config{})
	_, err := x.Put(sign(t, keyOf(t, 1), cdn("a"), stamp(1, 0, time.Minute)), epoch())
	require.NoError(t, err)
	p := plan(t, query.Query{Type: "cdn"})
	require.Equal(t, 1, x.Search(p, index.SearchOptions{Now: epoch().Add(time.Minute - 1)}).Total)
	require.Zero(t, x.Search(p, index.SearchOptions{Now: epoch().Add(time.Minute)}).Total)
}

func TestWithdrawnNeverComesBack(t *testing.T) {
	x, key := index.New(index.Config{}), keyOf(t, 1)
	first := sign(t, key, cdn("a"), stamp(1, 0, 10*time.Minute))
	gone := tombstone(t, key, first, stamp(2, 0, time.Minute))
	for _, r := range []*records.Record{first, gone} {
		_, err := x.Put(r, epoch())
		require.NoError(t, err)
	}
	_, live := x.Get(first.Name())
	require.False(t, live)
	latest, ok := x.Latest(first.Name())
	require.True(t, ok)
	require.Same(t, gone, latest)

	last := epoch().Add(10*time.Minute - 1)
	x.Expire(last)
	_, err := x.Put(first, last)
	require.ErrorIs(t, err, fault.Exists)
	x.Expire(last.Add(1))
	require.Zero(t, x.Stats().Remembered)
	_, ok = x.NextExpiry()
	require.False(t, ok)
}

// TestLapsedIsRememberedWhileOlderIsValid: a short-lived version replaces a long-lived one.
func TestLapsedIsRememberedWhileOlderIsValid(t *testing.T) {
	x, key := index.New(index.Config{}), keyOf(t, 1)
	long := sign(t, key, cdn("a"), stamp(1, 0, 10*time.Minute))
	short := sign(t, key, cdn("a"), stamp(2, 0, time.Minute))
	for _, r := range []*records.Record{long, short} {
		_, err := x.Put(r, epoch())
		require.NoError(t, err)
	}
	at := epoch().Add(2 * time.Minute)
	require.Equal(t, 1, x.Expire(at))
	_, err := x.Put(long, at)
	require.ErrorIs(t, err, fault.Exists)
	out, err := x.Put(sign(t, key, cdn("a"), stamp(3, 2*time.Minute, time.Minute)), at)
	require.NoError(t, err)
	require.Equal(t, index.Added, out)
}

func TestEquivocationIsCounted(t *testing.T) {
	x, key := index.New(index.Config{}), keyOf(t, 1)
	a := sign(t, key, cdn("a"), stamp(1, 0, time.Minute))
	b := sign(t, key, cdn("a"), stamp(1, 0, 2*time.Minute))
	for _, r := range []*records.Record{a, b, a} {
		_, _ = x.Put(r, epoch())
	}
	winner := a
	if records.Compare(b, a) > 0 {
		winner = b
	}
	got, ok := x.Get(a.Name())
	require.True(t, ok)
	require.Same(t, winner, got)
}

func TestTypeChangeMovesRecord(t *testing.T) {
	x, key := index.New(index.Config{}), keyOf(t, 1)
	_, err := x.Put(sign(t, key, cdn("a"), stamp(1, 0, time.Minute)), epoch())
	require.NoError(t, err)
	moved := records.Offer{ID: "a", Metadata: records.Metadata{Type: "oracle"}}
	_, err = x.Put(sign(t, key, moved, stamp(2, 0, time.Minute)), epoch())
	require.NoError(t, err)
	o := index.SearchOptions{Now: epoch()}
	require.Zero(t, x.Search(plan(t, query.Query{Type: "cdn"}), o).Total)
	require.Equal(t, 1, x.Search(plan(t, query.Query{Type: "oracle"}), o).Total)
	require.Equal(t, 1, x.Stats().Types)
}

func TestOfProvider(t *testing.T) {
	x := index.New(index.Config{})
	for _, id := range []string{"c", "a", "b"} {
		_, err := x.Put(sign(t, keyOf(t, 1), cdn(id), stamp(1, 0, time.Minute)), epoch())
		require.NoError(t, err)
	}
	_, err := x.Put(sign(t, keyOf(t, 2), cdn("d"), stamp(1, 0, time.Minute)), epoch())
	require.NoError(t, err)
	var ids []string
	for _, r := range x.OfProvider(idOf(t, keyOf(t, 1))) {
		ids = append(ids, r.Name().ID)
	}
	require.Equal(t, []string{"a", "b", "c"}, ids)
	require.Empty(t, x.OfProvider("nobody"))
}
