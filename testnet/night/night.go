// Package night lets honest and hostile peers live together. It is the nemesis at large: whole daemons in homes,
// offices and servers of cities far apart, under its faults and its load, with its checks. Beside it attackers play
// floods, liars and thieves by the public protocols, sellers and buyers trade real bytes, and one judge has a line for
// each promise to the honest.
//
// One seed decides who lives where, who attacks whom, and the faults. Real processes run freely: a seed gives a
// similar night.
package night

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/blackhole/blackhole/testnet/nemesis"
	"github.com/blackhole/blackhole/testnet/night/flood"
	"github.com/blackhole/blackhole/testnet/process"
)

// Bounds of a Config.
const (
	LeastPeers = 10
	MostPeers  = 200
)

const (
	indexBytes = 64 << 20 // of each honest peer
	buyers     = 8        // that reserve without a connection
	knows      = 4        // peers that each must know at the start
)

// Config describes a night.
type Config struct {
	Binary   string // blackholed, built with process.ClockTag
	Program  string // this program: attackers run as its children
	Dir      string // existing directory for data, logs, and the history of a violation
	Seed     uint64
	Duration time.Duration
	Peers    int           // LeastPeers to MostPeers; a third of them is hostile
	Part     float64       // of the rates of the floods, 0 to 1
	Roles    []flood.Row   // of the attackers; none: they do nothing
	Pause    time.Duration // the longest pause or cut
	Recovery time.Duration // from the end of a fault until all are served
	Progress io.Writer
}

// night is one run.
type night struct {
	Config
	*world
	scene *nemesis.Scene
	books *books

	mu         sync.Mutex // guards what follows
	attacks    map[string]*Attack
	distrusted []string // log lines of honest peers about honest ones
	samples    map[string][]Sample
	late       time.Duration // of this program, at most
	troubles   []string      // what this program could not do
}

// Run plays a night. The error concerns the run itself; the report has what was broken.
func Run(ctx context.Context, c Config) (*Report, error) {
	w, err := newWorld(c.Peers, rand.New(rand.NewPCG(c.Seed, 1)))
	if err != nil {
		w.Close()
		return nil, err
	}
	n := &night{
		Config: c, world: w, books: newBooks(), attacks: map[string]*Attack{}, samples: map[string][]Sample{},
	}
	for _, line := range w.table() {
		fmt.Fprintln(c.Progress, line)
	}
	r, err := nemesis.Run(ctx, nemesis.Config{
		Binary: c.Binary, Dir: c.Dir, Seed: c.Seed, Duration: c.Duration,
		Founders: founders, Others: len(w.peers) - founders, Buyers: buyers, Pause: c.Pause, Recovery: c.Recovery, Progress: c.Progress,
		Stage: &nemesis.Stage{
			Ground: w, Adapt: n.adapt, Enough: knows, Idle: 1, Beside: n.beside,
			Launched: func(i int, p *process.Process) { w.peers[i].process.Store(p) },
		},
	})
	if err != nil {
		return nil, err
	}
	return n.conclude(r), nil
}

// adapt makes a process of peer i one of the Internet.
func (n *night) adapt(i int, s *process.Spec) {
	at := n.peers[i]
	s.Profile, s.Check, s.Bootstrap = "public", 0, nil
	for k, known := range n.peers[:seeds] {
		if k != i {
			other := &site{outside: known.outside, id: s.Founders[k]} // its process may not have told its id yet
			s.Bootstrap = append(s.Bootstrap, other.addresses()...)
		}
	}
	s.Settings = append(s.Settings, "COORDINATION_ENABLED=true", "COORDINATION_CLIENTS=network",
		fmt.Sprintf("DISCOVERY_LIMITS_INDEX_BYTES=%d", indexBytes))
	if at.kind == leaf {
		s.Settings = append(s.Settings, "LEAF=on")
	}
	s.Log = &listener{Writer: s.Log, night: n, name: at.name}
}

// listener reads the log of a peer for words about honest peers.
type listener struct {
	io.Writer
	night *night
	name  string
}

// distrust is what a peer logs about a keeper that it takes for a liar.
const distrust = "a keeper violated the protocol"

// Write implements io.Writer. A process writes whole lines.
func (l *listener) Write(b []byte) (int, error) {
	if line := string(b); strings.Contains(line, distrust) {
		l.night.mu.Lock()
		for _, p := range l.night.peers {
			if p.id != "" && strings.Contains(line, p.id) {
				l.night.distrusted = append(l.night.distrusted, line)
			}
		}
		l.night.mu.Unlock()
	}
	return l.Writer.Write(b)
}

// beside plays what happens beside the load and the faults of the nemesis.
func (n *night) beside(ctx context.Context, s *nemesis.Scene) error {
	n.scene = s
	n.mu.Lock()
	for i, id := range s.IDs() {
		n.peers[i].id = id
	}
	n.mu.Unlock()
	stop, err := n.openGoods(ctx)
	defer stop()
	if err != nil {
		return err
	}
	var work sync.WaitGroup
	work.Go(func() { n.attack(ctx) })
	work.Go(func() { n.sample(ctx) })
	work.Go(func() { n.lateness(ctx) })
	n.customers(ctx, &work)
	work.Wait()
	return nil
}

// trouble notes what this program could not do.
func (n *night) trouble(format string, args ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	text := fmt.Sprintf(format, args...)
	n.scene.Say("%s", text)
	n.troubles = append(n.troubles, text)
}
