package catalog

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

func key(service, id string) instance.Key {
	return instance.Key{Namespace: "default", Service: service, ID: id}
}

// put is a change to an instance, UP by default.
func put(rev uint64, service, id string, status ...instance.Status) instances.Change {
	i := &instance.Instance{Key: key(service, id), Status: instance.StatusUp, Revision: rev}
	for _, s := range status {
		i.Status = s
	}
	return instances.Change{Key: i.Key, Instance: i}
}

func apply(t require.TestingT, c *Catalog, rev uint64, changes ...instances.Change) {
	require.NoError(t, c.Apply(rev, changes))
}

func healthy(service string) instance.Query {
	return instance.Query{Name: instance.Name{Namespace: "default", Service: service}}
}

func discover(t require.TestingT, c *Catalog, service string) instance.Result {
	res, err := c.Discover(context.Background(), healthy(service))
	require.NoError(t, err)
	return res
}

func TestRefusals(t *testing.T) {
	c := New(Config{Watches: 1})
	apply(t, c, 2, put(2, "a", "1"))
	other := put(3, "a", "2")
	other.Key.ID = "3"
	bad := put(3, "a", "")
	ctx := context.Background()
	for _, tc := range []struct {
		name, field string
		do          func() error
	}{
		{"revision again", "revision", func() error { return c.Apply(2, []instances.Change{put(2, "a", "9")}) }},
		{"another key", "changes[1].key", func() error { return c.Apply(3, []instances.Change{put(3, "a", "9"), other}) }},
		{"no id", "changes[0].id", func() error { return c.Apply(3, []instances.Change{bad}) }},
		{"no id to remove", "changes[0].service", func() error { return c.Apply(3, []instances.Change{{Key: instance.Key{Namespace: "default"}}}) }},
		{"reset with nil", "instances[0]", func() error { return c.Reset(3, []*instance.Instance{nil}) }},
		{"reset with doubles", "instances[1]", func() error { return c.Reset(3, []*instance.Instance{other.Instance, other.Instance}) }},
		{"discover nothing", "service", func() error { _, err := c.Discover(ctx, instance.Query{}); return err }},
		{"discover an impossible name", "service", func() error {
			_, err := c.Discover(ctx, instance.Query{Name: healthy("G G").Name})
			return err
		}},
		{"discover a range", "version", func() error {
			_, err := c.Discover(ctx, instance.Query{Name: healthy("a").Name, Selector: instance.Selector{Version: "?"}})
			return err
		}},
		{"list a range", "version", func() error {
			_, err := c.List(ctx, instances.ListQuery{Namespace: "nowhere", Selector: instance.Selector{Version: "?"}})
			return err
		}},
		{"watch a name", "service", func() error {
			return c.Watch(ctx, instance.Query{Name: healthy("A B").Name}, 0, func(instance.Batch) error { return nil })
		}},
		{"await a name", "service", func() error { _, err := c.Await(ctx, healthy("A B"), 1); return err }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			require.ErrorIs(t, tc.do(), &fault.Error{Kind: fault.Invalid, Field: tc.field})
		})
	}
	require.Len(t, discover(t, c, "a").Instances, 1)
	require.EqualValues(t, 2, c.Stats().Revision)
}

func TestLastChangeOfAKeyCounts(t *testing.T) {
	c := New(Config{})
	apply(t, c, 2, put(2, "a", "1"), put(2, "a", "2"), instances.Change{Key: key("a", "1")}, put(2, "a", "2", instance.StatusDown))
	res := discover(t, c, "a")
	require.Empty(t, res.Instances)
	require.EqualValues(t, 1, res.Index, "neither came and went: they never were")
}

func TestResultsAreShared(t *testing.T) {
	c := New(Config{})
	apply(t, c, 2, put(2, "a", "1"))
	view := discover(t, c, "a").View
	apply(t, c, 3, put(3, "b", "1"))
	apply(t, c, 4, put(4, "a", "2", instance.StatusDown))
	apply(t, c, 5, put(5, "a", "1")) // an equal instance
	require.Same(t, view, discover(t, c, "a").View)
	require.EqualValues(t, 5, discover(t, c, "a").Revision)
	apply(t, c, 6, instances.Change{Key: key("a", "1")})
	require.EqualValues(t, 6, discover(t, c, "a").Index)
	require.Empty(t, discover(t, c, "a").Instances)
	require.Len(t, view.Instances, 1, "views do not change")
}

// TestGaps checks that a watch reports changes inside a gap, although the
// catalog never saw them.
// TestSpellings: names that differ by letter case are two services that know of each other.
func TestSpellings(t *testing.T) {
	c := New(Config{History: 64})
	in := func(service string) instance.Name { return instance.Name{Namespace: "default", Service: service} }
	put := func(rev uint64, service string) {
		i := &instance.Instance{Key: instance.Key{Namespace: "default", Service: service, ID: "a"}, Spec: instance.Spec{Port: int(rev)}, Status: instance.StatusUp, Revision: rev}
		require.NoError(t, c.Apply(rev, []instances.Change{{Key: i.Key, Instance: i}}))
	}
	put(2, "Web")
	put(3, "web")
	put(4, "other")
	require.Equal(t, []instance.Name{in("Web")}, c.Spellings(in("web")))
	require.Equal(t, []instance.Name{in("web")}, c.Spellings(in("Web")))
	require.Equal(t, []instance.Name{in("Web"), in("web")}, c.Spellings(in("WEB")))
	require.Empty(t, c.Spellings(in("other")))
	for _, service := range []string{"Web", "web", "WEB"} {
		found, err := c.Discover(t.Context(), instance.Query{Name: in(service)})
		require.NoError(t, err)
		require.Len(t, found.Instances, map[string]int{"Web": 1, "web": 1}[service], service)
	}
	for n := range c.cfg.History * 4 {
		put(uint64(5+2*n), "other")
		require.NoError(t, c.Apply(uint64(6+2*n), []instances.Change{{Key: instance.Key{Namespace: "default", Service: "Web", ID: "a"}}}))
		if len(c.Spellings(in("web"))) == 0 {
			return
		}
	}
	t.Fatal("a service without instances stays known")
}

func TestGaps(t *testing.T) {
	begin := func(t *testing.T) *Catalog {
		c := New(Config{})
		apply(t, c, 10, put(10, "a", "1"))
		require.NoError(t, c.Reset(20, []*instance.Instance{put(10, "a", "1").Instance}))
		return c
	}
	for _, tc := range []struct {
		after uint64
		reset bool
		index uint64 // of an immediate Await; 0: it waits
	}{
		{9, false, 10}, // a reader without a/1, which it gets
		{10, false, 0},
		{11, true, 10}, // a reader in an unknown state
		{19, true, 10},
		{20, false, 0},
	} {
		t.Run(fmt.Sprint(tc.after), func(t *testing.T) {
			c := begin(t)
			r := &reader{q: question{Name: healthy("a").Name}, has: modelState{}}
			open(t, c, r, tc.after)
			require.Equal(t, tc.reset, r.last.Reset)
			require.EqualValues(t, 20, r.at)
			res := discover(t, c, "a")
			require.Equal(t, tc.index != 0, differs(c.floor.Load(), res.Index, tc.after))
		})
	}
	t.Run("folded", func(t *testing.T) {
		c := begin(t)
		apply(t, c, 22, put(22, "b", "1"))
		require.NoError(t, c.Reset(30, []*instance.Instance{put(10, "a", "1").Instance}))
		for after, reset := range map[uint64]bool{10: false, 11: true, 19: true, 20: false, 22: false, 23: true, 30: false} {
			r := &reader{q: question{Name: healthy("a").Name}, has: modelState{}}
			open(t, c, r, after)
			require.Equal(t, reset, r.last.Reset, after)
		}
		require.False(t, differs(c.floor.Load(), discover(t, c, "a").Index, 10), "its own index never spins")
	})
}

func TestForgottenServicesKeepTheirPlace(t *testing.T) {
	c := New(Config{History: 4})
	apply(t, c, 2, put(2, "a", "1"))
	apply(t, c, 3, instances.Change{Key: key("a", "1")})
	require.EqualValues(t, 3, func() uint64 {
		res, err := c.Discover(context.Background(), instance.Query{Name: healthy("a").Name, Selector: instance.Selector{AnyStatus: true}})
		require.NoError(t, err)
		return res.Index
	}())
	for rev := uint64(4); rev < 20; rev++ {
		apply(t, c, rev, put(rev, "b", fmt.Sprint(rev)))
	}
	require.Nil(t, c.streams.get(healthy("a").Name), "nothing is left of it")
	require.GreaterOrEqual(t, discover(t, c, "a").Index, uint64(3))
	apply(t, c, 20, put(20, "a", "1"))
	require.EqualValues(t, 20, discover(t, c, "a").Index)
}

func TestHistoryIsBoundedOverAll(t *testing.T) {
	c := New(Config{History: 64})
	for rev := uint64(2); rev < 500; rev++ {
		apply(t, c, rev, put(rev, fmt.Sprint("s", rev), "1"))
		require.LessOrEqual(t, c.Stats().Changes, 64)
	}
	require.GreaterOrEqual(t, c.Stats().Changes, 30)
}

func TestResultsInUseAreKept(t *testing.T) {
	c := New(Config{Results: 4})
	apply(t, c, 2, put(2, "a", "1"))
	view := discover(t, c, "a").View
	for n := range 100 {
		_, err := c.Discover(context.Background(), instance.Query{Name: healthy("a").Name, Selector: instance.Selector{Zone: fmt.Sprint(n)}})
		require.NoError(t, err)
		require.Same(t, view, discover(t, c, "a").View)
	}
	require.Equal(t, 4, len(*c.streams.get(healthy("a").Name).results.byKey.Load()))
}

// TestBounds checks the memory bounds under any changes and queries.
func TestBounds(t *testing.T) {
	c := New(Config{Log: 8, History: 64, Results: 3})
	for rev := uint64(2); rev < 2000; rev++ {
		service := fmt.Sprint("s", rev%97)
		if rev%3 == 0 {
			apply(t, c, rev, put(rev, service, "1", instance.Status(rev%2)))
		} else {
			apply(t, c, rev, put(rev, service, "1"), put(rev, "busy", fmt.Sprint(rev%5), instance.Status(rev%2)), instances.Change{Key: key(service, "1")})
		}
		_, err := c.Discover(context.Background(), instance.Query{Name: healthy("busy").Name, Selector: instance.Selector{Tags: []string{fmt.Sprint(rev)}}})
		require.NoError(t, err)
		stats := c.Stats()
		require.LessOrEqual(t, stats.Changes, 64+6)
	}
	for _, s := range c.all {
		st := s.state.Load()
		require.LessOrEqual(t, len(st.log), 8)
		require.LessOrEqual(t, cap(st.log), 32)
		require.LessOrEqual(t, len(s.results.order), 3)
	}
	bulk := make([]instances.Change, 100)
	for n := range bulk {
		bulk[n] = put(2000, fmt.Sprint("bulk", n), "1")
	}
	apply(t, c, 2000, bulk...)
	require.Zero(t, c.Stats().Changes, "more at once than all of the history")
	require.Less(t, len(c.all), 170)
	checkPlaces(t, c)
}

func TestNewNumbering(t *testing.T) {
	c := New(Config{})
	apply(t, c, 100, put(100, "a", "1"), put(100, "b", "1"))
	apply(t, c, 101, put(101, "a", "2"))
	r := &reader{q: question{Name: healthy("a").Name}, has: modelState{}}
	w := open(t, c, r, 0)
	require.Len(t, r.has, 2)

	same := []*instance.Instance{put(1, "a", "1").Instance, put(1, "b", "1").Instance, put(1, "a", "2").Instance}
	require.NoError(t, c.Reset(101, same), "all as it is")
	require.EqualValues(t, 101, discover(t, c, "a").Index)

	require.NoError(t, c.Reset(7, []*instance.Instance{put(5, "a", "3").Instance}))
	require.NoError(t, w.tell(false))
	require.True(t, r.last.Reset)
	require.EqualValues(t, 7, r.at)
	require.Equal(t, []string{"3:UP"}, ids(r.list()))
	require.EqualValues(t, 7, discover(t, c, "a").Index)
	require.EqualValues(t, 7, discover(t, c, "b").Index)
	require.Empty(t, discover(t, c, "b").Instances)
	require.Equal(t, 1, c.Stats().Instances)

	apply(t, c, 8, put(8, "a", "1"))
	require.NoError(t, w.tell(false))
	require.False(t, r.last.Reset)
	require.Equal(t, []string{"1:UP", "3:UP"}, ids(r.list()))
	old := &reader{q: r.q, has: modelState{}}
	open(t, c, old, 6)
	require.True(t, old.last.Reset, "a position of before")
}

func TestServices(t *testing.T) {
	c := New(Config{})
	services := func() instance.Services {
		s, err := c.Services(context.Background(), "default")
		require.NoError(t, err)
		return s
	}
	require.EqualValues(t, 1, services().Index)
	require.Empty(t, services().Services)
	tagged := put(2, "b", "1", instance.StatusDown)
	tagged.Instance.Spec.Tags = []string{"x", "z"}
	more := put(2, "b", "2")
	more.Instance.Spec.Tags = []string{"a", "x"}
	apply(t, c, 2, tagged, more, put(2, "a", "1"))
	want := []instance.Summary{{Name: "a", Instances: 1, Up: 1, Tags: nil}, {Name: "b", Instances: 2, Up: 1, Tags: []string{"a", "x", "z"}}}
	require.Equal(t, want, services().Services)
	require.EqualValues(t, 2, services().Index)
	changed := put(3, "a", "1")
	changed.Instance.Spec.Weight = 3
	apply(t, c, 3, changed)
	require.EqualValues(t, 2, services().Index, "a change that no summary shows")
	require.EqualValues(t, 3, services().Revision)
	apply(t, c, 4, instances.Change{Key: key("a", "1")})
	require.Equal(t, want[1:], services().Services)
	require.EqualValues(t, 4, services().Index)
}

func TestRemovedTellsTheLastState(t *testing.T) {
	c := New(Config{})
	apply(t, c, 2, put(2, "a", "1"), put(2, "a", "2"))
	r := &reader{q: question{Name: healthy("a").Name}, has: modelState{}}
	w := open(t, c, r, 0)
	apply(t, c, 3, put(3, "a", "1", instance.StatusUnhealthy))
	apply(t, c, 4, instances.Change{Key: key("a", "2")})
	require.NoError(t, w.tell(false))
	require.Len(t, r.last.Events, 2)
	one, two := r.last.Events[0], r.last.Events[1]
	require.Equal(t, instance.Removed, one.Type)
	require.Equal(t, instance.StatusUnhealthy, one.Instance.Status)
	require.EqualValues(t, 3, one.Revision)
	require.Equal(t, instance.Removed, two.Type)
	require.Equal(t, instance.StatusDown, two.Instance.Status)
	require.EqualValues(t, 4, two.Revision)
	require.EqualValues(t, 4, two.Instance.Revision)
}

// owner has the methods of instance.Catalog that need a registry.
type owner interface {
	LastBeat(k instance.Key) (time.Time, bool)
	Expires(list []*instance.Instance) time.Time
}

var _ instances.Catalog = struct {
	*Catalog
	owner
}{}
