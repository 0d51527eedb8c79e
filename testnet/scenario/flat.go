package scenario

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/testnet/await"
	"github.com/blackhole/blackhole/testnet/network"
)

const (
	calmAfter  = 30 * time.Second // from the end of the load until its leases and connections are gone
	leastLooks = 8                // a line through fewer points says little
)

// fill writes as many events as the group keeps for watches: this history would grow for long otherwise.
func (r *run) fill([]string) error {
	const each = 500
	for n := 0; n < int(coord.DefaultLimits().HistoryEvents); n += each {
		steps := make([]ops.Step, each)
		for i := range steps {
			steps[i].Put = &ops.Put{Key: fmt.Sprintf("%sfill/%d", prefix, i), Value: []byte("a value of usual length")}
		}
		err := await.Until(r.ctx, r.Bound, "the group takes a write", func(ctx context.Context) error {
			_, _, err := ops.Of(r.all[0].peer().Coordination()).Do(ctx, ops.Command{Op: &ops.Txn{Then: steps}})
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// flat looks at the peers for so long under load, ends the load, and fails if what a peer holds grew, or if most rounds of a job
// failed: then it loaded nothing. A machine too busy for a look gets none.
func (r *run) flat(args []string) error {
	length, err := time.ParseDuration(args[0])
	if err != nil || r.end == nil {
		return fault.New("flat", fault.Invalid, "it needs a load and a time: %v", err)
	}
	all := r.living()
	seen := make([][]look, len(all)) // of each peer
	began := time.Now()
	for time.Since(began) < length {
		if err := await.Pause(r.ctx, length/60); err != nil {
			return err
		}
		looks, err := r.lookAll(all, began)
		if err != nil {
			fmt.Fprintf(r.Progress, "no look: %v\n", err)
			continue
		}
		for i, l := range looks {
			seen[i] = append(seen[i], l)
		}
		r.say("under load", looks)
	}
	r.end()
	r.end = nil
	if n := len(seen[0]); n < leastLooks {
		return fault.New("flat", fault.Timeout, "only %d looks at the peers, need %d: the machine is too busy", n, leastLooks)
	}
	if err := await.Pause(r.ctx, calmAfter); err != nil {
		return err
	}
	after, err := r.lookAll(all, began)
	if err != nil {
		return err
	}
	r.say("after the load", after)
	if !r.judge(all, seen) {
		return errors.Join(fault.New("flat", fault.Conflict, "something grew, or most rounds of a job failed"), r.keep(all))
	}
	return nil
}

// lookAll looks at every peer.
func (r *run) lookAll(all []*member, began time.Time) ([]look, error) {
	looks := make([]look, len(all))
	for i, m := range all {
		var err error
		if looks[i], err = lookAt(r.ctx, m.peer()); err != nil {
			return nil, fault.Wrap(m.name, err)
		}
		looks[i].at = time.Since(began)
	}
	return looks, nil
}

// say prints the least and the greatest value of all peers.
func (r *run) say(when string, looks []look) {
	fmt.Fprintf(r.Progress, "%6.0f s  %-15s", looks[0].at.Seconds(), when)
	for m, g := range gauges() {
		least, most := looks[0].values[m], looks[0].values[m]
		for _, l := range looks {
			least, most = min(least, l.values[m]), max(most, l.values[m])
		}
		fmt.Fprintf(r.Progress, "  %s %s-%s", g.name, g.number(least), g.number(most))
	}
	done, failed := r.counts.total()
	fmt.Fprintf(r.Progress, "  %d calls, %d failed\n", done, failed)
}

// judge prints the growth of each peer, and the calls.
func (r *run) judge(all []*member, seen [][]look) (flat bool) {
	flat = r.counts.show(r.Progress)
	fmt.Fprintf(r.Progress, "\n%-8s %-12s %10s %10s %10s\n", "PEER", "", "MEAN", "GROWTH", "ALLOWED")
	for i, p := range all {
		for m, g := range gauges() {
			mean, growth := line(seen[i][len(seen[i])/2:], m)
			verdict := ""
			if growth > g.allowed(mean) {
				flat, verdict = false, "  GROWS"
			}
			fmt.Fprintf(r.Progress, "%-8s %-12s %10s %10s %10s%s\n", p.name, g.name, g.number(mean), g.number(growth), g.number(g.allowed(mean)), verdict)
		}
	}
	return flat
}

// keep saves what the peers tell about themselves, their goroutines among it.
func (r *run) keep(all []*member) error {
	for _, m := range all {
		files, err := m.peer().Client.Debug(r.ctx)
		if err != nil {
			return fault.Wrap(m.name, err)
		}
		for _, f := range files {
			if err := os.WriteFile(filepath.Join(r.dir, m.name+"-"+f.Name), f.Content, 0o600); err != nil {
				return fault.As("flat.keep", fault.Unavailable, err)
			}
		}
	}
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
	const op = "flat.lookAt"
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
