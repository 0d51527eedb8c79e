package scenario

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/testnet/app"
	"github.com/blackhole/blackhole/testnet/await"
	"github.com/blackhole/blackhole/testnet/lan"
	"github.com/blackhole/blackhole/testnet/network"
	"github.com/blackhole/blackhole/testnet/process"
)

const (
	service  = "startup"
	lasting  = "1h"                  // without a heartbeat
	appLimit = 8 * time.Second       // longer than a peer waits for the directory
	breath   = 50 * time.Millisecond // between two attempts of an application
	patience = 3 * time.Minute       // of an application without an answer
	turnKey  = "turn"                // metadata: which of its registrations it is

	uptime   = 2 * time.Second // longest of a peer that dies early
	downtime = time.Second     // longest until its return
	replace  = 6 * time.Second // silence before a voter is replaced
)

// ledger has the answers to applications.
type ledger struct {
	began time.Time

	mu   sync.Mutex // guards book
	book map[string]entry
}

// entry is the last answer to an application.
type entry struct {
	turn      int
	committed bool     // that registration was committed
	sure      bool     // committed, like all earlier ones at that time
	gone      bool     // deregistered
	uncertain bool     // a registration without an answer may have been accepted and may surface later; or no peer knew the instance to deregister
	story     []string // all answers, for people
}

// house gives every peer of a network its place and its identity, so that each knows all others before the first start.
func (r *run) house(args []string) error {
	n, err := strconv.Atoi(args[0])
	founding, wrong := strconv.Atoi(args[1])
	if err := errors.Join(err, wrong); err != nil {
		return fault.As("house", fault.Invalid, err)
	}
	if r.lan, err = lan.New(n); err != nil {
		if r.lan = nil; fault.KindOf(err) != fault.Unsupported {
			return err
		}
		fmt.Fprintf(r.log, "no cuts: %v\n", err)
	}
	places, err := r.lan.Places(n)
	if err != nil {
		return err
	}
	var founders, addresses []string
	for i, place := range places {
		m := &member{name: fmt.Sprintf("peer-%d", i+1), api: app.At(place.HTTP, r.lan.Dial(i))}
		m.spec = process.Spec{Name: m.name, Binary: r.Binary, Data: filepath.Join(r.dir, "at-"+m.name, "peer-1"), Replace: replace, Log: r.log, Place: place}
		id, err := process.Identity(r.ctx, r.Binary, m.spec.Data)
		if err != nil {
			return err
		}
		r.all, addresses = append(r.all, m), append(addresses, place.Listen+"/p2p/"+id)
		if i < founding {
			founders = append(founders, id)
		}
	}
	for i, m := range r.all {
		m.spec.Founders, m.spec.Bootstrap = founders, slices.Delete(slices.Clone(addresses), i, i+1)
	}
	r.outcome.Peers = n
	return nil
}

// storm starts all peers of the house at times of the seed. Some die soon, before or after they serve, and come back.
func (r *run) storm(args []string) error {
	spread, err := time.ParseDuration(args[0])
	most, wrong := strconv.Atoi(args[1])
	if err := errors.Join(err, wrong); err != nil {
		return fault.As("storm", fault.Invalid, err)
	}
	within := func(d time.Duration) time.Duration { return time.Duration(r.rng.Int64N(int64(d))) }
	spread = within(spread) + 1 // from all at once to one after the other
	doomed := r.rng.Perm(len(r.all))[:r.rng.IntN(most+1)]
	r.outcome.Killed += len(doomed)
	var crew errgroup.Group
	for i, m := range r.all {
		at, up, down, dies := within(spread), within(uptime), within(downtime), slices.Contains(doomed, i)
		crew.Go(func() error {
			if err := await.Pause(r.ctx, at); err != nil {
				return err
			}
			if dies {
				p, err := process.Start(m.spec)
				if err != nil {
					return err
				}
				m.up.Store(true)
				err = await.Pause(r.ctx, up)
				m.up.Store(false)
				p.Kill()
				if err := errors.Join(err, await.Pause(r.ctx, down)); err != nil {
					return err
				}
			}
			m.up.Store(true)
			m.Network, err = network.Start(r.ctx, network.Config{
				Peers: 1, Binary: r.Binary, Dir: filepath.Dir(m.spec.Data), Known: true, Keep: true, Log: r.log,
				Adapt: func(_ int, s *process.Spec) { *s = m.spec }, Dial: r.dials(i),
			})
			return err
		})
	}
	return crew.Wait()
}

// applications lets applications register in the background: PREFIX-00 and so on, the first of which move, and the next leave.
func (r *run) applications(args []string) error {
	within, err := time.ParseDuration(args[1])
	if err != nil {
		return fault.As("applications", fault.Invalid, err)
	}
	var counts [3]int // in all, that move, that leave
	for i, text := range args[2:] {
		if counts[min(i, 2)], err = strconv.Atoi(text); err != nil {
			return fault.As("applications", fault.Invalid, err)
		}
	}
	for i := range counts[0] {
		id, moves, leaves := fmt.Sprintf("%s-%02d", args[0], i), i < counts[1], i >= counts[1] && i < counts[1]+counts[2]
		r.employ(within, func(rng *rand.Rand) error {
			home, err := r.register(rng, id, 1)
			if err != nil || !moves && !leaves {
				return err
			}
			if err := await.Pause(r.ctx, time.Duration(rng.Int64N(int64(within)))); err != nil {
				return err
			}
			if moves {
				_, err := r.register(rng, id, 2)
				return err
			}
			return r.deregister(home, id)
		})
	}
	return nil
}

// employ runs an application in the background, with its own chances, after a pause.
func (r *run) employ(within time.Duration, life func(*rand.Rand) error) {
	r.apps++
	rng := rand.New(rand.NewPCG(r.Seed, uint64(200+r.apps)))
	r.crew.Go(func() error {
		if err := await.Pause(r.ctx, time.Duration(rng.Int64N(int64(within)))); err != nil {
			return err
		}
		return life(rng)
	})
}

// rest waits for the applications under way.
func (r *run) rest() error {
	crew := r.crew
	r.crew = new(errgroup.Group)
	return crew.Wait()
}

// move registers applications again, with any answering peer.
func (r *run) move(args []string) error {
	for _, id := range args {
		r.employ(time.Millisecond, func(rng *rand.Rand) error {
			_, err := r.register(rng, id, 2)
			return err
		})
	}
	return r.rest()
}

// depart deregisters applications in the background, through any answering peer: their own may be cut off.
func (r *run) depart(args []string) error {
	within, err := time.ParseDuration(args[0])
	if err != nil {
		return fault.As("depart", fault.Invalid, err)
	}
	for _, id := range args[1:] {
		r.employ(within, func(rng *rand.Rand) error {
			return r.insist(id+" leaves by way of any peer", func(ctx context.Context) error {
				by := r.all[rng.IntN(len(r.all))]
				err := by.api.Deregister(ctx, service, id)
				e := entry{gone: true}
				switch fault.KindOf(err) {
				case fault.Gone:
					err = nil // by an earlier attempt
				case fault.NotFound: // perhaps the same, or the lease of its peer has ended
					e.uncertain, err = true, nil
				}
				r.ledger.note(by.name, id, e, err)
				return err
			})
		})
	}
	return nil
}

// register tries one peer after the other until one accepts the application, and returns that peer.
func (r *run) register(rng *rand.Rand, id string, turn int) (home *member, err error) {
	return home, r.insist(id+" registers", func(ctx context.Context) error {
		home = r.all[rng.IntN(len(r.all))]
		if !home.up.Load() {
			return fault.New(home.name, fault.Unavailable, "does not run")
		}
		receipt, err := home.api.Register(ctx, service, app.Registration{
			ID: id, Host: "127.0.0.1", Port: 9, UnhealthyAfter: lasting, RemoveAfter: lasting, Metadata: map[string]string{turnKey: strconv.Itoa(turn)},
		}, false)
		r.ledger.note(home.name, id, entry{turn: turn, committed: receipt.Committed}, err)
		return err
	})
}

// deregister removes an application at its accepting peer, which may have to restart first.
func (r *run) deregister(home *member, id string) error {
	return r.insist(id+" leaves", func(ctx context.Context) error {
		err := home.api.Deregister(ctx, service, id)
		if kind := fault.KindOf(err); err != nil && (kind == fault.Gone || kind == fault.NotFound) {
			err = nil // by an earlier attempt
		}
		r.ledger.note(home.name, id, entry{gone: true}, err)
		return err
	})
}

// insist repeats do until it succeeds.
func (r *run) insist(what string, do func(context.Context) error) error {
	return await.Until(r.ctx, patience, what, func(ctx context.Context) error {
		bounded, cancel := context.WithTimeout(ctx, appLimit)
		defer cancel()
		err := do(bounded)
		if err != nil {
			_ = await.Pause(ctx, breath) // the loop checks the context
		}
		return err
	})
}

// cut cuts the network in two, of sizes and members of the seed.
func (r *run) cut([]string) error {
	if r.lan == nil {
		return fault.New("cut", fault.Unsupported, "all peers are on loopback: begin the line with [lan]")
	}
	side := r.rng.Perm(len(r.all))[:1+r.rng.IntN(len(r.all)/2)]
	for _, a := range side {
		for b := range r.all {
			if !slices.Contains(side, b) {
				r.cuts = append(r.cuts, [2]int{a, b}, [2]int{b, a})
			}
		}
	}
	for _, c := range r.cuts {
		r.lan.Cut(c[0], c[1])
	}
	return nil
}

// mend waits for the applications under way, and ends the cut.
func (r *run) mend([]string) error {
	err := r.rest()
	for _, c := range r.cuts {
		r.lan.Mend(c[0], c[1])
	}
	r.cuts = nil
	return err
}

// known waits for the applications under way, and until every peer agrees with the answers that they got.
func (r *run) known([]string) error {
	if err := r.rest(); err != nil {
		return err
	}
	began := time.Now()
	wrong := make([]error, len(r.all))
	var work sync.WaitGroup
	for i, m := range r.all {
		work.Go(func() {
			wrong[i] = await.Until(r.ctx, r.Bound, "A9 every instance at "+m.name, func(ctx context.Context) error { return r.complete(ctx, m) })
		})
	}
	work.Wait()
	r.outcome.Formed = max(r.outcome.Formed, time.Since(began).Seconds())
	if err := errors.Join(wrong...); err != nil {
		return fault.New("known", fault.Conflict, "%w%s", err, r.ledger.stories(err.Error()))
	}
	r.ledger.settle()
	return nil
}

// note records the answer of a peer to an application.
func (l *ledger) note(peer, id string, e entry, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	known, said := l.book[id], "kept"
	e.story, e.uncertain = known.story, known.uncertain || e.uncertain
	e.sure = e.committed && (known.sure || known.turn == 0) && !known.uncertain
	switch {
	case err != nil:
		said = "no: " + fault.Message(err)
		e.uncertain = e.uncertain || !e.gone
		e.turn, e.committed, e.sure, e.gone = known.turn, known.committed, known.sure, known.gone
	case e.gone:
		e.turn, said = known.turn, "gone"
	case e.committed:
		said = "committed"
	}
	e.story = append(e.story, fmt.Sprintf("%.3f s, turn %d at %s: %s", time.Since(l.began).Seconds(), e.turn, peer, said))
	l.book[id] = e
}

// settle records that every peer has every instance: a kept first registration is committed by
// now.
func (l *ledger) settle() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, e := range l.book {
		if e.turn == 1 && !e.uncertain && !e.gone {
			e.committed, e.sure = true, true
			l.book[id] = e
		}
	}
}

// stories returns the answers to the applications named in a text.
func (l *ledger) stories(text string) string {
	var all strings.Builder
	for _, id := range slices.Sorted(maps.Keys(l.book)) {
		if strings.Contains(text, id) {
			fmt.Fprintf(&all, "\n  %s: %s", id, strings.Join(l.book[id].story, "; "))
		}
	}
	return all.String()
}

// expected returns the required instances. A departed instance may remain only if the records are
// uncertain.
func (l *ledger) expected() map[string]entry {
	all := maps.Clone(l.book)
	maps.DeleteFunc(all, func(_ string, e entry) bool { return e.gone && !e.uncertain })
	return all
}

// complete fails unless a peer has exactly the expected instances, each once, by both dialects,
// with fresh answers.
func (r *run) complete(ctx context.Context, m *member) error {
	list, err := m.api.Instances(ctx, service, true)
	if err != nil {
		return err
	}
	if err := compare(list, r.ledger.expected()); err != nil {
		return fault.Wrap("instances", err)
	}
	other, err := m.api.Service(ctx, service)
	if err != nil {
		return err
	}
	return fault.Wrap("SAP-044", compare(other, r.ledger.expected()))
}

// compare fails unless a list has exactly the expected instances, each once, in the form of the
// last certain registration.
func compare(list app.List, want map[string]entry) error {
	const op = "scenario.compare"
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
