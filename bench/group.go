package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/internal/operator"
	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/testnet/await"
	"github.com/blackhole/blackhole/testnet/network"
	"github.com/blackhole/blackhole/testnet/process"
	quantiles "github.com/blackhole/blackhole/testnet/sample"
)

const (
	maxConnections = 16 // clients, spread over the servers; the driver of etcd has as many
	sessionTTL     = time.Minute
	atOnce         = 64               // calls that prepare a measurement
	writers        = 32               // that share the write rate
	catching       = 30 * time.Second // for the last event, after the last write
	settling       = 3 * time.Second  // after the return of a server
)

// order is a unit of work for a group. The driver of etcd reads it as JSON.
type order struct {
	Op       string        `json:"op"`
	Clients  int           `json:"clients"`
	Duration time.Duration `json:"duration"`
	Batch    int           `json:"batch"` // leases in a message; writes in a second
	Run      int           `json:"run"`   // makes names differ
	At       site          `json:"at"`
}

// site is where the clients of a task are.
type site string

const (
	everywhere site = "" // spread over the servers
	atLeader   site = "leader"
	atFollower site = "follower"
)

func (p site) String() string {
	switch p {
	case atLeader:
		return ", at the leader"
	case atFollower:
		return ", at a follower"
	default:
		return ", spread"
	}
}

// system is a measured group of three servers.
type system interface {
	name() string
	do(ctx context.Context, o order) (sample, error)
	servers() []*process.Process
	// mend starts killed servers and waits until all answer.
	mend(ctx context.Context) error
	stop()
}

// grouped plays a part with new systems: our group, and an etcd with -etcd.
func grouped(play func(*session, context.Context, []system) error) func(*session, context.Context) error {
	return func(s *session, ctx context.Context) error {
		n, err := s.network(ctx, members)
		if err != nil {
			return err
		}
		ours := &group{Network: n}
		defer ours.stop()
		for i := range maxConnections {
			c, err := operator.New(n.Peers[i%members].GRPC)
			if err != nil {
				return err
			}
			ours.clients = append(ours.clients, c)
		}
		all := []system{ours}
		if s.etcd != "" {
			e, err := s.startEtcd(ctx)
			if err != nil {
				return err
			}
			defer e.stop()
			all = append(all, e)
		}
		return play(s, ctx, all)
	}
}

// each compares systems by one order.
func (s *session) each(ctx context.Context, all []system, label string, o order) error {
	o.Duration = s.duration
	var tasks []task
	for _, one := range all {
		tasks = append(tasks, task{one.name() + " " + label, o.Clients, one.servers(), func(ctx context.Context, run int) (sample, error) {
			o.Run = run
			return one.do(ctx, o)
		}})
	}
	return s.compare(ctx, tasks...)
}

func (s *session) locks(ctx context.Context, all []system) error {
	s.table("Lock and unlock, each client a name of its own; a cycle is one")
	return s.placed(ctx, all, "lock", 1, 64, 256)
}

// placed compares systems with the clients at the leader, at a follower, and spread, which one client cannot be.
func (s *session) placed(ctx context.Context, all []system, op string, clients ...int) error {
	for _, n := range clients {
		for _, at := range []site{atLeader, atFollower, everywhere} {
			if n == 1 && at == everywhere {
				continue
			}
			if err := s.each(ctx, all, op+at.String(), order{Op: op, Clients: n, At: at}); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *session) contended(ctx context.Context, all []system) error {
	s.table("One lock that all clients want; hand-overs, and a client's wait for its turn")
	return s.each(ctx, all, "contended", order{Op: "contended", Clients: 64})
}

func (s *session) keepalive(ctx context.Context, all []system) error {
	s.table("Keepalives: leases renewed; latencies are those of a message")
	for _, clients := range []int{1, 64} {
		if err := s.each(ctx, all, "keepalive", order{Op: "keepalive", Clients: clients, Batch: 1}); err != nil {
			return err
		}
	}
	return s.each(ctx, all[:1], "keepalive, 500 leases a message", order{Op: "keepalive", Clients: 16, Batch: 500}) // etcd's message renews one
}

func (s *session) reads(ctx context.Context, all []system) error {
	s.table("Linearizable reads of one key of 128 bytes")
	return s.placed(ctx, all, "read", 1, 64)
}

func (s *session) watch(ctx context.Context, all []system) error {
	s.table("1,000 writes a second to 100 watchers, a third at each server; events received, and their age since the write was sent")
	return s.each(ctx, all, "watch", order{Op: "watch", Clients: 100, Batch: 1000})
}

func (s *session) v3lock(ctx context.Context, all []system) error {
	s.table("Lock and Unlock of etcd's lock service by etcd's client, each client a name of its own; a cycle is one")
	return s.placed(ctx, all, "v3lock", 1, 64)
}

func (s *session) serializable(ctx context.Context, all []system) error {
	s.table("Serializable reads by etcd's client: one key of 128 bytes, a range of ten")
	if err := s.placed(ctx, all, "serializable", 64); err != nil {
		return err
	}
	return s.each(ctx, all, "serializable, ten keys, at a follower", order{Op: "serializable", Clients: 64, Batch: 10, At: atFollower})
}

func (s *session) streams(ctx context.Context, all []system) error {
	s.table("Streams by etcd's client: a lease and a message each; 2,000 writes a second to 400 watchers, and the age of their events")
	if err := s.each(ctx, all, "keepalive", order{Op: "keepalive", Clients: 64, Batch: 1}); err != nil {
		return err
	}
	return s.each(ctx, all, "watch", order{Op: "watch", Clients: 400, Batch: 2000})
}

// failover kills the leader and times the next lock, repeatedly, each system in turn.
func (s *session) failover(ctx context.Context, all []system) error {
	fmt.Fprintf(s.out, "\nSIGKILL of the leader to the next lock at a survivor, %d times; our profile %s, QUIC %t\n\n| | median ms | p90 ms | max ms | load |\n|---|---|---|---|---|\n", s.kills, s.profile, s.quic)
	took := make([][]time.Duration, len(all))
	for run := range s.kills {
		for i, one := range all {
			got, err := one.do(ctx, order{Op: "kill", Clients: 1, Run: run})
			if err != nil {
				return fault.Wrap(one.name(), err)
			}
			took[i] = append(took[i], got.Max)
			if err := await.Pause(ctx, time.Second); err != nil {
				return err
			}
			if err := one.mend(ctx); err != nil {
				return fault.Wrap(one.name(), err)
			}
		}
		if err := await.Pause(ctx, settling); err != nil {
			return err
		}
	}
	for i, one := range all {
		fmt.Fprintf(s.out, "| %s | %.0f | %.0f | %.0f | %s |\n", one.name(), ms(quantiles.Quantile(took[i], 0.5)), ms(quantiles.Quantile(took[i], 0.9)), ms(slices.Max(took[i])), load())
	}
	return nil
}

// group is our group and its clients.
type group struct {
	*network.Network
	clients []*operator.Client
	chosen  []*operator.Client // those at the place of the present order
}

func (*group) name() string { return "blackholed" }

func (g *group) servers() (all []*process.Process) {
	for _, p := range g.Peers {
		all = append(all, p.Process)
	}
	return all
}

func (g *group) mend(ctx context.Context) error {
	for _, p := range slices.Clone(g.Peers) {
		if !p.Running() {
			if err := g.Restart(ctx, p); err != nil {
				return err
			}
		}
	}
	return ready(ctx, g.Network)
}

func (g *group) stop() {
	for _, c := range g.clients {
		_ = c.Close() // no call is in flight
	}
	g.Stop()
}

func (g *group) client(i int) *operator.Client { return g.chosen[i%len(g.chosen)] }

// choose takes the clients at a place.
func (g *group) choose(ctx context.Context, at site) error {
	g.chosen = g.clients
	if at == everywhere {
		return nil
	}
	server, err := leader(ctx, g.Network)
	if at == atFollower {
		server = (server + 1) % members
	}
	g.chosen = nil
	for i := server; i < len(g.clients); i += members {
		g.chosen = append(g.chosen, g.clients[i])
	}
	return err
}

// messages counts what members have sent each other.
func (g *group) messages(ctx context.Context) (sum float64, err error) {
	for _, p := range g.Peers {
		found, err := network.Metrics(ctx, http.DefaultClient, p.HTTP)
		if err != nil {
			return 0, err
		}
		for _, lane := range []string{"append", "control"} {
			sum += found[`blackhole_coordination_messages_total{direction="out",lane="`+lane+`"}`]
		}
	}
	return sum, nil
}

func (g *group) do(ctx context.Context, o order) (sample, error) {
	if err := g.choose(ctx, o.At); err != nil {
		return sample{}, err
	}
	switch o.Op {
	case "lock", "contended":
		before, err := g.messages(ctx)
		if err != nil {
			return sample{}, err
		}
		got, err := g.lock(ctx, o)
		if err != nil {
			return got, err
		}
		after, err := g.messages(ctx)
		if got.Extra == nil {
			got.Extra = make(map[string]float64)
		}
		got.Extra["Raft messages a commit"] = (after - before) / float64(2*max(1, got.Count))
		return got, err
	case "keepalive":
		return g.keepAlive(ctx, o)
	case "read":
		return g.read(ctx, o)
	case "watch":
		return g.watch(ctx, o)
	default:
		return g.kill(ctx)
	}
}

// lock acquires and releases locks: one lock for each client, or one for all. The tokens of one lock must rise from holder to
// holder.
func (g *group) lock(ctx context.Context, o order) (sample, error) {
	var last atomic.Int64
	var disorder atomic.Bool
	var waits durations
	workers := make([]worker, o.Clients)
	for i := range workers {
		s, err := g.client(i).Locks().Session(ctx, client.TTL(sessionTTL))
		if err != nil {
			return sample{}, err
		}
		defer s.Close(ctx) // otherwise it lapses
		name := fmt.Sprintf("bench/%s/%d/%d", o.Op, o.Run, i)
		if o.Op == "contended" {
			name = fmt.Sprintf("bench/%s/%d", o.Op, o.Run)
		}
		workers[i] = func(ctx context.Context) (int, error) {
			began := time.Now()
			held, err := s.Lock(ctx, name)
			if err != nil {
				return 0, err
			}
			if o.Op == "contended" {
				waits.add(time.Since(began))
				if token := int64(held.Token()); last.Swap(token) >= token {
					disorder.Store(true)
				}
			}
			return 1, held.Unlock(ctx)
		}
	}
	got := closed(ctx, o.Duration, workers)
	if disorder.Load() {
		return got, fault.New("contended", fault.Internal, "the lock was not given in the order of the claims")
	}
	if o.Op == "contended" {
		got.latencies(waits.all[min(2*o.Clients, len(waits.all)):]) // the first waits came at once
		got.Extra = map[string]float64{"longest/median": float64(got.Max) / float64(max(1, got.P50))}
	}
	return got, nil
}

// durations collects durations from several goroutines, in order. Only add is safe beside others.
type durations struct {
	mu  sync.Mutex
	all []time.Duration
}

func (d *durations) add(one time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.all = append(d.all, one)
}

// spread calls do for 0 to n-1, some at once.
func spread(ctx context.Context, n int, do func(ctx context.Context, i int) error) error {
	crew, ctx := errgroup.WithContext(ctx)
	crew.SetLimit(atOnce)
	for i := range n {
		crew.Go(func() error { return do(ctx, i) })
	}
	return crew.Wait()
}

// keepAlive renews leases, Batch in a message.
func (g *group) keepAlive(ctx context.Context, o order) (sample, error) {
	ids := make([]client.LeaseID, max(o.Clients, maxConnections)*o.Batch)
	err := spread(ctx, len(ids), func(ctx context.Context, i int) (err error) {
		ids[i], _, err = g.client(i).Locks().Grant(ctx, sessionTTL)
		return err
	})
	if err != nil {
		return sample{}, err
	}
	workers := make([]worker, o.Clients)
	for i := range workers {
		var own []coord.LeaseID // a lease belongs to its peer and is renewed there
		for j := i; len(own) < o.Batch; j = (j + maxConnections) % len(ids) {
			own = append(own, coord.LeaseID(ids[j]))
		}
		workers[i] = func(ctx context.Context) (int, error) {
			renewed, _, err := ops.Of(g.client(i).Coordination()).KeepAlive(ctx, "", own)
			for _, r := range renewed {
				if r.TTL <= 0 {
					return 0, fault.New("keepalive", fault.NotFound, "lease %d is gone", r.ID)
				}
			}
			return len(own), err
		}
	}
	got := closed(ctx, o.Duration, workers)
	return got, spread(ctx, len(ids), func(ctx context.Context, i int) error {
		if err := g.client(i).Locks().Revoke(ctx, ids[i]); fault.KindOf(err) != fault.NotFound {
			return err
		}
		return nil
	})
}

// put writes a key.
func (g *group) put(ctx context.Context, i int, key string, value []byte) error {
	_, _, err := ops.Of(g.client(i).Coordination()).Do(ctx, ops.Command{Op: &ops.Txn{Then: []ops.Step{{Put: &ops.Put{Key: key, Value: value}}}}})
	return err
}

// read reads one key.
func (g *group) read(ctx context.Context, o order) (sample, error) {
	const key = "bench/read"
	if err := g.put(ctx, 0, key, make([]byte, 128)); err != nil {
		return sample{}, err
	}
	workers := make([]worker, o.Clients)
	for i := range workers {
		workers[i] = func(ctx context.Context) (int, error) {
			page, _, err := ops.Of(g.client(i).Coordination()).Range(ctx, ops.Query{Span: coord.Exactly(key)}, ops.Linearizable)
			if err == nil && len(page.Keys) != 1 {
				err = fault.New("read", fault.NotFound, "%s is gone", key)
			}
			return 1, err
		}
	}
	return closed(ctx, o.Duration, workers), nil
}

// kill ends the leader like a crash and times the next lock, in a session at a survivor.
func (g *group) kill(ctx context.Context) (sample, error) {
	at, err := leader(ctx, g.Network)
	if err != nil {
		return sample{}, err
	}
	s, err := g.Peers[(at+1)%members].Locks().Session(ctx, client.TTL(sessionTTL))
	if err != nil {
		return sample{}, err
	}
	defer s.Close(ctx) // otherwise it lapses
	warm, err := s.Lock(ctx, "bench/warm")
	if err == nil {
		err = warm.Unlock(ctx)
	}
	if err != nil {
		return sample{}, err
	}
	began := time.Now()
	g.Peers[at].Kill()
	held, err := s.Lock(ctx, "bench/kill")
	took := time.Since(began)
	if err != nil {
		return sample{}, err
	}
	return sample{Count: 1, Seconds: took.Seconds(), Max: took}, held.Unlock(ctx)
}

// watch writes at a rate, while watchers at all servers look for gaps and repetitions. The age of an event counts from the start
// of its write.
func (g *group) watch(ctx context.Context, o order) (sample, error) {
	prefix := fmt.Sprintf("bench/watch/%d/", o.Run)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	total := int(o.Duration.Seconds() * float64(o.Batch))
	watchers := make([]*watcher, o.Clients)
	var started, all sync.WaitGroup
	for i := range watchers {
		w := &watcher{total: total, seen: make(map[string]client.Revision, total)}
		watchers[i] = w
		started.Add(1)
		all.Go(func() { w.follow(ctx, g.client(i), prefix, started.Done) })
	}
	started.Wait()
	before, began := process.Own(), time.Now()
	var writes durations
	if err := g.pour(ctx, prefix, total, o, &writes); err != nil {
		return sample{}, err
	}
	out := sample{Seconds: time.Since(began).Seconds()}
	late := time.AfterFunc(catching, cancel)
	all.Wait()
	late.Stop()
	out.Client = process.Own() - before
	var ages []time.Duration
	batches := 0
	for i, w := range watchers {
		if w.err != nil || len(w.seen) != total {
			return out, fault.New("watch", fault.Internal, "watcher %d has %d of %d events: %w", i, len(w.seen), total, w.err)
		}
		ages, batches = append(ages, w.ages...), batches+w.batches
	}
	out.Count = len(ages)
	out.Extra = map[string]float64{"events a batch": float64(len(ages)) / float64(max(1, batches)), "p99 of the writes, ms": ms(quantiles.Quantile(writes.all, 0.99))}
	out.latencies(ages)
	return out, nil
}

// pour writes events at a rate: the clock sets the time of the next write, so late writes catch up.
func (g *group) pour(ctx context.Context, prefix string, total int, o order, took *durations) error {
	crew, ctx := errgroup.WithContext(ctx)
	var next atomic.Int64
	began := time.Now()
	for w := range writers {
		crew.Go(func() error {
			for {
				n := int(next.Add(1) - 1)
				if n >= total {
					return nil
				}
				if err := await.Pause(ctx, time.Until(began.Add(time.Duration(n)*time.Second/time.Duration(o.Batch)))); err != nil {
					return err
				}
				sent := time.Now()
				if err := g.put(ctx, w, fmt.Sprint(prefix, n), binary.BigEndian.AppendUint64(nil, uint64(sent.UnixNano()))); err != nil {
					return err
				}
				took.add(time.Since(sent))
			}
		})
	}
	return crew.Wait()
}

// watcher checks the events of one watch.
type watcher struct {
	total   int
	seen    map[string]client.Revision
	last    client.Revision
	ages    []time.Duration
	batches int
	err     error
}

// follow ends after the last event, or with ctx.
func (w *watcher) follow(ctx context.Context, c *operator.Client, prefix string, started func()) {
	told := sync.OnceFunc(started)
	defer told()
	for batch, err := range c.KV().Watch(ctx, client.Watch{Span: client.Under(prefix)}) {
		told() // the first message announces the start of the watch
		now := time.Now()
		if len(batch.Events) > 0 {
			w.batches++
		}
		for _, e := range batch.Events {
			if _, twice := w.seen[e.KV.Key]; twice || e.Revision <= w.last || len(e.KV.Value) != 8 {
				err = fault.New("watch", fault.Internal, "%s at %d came twice or out of order, after %d", e.KV.Key, e.Revision, w.last)
				break
			}
			w.seen[e.KV.Key], w.last = e.Revision, e.Revision
			w.ages = append(w.ages, now.Sub(time.Unix(0, int64(binary.BigEndian.Uint64(e.KV.Value)))))
		}
		if err != nil || len(w.seen) == w.total {
			w.err = err
			return
		}
	}
}
