package sim

import (
	"context"
	"sync"
	"time"

	"github.com/blackhole/blackhole/pkg/discovery"
	"github.com/blackhole/blackhole/pkg/records"
)

// join: a network comes up, is filled, and is asked by every peer and by some that join
// late; changes reach watchers; withdrawals hold.
func (w *world) playJoin() {
	w.join(w.params.Peers)
	w.populate(w.peers, w.params.Records)
	time.Sleep(quieting)
	w.ask(w.peers, asking{name: "first questions", quiet: true, each: 2, within: 20 * time.Second})
	late := w.join(max(1, w.params.Peers/10))
	w.ask(late, asking{name: "late joiners", quiet: true, each: 2, within: time.Second})
	w.watch(min(10, len(w.peers)), 100)
	w.change()
	time.Sleep(max(quieting, forgets))
	w.ask(w.some(len(w.peers)/2+1), asking{name: "after changes", quiet: true, each: 2, within: 10 * time.Second})
}

// offers draws n offers.
func (w *world) offers(n int) []records.Offer {
	out := make([]records.Offer, n)
	for i := range out {
		out[i] = w.market.offer()
	}
	return out
}

// change withdraws a tenth of the services and reprices another.
func (w *world) change() {
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
func (w *world) watch(watchers, updates int) {
	c := w.market.cities[0]
	var targets []service
	for _, s := range w.owned(w.alive()) {
		if plan := compiled(around(kinds()[0], c.point, 500)); plan.Match(s.record) {
			targets = append(targets, s)
		}
	}
	if len(targets) == 0 {
		return
	}
	type sight struct {
		name records.Name
		seq  uint64
	}
	ctx, cancel := context.WithCancel(w.t.Context())
	var wg sync.WaitGroup
	seen := make([]map[sight]time.Time, watchers)
	for i, p := range w.some(watchers) {
		seen[i] = make(map[sight]time.Time)
		watcher, err := p.discovery.Watch(ctx, around(kinds()[0], c.point, 500), "")
		if err != nil {
			w.fail("watch: %v", err)
			continue
		}
		wg.Go(func() {
			defer watcher.Close()
			for {
				ev, err := watcher.Next(ctx)
				if err != nil {
					return
				}
				if ev.Record != nil && ev.Kind != discovery.Removed {
					seen[i][sight{ev.Record.Name(), ev.Record.Sequence()}] = time.Now()
				}
			}
		})
	}
	time.Sleep(5 * time.Second) // subscriptions travel
	began := make(map[sight]time.Time)
	for i := range updates {
		s, start := targets[i%len(targets)], time.Now()
		if r := w.reprice(s.owner, s.record.Name().ID, w.market.price()); r != nil {
			began[sight{r.Name(), r.Sequence()}] = start
		}
		time.Sleep(100 * time.Millisecond)
	}
	time.Sleep(35 * time.Second) // a watch asks again every 30 s
	cancel()
	wg.Wait()
	for what, start := range began {
		for i := range seen {
			if at, ok := seen[i][what]; ok {
				w.visible = append(w.visible, at.Sub(start))
			} else {
				w.figures.Unseen++
			}
		}
	}
}
