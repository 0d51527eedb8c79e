package lab

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
	"github.com/blackhole/blackhole/testnet/await"
)

const (
	kind      = "compute" // type of all offers
	uptime    = 99.5      // percent, of all offers
	pollEvery = 200 * time.Millisecond
)

// truth knows all registered services, and compares answers with them during a scenario. A complete
// answer must have every service registered before the question, and no service withdrawn before
// the question.
type truth struct {
	asked atomic.Uint64 // different questions, unknown to caches

	mu      sync.Mutex // guards what follows
	live    map[string]*service
	pollers []*poller
}

// service is one registered offer. A zero time means not yet.
type service struct {
	registered time.Time // answer to the registration
	leaving    time.Time // call to withdraw
	withdrawn  time.Time // answer to the withdrawal
}

func newTruth() *truth { return &truth{live: make(map[string]*service)} }

// offer returns an offer with an id.
func offer(id string) records.Offer {
	lat, lon, up := 52.5, 13.4, uptime

	return records.Offer{
		ID:           id,
		Metadata:     records.Metadata{Type: kind, Name: id, Version: "1.0.0", Endpoints: []string{"https://" + id + ".example.com"}},
		Capabilities: &records.Capabilities{Compute: &records.Compute{CPUCores: 8}},
		Location:     &records.Location{Latitude: &lat, Longitude: &lon, Country: "DE", City: "Berlin"},
		Health:       &records.Health{Status: "HEALTHY", UptimePercent: &up},
	}
}

// register registers an offer at a peer.
func (w *world) register(ctx context.Context, p *peer, id string) (key string, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	r, err := p.Register(ctx, offer(id))
	if err != nil {
		return "", fault.Wrap(p.name, err)
	}
	w.truth.mu.Lock()
	w.truth.live[r.Key] = &service{registered: time.Now()}
	w.truth.mu.Unlock()
	w.say("%s registered %s, stored on %d of %d", p.name, id, r.Stored.On, r.Stored.Of)
	return r.Key, nil
}

// withdraw withdraws an offer at its peer.
func (w *world) withdraw(ctx context.Context, p *peer, key, id string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	w.truth.mu.Lock()
	w.truth.live[key].leaving = time.Now()
	w.truth.mu.Unlock()
	r, err := p.Withdraw(ctx, id)
	if err != nil {
		return fault.Wrap(p.name, err)
	}
	w.truth.mu.Lock()
	w.truth.live[key].withdrawn = time.Now()
	w.truth.mu.Unlock()
	w.say("%s withdrew %s, stored on %d of %d", p.name, id, r.Stored.On, r.Stored.Of)
	return nil
}

// find asks a peer for usable offers, or for all, with a question unknown to caches.
func (w *world) find(ctx context.Context, p *peer, all bool) (query.AnswerView, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	least := uptime / 2 * float64(w.truth.asked.Add(1)) / 1e6
	q := query.Query{Type: kind, Limit: query.MaxLimit, Explain: true}
	q.MinUptime = &least
	if all {
		q.Health = query.HealthAny
	}
	return p.Query(ctx, q)
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
	wrong    int
	lies     map[lie]*span
	reasons  map[string]int // of incomplete answers
}

// lie is one error of complete answers.
type lie struct{ what, key string }

// span counts equal lies, with their times since the change of the service.
type span struct {
	times       int
	first, last time.Duration
}

// watch polls a peer until the end of the scenario.
func (w *world) watch(ctx context.Context, p *peer) {
	ctx, cancel := context.WithCancel(ctx)
	one := &poller{peer: p, cancel: cancel, done: make(chan struct{}), lies: map[lie]*span{}, reasons: map[string]int{}}
	w.truth.mu.Lock()
	w.truth.pollers = append(w.truth.pollers, one)
	w.truth.mu.Unlock()
	go func() { // until stop
		defer close(one.done)
		tick := time.NewTicker(pollEvery)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				w.check(ctx, one)
			}
		}
	}()
}

// check asks once and compares the answer.
func (w *world) check(ctx context.Context, one *poller) {
	asked := time.Now()
	a, err := w.find(ctx, one.peer, true)
	answered := time.Now()
	if ctx.Err() != nil {
		return
	}
	t := w.truth
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case err != nil:
		one.failed++
		return
	case !a.Complete:
		one.answers++
		one.reasons[a.Reason]++
		return
	}
	one.answers++
	one.complete++
	wrong := false
	for key, s := range t.live {
		what, since := s.judge(result(a, key) != nil, asked, answered)
		if what == "" {
			continue
		}
		wrong = true
		l := lie{fmt.Sprintf("%s (source %s)", what, a.Source), key}
		if one.lies[l] == nil {
			w.say("%s %s %s: %v", one.peer.name, what, key, a.Notes)
			one.lies[l] = &span{first: since}
		}
		one.lies[l].times++
		one.lies[l].last = since
	}
	if wrong {
		one.wrong++
	}
}

// judge describes the error of a complete answer, or returns "". The duration is the time since the
// change of the service.
func (s *service) judge(found bool, asked, answered time.Time) (string, time.Duration) {
	switch {
	case !found && s.registered.Before(asked) && (s.leaving.IsZero() || s.leaving.After(answered)):
		return "lacked a registered service", asked.Sub(s.registered)
	case found && !s.withdrawn.IsZero() && s.withdrawn.Before(asked):
		return "had a withdrawn service", asked.Sub(s.withdrawn)
	default:
		return "", 0
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

// lies lists the errors of complete answers. Call it after stop.
func (t *truth) lies() []string {
	var all []string
	for _, p := range t.pollers {
		for l, s := range p.lies {
			all = append(all, fmt.Sprintf("%s said complete and %s, %d times, %.1f to %.1f s after the change: %s",
				p.peer.name, l.what, s.times, s.first.Seconds(), s.last.Seconds(), l.key))
		}
	}
	slices.Sort(all)
	return all
}

func readAtMost(r io.Reader, most int64) (string, error) {
	b, err := io.ReadAll(io.LimitReader(r, most))
	return string(b), err
}
