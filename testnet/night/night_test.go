package night

import (
	"bytes"
	"io"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/testnet/nemesis"
	"github.com/blackhole/blackhole/testnet/nemesis/history"
)

// newNight returns a night of two peers that nobody played.
func newNight() *night {
	w := &world{peers: []*site{{name: "peer-1", id: "12D3KooWone"}, {name: "peer-2", kind: idle, id: "12D3KooWtwo"}}}
	return &night{world: w, books: newBooks(), attacks: map[string]*Attack{}, samples: map[string][]Sample{}}
}

// broken are the promises that a report says are broken.
func broken(r *Report) (all []string) {
	for _, l := range r.Promises {
		if l.Broken > 0 {
			all = append(all, l.Promise)
		}
	}
	return all
}

// TestJudge: each kind of finding breaks its promise, and nothing else.
func TestJudge(t *testing.T) {
	rule := func(name string) func(*night, *nemesis.Report) {
		return func(_ *night, r *nemesis.Report) {
			r.Violations = append(r.Violations, history.Violation{Rule: name, Detail: "planted"})
		}
	}
	for name, planted := range map[string]struct {
		promise string
		plant   func(*night, *nemesis.Report)
	}{
		"wrong answer":     {"C5", rule("P")},
		"sold twice":       {"T1", rule("T1")},
		"two holders":      {"L3", rule("L3")},
		"lost write":       {"D1", rule("D1")},
		"not linearizable": {"others", rule("H1")},
		"stolen":           {"T2", func(n *night, _ *nemesis.Report) { n.attacks["thieves"] = &Attack{Sent: 3, Stolen: 1} }},
		"wrong bytes":      {"T2", func(n *night, _ *nemesis.Report) { n.books.note(&n.books.wrong, "planted") }},
		"distrusted": {"C15", func(n *night, _ *nemesis.Report) {
			l := &listener{io.Discard, n, "peer-1"}
			_, err := l.Write([]byte(distrust + " peer=12D3KooWtwo\n"))
			require.NoError(t, err)
		}},
		"hidden": {"C27", func(n *night, _ *nemesis.Report) { n.books.looks, n.books.unseen = 100, 1 }},
		"asked":  {"C29", func(n *night, _ *nemesis.Report) { n.books.asked[0] = map[int]int{3: 1000} }},
		"memory": {"memory", func(n *night, _ *nemesis.Report) {
			n.samples["peer-1"] = []Sample{{Memory: 100 << 20}, {At: 10, Memory: 400 << 20}}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			n, r := newNight(), &nemesis.Report{}
			require.True(t, n.conclude(r).Held(), "without it all holds")
			planted.plant(n, r)
			report := n.conclude(r)
			require.False(t, report.Held())
			require.Equal(t, []string{planted.promise}, broken(report))
		})
	}
}

// TestStrangersAreNoPeers: a liar is not an honest peer that is taken for one.
func TestStrangersAreNoPeers(t *testing.T) {
	n := newNight()
	_, err := (&listener{io.Discard, n, "peer-1"}).Write([]byte(distrust + " peer=12D3KooWliar\n"))
	require.NoError(t, err)
	require.Empty(t, n.distrusted)
}

// TestReport: people get all lines, and the page escapes what strangers say.
func TestReport(t *testing.T) {
	n, r := newNight(), &nemesis.Report{Faults: map[string]int{"kill leader": 2}}
	n.attacks["thieves"] = &Attack{About: "<script>", Sent: 3}
	n.samples["peer-2"] = []Sample{{At: 10, Memory: 90 << 20, Files: 9, Received: 1, Sent: 1}, {At: 20, Memory: 91 << 20, Files: 9, Received: 20_001, Sent: 10_001}}
	n.books.bought = []time.Duration{time.Second}
	report := n.conclude(r)
	var text, page bytes.Buffer
	require.NoError(t, report.Show(&text))
	require.Contains(t, text.String(), "0 of 16 promises broken")
	require.Contains(t, text.String(), "2.0 KB/s received, 1.0 KB/s sent")
	require.NoError(t, report.WritePage(&page))
	require.Contains(t, page.String(), "<polyline")
	require.NotContains(t, page.String(), "<script>")
}

// TestKinds: the smallest night has the group, a relay, and one peer without clients; one of 20 places has homes and an office too.
func TestKinds(t *testing.T) {
	honest := LeastPeers - LeastPeers/hostileOf
	count := map[string]int{}
	for i := range honest {
		count[kindOf(i, honest)]++
	}
	require.Equal(t, map[string]int{seed: 2, server: 3, relay: 1, idle: 1}, count)
	count = map[string]int{}
	for i := range 14 {
		count[kindOf(i, 14)]++
	}
	require.Equal(t, map[string]int{seed: 2, server: 4, relay: 1, idle: 1, home: 2, hard: 1, desk: 2, leaf: 1}, count)
}

// TestSeed: a seed makes the same places.
func TestSeed(t *testing.T) {
	table := func(seed uint64) []string {
		w, err := newWorld(LeastPeers, rand.New(rand.NewPCG(seed, 1)))
		if err != nil {
			t.Skipf("no namespaces: %v", err)
		}
		defer w.Close()
		return w.table()
	}
	first := table(1)
	require.Equal(t, first, table(1))
	require.NotEqual(t, first, table(2))
}
