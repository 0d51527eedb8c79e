package agent

import (
	"context"
	"fmt"
	"time"

	"github.com/blackhole/blackhole/internal/agent/catalog"
	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// catchUpTimeout bounds the wait of a linearizable answer.
const catchUpTimeout = 5 * time.Second

// reader answers from the catalog. For a linearizable answer it first waits
// until the catalog has caught up with the directory.
type reader struct {
	*catalog.Catalog
	local *local
}

// Discover implements instance.Catalog.
func (r *reader) Discover(ctx context.Context, q instance.Query) (instance.Result, error) {
	if err := r.fresh(ctx, q); err != nil {
		return instance.Result{}, fault.Wrap("agent.Discover", err)
	}
	return r.Catalog.Discover(ctx, q)
}

// Await implements instance.Catalog. Only the start of a linearizable wait is
// linearizable.
func (r *reader) Await(ctx context.Context, q instance.Query, after uint64) (instance.Result, error) {
	if err := r.fresh(ctx, q); err != nil {
		return instance.Result{}, fault.Wrap("agent.Await", err)
	}
	return r.Catalog.Await(ctx, q, after)
}

// Watch implements instance.Catalog. Only the start of a linearizable watch is
// linearizable.
func (r *reader) Watch(ctx context.Context, q instance.Query, after uint64, send func(instance.Batch) error) error {
	if err := r.fresh(ctx, q); err != nil {
		return fault.Wrap("agent.Watch", err)
	}
	return r.Catalog.Watch(ctx, q, after, send)
}

// List implements instance.Catalog.
func (r *reader) List(ctx context.Context, q instances.ListQuery) (instance.Result, error) {
	if q.Consistency == instance.Linearizable && r.local.directory != nil {
		err := instance.Name{Namespace: q.Namespace, Service: "any"}.Validate()
		if err == nil {
			err = r.catchUp(ctx, instance.Name{Namespace: q.Namespace})
		}
		if err != nil {
			return instance.Result{}, fault.Wrap("agent.List", err)
		}
	}
	return r.Catalog.List(ctx, q)
}

// LastBeat implements instance.Catalog.
func (r *reader) LastBeat(k instance.Key) (time.Time, bool) { return r.local.registry.LastBeat(k) }

// Expires implements instance.Catalog.
func (r *reader) Expires(list []*instance.Instance) time.Time { return r.local.registry.Expires(list) }

// fresh waits until the catalog is as new as a query requires.
func (r *reader) fresh(ctx context.Context, q instance.Query) error {
	if q.Consistency != instance.Linearizable || r.local.directory == nil {
		return nil
	}
	if err := q.Name.Validate(); err != nil {
		return err
	}
	return r.catchUp(ctx, q.Name)
}

// catchUp waits until the catalog has the present entries of a service, or of a
// namespace.
func (r *reader) catchUp(ctx context.Context, n instance.Name) error {
	within, cancel := context.WithTimeout(ctx, catchUpTimeout)
	defer cancel()
	list, revision, err := r.local.directory.Read(within, n)
	if err == nil {
		read := newReading(list, revision)
		err = r.Until(within, func() bool { return r.has(n, read) })
	}
	if err != nil && ctx.Err() == nil && within.Err() != nil {
		return &fault.Error{Kind: fault.Unavailable, Err: fmt.Errorf("%w within %v: %w", errBehind, catchUpTimeout, err)}
	}
	return err
}

// reading summarises an answer of the directory.
type reading struct {
	revision uint64
	last     uint64 // change of one of the instances
	count    int
}

func newReading(list []*instance.Instance, revision uint64) reading {
	r := reading{revision: revision, count: len(list)}
	for _, i := range list {
		r.last = max(r.last, i.Revision)
	}
	return r
}

// has reports whether the catalog contains a reading or a later state.
//
// The catalog's revision may stay below the reading's, because other keys
// of the group do not move it. From the last change of the read instances on,
// the catalog contains all of them. With an equal count none was removed unseen;
// a higher count means an unseen removal, or a local instance on its way to the
// directory, which looks the same.
func (r *reader) has(n instance.Name, read reading) bool {
	var found instance.Result
	var err error
	if n.Service == "" {
		found, err = r.Catalog.List(r.local.ctx, instances.ListQuery{Namespace: n.Namespace, Selector: instance.Selector{AnyStatus: true}})
	} else {
		found, err = r.Catalog.Discover(r.local.ctx, instance.Query{Name: n, Selector: instance.Selector{AnyStatus: true}})
	}
	switch {
	case err != nil || found.Stale:
		return false // its revisions may be the peer's own
	case found.Revision >= read.revision:
		return true
	}
	return found.Revision >= read.last && len(found.Instances) == read.count
}

// foreign reports whether another peer answers for an instance.
func (r *reader) foreign(i *instance.Instance) bool {
	return i.Peer != "" && i.Peer != r.local.config.Registry.Self
}

// elsewhere returns the instance of a key if another peer answers for it, as far
// as the catalog knows, otherwise nil. Blind says why the catalog may lack it; ""
// if it lacks nothing.
func (r *reader) elsewhere(k instance.Key) (i *instance.Instance, blind string) {
	q := instance.Query{Name: k.Name(), Selector: instance.Selector{ID: k.ID, AnyStatus: true}}
	found, err := r.Catalog.Discover(r.local.ctx, q)
	if err != nil || k.ID == "" || len(found.Instances) == 0 || !r.foreign(found.Instances[0]) {
		return nil, found.Reason
	}
	return found.Instances[0], found.Reason
}
