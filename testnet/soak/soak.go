// Package soak keeps a network of real peers under a steady load of all planes, without faults, and requires that
// what each peer holds stays flat: memory, heap, goroutines, descriptors and bytes on disk.
package soak

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/testnet/await"
	"github.com/blackhole/blackhole/testnet/network"
)

const (
	checkEvery = time.Minute      // interval of provider checks
	formLimit  = 2 * time.Minute  // from the start of the peers until their group takes writes
	calmAfter  = 30 * time.Second // from the end of the load until its leases and connections are gone
	callLimit  = 10 * time.Second
	leastLooks = 8 // a line through fewer points says little
)

// Config describes a run.
type Config struct {
	Binary   string
	Dir      string // existing directory for the data of the peers, and for the evidence of a failure
	Peers    int    // all are founders
	Duration time.Duration
	Every    time.Duration // between two looks at the peers
	Progress io.Writer
}

// Validate returns an Invalid error with the name of the flag.
func (c Config) Validate() error {
	switch {
	case c.Peers < 2 || c.Peers > 9:
		return fault.Invalidf("-peers", c.Peers, "must be 2 to 9, not %d", c.Peers)
	case c.Every < time.Second:
		return fault.Invalidf("-every", c.Every, "must be at least 1s, not %v", c.Every)
	case c.Duration < leastLooks*c.Every:
		return fault.Invalidf("-duration", c.Duration, "must be at least %d times -every, not %v", leastLooks, c.Duration)
	}
	return nil
}

// run is one run.
type run struct {
	Config
	net    *network.Network
	began  time.Time
	counts *counts
	seen   [][]look // of each peer
}

// Run applies the load and reports whether everything stayed flat. The error concerns the run itself.
func Run(ctx context.Context, c Config) (flat bool, err error) {
	r := &run{Config: c, counts: newCounts(), seen: make([][]look, c.Peers)}
	r.net, err = network.Start(ctx, network.Config{
		Peers: c.Peers, Binary: c.Binary, Dir: c.Dir, Check: checkEvery, Founders: c.Peers, Keep: true,
	})
	if err != nil {
		return false, err
	}
	defer r.net.Stop()
	if err := r.play(ctx); err != nil {
		return false, errors.Join(append(r.net.Lost(), err)...)
	}
	flat = r.judge()
	if !flat {
		err = r.keep(ctx)
	}
	return flat, err
}

// play runs the load, looks at the peers meanwhile, and once more after the load.
func (r *run) play(ctx context.Context) error {
	if err := r.fill(ctx); err != nil {
		return err
	}
	before, err := r.lookAll(ctx)
	if err != nil {
		return err
	}
	r.say("before the load", before)
	r.began = time.Now()
	stop := r.startLoad(ctx)
	err = r.watch(ctx)
	stop()
	if err == nil {
		err = await.Pause(ctx, calmAfter)
	}
	if err != nil {
		return err
	}
	after, err := r.lookAll(ctx)
	if err != nil {
		return err
	}
	r.say("after the load", after)
	return nil
}

// fill writes as many events as the group keeps for watches: this history would grow for long otherwise.
func (r *run) fill(ctx context.Context) error {
	const each = 500
	for n := 0; n < int(coord.DefaultLimits().HistoryEvents); n += each {
		steps := make([]ops.Step, each)
		for i := range steps {
			steps[i].Put = &ops.Put{Key: fmt.Sprintf("%sfill/%d", prefix, i), Value: []byte("a value of usual length")}
		}
		err := await.Until(ctx, formLimit, "the group takes a write", func(ctx context.Context) error {
			_, _, err := ops.Of(r.net.Peers[0].Coordination()).Do(ctx, ops.Command{Op: &ops.Txn{Then: steps}})
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// watch looks at the peers until the end of the load. A machine too busy for a look gets none.
func (r *run) watch(ctx context.Context) error {
	for time.Since(r.began) < r.Duration {
		if err := await.Pause(ctx, r.Every); err != nil {
			return err
		}
		looks, err := r.lookAll(ctx)
		if err != nil && (ctx.Err() != nil || len(r.net.Lost()) > 0) {
			return err
		}
		if err != nil {
			fmt.Fprintf(r.Progress, "no look: %v\n", err)
			continue
		}
		for i, l := range looks {
			r.seen[i] = append(r.seen[i], l)
		}
		r.say("under load", looks)
	}
	if n := len(r.seen[0]); n < leastLooks {
		return fault.New("soak.watch", fault.Timeout, "only %d looks at the peers, need %d: the machine is too busy", n, leastLooks)
	}
	return nil
}

// lookAll looks at every peer.
func (r *run) lookAll(ctx context.Context) ([]look, error) {
	looks := make([]look, len(r.net.Peers))
	for i, p := range r.net.Peers {
		var err error
		if looks[i], err = lookAt(ctx, p); err != nil {
			return nil, fault.Wrap(p.Name, err)
		}
		if !r.began.IsZero() {
			looks[i].at = time.Since(r.began)
		}
	}
	return looks, nil
}

// say prints the least and the greatest value of all peers.
func (r *run) say(when string, looks []look) {
	fmt.Fprintf(r.Progress, "%6.0f s  %-15s", looks[0].at.Seconds(), when)
	for m, g := range gauges() {
		value := func(l look) float64 { return l.values[m] }
		least := slices.MinFunc(looks, func(a, b look) int { return compare(value(a), value(b)) })
		most := slices.MaxFunc(looks, func(a, b look) int { return compare(value(a), value(b)) })
		fmt.Fprintf(r.Progress, "  %s %s-%s", g.name, g.number(value(least)), g.number(value(most)))
	}
	done, failed := r.counts.total()
	fmt.Fprintf(r.Progress, "  %d calls, %d failed\n", done, failed)
}

// judge prints the growth of each peer, and the calls. A kind of call without success is a failure too: it loaded nothing.
func (r *run) judge() (flat bool) {
	flat = r.counts.show(r.Progress)
	fmt.Fprintf(r.Progress, "\n%-8s %-12s %10s %10s %10s\n", "PEER", "", "MEAN", "GROWTH", "ALLOWED")
	for i, p := range r.net.Peers {
		for m, g := range gauges() {
			mean, growth := line(r.seen[i][len(r.seen[i])/2:], m)
			verdict := ""
			if growth > g.allowed(mean) {
				flat, verdict = false, "  GROWS"
			}
			fmt.Fprintf(r.Progress, "%-8s %-12s %10s %10s %10s%s\n", p.Name, g.name, g.number(mean), g.number(growth), g.number(g.allowed(mean)), verdict)
		}
	}
	return flat
}

// keep saves what the peers tell about themselves, their goroutines among it.
func (r *run) keep(ctx context.Context) error {
	const op = "soak.keep"
	for _, p := range r.net.Living() {
		files, err := p.Client.Debug(ctx)
		if err != nil {
			return fault.Wrap(op, err)
		}
		for _, f := range files {
			if err := os.WriteFile(filepath.Join(r.Dir, p.Name+"-"+f.Name), f.Content, 0o600); err != nil {
				return fault.As(op, fault.Unavailable, err)
			}
		}
	}
	fmt.Fprintf(r.Progress, "\ndata and reports of the peers are in %s\n", r.Dir)
	return nil
}

// gauge is something that a peer holds.
type gauge struct {
	name   string
	metric string  // of the peer; empty: bytes of its data directory
	unit   float64 // of a printed number
	spare  float64 // growth that is always allowed, as the numbers of a quiet process move that much
}

const mib = 1 << 20

// gauges lists what must stay flat. The goal of the collector is twice the live heap of the last cycle, so it lacks the
// saw teeth between two cycles.
func gauges() []gauge {
	return []gauge{
		{"memory", "process_resident_memory_bytes", mib, 8 * mib},
		{"heap-goal", "go_memstats_next_gc_bytes", mib, 4 * mib},
		{"goroutines", "go_goroutines", 1, 20},
		{"descriptors", "process_open_fds", 1, 10},
		{"disk", "", mib, 8 * mib},
	}
}

func (g gauge) number(x float64) string {
	if g.unit == 1 {
		return strconv.FormatFloat(x, 'f', 0, 64)
	}
	return fmt.Sprintf("%.1fM", x/g.unit)
}

// allowed is the largest growth over the second half of a run that counts as flat.
func (g gauge) allowed(mean float64) float64 { return g.spare + mean/20 }

func compare(a, b float64) int { return cmp.Compare(a, b) }

// look is one observation of a peer: the values of all gauges.
type look struct {
	at     time.Duration
	values [5]float64
}

// line fits a line to the values of one gauge by least squares, and returns their mean and the growth of the line from
// the first to the last look.
func line(looks []look, gauge int) (mean, growth float64) {
	n := float64(len(looks))
	var t, v float64
	for _, l := range looks {
		t, v = t+l.at.Seconds()/n, v+l.values[gauge]/n
	}
	var both, square float64
	for _, l := range looks {
		dt := l.at.Seconds() - t
		both, square = both+dt*(l.values[gauge]-v), square+dt*dt
	}
	if square == 0 {
		return v, 0
	}
	return v, both / square * (looks[len(looks)-1].at - looks[0].at).Seconds()
}

// lookAt reads the metrics of a peer and measures its data directory.
func lookAt(ctx context.Context, p *network.Peer) (l look, err error) {
	const op = "soak.lookAt"
	metrics, err := network.Metrics(ctx, http.DefaultClient, p.HTTP)
	if err != nil {
		return l, err
	}
	for m, g := range gauges() {
		value, ok := metrics[g.metric], true
		if g.metric == "" {
			value, err = size(p.Data)
		} else {
			_, ok = metrics[g.metric]
		}
		if err != nil || !ok {
			return l, fault.New(op, fault.Unsupported, "%s: no such metric on this system: %w", g.name, err)
		}
		l.values[m] = value
	}
	return l, nil
}

// size adds up the files of a folder. Files that vanish meanwhile count nothing.
func size(dir string) (sum float64, err error) {
	err = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			var info fs.FileInfo
			if info, err = e.Info(); err == nil {
				sum += float64(info.Size())
			}
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
	return sum, err
}
