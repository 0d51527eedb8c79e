package requirement

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/coord/directory"
	"github.com/blackhole/blackhole/internal/contract/coord/requirements"
	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/pkg/instance"
)

// entry is the value of a directory entry.
func entry(service, id string, status instance.Status, tags ...string) (key string, value []byte) {
	i := &instance.Instance{
		Key:  instance.Key{Namespace: "default", Service: service, ID: id},
		Spec: instance.Spec{Host: "10.0.0.1", Port: 80, Tags: tags}, Status: status,
	}
	return directory.Key(i.Namespace, i.Service, i.ID), i.Marshal()
}

// TestUnreadable checks that unreadable entries do not count, and that a
// requirement with an unreadable selector names its problem.
func TestUnreadable(t *testing.T) {
	table := newTable(instances.Counter)
	key, good := entry("s", "good", instance.StatusUp)
	table.change(key, good, 1)
	bad, _ := entry("s", "bad", instance.StatusUp)
	table.change(bad, append(good, 0x20, 0xff, 0xff, 0x07), 2) // a port out of range
	for name, selector := range map[string]instance.Selector{"a": {AnyStatus: true}, "b": {Version: "no range at all"}} {
		table.define(name, stored(t, name, "s", 1, selector), 3)
	}
	require.Equal(t, requirements.Status{State: requirements.Satisfied, Needed: 1, Available: 1, Revision: 3, Of: 3}, table.requirements["a"].status())
	status := table.requirements["b"].status()
	require.Equal(t, requirements.Insufficient, status.State)
	require.NotEmpty(t, status.Problem)
}

// question is a question as a later version of the program may accept it.
func question(t require.TestingT, service string, s instance.Selector) []byte {
	b, err := proto.Marshal(instance.Query{Name: instance.Name{Namespace: "default", Service: service}, Selector: s}.Proto())
	require.NoError(t, err)
	return b
}

// stored is a requirement as the group stores it.
func stored(t require.TestingT, name, service string, least int, s instance.Selector) []byte {
	solo := coordtest.New(coordtest.Config{})
	_, _, err := ops.Of(solo).Do(context.Background(), ops.Command{Owner: "a", Op: &ops.SetRequirement{Requirement: requirements.Requirement{
		Name: name, Min: least, Question: question(t, service, s),
	}}})
	require.NoError(t, err)
	page, _, err := ops.Of(solo).Range(context.Background(), ops.Query{Span: coord.Exactly(requirements.Key(name))}, ops.Linearizable)
	require.NoError(t, err)
	return page.Keys[0].Value
}

// TestTableCountsLikeARecount compares counts after random changes with a count
// of all entries.
func TestTableCountsLikeARecount(t *testing.T) {
	selectors := []instance.Selector{{}, {AnyStatus: true}, {Tags: []string{"x"}}, {ID: "1"}, {Version: "no range at all"}}
	definitions := map[string][]byte{}
	for _, service := range []string{"s", "t"} {
		for least := 1; least <= 3; least++ {
			for n, s := range selectors {
				definitions[fmt.Sprint(service, least, n)] = stored(t, "r", service, least, s)
			}
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		table, entries, needed := newTable(instances.Counter), map[string][]byte{}, map[string][]byte{}
		name := rapid.SampledFrom([]string{"p", "q", "r"})
		service := rapid.SampledFrom([]string{"s", "t"})
		at := coord.Revision(0)
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			at++
			before := map[string]bool{}
			for n, r := range table.requirements {
				before[n] = r.satisfied()
			}
			clear(table.due)
			table.urgent = false
			switch rapid.IntRange(0, 9).Draw(t, "change") {
			case 0:
				n := name.Draw(t, "name")
				delete(needed, n)
				table.define(n, nil, at)
			case 1, 2:
				n := name.Draw(t, "name")
				needed[n] = definitions[fmt.Sprint(service.Draw(t, "service"), rapid.IntRange(1, 3).Draw(t, "min"), rapid.IntRange(0, 4).Draw(t, "selector"))]
				table.define(n, needed[n], at)
			default:
				status := rapid.SampledFrom([]instance.Status{instance.StatusUp, instance.StatusDown}).Draw(t, "status")
				tags := rapid.SampledFrom([][]string{nil, {"x"}}).Draw(t, "tags")
				key, value := entry(service.Draw(t, "service"), fmt.Sprint(rapid.IntRange(1, 3).Draw(t, "id")), status, tags...)
				if entries[key] = value; rapid.IntRange(0, 3).Draw(t, "delete") == 0 {
					delete(entries, key)
					value = nil
				}
				table.change(key, value, at)
			}
			recount(t, table, entries, needed)
			for n, r := range table.requirements {
				if was, had := before[n]; had && was != r.satisfied() {
					require.True(t, table.due[n] && table.urgent)
					require.Equal(t, at, r.since)
				}
			}
		}
	})
}

func recount(t *rapid.T, table *table, entries map[string][]byte, needed map[string][]byte) {
	require.Len(t, table.requirements, len(needed))
	for name, value := range needed {
		r, err := requirements.Of(requirements.Key(name), value)
		require.NoError(t, err)
		available := 0
		if namespace, service, counts, err := instances.Counter(r.Question); err == nil {
			for key, value := range entries {
				if directory.Span(namespace, service).Contains(key) && counts(value) {
					available++
				}
			}
		}
		require.Len(t, table.requirements[name].matching, available, name)
	}
}

// BenchmarkChange changes one of 17,200 entries of 100 services with 100
// requirements.
func BenchmarkChange(b *testing.B) {
	table := newTable(instances.Counter)
	for s := range 100 {
		for i := range 172 {
			key, value := entry(fmt.Sprint("service-", s), fmt.Sprint(i), instance.StatusUp)
			table.change(key, value, 1)
		}
		table.define(fmt.Sprint(s), stored(b, fmt.Sprint(s), fmt.Sprint("service-", s), 172, instance.Selector{}), 2)
	}
	key, up := entry("service-7", "9", instance.StatusUp)
	_, down := entry("service-7", "9", instance.StatusDown)
	b.ReportAllocs()
	for at := coord.Revision(3); b.Loop(); at++ {
		value := up
		if at%2 == 0 {
			value = down
		}
		table.change(key, value, at)
	}
}
