package sim

import (
	"context"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/contract/discovery"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// join: a network comes up, is filled, and is asked by every peer and by some that join
// late; changes reach watchers; withdrawals hold.
func playJoin(w *cluster) {
	w.grow()
	w.use(2, 100)
}

// worldwide: a type with so many services that its widest cells are full, and questions without a place.
func playWorldwide(w *cluster) {
	w.market.single = true
	w.grow()
	for _, name := range []string{"first worldwide questions", "again"} {
		w.ask(w.peers, asking{name: name, quiet: true, each: 5, within: time.Minute, draw: w.market.worldwide})
	}
}

// use has everybody ask, watchers watch, services change, and late peers join.
func (w *cluster) use(each, updates int) {
	w.ask(w.peers, asking{name: "first questions", quiet: true, each: each, within: 10 * time.Second})
	w.watch(min(10, len(w.peers)), updates)
	w.change()
	time.Sleep(max(quieting, forgets))
	w.ask(w.some(len(w.peers)/2+1), asking{name: "after changes", quiet: true, each: each, within: 10 * time.Second})
	late := w.join(max(1, w.params.Peers/10))
	w.ask(late, asking{name: "late joiners", quiet: true, each: 2, within: time.Second})
	w.ask(w.some(20), asking{name: "others after these", quiet: true, each: each, within: 10 * time.Second})
}

// offers draws n offers.
func (w *cluster) offers(n int) []records.Offer {
	out := make([]records.Offer, n)
	for i := range out {
		out[i] = w.market.offer()
	}
	return out
}

// change withdraws a tenth of the services and reprices another.
func (w *cluster) change() {
	all := w.owned(w.alive())
	w.rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	var wg sync.WaitGroup
	for i, s := range all[:len(all)/5] {
		price := w.market.price()
		wg.Go(func() {
			if i%2 == 0 {
				w.withdraw(s.owner, s.record.Name().ID)
			} else {
				w.reprice(s.owner, s.record.Name().ID, price)
			}
		})
	}
	wg.Wait()
}

// watch has watchers follow the place with the most services, and measures how long
// updates there take to each of them.
func (w *cluster) watch(watchers, updates int) {
	c := w.market.cities[0]
	var targets []service
	for _, s := range w.owned(w.alive()) {
		if plan := compiled(around(kinds()[0], c.Point, 500)); plan.Match(s.record) {
			targets = append(targets, s)
		}
	}
	if len(targets) == 0 {
		return
	}
	ctx, cancel := context.WithCancel(w.t.Context())
	var watches sync.WaitGroup
	sights := newSights()
	for _, p := range w.some(watchers) {
		q := around(kinds()[0], c.Point, 500)
		q.Limit = 0 // a watch sends all matches
		watcher, err := p.discovery.Watch(ctx, q, "")
		if err != nil {
			w.fail("watch: %v", err)
			continue
		}
		watches.Go(func() {
			defer watcher.Close()
			sights.follow(ctx, p.id, watcher)
		})
	}
	time.Sleep(5 * time.Second) // subscriptions travel
	for i := range updates {
		s, start := targets[i%len(targets)], time.Now()
		if r := w.reprice(s.owner, s.record.Name().ID, w.market.price()); r != nil {
			sights.made(r, start)
		}
		time.Sleep(100 * time.Millisecond)
	}
	for range 35 { // a watch asks again every 30 s
		if w.visible, w.figures.Unseen = sights.times(watchers); w.figures.Unseen == 0 {
			break
		}
		time.Sleep(time.Second)
	}
	cancel()
	watches.Wait()
}

// sights are which watchers saw which updates, and when. It is safe for concurrent use.
type sights struct {
	mu    sync.Mutex // guards what follows
	began map[sight]time.Time
	seen  map[sight]map[peer.ID]time.Time
}

// sight is a version of a record.
type sight struct {
	name records.Name
	seq  uint64
}

func newSights() *sights {
	return &sights{began: make(map[sight]time.Time), seen: make(map[sight]map[peer.ID]time.Time)}
}

func (s *sights) made(r *records.Record, start time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.began[sight{r.Name(), r.Sequence()}] = start
}

// follow notes what a watcher sees until ctx ends.
func (s *sights) follow(ctx context.Context, who peer.ID, watcher discovery.Watcher) {
	for {
		ev, err := watcher.Next(ctx)
		if err != nil {
			return
		}
		if ev.Record == nil || ev.Kind == query.Removed {
			continue
		}
		what := sight{ev.Record.Name(), ev.Record.Sequence()}
		s.mu.Lock()
		if s.seen[what] == nil {
			s.seen[what] = make(map[peer.ID]time.Time)
		}
		s.seen[what][who] = time.Now()
		s.mu.Unlock()
	}
}

// times gives how long each update took to each watcher, and how many are still unseen.
func (s *sights) times(watchers int) (took []time.Duration, unseen int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for what, start := range s.began {
		for _, at := range s.seen[what] {
			took = append(took, at.Sub(start))
		}
		unseen += watchers - len(s.seen[what])
	}
	return took, unseen
}
