package catalog

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/pkg/instance"
)

type modelState map[instance.Key]*instance.Instance

// model is the simple version: all states at all revisions, each result
// computed anew.
type model struct {
	revs   []uint64 // ascending
	worlds []modelState
}

func newModel() *model { return &model{revs: []uint64{1}, worlds: []modelState{{}}} }

func (m *model) rev() uint64     { return m.revs[len(m.revs)-1] }
func (m *model) now() modelState { return m.worlds[len(m.worlds)-1] }
func (m *model) at(rev uint64) modelState {
	n, ok := slices.BinarySearch(m.revs, rev)
	if !ok {
		n--
	}
	return m.worlds[n]
}

func (m *model) apply(rev uint64, changes []instances.Change) {
	next := maps.Clone(m.now())
	for _, ch := range changes {
		switch {
		case ch.Instance == nil:
			delete(next, ch.Key)
		case !m.now()[ch.Key].Same(ch.Instance):
			next[ch.Key] = ch.Instance
		default:
			next[ch.Key] = m.now()[ch.Key]
		}
	}
	m.revs, m.worlds = append(m.revs, rev), append(m.worlds, next)
}

// question is a selector of a service, or of a namespace for "".
type question struct {
	instance.Name
	instance.Selector
}

func (q question) String() string {
	return fmt.Sprintf("%s/%s %+v", q.Namespace, q.Service, q.Selector)
}

func (q question) of(w modelState) []*instance.Instance {
	match, err := q.Compile()
	if err != nil {
		panic(err)
	}
	var list []*instance.Instance
	for _, i := range w {
		if i.Namespace == q.Namespace && (q.Service == "" || i.Service == q.Service) && match.Match(i) {
			list = append(list, i)
		}
	}
	slices.SortFunc(list, match.Compare)
	return list
}

// index returns the revision of the result's last change.
func (m *model) index(q question) uint64 {
	index := uint64(1)
	for n := 1; n < len(m.revs); n++ {
		if !alike(q.of(m.worlds[n-1]), q.of(m.worlds[n])) {
			index = m.revs[n]
		}
	}
	return index
}

func alike(a, b []*instance.Instance) bool { return slices.EqualFunc(a, b, (*instance.Instance).Same) }

// drawChanges uses a tiny world: two namespaces, two services, three instances
// each.
func drawChanges(t *rapid.T, rev uint64) []instances.Change {
	var changes []instances.Change
	for range rapid.IntRange(0, 3).Draw(t, "changes") {
		k := instance.Key{
			Namespace: rapid.SampledFrom([]string{"default", "x"}).Draw(t, "namespace"),
			Service:   rapid.SampledFrom([]string{"a", "b"}).Draw(t, "service"),
			ID:        rapid.SampledFrom([]string{"1", "2", "3"}).Draw(t, "id"),
		}
		if rapid.IntRange(0, 3).Draw(t, "gone") == 0 {
			changes = append(changes, instances.Change{Key: k})
			continue
		}
		i := &instance.Instance{Key: k, Revision: rev}
		i.Status = rapid.SampledFrom([]instance.Status{instance.StatusUp, instance.StatusUp, instance.StatusDown}).Draw(t, "status")
		i.Spec.Zone = rapid.SampledFrom([]string{"", "z"}).Draw(t, "zone")
		i.Spec.Tags = rapid.SampledFrom([][]string{nil, {"t"}}).Draw(t, "tags")
		changes = append(changes, instances.Change{Key: k, Instance: i})
	}
	return changes
}

func questions() []question {
	var all []question
	for _, name := range []instance.Name{{Namespace: "default", Service: "a"}, {Namespace: "default", Service: "b"},
		{Namespace: "x", Service: "a"}, {Namespace: "default"}, {Namespace: "x"}, {Namespace: "default", Service: "none"}} {
		for _, sel := range []instance.Selector{{}, {AnyStatus: true}, {Tags: []string{"t"}}, {PreferZone: "z", AnyStatus: true},
			{ID: "2"}, {Statuses: []instance.Status{instance.StatusDown}}} {
			all = append(all, question{name, sel})
		}
	}
	return all
}

func drawQuestion(t *rapid.T) question { return rapid.SampledFrom(questions()).Draw(t, "question") }

func ask(t require.TestingT, c *Catalog, q question) instance.Result {
	var res instance.Result
	var err error
	if q.Service == "" {
		res, err = c.List(context.Background(), instances.ListQuery{Namespace: q.Namespace, Selector: q.Selector})
	} else {
		res, err = c.Discover(context.Background(), instance.Query{Name: q.Name, Selector: q.Selector})
	}
	require.NoError(t, err)
	return res
}

// TestIndexIsTheRevisionOfTheLastChange checks that a long history keeps all
// indexes exact.
func TestIndexIsTheRevisionOfTheLastChange(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c, m := New(Config{}), newModel()
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			rev := m.rev() + rapid.Uint64Range(1, 3).Draw(t, "gap")
			changes := drawChanges(t, rev)
			m.apply(rev, changes)
			require.NoError(t, c.Apply(rev, changes))
			q := drawQuestion(t)
			res := ask(t, c, q)
			require.True(t, alike(q.of(m.now()), res.Instances), "%v", q)
			require.Equal(t, m.index(q), res.Index, "%v", q)
			require.Equal(t, rev, res.Revision)
		}
	})
}

// TestIndexChangesWithTheResultAlone checks with a short log that the index of
// a used result moves exactly with the result.
func TestIndexChangesWithTheResultAlone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c, m := New(Config{Log: 2}), newModel()
		type seen struct{ index, truth uint64 }
		last := map[string]seen{}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			rev := m.rev() + 1
			changes := drawChanges(t, rev)
			m.apply(rev, changes)
			require.NoError(t, c.Apply(rev, changes))
			if rapid.IntRange(0, 2).Draw(t, "ask") > 0 {
				continue
			}
			q := drawQuestion(t)
			res, truth := ask(t, c, q), m.index(q)
			require.True(t, alike(q.of(m.now()), res.Instances), "%v", q)
			require.GreaterOrEqual(t, res.Index, truth, "%v", q)
			require.LessOrEqual(t, res.Index, rev, "%v", q)
			kept := q.Service != "" && q.ID == "" || q.Service == ""
			before, ok := last[q.String()]
			switch {
			case !ok || !kept || c.streams.get(q.Name) == nil:
				require.GreaterOrEqual(t, res.Index, before.index, "%v", q)
			case before.truth == truth:
				require.Equal(t, before.index, res.Index, "%v", q)
			default:
				require.Equal(t, truth, res.Index, "%v", q)
			}
			if c.streams.get(q.Name) != nil {
				last[q.String()] = seen{res.Index, truth}
			}
		}
	})
}

// reader is a consumer of batches.
type reader struct {
	q    question
	has  modelState
	at   uint64
	last instance.Batch
	n    int
}

func (r *reader) take(b instance.Batch) error {
	if b.Reset {
		r.has = modelState{}
	}
	for _, e := range b.Events {
		if e.Type == instance.Removed {
			delete(r.has, e.Instance.Key)
			continue
		}
		r.has[e.Instance.Key] = e.Instance
	}
	r.at, r.last, r.n = b.Index, b, r.n+1
	return nil
}

func (r *reader) list() []*instance.Instance { return r.q.of(r.has) }

func fromList(list []*instance.Instance) modelState {
	w := modelState{}
	for _, i := range list {
		w[i.Key] = i
	}
	return w
}

func drawService(t *rapid.T) question {
	return rapid.SampledFrom(slices.DeleteFunc(questions(), func(q question) bool { return q.Service == "" })).Draw(t, "service")
}

// open is Watch without its loop: it begins, and the test calls tell.
func open(t require.TestingT, c *Catalog, r *reader, after uint64) *watch {
	s, err := c.hold(r.q.Name)
	require.NoError(t, err)
	res, err := c.result(s, r.q.Selector)
	require.NoError(t, err)
	w := &watch{catalog: c, stream: s, selector: r.q.Selector, news: res.deltas, send: r.take, contact: c.link.Load()}
	require.NoError(t, w.begin(context.Background(), after))
	require.Positive(t, r.n, "the first batch comes at once")
	return w
}

// TestWatchIsLosslessOrResets checks that a reader resuming at any revision
// with the state of that revision, at any peer, has the true state at each
// index, despite short logs, forgotten streams and missed revisions.
func TestWatchIsLosslessOrResets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newModel()
		cfg := Config{Log: rapid.IntRange(2, 8).Draw(t, "log"), History: rapid.IntRange(4, 60).Draw(t, "history"), Results: rapid.IntRange(1, 4).Draw(t, "results")}
		c := New(cfg)
		type watcher struct {
			*watch
			*reader
		}
		var watchers []watcher
		check := func(r *reader) {
			require.LessOrEqual(t, r.at, m.rev())
			require.True(t, alike(r.q.of(m.at(r.at)), r.list()), "%v at %d of %d: want %v, have %v, by %+v",
				r.q, r.at, m.rev(), ids(r.q.of(m.at(r.at))), ids(r.list()), r.last)
			require.True(t, alike(r.q.of(m.now()), r.list()), "%v is behind", r.q)
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			rev := m.rev() + rapid.Uint64Range(1, 2).Draw(t, "gap")
			switch rapid.IntRange(0, 9).Draw(t, "what") {
			case 0: // changes missed by this peer, then a Reset
				for range rapid.IntRange(1, 4).Draw(t, "missed") {
					m.apply(rev, drawChanges(t, rev))
					rev++
				}
				m.apply(rev, nil)
				require.NoError(t, c.Reset(rev, slices.Collect(maps.Values(m.now()))))
			case 1:
				m.apply(rev, nil)
				require.NoError(t, c.Apply(rev, nil))
			case 2: // resume after a query at any peer
				q := drawService(t)
				after := rapid.Uint64Range(1, m.rev()).Draw(t, "after")
				r := &reader{q: q, has: fromList(q.of(m.at(after)))}
				w := open(t, c, r, after)
				check(r)
				watchers = append(watchers, watcher{w, r})
			case 3: // a waiting reader is up to date
				q := drawService(t)
				after := rapid.Uint64Range(1, m.rev()).Draw(t, "after")
				if res := ask(t, c, q); !differs(c.floor.Load(), res.Index, after) {
					require.True(t, alike(q.of(m.at(after)), res.Instances), "%v waits at %d, index %d", q, after, res.Index)
				}
			case 4:
				if len(watchers) > 0 {
					c.release(watchers[0].stream)
					watchers = watchers[1:]
				}
			default:
				changes := drawChanges(t, rev)
				m.apply(rev, changes)
				require.NoError(t, c.Apply(rev, changes))
			}
			checkPlaces(t, c)
			for _, w := range watchers {
				if rapid.IntRange(0, 2).Draw(t, "wakes") == 0 {
					require.NoError(t, w.tell(false))
					require.True(t, alike(w.q.of(m.now()), w.list()))
					require.NoError(t, w.tell(true))
					check(w.reader)
				}
			}
		}
	})
}

func ids(list []*instance.Instance) (out []string) {
	for _, i := range list {
		out = append(out, i.ID+":"+i.Status.String())
	}
	return out
}

// checkPlaces compares the table with the list of streams.
func checkPlaces(t require.TestingT, c *Catalog) {
	inTable := 0
	for i := range c.streams.shards {
		if m := c.streams.shards[i].Load(); m != nil {
			inTable += len(*m)
		}
	}
	require.Equal(t, inTable, len(c.all))
	for n, s := range c.all {
		require.Equal(t, n, s.place)
		require.Same(t, s, c.streams.get(s.name))
	}
}
