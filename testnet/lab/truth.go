package lab

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
	"github.com/blackhole/blackhole/testnet/await"
	"github.com/blackhole/blackhole/testnet/market"
	"github.com/blackhole/blackhole/testnet/nemesis/history"
)

const pollEvery = 200 * time.Millisecond

// truth knows all registered services, and compares answers with them during a scenario, by rule P of package history: a complete
// answer must have every service registered before the question, and no service withdrawn before the question.
type truth struct {
	asked  atomic.Uint64 // different questions, unknown to caches
	offers *history.Offers

	mu      sync.Mutex // guards pollers
	pollers []*poller
}

func newTruth() *truth { return &truth{offers: history.NewOffers(0)} }

// register registers an offer at a peer.
func (w *world) register(ctx context.Context, p *peer, id string) (key string, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	w.truth.offers.Begin(id, false, time.Since(w.began))
	r, err := p.Offers().Register(ctx, market.Plain(id, 1))
	if err != nil {
		return "", fault.Wrap(p.name, err)
	}
	w.truth.offers.Acknowledge(id, true, time.Since(w.began))
	w.say("%s registered %s, stored on %d of %d", p.name, id, r.Stored.On, r.Stored.Of)
	return r.Key, nil
}

// withdraw withdraws an offer at its peer.
func (w *world) withdraw(ctx context.Context, p *peer, id string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	w.truth.offers.Begin(id, true, time.Since(w.began))
	r, err := p.Offers().Withdraw(ctx, id)
	if err != nil {
		return fault.Wrap(p.name, err)
	}
	w.truth.offers.Acknowledge(id, true, time.Since(w.began))
	w.say("%s withdrew %s, stored on %d of %d", p.name, id, r.Stored.On, r.Stored.Of)
	return nil
}

// find asks a peer for usable offers, or for all, with a question unknown to caches.
func (w *world) find(ctx context.Context, p *peer, all bool) (query.AnswerView, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	least := market.PlainUptime / 2 * float64(w.truth.asked.Add(1)) / 1e6
	q := query.Query{Type: market.PlainType, Limit: queries.MaxLimit, Explain: true}
	q.MinUptime = &least
	if all {
		q.Health = query.HealthAny
	}
	return p.Offers().Query(ctx, q)
}

// result returns the result with a key, nil if there is none.
func result(a query.AnswerView, key string) *query.ResultView {
	if i := slices.IndexFunc(a.Results, func(r query.ResultView) bool { return r.Record.Key == key }); i >= 0 {
		return &a.Results[i]
	}
	return nil
}

// awaitUsable waits until a peer itself has measured the provider of a service as reachable, and
// finds the service among the usable ones. A provider without a measurement is usable, too.
func (w *world) awaitUsable(ctx context.Context, p *peer, key string, limit time.Duration) error {
	return await.Until(ctx, limit, p.name+" finds the service usable", func(ctx context.Context) error {
		usable, err := w.find(ctx, p, false)
		if err != nil {
			return err
		}
		r := result(usable, key)
		if r != nil && r.Measured != nil && r.Measured.State == records.Reachable && r.Measured.Peers == 0 {
			return nil
		}
		all, err := w.find(ctx, p, true)
		if err != nil {
			return err
		}
		if r = result(all, key); r == nil {
			return fault.New("lab.awaitUsable", fault.NotFound, "unknown; complete %v %s", all.Complete, all.Reason)
		}
		return fault.New("lab.awaitUsable", fault.NotFound, "known, but without a good measurement: %+v", r.Measured)
	})
}

// awaitKnown waits until a peer finds a service, reachable or not.
func (w *world) awaitKnown(ctx context.Context, p *peer, key string, limit time.Duration) error {
	return await.Until(ctx, limit, p.name+" knows the service", func(ctx context.Context) error {
		a, err := w.find(ctx, p, true)
		if err == nil && result(a, key) == nil {
			err = fault.New("lab.awaitKnown", fault.NotFound, "not among %d; complete %v %s", len(a.Results), a.Complete, a.Reason)
		}
		return err
	})
}

// awaitGone waits until a peer no longer finds a withdrawn service.
func (w *world) awaitGone(ctx context.Context, p *peer, key string, limit time.Duration) error {
	err := await.Until(ctx, limit, p.name+" loses the withdrawn service", func(ctx context.Context) error {
		a, err := w.find(ctx, p, true)
		if err == nil && result(a, key) != nil {
			err = fault.New("lab.awaitGone", fault.Exists, "still found; complete %v %s", a.Complete, a.Reason)
		}
		return err
	})
	if err != nil && ctx.Err() == nil {
		w.violated("%v", err)
		return nil
	}
	return err
}

// poller asks one peer again and again.
type poller struct {
	peer     *peer
	cancel   context.CancelFunc
	done     chan struct{}
	answers  int
	complete int
	failed   int
	wrong    int            // complete answers
	lie      string         // the first of them
	reasons  map[string]int // of incomplete answers
}

// watch polls a peer until the end of the scenario.
func (w *world) watch(ctx context.Context, p *peer) {
	ctx, cancel := context.WithCancel(ctx)
	one := &poller{peer: p, cancel: cancel, done: make(chan struct{}), reasons: map[string]int{}}
	w.truth.mu.Lock()
	w.truth.pollers = append(w.truth.pollers, one)
	w.truth.mu.Unlock()
	go func() { // until stop
		defer close(one.done)
		for await.Pause(ctx, pollEvery) == nil {
			w.check(ctx, one)
		}
	}()
}

// check asks once and compares the answer.
func (w *world) check(ctx context.Context, one *poller) {
	a := history.Answer{From: one.peer.name, Asked: time.Since(w.began), Found: make(map[string]int)}
	got, err := w.find(ctx, one.peer, true)
	a.Answered = time.Since(w.began)
	switch {
	case ctx.Err() != nil:
		return
	case err != nil:
		one.failed++
		return
	case !got.Complete:
		one.answers++
		one.reasons[got.Reason]++
		return
	}
	one.answers++
	one.complete++
	for _, r := range got.Results {
		if w.truth.offers.Knows(r.Record.ID) {
			a.Found[r.Record.ID] = 1
		}
	}
	if differs := w.truth.offers.Differs(a); differs != "" {
		if one.wrong++; one.wrong == 1 {
			one.lie = fmt.Sprintf("at %v, source %s: %s%v", a.Answered, got.Source, differs, got.Notes)
			w.say("%s said complete %s", one.peer.name, one.lie)
		}
	}
}

// leave ends the polling of one peer before its stop.
func (t *truth) leave(p *peer) {
	t.mu.Lock()
	pollers := slices.Clone(t.pollers)
	t.mu.Unlock()
	for _, one := range pollers {
		if one.peer == p {
			one.cancel()
			<-one.done
		}
	}
}

// stop ends all polling. A second stop does nothing.
func (t *truth) stop() {
	t.mu.Lock()
	pollers := t.pollers
	t.mu.Unlock()
	for _, p := range pollers {
		p.cancel()
		<-p.done
	}
}

// report counts the answers of each polled peer. Call it after stop.
func (t *truth) report() []string {
	var lines []string
	for _, p := range t.pollers {
		lines = append(lines, fmt.Sprintf("%s gave %d answers: %d complete, %d of these wrong; %d requests failed; reasons of incomplete answers: %v",
			p.peer.name, p.answers, p.complete, p.wrong, p.failed, p.reasons))
	}
	return lines
}

// lies lists the peers with wrong complete answers. Call it after stop.
func (t *truth) lies() []string {
	var all []string
	for _, p := range t.pollers {
		if p.wrong > 0 {
			all = append(all, fmt.Sprintf("%s said complete and was wrong, %d times, first %s", p.peer.name, p.wrong, p.lie))
		}
	}
	slices.Sort(all)
	return all
}
