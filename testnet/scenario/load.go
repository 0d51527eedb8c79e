package scenario

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/internal/operator"
	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
	"github.com/blackhole/blackhole/testnet/app"
	"github.com/blackhole/blackhole/testnet/await"
	"github.com/blackhole/blackhole/testnet/market"
	"github.com/blackhole/blackhole/testnet/network"
)

const (
	loaded    = "soak" // service
	prefix    = "soak/"
	ttl       = 5 * time.Second // of leases; the minimum
	offers    = 20              // of each peer, again and again: a peer remembers every name that it withdrew
	instances = 100             // the same
	following = 3 * time.Second // length of a watch

	roundLimit = 10 * time.Second
)

// job is what one client does at a peer again and again. A round gets its number, from 0.
type job struct {
	name  string
	pace  time.Duration // from the end of a round to the next
	round func(ctx context.Context, p *network.Peer, n int) error
}

// jobs is the load at every peer.
func jobs() []job {
	return []job{
		{"offer", time.Second, changeOffer},
		{"query", 200 * time.Millisecond, ask},
		{"instance", time.Second, liveAndDie},
		{"key", 200 * time.Millisecond, writeKey},
		{"lock", 500 * time.Millisecond, takeLock},
		{"watch keys", 0, watchKeys},
		{"watch offers", 0, watchOffers},
		{"watch instances", 0, watchInstances},
	}
}

// load starts all jobs at every running peer. They end with flat.
func (r *run) load([]string) error {
	ctx, cancel := context.WithCancel(r.ctx)
	var crew sync.WaitGroup
	for _, m := range r.living() {
		for _, j := range jobs() {
			crew.Go(func() {
				for n := 0; ctx.Err() == nil; n++ {
					r.counts.note(j.name, limited(ctx, func(ctx context.Context) error { return j.round(ctx, m.peer(), n) }))
					_ = await.Pause(ctx, j.pace) // the loop checks the context
				}
			})
		}
	}
	r.end = func() {
		cancel()
		crew.Wait()
	}
	return nil
}

// limited bounds a call. A call that the end of the load cut off has not failed.
func limited(ctx context.Context, do func(context.Context) error) error {
	bounded, cancel := context.WithTimeout(ctx, roundLimit)
	defer cancel()
	if err := do(bounded); ctx.Err() == nil {
		return err
	}
	return nil
}

// changeOffer registers all offers, updates them, withdraws them, and so on.
func changeOffer(ctx context.Context, p *network.Peer, n int) (err error) {
	o := offer(p, n%offers, n)
	switch n / offers % 3 {
	case 0:
		_, err = p.Offers().Register(ctx, o)
	case 1:
		_, err = p.Offers().Update(ctx, o)
	default:
		_, err = p.Offers().Withdraw(ctx, o.ID)
	}
	return err
}

func offer(p *network.Peer, i, version int) records.Offer {
	o := market.Plain(fmt.Sprintf("%s-offer-%d", p.Name, i), version)
	*o.Location.Latitude, *o.Location.Longitude = float64(40+i), float64(i)
	return o
}

// ask asks a question, most of which no cache knows.
func ask(ctx context.Context, p *network.Peer, n int) error {
	least := float64(n%5000) / 100
	q := query.Query{Type: market.PlainType, Limit: 1 + n%50, Near: &query.Near{Latitude: float64(n % 60), Longitude: float64(n % 120)}}
	q.MinUptime, q.Health = &least, query.HealthAny
	_, err := p.Offers().Query(ctx, q)
	return err
}

// liveAndDie registers an instance and sends heartbeats for those before. Half of the instances leave, and half
// expire without a word. Some announce an offer, which ends with them.
func liveAndDie(ctx context.Context, p *network.Peer, n int) error {
	id := func(n int) string { return fmt.Sprintf("%s-%d", p.Name, n%instances) }
	r := app.Registration{ID: id(n), Host: "127.0.0.1", Port: 9, UnhealthyAfter: "4s", RemoveAfter: "8s"}
	if n%10 == 0 {
		r.Offer = offer(p, offers+n%instances/10, n)
	}
	if _, err := p.API.Register(ctx, loaded, r, false); err != nil {
		return err
	}
	for back := 1; back <= min(n, 3); back++ {
		if err := p.API.Heartbeat(ctx, loaded, id(n-back)); err != nil {
			return err
		}
	}
	if left := n - 4; left >= 0 && left%2 == 0 {
		return p.API.Deregister(ctx, loaded, id(left))
	}
	return nil
}

// writeKey writes a new key, removes an older one, and reads what is left.
func writeKey(ctx context.Context, p *network.Peer, n int) error {
	key := func(n int) string { return fmt.Sprintf("%s%s/%d", prefix, p.Name, n) }
	old := coord.Exactly(key(n - 20))
	_, _, err := ops.Of(p.Coordination()).Do(ctx, ops.Command{Op: &ops.Txn{
		Then: []ops.Step{{Put: &ops.Put{Key: key(n), Value: []byte(key(n))}}, {Delete: &old}},
	}})
	if err == nil {
		_, _, err = ops.Of(p.Coordination()).Range(ctx, ops.Query{Span: coord.Under(prefix + p.Name)}, ops.Linearizable)
	}
	return err
}

// takeLock opens a connection and a session, takes one of a few locks and a new one, and writes under it. Every fourth
// client goes without a word: its lease ends by itself.
func takeLock(ctx context.Context, p *network.Peer, n int) error {
	c, err := operator.New(p.GRPC)
	if err != nil {
		return err
	}
	defer c.Close()
	s, err := c.Locks().Session(ctx, client.TTL(ttl))
	if err != nil {
		return err
	}
	for _, name := range []string{fmt.Sprintf("%sshared/%d", prefix, n%3), fmt.Sprintf("%sown/%s/%d", prefix, p.Name, n)} {
		held, err := s.Lock(ctx, name, client.Wait(2*time.Second))
		if err != nil {
			continue // others have it
		}
		_, _, err = ops.Of(c.Coordination()).Do(ctx, ops.Command{Op: &ops.Txn{
			If:   []ops.Compare{ops.IfHolds(name, coord.Token(held.Token()))},
			Then: []ops.Step{{Put: &ops.Put{Key: "leased/" + name, Value: []byte(p.Name), Lease: coord.LeaseID(s.Lease())}}},
		}})
		if err != nil {
			return err
		}
	}
	if n%4 == 3 {
		return nil
	}
	return s.Close(ctx)
}

// watchFor calls follow with a new client for a while. The watch must live until then.
func watchFor(ctx context.Context, p *network.Peer, follow func(context.Context, *operator.Client) error) error {
	c, err := operator.New(p.GRPC)
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := context.WithCancel(ctx) // a deadline would travel to the peer, which might end the watch first
	defer cancel()
	defer time.AfterFunc(following, cancel).Stop()
	if err := follow(ctx, c); ctx.Err() == nil {
		return err
	}
	return nil
}

func watchKeys(ctx context.Context, p *network.Peer, _ int) error {
	return watchFor(ctx, p, func(ctx context.Context, c *operator.Client) error {
		for _, err := range c.KV().Watch(ctx, client.Watch{Span: client.Under(prefix)}) {
			if err != nil {
				return err
			}
		}
		return nil
	})
}

func watchOffers(ctx context.Context, p *network.Peer, _ int) error {
	return watchFor(ctx, p, func(ctx context.Context, c *operator.Client) error {
		q := query.Query{Type: market.PlainType}
		q.Health = query.HealthAny
		w, err := c.Offers().Watch(ctx, q, "")
		for err == nil {
			_, err = w.Next()
		}
		return err
	})
}

func watchInstances(ctx context.Context, p *network.Peer, _ int) error {
	return watchFor(ctx, p, func(ctx context.Context, _ *operator.Client) error {
		return p.API.Watch(ctx, loaded, func(app.Change) error { return nil })
	})
}

// counts counts rounds by job.
type counts struct {
	mu     sync.Mutex // guards what follows
	done   map[string]int
	failed map[string]int
	last   map[string]error
}

func newCounts() *counts {
	return &counts{done: make(map[string]int), failed: make(map[string]int), last: make(map[string]error)}
}

func (c *counts) note(name string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.done[name]++
	if err != nil {
		c.failed[name]++
		c.last[name] = err
	}
}

func (c *counts) total() (done, failed int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, n := range c.done {
		done, failed = done+n, failed+c.failed[name]
	}
	return done, failed
}

// show prints the counts, and reports whether most rounds of each job succeeded.
func (c *counts) show(w io.Writer) (loaded bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	loaded = true
	fmt.Fprintf(w, "\n%-16s %8s %8s\n", "JOB", "ROUNDS", "FAILED")
	for _, name := range slices.Sorted(maps.Keys(c.done)) {
		last := ""
		if c.failed[name] > 0 {
			last = "  last: " + c.last[name].Error()
		}
		fmt.Fprintf(w, "%-16s %8d %8d%s\n", name, c.done[name], c.failed[name], last)
		loaded = loaded && 2*c.failed[name] < c.done[name]
	}
	return loaded
}
