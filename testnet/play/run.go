package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/blackhole/blackhole/internal/platform/cities"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/testnet/control"
	"github.com/blackhole/blackhole/testnet/market"
	"github.com/blackhole/blackhole/testnet/network"
	"github.com/blackhole/blackhole/testnet/process"
	"github.com/blackhole/blackhole/testnet/tour"
)

const (
	checkInterval = 2 * time.Second // interval of provider checks; short, to notice a killed provider within seconds
	lookInterval  = 2 * time.Second // interval between two status tables
	seed          = 1               // seed of the offers
	founders      = 5               // founders of the group: three voters, one learner, one spare
	replaceAfter  = 5 * time.Second // silence of a voter before its replacement
)

// session is one run of the command.
type session struct {
	options
	out    io.Writer // readable output
	stdout io.Writer
	stderr io.Writer

	scratch string // directory of this testnet: the program, the socket for orders, and without -data the peers

	cities  []cities.City
	network *network.Network
	market  *market.Market
	report  report
}

// playTour starts the network, takes the tour and reports whether every step held.
func playTour(ctx context.Context, c call) (held bool, err error) {
	o, err := parseTour(c)
	if err != nil {
		return false, err
	}
	s := &session{options: o, out: c.stdout, stdout: c.stdout, stderr: c.stderr, market: new(market.Market), report: newReport(o)}
	if o.json {
		s.out = s.stderr
	}
	if s.scratch, err = os.MkdirTemp("", control.Prefix); err != nil {
		return false, fault.As("testnet.run", fault.Unavailable, err)
	}
	defer func() {
		if !o.keep || o.data != "" {
			err = errors.Join(err, os.RemoveAll(s.scratch))
		}
	}()
	if s.cities, err = cities.All(); err != nil {
		return false, err
	}
	if err := s.start(ctx); err != nil {
		return false, err
	}
	defer s.stop()
	if err := s.register(ctx); err != nil {
		return false, errors.Join(append(s.network.Lost(), err)...)
	}
	return s.show(ctx)
}

// start brings the network up.
func (s *session) start(ctx context.Context) error {
	binary, err := s.build(ctx)
	if err != nil {
		return err
	}
	c := network.Config{Peers: s.peers, Binary: binary, Dir: s.scratch, Check: checkInterval, Keep: s.keep,
		Shops: s.idle == 0, Founders: min(founders, s.peers-1), Replace: replaceAfter}
	if s.idle > 0 {
		c.Check = 0
	}
	if s.data != "" {
		if err := os.MkdirAll(s.data, 0o700); err != nil {
			return fault.As("testnet.start", fault.Invalid, fmt.Errorf("-data: %w", err))
		}
		c.Dir = s.data
	}
	if s.verbose {
		c.Log = s.stderr
	}
	fmt.Fprintf(s.out, "starting %d peers, their data in %s ...\n", s.peers, c.Dir)
	began := time.Now()
	if s.network, err = network.Start(ctx, c); err != nil {
		return err
	}
	ready := time.Since(began)
	s.report.ready(ready, s.network)
	fmt.Fprintf(s.out, "all ready after %.2f s; the page of peer-1: %s\n", ready.Seconds(), page(s.network.Peers[0]))
	return nil
}

// scratch makes a temporary directory. Callers must call remove, with whether it should go.
func scratch(of string) (dir string, remove func(bool), err error) {
	dir, err = os.MkdirTemp("", "blackhole-"+of+"-")
	return dir, func(now bool) {
		if now {
			_ = os.RemoveAll(dir) // leftovers in the temporary directory are harmless
		}
	}, fault.As("testnet.scratch", fault.Unavailable, err)
}

// workshop builds blackholed, and makes a directory for data: that of -data, or a temporary one. Callers must call done, with
// whether nothing in it is of interest.
func workshop(ctx context.Context, of, data string) (dir, binary string, done func(bool), err error) {
	temporary, remove, err := scratch(of)
	if err != nil {
		return "", "", nil, err
	}
	if dir = data; dir == "" {
		dir = temporary
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		remove(true)
		return "", "", nil, fault.As("testnet."+of, fault.Invalid, fmt.Errorf("-data: %w", err))
	}
	if binary, err = process.Build(ctx, temporary); err != nil {
		remove(true)
		return "", "", nil, err
	}
	return dir, binary, func(boring bool) { remove(boring || dir != temporary) }, nil
}

// build puts a blackholed into the directory of the testnet.
func (s *session) build(ctx context.Context) (string, error) {
	const op = "testnet.build"
	if s.binary == "" {
		return process.Build(ctx, s.scratch)
	}
	from, err := filepath.Abs(s.binary)
	if err == nil {
		_, err = os.Stat(from)
	}
	if err != nil {
		return "", fault.As(op, fault.Invalid, fmt.Errorf("-binary: %w", err))
	}
	to := filepath.Join(s.scratch, "blackholed")
	return to, fault.As(op, fault.Unavailable, os.Symlink(from, to))
}

// register fills the market.
func (s *session) register(ctx context.Context) error {
	s.table(ctx)
	offers, err := market.Offers(s.cities, s.records, seed)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := s.network.Register(ctx, s.market, offers); err != nil {
		return err
	}
	registered := time.Since(began)
	if err := s.network.AwaitSpread(ctx, len(offers)); err != nil {
		return err
	}
	s.report.RegisterSeconds = hundredths(registered.Seconds())
	fmt.Fprintf(s.out, "%d services registered in %.2f s, known everywhere after %.2f s\n\n",
		len(offers), registered.Seconds(), time.Since(began).Seconds())
	s.table(ctx)
	return nil
}

// show takes the tour, then stays up unless -exit was given. With -idle it measures instead.
func (s *session) show(ctx context.Context) (held bool, err error) {
	if s.idle > 0 {
		return s.observeIdle(ctx)
	}
	held = true
	if s.tour {
		held = s.walk(ctx)
	}
	s.report.end(s.network)
	if err := s.report.write(s); err != nil {
		return false, err
	}
	if !s.exit {
		err = s.stay(ctx)
	}
	return held, err
}

func (s *session) walk(ctx context.Context) bool {
	t := &tour.Tour{Network: s.network, Market: s.market, Cities: s.cities, Updates: s.updates}
	lines, began := newProgress(s.out), time.Now()
	results := t.Walk(ctx, lines.begin, lines.end)
	fmt.Fprintf(s.out, "%s in %.0f s\n\n", summary(results), time.Since(began).Seconds())
	if err := t.Clear(ctx); err != nil && ctx.Err() == nil {
		fmt.Fprintf(s.stderr, "some instances of the tour stay: %v\n", err)
	}
	for _, lost := range s.network.Lost() {
		fmt.Fprintln(s.stderr, lost)
	}
	s.report.toured(t, results)
	return tour.Held(results)
}

func (s *session) table(ctx context.Context) {
	newScreen(s.out).draw(tableOf(ctx, s.network.Peers, nil))
	fmt.Fprintln(s.out)
}

func (s *session) stop() {
	fmt.Fprintln(s.out, "stopping ...")
	s.network.Stop()
	if s.keep {
		fmt.Fprintf(s.out, "data kept in %s and beside it\n", s.network.Peers[0].Data)
	}
}
