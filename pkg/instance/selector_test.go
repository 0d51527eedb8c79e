package instance

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/pkg/fault"
)

func compile(t require.TestingT, s Selector) Matcher {
	m, err := s.Compile()
	require.NoError(t, err)
	return m
}

func TestMatch(t *testing.T) {
	i := built(t, nil) // UP, zone eu-1a, version 2.1.0, tags blue core
	bare := &Instance{Key: i.Key, Status: StatusDown, Spec: Spec{Metadata: map[string]string{"zone": "us-1", "url": "a:b"}}}
	for _, c := range []struct {
		name     string
		selector Selector
		full     bool
		bare     bool
	}{
		{"zero: those that are UP", Selector{}, true, false},
		{"any status", Selector{AnyStatus: true}, true, true},
		{"one status", Selector{Statuses: []Status{StatusDown}}, false, true},
		{"two statuses", Selector{Statuses: []Status{StatusDown, StatusUp}}, true, true},
		{"any wins over some", Selector{Statuses: []Status{StatusDown}, AnyStatus: true}, true, true},
		{"id", Selector{AnyStatus: true, ID: "payment-1"}, true, true},
		{"other id", Selector{AnyStatus: true, ID: "payment-2"}, false, false},
		{"zone", Selector{AnyStatus: true, Zone: "eu-1a"}, true, false},
		{"zone in the metadata", Selector{AnyStatus: true, Zone: "us-1"}, false, true},
		{"version range", Selector{AnyStatus: true, Version: "2.x"}, true, false},
		{"other range", Selector{AnyStatus: true, Version: ">=1.0 <2"}, false, false},
		{"tag", Selector{AnyStatus: true, Tags: []string{"core"}}, true, false},
		{"all tags", Selector{AnyStatus: true, Tags: []string{"core", "green"}}, false, false},
		{"tag is a key that is true", Selector{AnyStatus: true, Tags: []string{"canary"}}, true, false},
		{"tag is key and value", Selector{AnyStatus: true, Tags: []string{"team:payments", "blue"}}, true, false},
		{"first colon divides", Selector{AnyStatus: true, Tags: []string{"url:a:b"}}, false, true},
		{"no such key", Selector{AnyStatus: true, Tags: []string{"none:"}}, false, false},
		{"environment", Selector{AnyStatus: true, Environment: "production"}, true, false},
		{"dependency", Selector{AnyStatus: true, Dependency: "ledger"}, true, false},
		{"prefer picks nothing", Selector{AnyStatus: true, PreferZone: "nowhere"}, true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := compile(t, c.selector)
			require.Equal(t, c.full, m.Match(i))
			require.Equal(t, c.bare, m.Match(bare))
		})
	}
	require.False(t, Matcher{}.Match(i))
}

func TestVersionRanges(t *testing.T) {
	for _, c := range []struct {
		text    string
		version string
		want    bool
	}{
		{"2.x", "2.9.1", true},
		{"2.x", "3.0.0", false},
		{"2.X.x", "2.0.0", true},
		{"2", "2.5.0", true},
		{"2.1", "2.1.7", true},
		{"2.1", "2.2.0", false},
		{"^1.2", "1.9.0", true},
		{"^1.2", "2.0.0", false},
		{"~1.2.3", "1.2.9", true},
		{"~1.2.3", "1.3.0", false},
		{">=1.0 <2", "1.5.0", true},
		{">=1.0, <2", "2.0.0", false},
		{"1.x || 3.x", "3.1.0", true},
		{"1.0.0 - 2.0.0", "2.0.0", true},
		{"*", "0.0.1", true},
		{"*", "", false},
		{"2.x", "2.1.0-beta.1", false},
		{">=2.1.0-0", "2.1.0-beta.1", true},
		{"=2.1.0", "2.1.0+build", true},
	} {
		m := compile(t, Selector{AnyStatus: true, Version: c.text})
		require.Equal(t, c.want, m.Match(&Instance{Spec: Spec{Version: c.version}}), "%q picks %q", c.text, c.version)
	}
}

func TestCompileRefuses(t *testing.T) {
	for field, s := range map[string]Selector{
		"status":      {Statuses: []Status{statuses}},
		"id":          {ID: strings.Repeat("a", 129)},
		"zone":        {Zone: "a\nb"},
		"version":     {Version: "two"},
		"tags":        {Tags: texts(65, "t")},
		"tags[1]":     {Tags: []string{"a", ""}},
		"environment": {Environment: "\xff"},
		"dependency":  {Dependency: "\x00"},
		"prefer_zone": {PreferZone: strings.Repeat("a", 129)},
	} {
		_, err := s.Compile()
		require.ErrorIs(t, err, fault.Invalid, field)
		require.Equal(t, field, fault.FieldOf(err))
	}
	_, err := Selector{Version: strings.Repeat("1", 257)}.Compile()
	require.ErrorIs(t, err, fault.Invalid)
}

func TestCompareOrders(t *testing.T) {
	at := func(service, id, zone, label string) *Instance {
		return &Instance{Key: Key{Service: service, ID: id}, Spec: Spec{Zone: zone, Metadata: map[string]string{"zone": label}}}
	}
	list := []*Instance{at("b", "1", "x", ""), at("a", "2", "y", "x"), at("a", "1", "", "x"), at("a", "0", "z", "")}
	order := func(s Selector) (ids []string) {
		sorted := slices.Clone(list)
		slices.SortFunc(sorted, compile(t, s).Compare)
		for _, i := range sorted {
			ids = append(ids, i.Service+i.ID)
		}
		return ids
	}
	require.Equal(t, []string{"a0", "a1", "a2", "b1"}, order(Selector{}))
	require.Equal(t, []string{"a1", "b1", "a0", "a2"}, order(Selector{PreferZone: "x"}))
}

func selectors() *rapid.Generator[Selector] {
	text := rapid.SampledFrom([]string{"", "a", "b", "1:a", "i1:a"})
	return rapid.Custom(func(t *rapid.T) Selector {
		return Selector{
			Statuses:    rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Status { return Status(rapid.IntRange(0, int(statuses)-1).Draw(t, "status")) }), 0, 3).Draw(t, "statuses"),
			AnyStatus:   rapid.Bool().Draw(t, "any"),
			ID:          text.Draw(t, "id"),
			Zone:        text.Draw(t, "zone"),
			Version:     rapid.SampledFrom([]string{"", "1.x", "2.x"}).Draw(t, "version"),
			Tags:        rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "1:a"}), 0, 3).Draw(t, "tags"),
			Environment: text.Draw(t, "environment"),
			Dependency:  text.Draw(t, "dependency"),
			PreferZone:  text.Draw(t, "prefer"),
		}
	})
}

// plain normalises a selector for require.Equal.
func plain(s Selector) Selector {
	s.Tags = sorted(s.Tags)
	set := s.statusSet()
	s.Statuses, s.AnyStatus = nil, false
	for x := StatusUnknown; x < statuses; x++ {
		if set&(1<<x) != 0 {
			s.Statuses = append(s.Statuses, x)
		}
	}
	return s
}

func TestCanonicalTellsSelectorsApart(t *testing.T) {
	require.Empty(t, Selector{}.Canonical())
	require.Empty(t, Selector{Statuses: []Status{StatusUp, StatusUp}}.Canonical())
	rapid.Check(t, func(t *rapid.T) {
		a, b := selectors().Draw(t, "a"), selectors().Draw(t, "b")
		if rapid.Bool().Draw(t, "alike") {
			b = a
			b.Tags = append(slices.Clone(a.Tags), a.Tags...)
			b.Statuses = append(slices.Clone(a.Statuses), a.Statuses...)
			slices.Reverse(b.Statuses)
		}
		same := a.Canonical() == b.Canonical()
		pa, pb := plain(a), plain(b)
		equal := slices.Equal(pa.Statuses, pb.Statuses) && slices.Equal(pa.Tags, pb.Tags)
		pa.Statuses, pa.Tags, pb.Statuses, pb.Tags = nil, nil, nil, nil
		require.Equal(t, equal && pa.ID == pb.ID && pa.Zone == pb.Zone && pa.Version == pb.Version &&
			pa.Environment == pb.Environment && pa.Dependency == pb.Dependency && pa.PreferZone == pb.PreferZone, same)
		require.Equal(t, "x"+a.Canonical(), string(a.AppendCanonical([]byte("x"))))
	})
}

func TestCanonicalOfTheCommonCaseCostsNothing(t *testing.T) {
	buffer := make([]byte, 0, 128)
	require.Zero(t, testing.AllocsPerRun(100, func() { _ = Selector{}.Canonical() }))
	require.Zero(t, testing.AllocsPerRun(100, func() {
		buffer = Selector{Zone: "a", Tags: []string{"b"}}.AppendCanonical(buffer[:0])
	}))
}

func FuzzCompile(f *testing.F) {
	for _, text := range []string{"2.x", "^1.2 || ~3", "1.0 - 2.0", ">=1,<2", "x|1", "||", "1|2.3", "99999999999999999999"} {
		f.Add(text, "2.1.0")
	}
	f.Fuzz(func(t *testing.T, text, version string) {
		m, err := Selector{AnyStatus: true, Version: text}.Compile()
		if err != nil {
			require.Equal(t, "version", fault.FieldOf(err))
			return
		}
		m.Match(&Instance{Spec: Spec{Version: version}})
	})
}
