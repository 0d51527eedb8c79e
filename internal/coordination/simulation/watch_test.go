package simulation

import (
	"errors"
	"slices"
	"time"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/audit"
	"github.com/blackhole/blackhole/internal/coordination/machine"
)

// watched is a member's message to a watcher.
type watched struct {
	watch coord.Watch
	batch coord.Batch
	err   error
}

// watch follows a part of the keyspace, at one member after the other.
func (c *cluster) watch(p *proc, i int) {
	watcher := c.newClient(50 + i)
	span := []coord.Span{{}, coord.Under("plain/"), coord.Under("db/"), coord.Exactly("plain/1")}[c.rng.IntN(4)]
	stream := audit.NewStream(&c.oracle.truth, coord.Watch{Span: span, From: 1, Prev: c.chance(0.5), Limit: 1 + c.rng.IntN(20)})
	for {
		w := stream.Watch()
		answer, ok := watcher.ask(p, request{local: func(m *machine.Machine) any {
			b, err := m.Events(w)
			return watched{w, b, err}
		}}, attempt)
		got, _ := answer.value.(watched)
		gone := new(coord.Compacted)
		switch {
		case !ok:
		case errors.As(got.err, &gone):
			c.figures.compacted++
			if gone.Revision < w.From || gone.Revision > c.oracle.machine.Compacted() {
				c.breach("W7", "a watch from %d is told that %d is compacted; it is %d", w.From, gone.Revision, c.oracle.machine.Compacted())
			}
			c.list(p, watcher, span)
			w.From = gone.Current + 1
			stream = audit.NewStream(&c.oracle.truth, w)
		case got.err != nil:
			c.breach("W7", "a watch from %d fails: %v", w.From, got.err)
		default:
			c.figures.batches++
			c.must(stream.Batch(got.batch))
		}
		if !got.batch.More {
			p.sleep(c.between(0, 400*time.Millisecond))
		}
		if c.chance(0.2) {
			c.lookBack(p, watcher, span)
		}
		if c.chance(0.02) {
			p.sleep(c.between(0, 20*time.Second)) // falls behind
		}
	}
}

// lookBack watches from about the beginning of a member's history: the events are complete, or refused.
func (c *cluster) lookBack(p *proc, watcher *client, span coord.Span) {
	type view struct {
		watched
		first coord.Revision // of the history
	}
	before := coord.Revision(c.rng.IntN(2))
	answer, ok := watcher.ask(p, request{local: func(m *machine.Machine) any {
		w := coord.Watch{Span: span, From: max(1, m.Compacted()+before), Prev: true}
		b, err := m.Events(w)
		return view{watched{w, b, err}, m.Compacted() + 1}
	}}, attempt)
	if !ok {
		return
	}
	got, gone := answer.value.(view), new(coord.Compacted)
	switch {
	case got.watch.From >= got.first && got.err == nil:
		c.figures.batches++
		c.must(audit.NewStream(&c.oracle.truth, got.watch).Batch(got.batch))
	case got.watch.From >= got.first || !errors.As(got.err, &gone):
		c.breach("W7", "a watch from %d, where history begins at %d: %v", got.watch.From, got.first, got.err)
	}
}

// listed is a member's content of a span.
type listed struct {
	page machine.Page
	err  error
}

// list reads a span of any member: it equals the oracle's at that revision.
func (c *cluster) list(p *proc, watcher *client, span coord.Span) {
	answer, ok := watcher.ask(p, request{local: func(m *machine.Machine) any {
		page, err := m.Range(machine.Query{Span: span})
		return listed{page, err}
	}}, attempt)
	if !ok {
		return
	}
	got := answer.value.(listed)
	want, err := c.oracle.machine.Range(machine.Query{Span: span, At: got.page.Revision})
	if got.err != nil || got.page.Revision > c.oracle.machine.Revision() {
		c.breach("W7", "a list at %d fails: %v", got.page.Revision, got.err)
	}
	if err == nil && got.page.Revision > 0 && !slices.EqualFunc(want.Keys, got.page.Keys, sameVersion) {
		c.breach("W7", "a list at %d is not what was at that revision", got.page.Revision)
	}
}

func sameVersion(a, b *coord.KeyValue) bool {
	return a.Key == b.Key && string(a.Value) == string(b.Value) && a.ModRevision == b.ModRevision && a.Version == b.Version
}
