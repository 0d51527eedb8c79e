package catalog

import (
	"context"
	"errors"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// hold keeps a service in the catalog for who waits for its changes, even if nobody knows it.
// Errors: Invalid, field "namespace" or "service"; LimitReached.
func (c *Catalog) hold(n instance.Name) (*stream, error) {
	if err := n.Validate(); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.watches >= c.cfg.Watches {
		return nil, fault.New("", fault.LimitReached, "%d watches are open, no more are allowed", c.watches)
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

// Await is that of instance.Catalog. It gives the result at once, with an index that is not above after,
// when this catalog cannot tell what happened since: the reader goes on from that index.
func (c *Catalog) Await(ctx context.Context, q instance.Query, after uint64) (instance.Result, error) {
	const op = "catalog.Await"
	p, era := c.contact.Load(), c.settled().era
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
		known := c.known()
		return instance.Result{View: r.read(s).view, Contact: known}
	}
	late := c.lateFor(after)
	for {
		changed, turned := s.changed.wait(), c.turned.wait()
		res, h := now(), c.horizon.Load()
		if c.contact.Load() != p || h.era != era || differs(h, res.Index, after) {
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

// differs reports whether who has the result of after may not have that of index.
func differs(h *horizon, index, after uint64) bool {
	return index > after || index != after && h.doubts(after)
}

// lateFor gives a channel that tells when to wait no longer for a revision; nil for one that is known.
func (c *Catalog) lateFor(rev uint64) <-chan time.Time {
	if rev <= c.rev.Load() {
		return nil
	}
	return time.After(c.cfg.Ahead)
}

// settled gives the horizon once no new numbering is being begun.
func (c *Catalog) settled() *horizon {
	h := c.horizon.Load()
	if h.busy {
		c.mu.Lock() // which who begins one holds
		h = c.horizon.Load()
		c.mu.Unlock()
	}
	return h
}

// steadily reads again while a Reset comes between, so that revisions and results are of one numbering.
func (c *Catalog) steadily(read func(h *horizon)) {
	for h := (*horizon)(nil); h != c.horizon.Load(); {
		h = c.settled()
		read(h)
	}
}

// Watch is that of instance.Catalog. Its send runs in the caller's goroutine; while it runs, changes
// wait in the service's log, and when that forgets them the next batch is a Reset. The events of a
// batch are shared by all who watch the same, and must not be written to.
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
	w := &watch{catalog: c, stream: s, selector: q.Selector, news: r.news, send: send, contact: c.contact.Load()}
	if err := w.begin(ctx, after); err != nil {
		return fault.Wrap(op, err)
	}
	return fault.Wrap(op, w.follow(ctx))
}

// watch is one reader's place in a stream.
type watch struct {
	catalog  *Catalog
	stream   *stream
	selector instance.Selector
	news     *news
	send     func(instance.Batch) error
	contact  *contact // told last
	next     uint64   // number of the first entry that was not told
	index    uint64   // told last
}

// begin sends the first batch, and a second when the first could only say to wait.
func (w *watch) begin(ctx context.Context, after uint64) error {
	if after == 0 {
		return w.reset()
	}
	w.index = after
	if after > w.catalog.rev.Load() {
		if err := w.send(instance.Batch{Index: after, Contact: w.catalog.known()}); err != nil {
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

// resume finds the place after a revision, and gives false when what happened since cannot be told.
func (w *watch) resume(after uint64) (ok bool, err error) {
	r, err := w.catalog.result(w.stream, w.selector)
	if err != nil {
		return false, err
	}
	w.catalog.steadily(func(h *horizon) {
		known := w.catalog.rev.Load()
		v, st := r.read(w.stream), w.stream.state.Load()
		doubtful := h.doubts(after)
		switch ok = true; {
		case after > known:
			ok = false
		case !doubtful && after >= st.floor:
			w.next = st.after(after)
		case v.view.Index == after, !doubtful && v.view.Index < after: // it did not change since
			w.next = v.next
		default:
			ok = false
		}
	})
	return ok, nil
}

// reach waits until a revision is known, for as long as it is worth it.
func (w *watch) reach(ctx context.Context, rev uint64) error {
	late := time.NewTimer(w.catalog.cfg.Ahead)
	defer late.Stop()
	for {
		moved := w.catalog.moved.wait()
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

// follow sends what happens.
func (w *watch) follow(ctx context.Context) error {
	marks := time.NewTicker(w.catalog.cfg.Marks)
	defer marks.Stop()
	for {
		changed, turned := w.stream.changed.wait(), w.catalog.turned.wait()
		if err := w.tell(false); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-turned:
		case <-marks.C:
			if err := w.tell(true); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// tell sends what happened since the last batch; nothing happened is told when it is to be a mark, or
// the state of contact is news.
func (w *watch) tell(mark bool) error {
	p, known := w.catalog.contact.Load(), w.catalog.known()
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

// reset sends all there is.
func (w *watch) reset() error {
	r, err := w.catalog.result(w.stream, w.selector)
	if err != nil {
		return err
	}
	var known instance.Contact
	var v *version
	w.catalog.steadily(func(*horizon) {
		w.contact, known = w.catalog.contact.Load(), w.catalog.known()
		v = r.read(w.stream)
	})
	w.next, w.index = v.next, max(known.Revision, v.view.Index)
	events := make([]instance.Event, len(v.view.Instances))
	for n, i := range v.view.Instances {
		events[n] = instance.Event{Type: instance.Added, Instance: i, Revision: i.Revision}
	}
	return w.send(instance.Batch{Reset: true, Events: events, Index: w.index, Contact: known})
}
