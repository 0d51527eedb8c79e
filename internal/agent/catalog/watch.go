package catalog

import (
	"context"
	"errors"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// hold keeps a service in the catalog during a wait, also an unknown one. A
// name without a service is its namespace.
// Errors: Invalid, field "namespace" or "service"; PoolExhausted.
func (c *Catalog) hold(n instance.Name) (*stream, error) {
	valid := n
	if n.Service == "" {
		valid.Service = "all"
	}
	if err := valid.Validate(); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.watches >= c.cfg.Watches {
		return nil, fault.Exhausted("", "watches", false, "%d watches are open, the limit: close one first", c.watches)
	}
	c.watches++
	s := c.open(n)
	s.holders++
	return s, nil
}

func (c *Catalog) release(s *stream) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watches--
	s.holders--
	c.drop(s)
}

// Await implements instance.Catalog. It returns at once, with an index up to
// after, if this catalog cannot tell the changes since; the reader continues
// from that index.
func (c *Catalog) Await(ctx context.Context, q instance.Query, after uint64) (instance.Result, error) {
	const op = "catalog.Await"
	p, era := c.link.Load(), c.settled().era
	res, err := c.Discover(ctx, q)
	if err != nil || after == 0 || res.Index > after {
		return res, fault.Wrap(op, err)
	}
	s, err := c.hold(q.Name)
	if err != nil {
		return instance.Result{}, fault.Wrap(op, err)
	}
	defer c.release(s)
	r, err := c.result(s, q.Selector)
	if err != nil {
		return instance.Result{}, fault.Wrap(op, err)
	}
	now := func() instance.Result {
		known := c.current()
		return instance.Result{View: r.read(s).view, Contact: known}
	}
	late := c.lateFor(after)
	for {
		changed, turned := s.changed.Wait(), c.linkChanged.Wait()
		res, h := now(), c.floor.Load()
		if c.link.Load() != p || h.era != era || differs(h, res.Index, after) {
			return res, nil
		}
		select {
		case <-changed:
		case <-turned:
		case <-late:
			if c.rev.Load() < after {
				return now(), nil
			}
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return now(), nil
			}
			return instance.Result{}, fault.Wrap(op, ctx.Err())
		}
	}
}

// differs reports whether the result of index may differ from the result of
// after.
func differs(h *logFloor, index, after uint64) bool {
	return index > after || index != after && h.mayMiss(after)
}

// lateFor returns a channel that ends the wait for an unknown revision; nil for
// a known one.
func (c *Catalog) lateFor(rev uint64) <-chan time.Time {
	if rev <= c.rev.Load() {
		return nil
	}
	return time.After(ahead)
}

// settled returns the log floor outside a change of numbering.
func (c *Catalog) settled() *logFloor {
	h := c.floor.Load()
	if h.busy {
		c.mu.Lock() // held during a change of numbering
		h = c.floor.Load()
		c.mu.Unlock()
	}
	return h
}

// steadily repeats a read interrupted by a Reset, so that revisions and results
// belong to one numbering.
func (c *Catalog) steadily(read func(h *logFloor)) {
	for h := (*logFloor)(nil); h != c.floor.Load(); {
		h = c.settled()
		read(h)
	}
}

// Watch implements instance.Catalog. It calls send in the caller's goroutine.
// Changes wait in the stream's log meanwhile; after a loss there the next batch
// is a Reset. Watchers of one result share the events of a batch, which are
// read-only.
func (c *Catalog) Watch(ctx context.Context, q instance.Query, after uint64, send func(instance.Batch) error) error {
	const op = "catalog.Watch"
	s, err := c.hold(q.Name)
	if err != nil {
		return fault.Wrap(op, err)
	}
	defer c.release(s)
	r, err := c.result(s, q.Selector)
	if err != nil {
		return fault.Wrap(op, err)
	}
	w := &watch{catalog: c, stream: s, selector: q.Selector, news: r.deltas, send: send, contact: c.link.Load()}
	if err := w.begin(ctx, after); err != nil {
		return fault.Wrap(op, err)
	}
	return fault.Wrap(op, w.follow(ctx))
}

// watch is the position of one reader in a stream.
type watch struct {
	catalog  *Catalog
	stream   *stream
	selector instance.Selector
	news     *deltas
	send     func(instance.Batch) error
	contact  *linkState // last one sent
	next     uint64     // number of the first entry not sent
	index    uint64     // last one sent
}

// begin sends the first batch, and a second one after a first one without
// content.
func (w *watch) begin(ctx context.Context, after uint64) error {
	if after == 0 {
		return w.reset()
	}
	w.index = after
	if after > w.catalog.rev.Load() {
		if err := w.send(instance.Batch{Index: after, Contact: w.catalog.current()}); err != nil {
			return err
		}
		if err := w.reach(ctx, after); err != nil {
			return err
		}
	}
	ok, err := w.resume(after)
	switch {
	case err != nil:
		return err
	case !ok:
		return w.reset()
	}
	return w.tell(true)
}

// resume finds the position after a revision. It returns false if the changes
// since are unknown.
func (w *watch) resume(after uint64) (ok bool, err error) {
	r, err := w.catalog.result(w.stream, w.selector)
	if err != nil {
		return false, err
	}
	w.catalog.steadily(func(h *logFloor) {
		known := w.catalog.rev.Load()
		v, st := r.read(w.stream), w.stream.state.Load()
		doubtful := h.mayMiss(after)
		switch ok = true; {
		case after > known:
			ok = false
		case !doubtful && after >= st.floor:
			w.next = st.after(after)
		case v.view.Index == after, !doubtful && v.view.Index < after: // unchanged since
			w.next = v.next
		default:
			ok = false
		}
	})
	return ok, nil
}

// reach waits for a revision, at most the time ahead.
func (w *watch) reach(ctx context.Context, rev uint64) error {
	late := time.NewTimer(ahead)
	defer late.Stop()
	for {
		moved := w.catalog.moved.Wait()
		if w.catalog.rev.Load() >= rev {
			return nil
		}
		select {
		case <-moved:
		case <-late.C:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// follow sends changes until ctx ends.
func (w *watch) follow(ctx context.Context) error {
	due := time.NewTicker(marks)
	defer due.Stop()
	for {
		changed, turned := w.stream.changed.Wait(), w.catalog.linkChanged.Wait()
		if err := w.tell(false); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-turned:
		case <-due.C:
			if err := w.tell(true); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// tell sends the changes since the last batch. Without changes it sends a mark
// if asked to, or after a change of the link state.
func (w *watch) tell(mark bool) error {
	p, known := w.catalog.link.Load(), w.catalog.current()
	st := w.stream.state.Load()
	if w.next < st.first {
		return w.reset()
	}
	d := w.news.since(st, w.next)
	w.next = d.to
	if len(d.events) == 0 && p == w.contact && !mark {
		return nil
	}
	w.contact = p
	w.index = max(w.index, known.Revision, d.rev)
	return w.send(instance.Batch{Events: d.events, Index: w.index, Contact: known})
}

// reset sends the complete result.
func (w *watch) reset() error {
	r, err := w.catalog.result(w.stream, w.selector)
	if err != nil {
		return err
	}
	var known instance.Contact
	var v *version
	w.catalog.steadily(func(*logFloor) {
		w.contact, known = w.catalog.link.Load(), w.catalog.current()
		v = r.read(w.stream)
	})
	w.next, w.index = v.next, max(known.Revision, v.view.Index)
	events := make([]instance.Event, len(v.view.Instances))
	for n, i := range v.view.Instances {
		events[n] = instance.Event{Type: instance.Added, Instance: i, Revision: i.Revision}
	}
	return w.send(instance.Batch{Reset: true, Events: events, Index: w.index, Contact: known})
}
