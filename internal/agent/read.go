package agent

import (
	"context"
	"fmt"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// catchUp bounds how long a linearizable answer waits for what it must have.
const catchUp = 5 * time.Second

// Discover is instance.Catalog's.
func (s *Service) Discover(ctx context.Context, q instance.Query) (instance.Result, error) {
	if err := s.fresh(ctx, q); err != nil {
		return instance.Result{}, fault.Wrap("agent.Discover", err)
	}
	return s.Catalog.Discover(ctx, q)
}

// Await is instance.Catalog's. When it is linearizable the result of now is made sure of first, and what
// comes later is waited for here.
func (s *Service) Await(ctx context.Context, q instance.Query, after uint64) (instance.Result, error) {
	if err := s.fresh(ctx, q); err != nil {
		return instance.Result{}, fault.Wrap("agent.Await", err)
	}
	return s.Catalog.Await(ctx, q, after)
}

// Watch is instance.Catalog's. When it is linearizable it begins with what is there now.
func (s *Service) Watch(ctx context.Context, q instance.Query, after uint64, send func(instance.Batch) error) error {
	if err := s.fresh(ctx, q); err != nil {
		return fault.Wrap("agent.Watch", err)
	}
	return s.Catalog.Watch(ctx, q, after, send)
}

// List is instance.Catalog's.
func (s *Service) List(ctx context.Context, q instance.ListQuery) (instance.Result, error) {
	if q.Consistency == instance.Linearizable && s.Directory != nil {
		err := instance.Name{Namespace: q.Namespace, Service: "any"}.Validate()
		if err == nil {
			err = s.catchUp(ctx, instance.Name{Namespace: q.Namespace})
		}
		if err != nil {
			return instance.Result{}, fault.Wrap("agent.List", err)
		}
	}
	return s.Catalog.List(ctx, q)
}

// fresh makes sure that the catalog has what a query asks for as new as it asks.
func (s *Service) fresh(ctx context.Context, q instance.Query) error {
	if q.Consistency != instance.Linearizable || s.Directory == nil {
		return nil
	}
	if err := q.Name.Validate(); err != nil {
		return err
	}
	return s.catchUp(ctx, q.Name)
}

// catchUp waits until the catalog has what the directory has of a service, or of a namespace, now.
func (s *Service) catchUp(ctx context.Context, n instance.Name) error {
	within, cancel := context.WithTimeout(ctx, catchUp)
	defer cancel()
	list, revision, err := s.Directory.Read(within, n)
	if err == nil {
		read := newReading(list, revision)
		err = s.Until(within, func() bool { return s.has(n, read) })
	}
	if err != nil && ctx.Err() == nil && within.Err() != nil {
		return &fault.Error{Kind: fault.Unavailable, Err: fmt.Errorf("%w within %v: %w", errBehind, catchUp, err)}
	}
	return err
}

// reading is what the directory had of a service.
type reading struct {
	revision uint64
	last     uint64 // change of an instance of it
	count    int
}

func newReading(list []*instance.Instance, revision uint64) reading {
	r := reading{revision: revision, count: len(list)}
	for _, i := range list {
		r.last = max(r.last, i.Revision)
	}
	return r
}

// has reports whether the catalog has what was read, or what came of it.
//
// The catalog's revision may stay below that of the reading although nothing is missing, for it does not
// move with the rest of the group's state. But from the last change of an instance that was read on, the
// catalog has all of them; if it has no more than them, none was removed that it does not know of, and if it has
// more, some were. One that runs here and is on its way to the directory is waited for, too: it cannot be told
// from one that was taken over and removed elsewhere.
func (s *Service) has(n instance.Name, read reading) bool {
	var found instance.Result
	var err error
	if n.Service == "" {
		found, err = s.Catalog.List(s.ctx, instance.ListQuery{Namespace: n.Namespace, Selector: instance.Selector{AnyStatus: true}})
	} else {
		found, err = s.Catalog.Discover(s.ctx, instance.Query{Name: n, Selector: instance.Selector{AnyStatus: true}})
	}
	switch {
	case err != nil || found.Stale:
		return false // its numbers may be its own
	case found.Revision >= read.revision:
		return true
	}
	return found.Revision >= read.last && len(found.Instances) == read.count
}

// foreign reports whether another peer answers for an instance.
func (s *Service) foreign(i *instance.Instance) bool {
	return i.Peer != "" && i.Peer != s.Registry.Self
}
