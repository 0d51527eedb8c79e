package startup

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/testnet/app"
	"github.com/blackhole/blackhole/testnet/await"
)

const (
	service   = "startup"
	lasting   = "1h"                  // without a heartbeat
	callLimit = 8 * time.Second       // longer than a peer waits for the directory
	breath    = 50 * time.Millisecond // between two attempts of an application
	patience  = 3 * time.Minute       // of an application without an answer
	turnKey   = "turn"                // metadata: which of its registrations it is
)

// entry is the last answer to an application.
type entry struct {
	turn      int
	committed bool     // that registration was committed
	sure      bool     // committed, like all earlier ones at that time
	gone      bool     // deregistered
	uncertain bool     // a registration without an answer may have been accepted and may surface later; or no peer knew the instance to deregister
	story     []string // all answers, for people
}

// visit runs the plans of applications.
func (r *run) visit(ctx context.Context, group *errgroup.Group, all []visit) {
	for n, v := range all {
		rng := r.rng(100 + n)
		group.Go(func() error { return r.attend(ctx, rng, v) })
	}
}

// rng draws the actions of one application.
func (r *run) rng(n int) *rand.Rand { return rand.New(rand.NewPCG(r.Seed, uint64(n))) }

// attend plays the life of one application.
func (r *run) attend(ctx context.Context, rng *rand.Rand, v visit) error {
	began := time.Now()
	if err := await.Pause(ctx, v.at); err != nil {
		return err
	}
	home, err := r.register(ctx, rng, v.id, 1)
	if err != nil {
		return err
	}
	if v.again > 0 {
		if err := await.Pause(ctx, v.again-time.Since(began)); err != nil {
			return err
		}
		_, err = r.register(ctx, rng, v.id, 2)
		return err
	}
	if v.leave > 0 {
		if err := await.Pause(ctx, v.leave-time.Since(began)); err != nil {
			return err
		}
		return r.deregister(ctx, home, v.id)
	}
	return nil
}

// register tries one peer after the other until one accepts the application, and returns that
// peer.
func (r *run) register(ctx context.Context, rng *rand.Rand, id string, turn int) (*peer, error) {
	var home *peer
	err := r.insist(ctx, id+" registers", func(ctx context.Context) error {
		home = r.peers[rng.IntN(len(r.peers))]
		if !home.running() {
			return fault.New(home.name, fault.Unavailable, "does not run")
		}
		receipt, err := home.api.Register(ctx, service, app.Registration{
			ID: id, Host: "127.0.0.1", Port: 9, UnhealthyAfter: lasting, RemoveAfter: lasting, Metadata: map[string]string{turnKey: strconv.Itoa(turn)},
		}, false)
		r.note(home, id, entry{turn: turn, committed: receipt.Committed}, err)
		return err
	})
	return home, err
}

// deregister removes an application at its accepting peer, which may have to restart first.
func (r *run) deregister(ctx context.Context, home *peer, id string) error {
	return r.insist(ctx, id+" leaves", func(ctx context.Context) error {
		err := home.api.Deregister(ctx, service, id)
		if kind := fault.KindOf(err); err != nil && (kind == fault.Gone || kind == fault.NotFound) {
			err = nil // by an earlier attempt
		}
		r.note(home, id, entry{gone: true}, err)
		return err
	})
}

// leave removes an application through any answering peer, while its own peer may be cut off.
func (r *run) leave(ctx context.Context, rng *rand.Rand, id string) error {
	return r.insist(ctx, id+" leaves by way of any peer", func(ctx context.Context) error {
		by := r.peers[rng.IntN(len(r.peers))]
		err := by.api.Deregister(ctx, service, id)
		e := entry{gone: true}
		switch fault.KindOf(err) {
		case fault.Gone:
			err = nil // by an earlier attempt
		case fault.NotFound: // perhaps the same, or the lease of its peer has ended
			e.uncertain, err = true, nil
		}
		r.note(by, id, e, err)
		return err
	})
}

// insist repeats do until it succeeds.
func (r *run) insist(ctx context.Context, what string, do func(context.Context) error) error {
	return await.Until(ctx, patience, what, func(ctx context.Context) error {
		bounded, cancel := context.WithTimeout(ctx, callLimit)
		defer cancel()
		err := do(bounded)
		if err != nil && ctx.Err() == nil {
			_ = await.Pause(ctx, breath) // the loop checks the context
		}
		return err
	})
}

// note records the answer of a peer to an application.
func (r *run) note(p *peer, id string, e entry, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	known, said := r.book[id], "kept"
	e.story, e.uncertain = known.story, known.uncertain || e.uncertain
	e.sure = e.committed && (known.sure || known.turn == 0) && !known.uncertain
	switch {
	case err != nil:
		r.outcome.Refused++
		said = "no: " + fault.Message(err)
		e.uncertain = e.uncertain || !e.gone
		e.turn, e.committed, e.sure, e.gone = known.turn, known.committed, known.sure, known.gone
	case e.gone:
		r.outcome.Deregistered++
		e.turn, said = known.turn, "gone"
	case e.committed:
		r.outcome.Committed++
		said = "committed"
	default:
		r.outcome.Kept++
	}
	e.story = append(e.story, fmt.Sprintf("%.3f s, turn %d at %s: %s", time.Since(r.began).Seconds(), e.turn, p.name, said))
	r.book[id] = e
}

// settle records that every peer has every instance: a kept first registration is committed by
// now.
func (r *run) settle() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, e := range r.book {
		if e.turn == 1 && !e.uncertain && !e.gone {
			e.committed, e.sure = true, true
			r.book[id] = e
		}
	}
}

// converge waits until every peer agrees with the answers given to applications, and returns the
// time that took. A disagreement after the limit is a violation.
func (r *run) converge(ctx context.Context, after string) (seconds float64, err error) {
	began := time.Now()
	wrong := make([]error, len(r.peers))
	var work sync.WaitGroup
	for i, p := range r.peers {
		work.Go(func() {
			wrong[i] = await.Until(ctx, r.Bound, "every instance", func(ctx context.Context) error { return r.complete(ctx, p) })
		})
	}
	work.Wait()
	if ctx.Err() != nil {
		return 0, fault.Wrap("startup.converge", ctx.Err())
	}
	peers := make(map[string][]string)
	for i, err := range wrong {
		if err != nil {
			peers[err.Error()] = append(peers[err.Error()], r.peers[i].name)
		}
	}
	for _, what := range slices.Sorted(maps.Keys(peers)) {
		r.violated("after %s, at %v: %s%s", after, peers[what], what, r.stories(what))
	}
	r.outcome.Instances = len(r.expected())
	took := time.Since(began)
	list, err := r.peers[0].api.Instances(ctx, service, true)
	if err != nil {
		return took.Seconds(), fault.Wrap("startup.converge", err)
	}
	for _, i := range list.Instances {
		if e := r.book[i.ID]; e.committed && !e.sure && turnOf(i) != e.turn {
			r.outcome.Overtaken = append(r.outcome.Overtaken, i.ID)
		}
	}
	slices.Sort(r.outcome.Overtaken)
	r.outcome.Overtaken = slices.Compact(r.outcome.Overtaken)
	return took.Seconds(), nil
}

// stories returns the answers to the applications named in a text.
func (r *run) stories(text string) string {
	var all strings.Builder
	for _, id := range slices.Sorted(maps.Keys(r.book)) {
		if strings.Contains(text, id) {
			fmt.Fprintf(&all, "\n  %s: %s", id, strings.Join(r.book[id].story, "; "))
		}
	}
	return all.String()
}

// expected returns the required instances. A departed instance may remain only if the records are
// uncertain.
func (r *run) expected() map[string]entry {
	all := maps.Clone(r.book)
	maps.DeleteFunc(all, func(_ string, e entry) bool { return e.gone && !e.uncertain })
	return all
}

// complete fails unless a peer has exactly the expected instances, each once, by both dialects,
// with fresh answers.
func (r *run) complete(ctx context.Context, p *peer) error {
	list, err := p.api.Instances(ctx, service, true)
	if err != nil {
		return err
	}
	if err := compare(list, r.expected()); err != nil {
		return fault.Wrap("dialect A", err)
	}
	other, err := p.api.Service(ctx, service)
	if err != nil {
		return err
	}
	return fault.Wrap("dialect B", compare(other, r.expected()))
}

// compare fails unless a list has exactly the expected instances, each once, in the form of the
// last certain registration.
func compare(list app.List, want map[string]entry) error {
	const op = "startup.compare"
	if list.Stale {
		return fault.New(op, fault.Unavailable, "the answer is stale")
	}
	var missing, doubled, strange, old []string
	times := make(map[string]int)
	for _, i := range list.Instances {
		e, ok := want[i.ID]
		switch times[i.ID]++; {
		case !ok:
			strange = append(strange, i.ID)
		case times[i.ID] > 1:
			doubled = append(doubled, i.ID)
		case e.sure && turnOf(i) != e.turn:
			old = append(old, i.ID)
		}
	}
	for id, e := range want {
		if times[id] == 0 && !e.gone {
			missing = append(missing, id)
		}
	}
	if slices.Sort(missing); len(missing)+len(doubled)+len(strange)+len(old) > 0 {
		return fault.New(op, fault.Conflict, "%d of %d: missing %v, twice %v, not registered %v, as they were before %v",
			len(list.Instances), len(want), missing, doubled, strange, old)
	}
	return nil
}

// turnOf returns the number of the registration of an instance.
func turnOf(i app.Instance) int {
	n, _ := strconv.Atoi(fmt.Sprint(i.Metadata[turnKey])) // 0 for foreign metadata
	return n
}
