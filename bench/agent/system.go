package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/blackhole/blackhole/bench/kit"
	"github.com/blackhole/blackhole/pkg/fault"
)

// api formats the requests of a registry, ready to send.
type api interface {
	// list queries the healthy instances of a service.
	list(service string) []byte
	// put registers an instance in the cheapest way for the registry.
	put(e entry) []byte
	// enroll registers an instance as an application on this host does.
	enroll(e entry) []byte
	// leave ends what enroll began.
	leave(e entry) []byte
	// beats are the kinds of heartbeats, given the answer to enroll.
	beats(e entry, enrolled []byte) []beat
}

// entry is an instance to register.
type entry struct {
	service string
	id      int
	mark    string // metadata "v"; distinguishes it from earlier registrations
}

// name is the name of the instance, unique over all services.
func (e entry) name() string { return fmt.Sprintf("%s-%d", e.service, e.id) }

// address is the address of the instance; many share one.
func (e entry) address() string {
	return fmt.Sprintf("10.%d.%d.%d", e.id>>16&255, e.id>>8&255, e.id&255)
}

// beat is one way to say that an instance lives.
type beat struct {
	label   string
	request []byte
}

// system is one server that is measured.
type system struct {
	api
	name    string
	address string // of HTTP
	index   string // header of an answer that tells how new it is
	marker  string // that the answer to list has once for each instance
	server  *kit.Process
}

// starter starts a server with its data in a directory.
type starter func(ctx context.Context, binary, dir string, log io.Writer) (*system, error)

// count tells how many instances an answer to list has.
func (s *system) count(body []byte) int { return bytes.Count(body, []byte(s.marker)) }

// ready waits until the server answers a request with success.
func (s *system) ready(ctx context.Context, request []byte) error {
	err := kit.Until(ctx, serving, asking, s.name, func(ctx context.Context) error { return s.once(ctx, request, nil) })
	if err != nil {
		s.server.Stop()
	}
	return err
}

// once sends one request on a connection of its own.
func (s *system) once(ctx context.Context, request []byte, answered func(answer) error) error {
	a, err := dial(ctx, s.address, s.index)
	if err != nil {
		return err
	}
	defer a.close()
	got, err := a.fetch(request)
	if err != nil || answered == nil {
		return err
	}
	return answered(got)
}

// askers are connections.
func (s *system) askers(ctx context.Context, n int) (all []*asker, end func(), err error) {
	end = func() {
		for _, a := range all {
			a.close()
		}
	}
	for range n {
		a, err := dial(ctx, s.address, s.index)
		if err != nil {
			end()
			return nil, nil, err
		}
		all = append(all, a)
	}
	return all, end, nil
}

// run measures workers of which each has a connection of its own, and what they take of the server.
func (s *system) run(ctx context.Context, d time.Duration, n int, work func(i int, a *asker) kit.Worker) (kit.Sample, error) {
	askers, end, err := s.askers(ctx, n)
	if err != nil {
		return kit.Sample{}, err
	}
	defer end()
	workers := make([]kit.Worker, n)
	for i, a := range askers {
		workers[i] = work(i, a)
	}
	before := s.server.Spent()
	out := kit.Closed(ctx, d, workers)
	out.Server, out.Load = s.server.Spent()-before, kit.Load()
	if out.Errors > 0 {
		return out, fault.New("run", fault.Unavailable, "%d failed, the first: %s", out.Errors, out.FirstError)
	}
	return out, ctx.Err()
}

// each sends a request for each entry, some at once, and gives the answers' bodies.
func (s *system) each(ctx context.Context, all []entry, request func(entry) []byte) ([][]byte, error) {
	askers, end, err := s.askers(ctx, connections)
	if err != nil {
		return nil, err
	}
	defer end()
	bodies, errs := make([][]byte, len(all)), make([]error, len(askers))
	var next atomic.Int64
	var asking sync.WaitGroup
	for w, a := range askers {
		asking.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(all) && errs[w] == nil; i = int(next.Add(1)) - 1 {
				var got answer
				got, errs[w] = a.fetch(request(all[i]))
				bodies[i] = slices.Clone(got.body)
			}
		})
	}
	asking.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, fault.Wrap(s.name, err)
		}
	}
	return bodies, nil
}
