package member

import (
	"context"
	"sync"
	"time"

	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Those who wait for revisions are woken together. In a burst, those who were woken are first given time
// for their work, so that they take a bounded share of the processor, and find more at a time. MAGIC: a
// watcher takes some 10 us to look and to send what it finds, and its client as much.
const (
	workOfOne = 60 * time.Microsecond
	workLeast = time.Millisecond     // of all: less is not waited for, and a few watchers hear of each revision at once
	workMost  = 4 * time.Millisecond // of all: more is not waited for, however many there are
)

// pulse is the present revision, for those who wait for the next. The first after a quiet time is told at once.
type pulse struct {
	mu       sync.Mutex
	revision coord.Revision
	told     coord.Revision // the last that those who wait were told of
	next     *telling       // nil while nobody waits
	rest     time.Time      // nobody is woken before
	due      bool           // a timer will tell
}

// telling is when the next are told.
type telling struct {
	done    chan struct{}
	waiting int // guarded by the pulse's mu
}

// set moves the revision.
func (p *pulse) set(revision coord.Revision) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if revision == p.revision {
		return
	}
	p.revision = revision
	switch left := time.Until(p.rest); {
	case p.due:
	case left > 0:
		p.due = true
		time.AfterFunc(left, p.late) // it waits for nothing, and soon is over
	default:
		p.tell()
	}
}

func (p *pulse) late() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.due = false
	p.tell()
}

// tell wakes all who wait. mu is held.
func (p *pulse) tell() {
	p.told = p.revision
	if p.next == nil {
		return
	}
	if work := time.Duration(p.next.waiting) * workOfOne; work >= workLeast {
		p.rest = time.Now().Add(min(work, workMost))
	}
	close(p.next.done)
	p.next = nil
}

func (p *pulse) get() coord.Revision {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.revision
}

// join gives the revision that was told, and, unless it is above one, when to ask again.
func (p *pulse) join(revision coord.Revision) (coord.Revision, *telling) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.told > revision {
		return p.told, nil
	}
	if p.next == nil {
		p.next = &telling{done: make(chan struct{})}
	}
	p.next.waiting++
	return p.told, p.next
}

// leave is for who does not wait for the telling any more.
func (p *pulse) leave(t *telling) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t.waiting--
}

// Revision is the present one of the state here.
func (m *Member) Revision() coord.Revision { return m.pulse.get() }

// After waits until the revision is above one, and gives it. While revisions come fast and many wait,
// they hear of several at a time, at most 4 ms late.
//
// Errors: Timeout, Canceled; Unavailable when the member stops.
func (m *Member) After(ctx context.Context, revision coord.Revision) (coord.Revision, error) {
	const op = "member.After"
	for {
		now, next := m.pulse.join(revision)
		if next == nil {
			return now, nil
		}
		var err error
		select {
		case <-next.done:
			continue
		case <-ctx.Done():
			err = fault.Wrap(op, ctx.Err())
		case <-m.done:
			err = fault.Wrap(op, m.ended())
		}
		m.pulse.leave(next)
		return 0, err
	}
}
