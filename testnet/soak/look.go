package soak

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/testnet/network"
)

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
	ctx, cancel := context.WithTimeout(ctx, lookLimit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.HTTP+"/v1/metrics", nil)
	if err != nil {
		return l, fault.As(op, fault.Invalid, err)
	}
	req.Close = true // this program holds nothing at the peer
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return l, fault.As(op, fault.Unavailable, err)
	}
	defer resp.Body.Close()
	metrics, err := parse(resp.Body)
	if err != nil {
		return l, fault.As(op, fault.Unavailable, err)
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

// parse reads the metrics without labels.
func parse(text io.Reader) (map[string]float64, error) {
	found := make(map[string]float64)
	lines := bufio.NewScanner(text)
	for lines.Scan() {
		name, number, ok := strings.Cut(lines.Text(), " ")
		if value, err := strconv.ParseFloat(number, 64); ok && err == nil {
			found[name] = value
		}
	}
	return found, lines.Err()
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
