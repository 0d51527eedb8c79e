package keeper

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/discovery/protocol"
)

// turns let a bounded number of requests work at a time. Waiting requests form two lines, which take turns: one of the known
// peers, one of all others. In a line the address prefixes take turns, and the requests of one prefix go on in the order of their
// arrival. A crowd behind one prefix therefore delays mainly itself. The limit of streams bounds the waiting requests. It is safe
// for concurrent use.
type turns struct {
	known func(peer.ID) bool // must be fast

	mu    sync.Mutex // guards the fields below
	free  int        // 0 while a request waits
	lines [2]line    // of the known peers, of all others
	last  int        // the line that had the last turn
}

// line are waiting requests by address prefix. Its zero value is empty.
type line struct {
	waiting map[netip.Prefix][]chan struct{} // each closes when its turn comes
	order   []netip.Prefix                   // prefixes with waiting requests, the next one first
}

func newTurns(n int, known func(peer.ID) bool) *turns { return &turns{known: known, free: n} }

// enter waits for the turn of a request. Without an error the caller must call leave.
func (t *turns) enter(ctx context.Context, from protocol.Source) error {
	in := &t.lines[1]
	if t.known(from.Peer) {
		in = &t.lines[0]
	}
	mine := t.queue(in, from.Prefix)
	if mine == nil {
		return nil
	}
	select {
	case <-mine:
		return nil
	case <-ctx.Done():
		if !t.giveUp(in, from.Prefix, mine) {
			t.leave() // the turn came meanwhile
		}
		return ctx.Err()
	}
}

// queue takes a free place and returns nil, or joins a line and returns the channel that closes when the turn comes.
func (t *turns) queue(in *line, from netip.Prefix) chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.free > 0 {
		t.free--
		return nil
	}
	mine := make(chan struct{})
	in.add(from, mine)
	return mine
}

// giveUp leaves a line. It reports false if the turn has come.
func (t *turns) giveUp(in *line, from netip.Prefix, mine chan struct{}) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return in.remove(from, mine)
}

// leave ends the work of a request. The next one takes its place.
func (t *turns) leave() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for range t.lines {
		t.last = (t.last + 1) % len(t.lines)
		if next := t.lines[t.last].next(); next != nil {
			close(next)
			return
		}
	}
	t.free++
}

// leaveAfter ends the work of a request, and lets the next one begin some time later. Its timer touches t alone, so it may fire
// after the server has closed.
func (t *turns) leaveAfter(d time.Duration) {
	if d < time.Millisecond {
		t.leave()
		return
	}
	time.AfterFunc(d, t.leave)
}

func (l *line) add(from netip.Prefix, one chan struct{}) {
	if len(l.waiting[from]) == 0 {
		l.order = append(l.order, from)
	}
	if l.waiting == nil {
		l.waiting = make(map[netip.Prefix][]chan struct{})
	}
	l.waiting[from] = append(l.waiting[from], one)
}

// next takes the next request out of the line; nil of an empty line.
func (l *line) next() chan struct{} {
	if len(l.order) == 0 {
		return nil
	}
	from := l.order[0]
	l.order = l.order[1:]
	first, others := l.waiting[from][0], l.waiting[from][1:]
	if len(others) > 0 {
		l.waiting[from], l.order = others, append(l.order, from)
	} else {
		delete(l.waiting, from)
	}
	return first
}

// remove takes a request out of the line. It reports false for a missing request.
func (l *line) remove(from netip.Prefix, one chan struct{}) bool {
	at := slices.Index(l.waiting[from], one)
	if at < 0 {
		return false
	}
	if l.waiting[from] = slices.Delete(l.waiting[from], at, at+1); len(l.waiting[from]) == 0 {
		delete(l.waiting, from)
		l.order = slices.DeleteFunc(l.order, func(p netip.Prefix) bool { return p == from })
	}
	return true
}
