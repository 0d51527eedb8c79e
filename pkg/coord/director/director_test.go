package director_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/coord/director"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
	agentv1 "github.com/blackhole/blackhole/proto/blackhole/agent/v1"
)

// group is a state that everything is committed to.
type group struct {
	*coord.Machine
	index uint64
}

func newGroup() *group { return &group{Machine: coord.New()} }

func (g *group) do(op coord.Op) coord.Result {
	g.index++
	r, _ := g.Apply(g.index, 1, coord.Command{Owner: "peer", Op: op})
	return r
}

// keys are all that a Director begins with.
func (g *group) keys(t require.TestingT) []*coord.KeyValue {
	page, err := g.Range(coord.Query{})
	require.NoError(t, err)
	return page.Keys
}

// since gives the events after a revision.
func (g *group) since(t require.TestingT, last coord.Revision) []coord.Event {
	batch, err := g.Events(coord.Watch{From: last + 1, Limit: 1 << 20})
	require.NoError(t, err)
	require.False(t, batch.More)
	return batch.Events
}

func put(service, id string, status instance.Status, tags ...string) coord.Entry {
	value, err := proto.Marshal(&agentv1.Instance{
		Namespace: "default", ServiceName: service, Id: id, Host: "10.0.0.1", Port: 80, Health: status.Proto(), Tags: tags,
	})
	if err != nil {
		panic(err)
	}
	return coord.Entry{Key: coord.DirectoryKey(instance.Key{Namespace: "default", Service: service, ID: id}), Value: value}
}

func needs(name, service string, n int, selector instance.Selector) *coord.SetRequirement {
	return &coord.SetRequirement{Requirement: coord.Requirement{
		Name: name, Service: instance.Name{Namespace: "default", Service: service}, Min: n, Selector: selector,
	}}
}

// A late registration satisfies a requirement that waited for it.
func TestLateRegistration(t *testing.T) {
	g, d := newGroup(), director.New()
	require.NoError(t, g.do(needs("storage", "storage", 2, instance.Selector{})).Err)
	changes := d.Reset(g.keys(t), g.Revision())
	require.Len(t, changes, 1)
	require.Nil(t, changes[0].Was)
	err := changes[0].Now.Err()
	require.ErrorIs(t, err, fault.Unavailable)
	require.ErrorContains(t, err, "insufficient_nodes: storage needs 2 instances of storage, 0 available")

	lease := g.do(&coord.LeaseGrant{TTL: 10_000}).Lease
	register := func(puts ...coord.Entry) []director.Change {
		last := g.Revision()
		require.NoError(t, g.do(&coord.RegisterBatch{Lease: lease, Generation: 1, Puts: puts}).Err)
		return d.Advance(g.since(t, last), g.Revision())
	}
	changes = register(put("storage", "1", instance.StatusUp), put("other", "1", instance.StatusUp))
	require.Len(t, changes, 1)
	require.False(t, changes[0].Turned())
	require.Equal(t, 1, changes[0].Now.Available)
	require.Empty(t, register(put("storage", "2", instance.StatusStarting)))
	changes = register(put("storage", "2", instance.StatusUp))
	require.True(t, changes[0].Turned())
	require.NoError(t, changes[0].Now.Err())
	require.Equal(t, g.Revision(), changes[0].Now.Since)

	// Who takes over knows the same.
	next := director.New()
	next.Reset(g.keys(t), g.Revision())
	status, ok := next.Get("storage")
	require.True(t, ok)
	require.Equal(t, 2, status.Available)

	g.do(&coord.LeaseRevoke{ID: lease})
	events := g.since(t, 0)
	changes = d.Advance(events, g.Revision())
	require.True(t, changes[0].Turned())
	require.Equal(t, 0, changes[0].Now.Available)
	require.Empty(t, d.Advance(events[:3], g.Revision()), "what it had it passes over")
	g.do(&coord.DeleteRequirement{Name: "storage"})
	changes = d.Advance(g.since(t, d.Revision()), g.Revision())
	require.Nil(t, changes[0].Now)
	require.Empty(t, d.All())
}

func TestWhatCannotBeCounted(t *testing.T) {
	g, d := newGroup(), director.New()
	lease := g.do(&coord.LeaseGrant{TTL: 10_000}).Lease
	bad := put("s", "bad", instance.StatusUp)
	bad.Value = append(bad.Value, 0x20, 0xff, 0xff, 0x07) // a port out of range
	require.NoError(t, g.do(&coord.RegisterBatch{Lease: lease, Generation: 1, Puts: []coord.Entry{bad, put("s", "good", instance.StatusUp)}}).Err)
	g.do(needs("a", "s", 1, instance.Selector{AnyStatus: true}))
	g.do(needs("b", "s", 1, instance.Selector{Version: "no range at all"}))
	d.Reset(g.keys(t), g.Revision())
	one, _ := d.Get("a")
	require.Equal(t, 1, one.Available)
	two, _ := d.Get("b")
	require.ErrorIs(t, two.Err(), fault.Unprocessable)
	require.False(t, two.Satisfied())
	_, ok := d.Get("c")
	require.False(t, ok)
}

// Whatever happens, and in whatever batches it is told, a Director knows what counting anew finds, and its changes
// lead from what it knew to what it knows.
func TestDirectorCountsAsOneWhoCountsAnew(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g, d := newGroup(), director.New()
		known := map[string]director.Status{}
		told := func(changes []director.Change) {
			require.True(t, slices.IsSortedFunc(changes, func(a, b director.Change) int { return strings.Compare(a.Name, b.Name) }))
			for _, c := range changes {
				was, had := known[c.Name]
				require.Equal(t, had, c.Was != nil)
				if had {
					require.Equal(t, was.Available, c.Was.Available)
				}
				if delete(known, c.Name); c.Now != nil {
					known[c.Name] = *c.Now
				}
			}
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			g.do(draw(t, g))
			switch rapid.IntRange(0, 9).Draw(t, "then") {
			case 0:
				told(d.Reset(g.keys(t), g.Revision()))
			case 1, 2, 3, 4:
				told(d.Advance(g.since(t, d.Revision()), g.Revision()))
			}
		}
		told(d.Advance(g.since(t, d.Revision()), g.Revision()))
		want := recount(t, g)
		require.Len(t, d.All(), len(want))
		for _, s := range d.All() {
			require.Equal(t, want[s.Name], s.Available, s.Name)
			require.Equal(t, s.Available, known[s.Name].Available)
			require.Equal(t, s.Requirement, known[s.Name].Requirement)
		}
	})
}

// draw is something that changes what is there or what is needed.
func draw(t *rapid.T, g *group) coord.Op {
	selectors := []instance.Selector{{}, {AnyStatus: true}, {Tags: []string{"x"}}, {ID: "1"}, {Version: "no range at all"}}
	lease := coord.LeaseID(rapid.IntRange(1, 2).Draw(t, "lease"))
	switch rapid.IntRange(0, 9).Draw(t, "op") {
	case 0:
		return &coord.LeaseRevoke{ID: lease}
	case 1, 2:
		return &coord.LeaseGrant{ID: lease, TTL: 10_000}
	case 3, 4:
		return needs(rapid.SampledFrom([]string{"p", "q", "r"}).Draw(t, "name"), rapid.SampledFrom([]string{"s", "t"}).Draw(t, "service"),
			rapid.IntRange(1, 3).Draw(t, "min"), rapid.SampledFrom(selectors).Draw(t, "selector"))
	case 5:
		return &coord.DeleteRequirement{Name: rapid.SampledFrom([]string{"p", "q", "r"}).Draw(t, "name")}
	}
	o := &coord.RegisterBatch{Lease: lease, Generation: g.index}
	for _, id := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"1", "2", "3"}), 1, 3, rapid.ID).Draw(t, "ids") {
		status := rapid.SampledFrom([]instance.Status{instance.StatusUp, instance.StatusDown}).Draw(t, "status")
		var tags []string
		if rapid.Bool().Draw(t, "tagged") {
			tags = []string{"x"}
		}
		e := put(rapid.SampledFrom([]string{"s", "t"}).Draw(t, "service"), id, status, tags...)
		if rapid.IntRange(0, 3).Draw(t, "delete") == 0 {
			o.Deletes = append(o.Deletes, e.Key)
		} else {
			o.Puts = append(o.Puts, e)
		}
	}
	return o
}

// recount looks at each instance for each requirement.
func recount(t *rapid.T, g *group) map[string]int {
	found := map[string]int{}
	for _, need := range g.keys(t) {
		if !strings.HasPrefix(need.Key, coord.RequirementsPrefix) {
			continue
		}
		r, err := coord.RequirementOf(need)
		require.NoError(t, err)
		found[r.Name] = 0
		matcher, err := r.Selector.Compile()
		if err != nil {
			continue
		}
		for _, kv := range g.keys(t) {
			if k, ok := coord.InstanceKey(kv.Key); ok && k.Name() == r.Service {
				i, err := instance.Unmarshal(kv.Value)
				require.NoError(t, err)
				if matcher.Match(i) {
					found[r.Name]++
				}
			}
		}
	}
	return found
}

// BenchmarkAdvance is one instance that changes among 17,200 of 100 services with 100 requirements.
func BenchmarkAdvance(b *testing.B) {
	g, d := newGroup(), director.New()
	for s := range 100 {
		lease := g.do(&coord.LeaseGrant{TTL: 10_000}).Lease
		o := &coord.RegisterBatch{Lease: lease, Generation: uint64(s + 1)}
		for i := range 172 {
			o.Puts = append(o.Puts, put(fmt.Sprint("service-", s), fmt.Sprint(i), instance.StatusUp))
		}
		require.NoError(b, g.do(o).Err)
		require.NoError(b, g.do(needs(fmt.Sprint(s), fmt.Sprint("service-", s), 172, instance.Selector{})).Err)
	}
	keys := g.keys(b)
	b.Run("reset", func(b *testing.B) {
		for b.Loop() {
			d.Reset(keys, g.Revision())
		}
	})
	b.Run("advance", func(b *testing.B) {
		d.Reset(keys, g.Revision())
		up, down := put("service-7", "9", instance.StatusUp), put("service-7", "9", instance.StatusDown)
		at := g.Revision()
		for b.Loop() {
			at++
			e := up
			if at%2 == 0 {
				e = down
			}
			if len(d.Advance([]coord.Event{{Revision: at, Key: e.Key, KV: &coord.KeyValue{Key: e.Key, Value: e.Value}}}, at)) > 1 {
				b.Fatal()
			}
		}
	})
}
