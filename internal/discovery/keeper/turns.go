package keeper

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// turns let a bounded number of requests work at a time. Waiting requests go on in the order of their arrival from one address
// prefix, and the prefixes take turns: many peers of one owner wait for each other, and not the others for them. The number of
// requests that wait is bounded by that of the streams. It is safe for concurrent use.
type turns struct {
	mu      sync.Mutex // guards the fields below
	free    int        // 0 while a request waits
	waiting map[netip.Prefix][]chan struct{}
	order   []netip.Prefix // prefixes with waiting requests, the next one first
}

func newTurns(n int) *turns {
	return &turns{free: n, waiting: make(map[netip.Prefix][]chan struct{})}
}

// enter waits for the turn of a request. Without an error the caller must call leave.
func (t *turns) enter(ctx context.Context, from netip.Prefix) error {
	mine := t.queue(from)
	if mine == nil {
		return nil
	}
	select {
	case <-mine:
		return nil
	case <-ctx.Done():
		if !t.giveUp(from, mine) {
			t.leave() // the turn came meanwhile
		}
		return ctx.Err()
	}
}

// queue takes a free place and returns nil, or joins the queue and returns the channel that closes when the turn comes.
func (t *turns) queue(from netip.Prefix) chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.free > 0 {
		t.free--
		return nil
	}
	mine := make(chan struct{})
	if len(t.waiting[from]) == 0 {
		t.order = append(t.order, from)
	}
	t.waiting[from] = append(t.waiting[from], mine)
	return mine
}

// giveUp leaves the queue. It reports false if the turn has come.
func (t *turns) giveUp(from netip.Prefix, mine chan struct{}) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	at := slices.Index(t.waiting[from], mine)
	if at < 0 {
		return false
	}
	if t.waiting[from] = slices.Delete(t.waiting[from], at, at+1); len(t.waiting[from]) == 0 {
		delete(t.waiting, from)
		t.order = slices.DeleteFunc(t.order, func(p netip.Prefix) bool { return p == from })
	}
	return true
}

// leave ends the work of a request. The next one takes its place.
func (t *turns) leave() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.order) == 0 {
		t.free++
		return
	}
	next := t.order[0]
	t.order = t.order[1:]
	first := t.waiting[next][0]
	if t.waiting[next] = t.waiting[next][1:]; len(t.waiting[next]) > 0 {
		t.order = append(t.order, next)
	} else {
		delete(t.waiting, next)
	}
	close(first)
}

// leaveAfter ends the work of a request, and lets the next one begin some time later.
func (t *turns) leaveAfter(d time.Duration) {
	if d < time.Millisecond {
		t.leave()
		return
	}
	time.AfterFunc(d, t.leave)
}
