package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/blackhole/blackhole/bench/child"
	"github.com/blackhole/blackhole/bench/figure"
	"github.com/blackhole/blackhole/pkg/fault"
)

// fill registers instances at each peer, in one service for each peer or one for each instance.
func fill(ctx context.Context, at []*peer, each int, name func(p *peer, n int) entry) error {
	var all sync.WaitGroup
	errs := make([]error, len(at))
	for i, p := range at {
		all.Go(func() {
			for n := 0; n < each && errs[i] == nil; n++ {
				_, errs[i] = p.register(ctx, name(p, n), false)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// led returns the time at which a peer knew of a leader.
func (p *peer) led(ctx context.Context) (at time.Time, err error) {
	err = child.Until(ctx, serving, tight, "a leader", func(ctx context.Context) error {
		g, err := p.rpc.Coordination().Group(ctx)
		if err == nil && g.Leader == "" {
			err = fault.New("led", fault.Unavailable, "there is none")
		}
		return err
	})
	return time.Now(), err
}

// cold starts peers with registered instances and without a leader until all of them answer. It
// measures the time from the leader until all peers see all instances, and then single
// registrations.
func (s *session) cold(ctx context.Context) error {
	var took, alone []float64
	s.table(fmt.Sprintf("%d instances in the registries of %d peers that start without a leader: from the moment at which a member knew one until the peers saw all",
		s.instances, s.peers), "", "ms until the last peer followed the directory", "ms until the first saw all", "ms until the last did", "ms until there was a leader", "CPU s of all peers, from then", "load")
	for run := range s.Runs {
		t, rate, err := s.coldly(ctx, run)
		if err != nil {
			return err
		}
		took, alone = append(took, t), append(alone, rate)
	}
	all := float64(s.instances) / figure.Median(took)
	s.row("median: %.0f/s, %.1f times one by one at one peer | | | %.0f | | |", all, all/figure.Median(alone), figure.Median(took)*1e3)
	return nil
}

func (s *session) coldly(ctx context.Context, run int) (took, alone float64, err error) {
	f := &fleet{binary: s.Blackholed, log: s.Log, size: s.peers, alone: true}
	if f.dir, err = s.room(); err != nil {
		return 0, 0, err
	}
	defer f.stop()
	if err := f.start(ctx); err != nil {
		return 0, 0, err
	}
	each := s.instances / s.peers
	err = fill(ctx, f.peers, each, func(p *peer, n int) entry { return entry{"cold" + p.name, fmt.Sprintf("%s-%d", p.name, n), "1"} })
	if err != nil {
		return 0, 0, err
	}
	end, err := f.leaderless(ctx)
	if err != nil {
		return 0, 0, err
	}
	if err := child.Rest(ctx, time.Second); err != nil { // let the costs of the start pass
		return 0, 0, errors.Join(err, end())
	}
	returned := time.Now()
	if err := end(); err != nil {
		return 0, 0, err
	}
	known, err := f.led(ctx)
	if err != nil {
		return 0, 0, err
	}
	before := spent(f.processes()...)
	at, err := f.allSee(ctx, s.peers*each)
	if err != nil {
		return 0, 0, err
	}
	s.row("run %d | %.0f | %.0f | %.0f | %.0f | %.2f | %s", run+1, figure.Ms(at.follows.Sub(known)), figure.Ms(at.first.Sub(known)), figure.Ms(at.last.Sub(known)), figure.Ms(known.Sub(returned)),
		(spent(f.processes()...) - before).Seconds(), child.Load())
	if _, err := s.oneByOne(ctx, f, f.peers); err != nil {
		return 0, 0, err
	}
	alone, err = s.oneByOne(ctx, f, f.peers[len(f.peers)-1:])
	return at.last.Sub(known).Seconds(), alone, err
}

// leaderless starts the peers of a fleet again as a group with one running member at most: each
// member pauses before the next starts. The returned function resumes all.
func (f *fleet) leaderless(ctx context.Context) (end func() error, err error) {
	f.halt()
	f.alone = false
	for i, p := range slices.Backward(f.peers) { // members come last
		f.found(p)
		if i < members-1 {
			if err := f.peers[i+1].pause(); err != nil {
				return nil, err
			}
		}
		if err := p.Start(); err != nil {
			return nil, err
		}
		if i >= members {
			continue
		}
		for _, one := range append(f.peers[members:], p) {
			err := child.Until(ctx, serving, asking, "peer "+one.name+" serves", func(ctx context.Context) error {
				_, _, err := one.count(ctx)
				return err
			})
			if err != nil {
				return nil, err
			}
		}
	}
	return func() error { return errors.Join(f.peers[1].resume(), f.peers[2].resume()) }, nil
}

// led returns the time at which the first member knew of a leader.
func (f *fleet) led(ctx context.Context) (time.Time, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	first, errs := make(chan time.Time, members), make(chan error, members)
	for _, p := range f.peers[:members] {
		go func() { // ends with the context
			at, err := p.led(ctx)
			if err != nil {
				errs <- err
				return
			}
			first <- at
		}()
	}
	select {
	case at := <-first:
		return at, nil
	case err := <-errs:
		return time.Time{}, err
	}
}

// sighting has the times at which peers followed the directory and saw all instances.
type sighting struct{ follows, first, last time.Time }

// allSee returns the time at which the last peer followed the directory, and the times at which
// the first and the last peer saw n instances.
func (f *fleet) allSee(ctx context.Context, n int) (sighting, error) {
	var all sync.WaitGroup
	follows, sees, errs := make([]time.Time, len(f.peers)), make([]time.Time, len(f.peers)), make([]error, len(f.peers))
	for i, p := range f.peers {
		all.Go(func() {
			errs[i] = p.sees(ctx, n, func() { follows[i] = time.Now() })
			sees[i] = time.Now()
		})
	}
	all.Wait()
	return sighting{slices.MaxFunc(follows, time.Time.Compare), slices.MinFunc(sees, time.Time.Compare), slices.MaxFunc(sees, time.Time.Compare)},
		errors.Join(errs...)
}

// oneByOne lets an application at each peer register instances one after the other, each after
// the commit of the previous one.
func (s *session) oneByOne(ctx context.Context, f *fleet, at []*peer) (rate float64, err error) {
	var all sync.WaitGroup
	counts, errs := make([]int, len(at)), make([]error, len(at))
	before, began := spent(f.processes()...), time.Now()
	for i, p := range at {
		all.Go(func() {
			for time.Since(began) < s.Duration && errs[i] == nil {
				_, errs[i] = p.register(ctx, entry{"single" + p.name, fmt.Sprintf("%d-%d", began.UnixNano(), counts[i]), "1"}, true)
				counts[i]++
			}
		})
	}
	all.Wait()
	n, took := 0, time.Since(began)
	for _, c := range counts {
		n += c
	}
	rate = float64(n) / took.Seconds()
	s.row("one by one, at %d peers: %.0f/s, %.1f ms each, %.0f us of CPU each | | | | | | %s", len(at), rate,
		figure.Ms(took)*float64(len(at))/float64(max(1, n)), figure.PerOp(spent(f.processes()...)-before, n), child.Load())
	return rate, errors.Join(errs...)
}

// pull starts peers without a leader, one of them with many services, and measures the time from
// its first leader until the group has all services.
func (s *session) pull(ctx context.Context) error {
	s.table(fmt.Sprintf("%d services in the registry of a peer that is no member, of %d that start without a leader: from the moment at which it knew one until the leader's peer had them",
		services, s.peers), "", "ms", "ms until it knew a leader", "CPU s of all peers, from then", "load")
	var took []float64
	for run := range s.Runs {
		one, err := s.pulled(ctx, run)
		if err != nil {
			return err
		}
		took = append(took, one)
	}
	s.row("median | %.0f | | |", figure.Median(took))
	return nil
}

func (s *session) pulled(ctx context.Context, run int) (took float64, err error) {
	f := &fleet{binary: s.Blackholed, log: s.Log, size: s.peers, alone: true}
	if f.dir, err = s.room(); err != nil {
		return 0, err
	}
	defer f.stop()
	if err := f.start(ctx); err != nil {
		return 0, err
	}
	at := f.peers[members]
	err = fill(ctx, []*peer{at}, services, func(_ *peer, n int) entry { return entry{fmt.Sprintf("pull-%d", n), "one", "1"} })
	if err != nil {
		return 0, err
	}
	end, err := f.leaderless(ctx)
	if err != nil {
		return 0, err
	}
	if err := child.Rest(ctx, time.Second); err != nil { // let the costs of the start pass
		return 0, errors.Join(err, end())
	}
	returned := time.Now()
	if err := end(); err != nil {
		return 0, err
	}
	known, err := at.led(ctx)
	if err != nil {
		return 0, err
	}
	before := spent(f.processes()...)
	leader, err := f.leader(ctx, f.peers[0])
	if err != nil {
		return 0, err
	}
	if err := f.has(ctx, leader, "pull", services); err != nil {
		return 0, err
	}
	took = figure.Ms(time.Since(known))
	s.row("run %d | %.0f | %.0f | %.2f | %s", run+1, took, figure.Ms(known.Sub(returned)), (spent(f.processes()...) - before).Seconds(), child.Load())
	return took, nil
}

// has waits until a peer has the services of another peer. They come in one batch, so the last
// implies all.
func (f *fleet) has(ctx context.Context, at *peer, service string, n int) error {
	return child.Until(ctx, serving, tight, "the services are there", func(ctx context.Context) error {
		for _, one := range []int{0, n / 2, n - 1} {
			_, there, err := at.list(ctx, fmt.Sprintf("%s-%d", service, one))
			if err == nil && there == 0 {
				err = fault.New("has", fault.Unavailable, "%s-%d is not", service, one)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}
