package bootstrap

import (
	"log/slog"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"
)

// expecting are peers that start with the same count, at any time.
type expecting struct {
	t      *testing.T
	count  int
	ids    []peer.ID
	nodes  []*expectant
	groups map[GroupID]bool // that any peer ever knew
}

// expectant is one of them. What it collected from others is as old as its last round.
type expectant struct {
	fs        vfs.FS
	disk      *member
	*Founder  // nil: it is down
	collected []Candidate
	offered   [][]byte
	asked     bool
}

func newExpecting(t *testing.T, n, count int) *expecting {
	w := &expecting{t: t, count: count, groups: make(map[GroupID]bool)}
	_, w.ids = keyring(t, n)
	for i := range n {
		w.nodes = append(w.nodes, &expectant{fs: vfs.NewCrashableMem(), disk: &member{id: uint64(i)*1000 + 1}})
	}
	return w
}

func (w *expecting) start(i int) {
	p := w.nodes[i]
	s, err := OpenStore(p.fs, testPlace(), w.ids[i], unlisted())
	require.NoError(w.t, err)
	p.Founder = New(Options{Store: s, Disk: p.disk, Expect: w.count, Logger: slog.New(slog.DiscardHandler)})
}

// crash ends a peer. What it synced is there at the next start.
func (w *expecting) crash(i int) {
	p := w.nodes[i]
	p.fs = p.fs.(*vfs.MemFS).CrashClone(vfs.CrashCloneCfg{})
	p.Founder, p.collected, p.offered, p.asked = nil, nil, nil, false
}

// collect asks those that see a peer. The peer looks at their answers later.
func (w *expecting) collect(i int, sees func(i, j int) bool) {
	p := w.nodes[i]
	p.collected, p.offered, p.asked = nil, nil, true
	for j, o := range w.nodes {
		if j == i || o.Founder == nil || !sees(i, j) {
			continue
		}
		if g, known := o.Group(); known {
			p.offered = append(p.offered, g.Encode())
		} else if _, may := o.Founding(); may {
			p.collected = append(p.collected, Candidate{Peer: w.ids[j], Word: o.Word()})
		}
	}
}

func (w *expecting) look(i int) {
	p := w.nodes[i]
	if !p.asked {
		return
	}
	for _, g := range p.offered {
		require.NoError(w.t, p.Offer(g, true))
	}
	require.NoError(w.t, p.Look(time.Time{}, p.collected))
	p.asked = false
	if g, known := p.Group(); known {
		w.groups[g.GroupID()] = true
	}
}

// TestExpectedPeersFoundOneGroup: three peers with one count found one group in four rounds, without anything said before.
func TestExpectedPeersFoundOneGroup(t *testing.T) {
	w := newExpecting(t, 4, 3)
	all := func(_, _ int) bool { return true }
	for i := range 2 {
		w.start(i)
	}
	for range 9 {
		for i := range 2 {
			w.collect(i, all)
			w.look(i)
		}
	}
	require.Contains(t, w.nodes[0].Lacks(), "2 of 3 expected peers with the key in sight")
	w.start(2)
	for range 4 {
		for i := range 3 {
			w.collect(i, all)
			w.look(i)
		}
	}
	require.Len(t, w.groups, 1)
	first, known := w.nodes[0].Group()
	require.True(t, known)
	require.Equal(t, []Voter{{w.ids[0], w.nodes[0].disk.id}}, first.Voters, "the lowest")
	w.start(3) // a later one joins
	w.collect(3, all)
	w.look(3)
	got, _ := w.nodes[3].Group()
	require.Equal(t, first, got)
}

// TestWordIsKept: a peer that gave its word, and forgets all but its disk, lets nobody else found.
func TestWordIsKept(t *testing.T) {
	w := newExpecting(t, 4, 3)
	apart := func(side map[int]int) func(i, j int) bool {
		return func(i, j int) bool { return side[i] == side[j] }
	}
	left := apart(map[int]int{3: 1})
	for i := range 4 {
		w.start(i)
	}
	for i := range 3 {
		w.collect(i, left)
		w.look(i)
	}
	w.collect(1, left)
	w.look(1)
	require.NotEmpty(t, w.nodes[1].Word())
	require.Equal(t, w.nodes[0].Word(), w.nodes[1].Word())
	w.crash(1)
	w.start(1)
	require.Equal(t, w.nodes[0].Word(), w.nodes[1].Word())
	right := apart(map[int]int{0: 1})
	for range 9 {
		for i := 1; i < 4; i++ {
			w.collect(i, right)
			w.look(i)
		}
	}
	require.Empty(t, w.groups)
	require.Contains(t, w.nodes[1].Lacks(), "this peer lets "+w.ids[0].String()+" found it")
	all := func(_, _ int) bool { return true }
	for range 5 {
		for i := range 4 {
			w.collect(i, all)
			w.look(i)
		}
	}
	require.Len(t, w.groups, 1)
}

// TestOneGroupOfManyStarts plays starts in any order, crashes, cuts that heal, and answers that come late, of 3 to 7 peers, of which
// more than half are expected. There is never a second group; and all are in the first one when everything is well again.
// TEST_STARTS is the number of plays.
func TestOneGroupOfManyStarts(t *testing.T) {
	plays := 1000
	if asked := os.Getenv("TEST_STARTS"); asked != "" {
		var err error
		plays, err = strconv.Atoi(asked)
		require.NoError(t, err)
	}
	early, slowest := 0, 0
	for seed := range uint64(plays) {
		rng := rand.New(rand.NewPCG(seed, 13))
		n := 3 + min(rng.IntN(5), rng.IntN(5))
		w := newExpecting(t, n, n/2+1+rng.IntN(n-n/2)*rng.IntN(2))
		side := make([]int, n)
		sees := func(i, j int) bool { return side[i] == side[j] }
		for range 60 + rng.IntN(120) {
			i := rng.IntN(n)
			switch roll := rng.IntN(20); {
			case w.nodes[i].Founder == nil:
				w.start(i)
			case roll < 2:
				w.crash(i)
				w.start(i)
			case roll < 3:
				w.crash(i)
			case roll < 6:
				side[i] = 1 - side[i]
			case roll < 14:
				w.collect(i, sees)
				if rng.IntN(3) > 0 {
					w.look(i)
				}
			default:
				w.look(i)
			}
			require.LessOrEqual(t, len(w.groups), 1, "seed %d", seed)
		}
		early += len(w.groups)
		for i, p := range w.nodes {
			if p.Founder == nil {
				w.start(i)
			}
		}
		rounds, all := 0, func(_, _ int) bool { return true }
		for ; ; rounds++ {
			known := 0
			for i, p := range w.nodes {
				w.collect(i, all)
				w.look(i)
				if _, is := p.Group(); is {
					known++
				}
			}
			require.Len(t, w.groups, min(1, len(w.groups)), "seed %d", seed)
			if known == n {
				break
			}
			require.Less(t, rounds, 12, "seed %d: %d of %d expected", seed, w.count, n)
		}
		slowest = max(slowest, rounds)
	}
	require.Greater(t, early, plays/10, "too few groups while things went wrong")
	t.Logf("%d plays, %d founded in trouble, at most %d rounds after it", plays, early, slowest)
}
