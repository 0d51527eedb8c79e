package sim

import (
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// A harness that finds nothing proves nothing: each property is broken here on purpose.
func TestOracleFindsEachBreach(t *testing.T) {
	for _, c := range []struct {
		name  string
		spoil func(*testing.T, *fixture)
		wait  time.Duration // before the answer is judged
		want  map[string]int
	}{
		{name: "nothing"},
		{name: "a record is missing", want: map[string]int{"P2": 1}, spoil: func(_ *testing.T, f *fixture) {
			f.answer.Results = f.answer.Results[1:]
		}},
		{name: "the order is wrong", want: map[string]int{"P2": 1}, spoil: func(_ *testing.T, f *fixture) {
			slices.Reverse(f.answer.Results)
		}},
		{name: "one that was never offered", want: map[string]int{"P1": 1, "P2": 1}, spoil: func(t *testing.T, f *fixture) {
			f.add(f.sign(t, f.key, "ghost"))
		}},
		{name: "a stranger's", want: map[string]int{"P1": 1, "P2": 1}, spoil: func(t *testing.T, f *fixture) {
			f.add(f.sign(t, keyOf(9, 9), "s1"))
		}},
		{name: "an incomplete one lacks some", spoil: func(_ *testing.T, f *fixture) {
			f.answer.Results, f.answer.Complete = nil, false
		}},
		{name: "all lapsed", wait: 2 * time.Hour, want: map[string]int{"P1": 2, "P2": 1}},
		{name: "withdrawn a moment ago", spoil: func(_ *testing.T, f *fixture) {
			f.oracle.withdrawn(f.name(0))
			f.quiet = false
		}},
		{name: "withdrawn long ago", wait: 2 * forgets, want: map[string]int{"P2": 1, "P3": 1}, spoil: func(_ *testing.T, f *fixture) {
			f.oracle.withdrawn(f.name(0))
		}},
		{name: "withdrawn in a partition", wait: 2 * forgets, spoil: func(_ *testing.T, f *fixture) {
			f.oracle.withdrawn(f.name(0))
			f.oracle.disturb(true)
			f.quiet = false
		}},
		{name: "excused", spoil: func(_ *testing.T, f *fixture) {
			f.oracle.excuse("P1")
			f.answer.Results = nil
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t)
				if c.spoil != nil {
					c.spoil(t, f)
				}
				time.Sleep(c.wait)
				f.oracle.judge(f.question, f.answer, f.quiet)
				require.Len(t, f.oracle.broken, len(c.want), "%s", f.oracle.first)
				for property, n := range c.want {
					require.Equal(t, n, f.oracle.broken[property], "%s", f.oracle.first)
				}
			})
		})
	}
}

// fixture is a right answer to a question about two services.
type fixture struct {
	key      crypto.PrivKey
	oracle   *oracle
	question asked
	answer   *query.Answer
	quiet    bool
}

func newFixture(t *testing.T) *fixture {
	f := &fixture{key: keyOf(1, 1), oracle: newOracle(), quiet: true, answer: &query.Answer{Complete: true}}
	f.question = asked{who: newPlace(address(0), f.key).id, query: query.Query{Type: "database"}}
	for _, id := range []string{"s1", "s2"} {
		r := f.sign(t, f.key, id)
		f.oracle.expect(r.Name())
		f.oracle.signed(r)
		f.add(r)
	}
	return f
}

func (f *fixture) add(r *records.Record) {
	f.answer.Results = append(f.answer.Results, query.Result{Record: r})
}

func (f *fixture) name(i int) records.Name { return f.answer.Results[i].Record.Name() }

func (f *fixture) sign(t *testing.T, key crypto.PrivKey, id string) *records.Record {
	t.Helper()
	now := time.Now()
	o := records.Offer{ID: id, Metadata: records.Metadata{Type: "database"}}
	r, err := records.Sign(networkName, key, o, records.Stamp{Sequence: 1, Issued: now, Expires: now.Add(time.Hour)})
	require.NoError(t, err)
	return r
}

func TestFaultsStopWhatTheySay(t *testing.T) {
	a, b, c := address(0), address(1), address(2)
	never := func() float64 { return 1 }
	w := newWire(time.Millisecond, 0, 1)
	defer w.net.Close()
	stops := func(from, to netip.Addr) bool { return w.faults.Load().stops(from, to, never) }
	require.False(t, stops(a, b))
	w.cut(map[[2]netip.Addr]bool{{a, b}: true})
	require.True(t, stops(a, b))
	require.False(t, stops(b, a))
	w.cut(nil)
	require.False(t, stops(a, b))
	w.split(map[netip.Addr]int{c: 1})
	require.False(t, stops(a, b))
	require.True(t, stops(a, c))
	require.True(t, stops(c, b))
	w.split(nil)
	require.False(t, stops(a, c))
	w.silence(b)
	w.silence(c)
	require.True(t, stops(a, b))
	require.True(t, stops(c, a))

	lossy := newWire(time.Millisecond, 0.5, 1)
	defer lossy.net.Close()
	require.True(t, lossy.faults.Load().stops(a, b, func() float64 { return 0.4 }))
	require.False(t, lossy.faults.Load().stops(a, b, func() float64 { return 0.5 }))
}
