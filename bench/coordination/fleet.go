package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/blackhole/blackhole/bench/kit"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

const (
	members        = 3
	maxConnections = 16 // clients, spread over the servers; the driver of etcd has as many
	sessionTTL     = time.Minute
)

// Targets of clients.
const (
	spread    = "spread" // over all servers
	leading   = "leader"
	following = "followers"
)

// fleet is a group of three blackholed and its clients.
type fleet struct {
	binary, dir, at string
	log             io.Writer

	peers    []*kit.Process // the members
	ids      []string       // of peers, by index
	contacts []string       // multiaddrs of the members, by index
	address  []string       // of gRPC, by index
	clients  []*client.Client
}

func (f *fleet) name() string { return "blackholed" }

func (f *fleet) servers() []*kit.Process { return f.peers }

// start starts three peers that know each other's identities.
func (f *fleet) start(ctx context.Context) error {
	free, err := kit.Ports(2 * members)
	if err != nil {
		return err
	}
	for i := range members {
		if err := f.house(ctx, i); err != nil {
			return err
		}
		f.address = append(f.address, "127.0.0.1:"+free[2*i])
		f.contacts = append(f.contacts, "/ip4/127.0.0.1/tcp/"+free[2*i+1])
	}
	for i := range members {
		f.peers = append(f.peers, f.peer(i, f.contacts[i], f.address[i]))
	}
	if err := f.connect(spreadOver); err != nil {
		return err
	}
	if err := f.mend(ctx); err != nil || f.at == spread {
		return err
	}
	leader, err := f.leader(ctx)
	if err != nil {
		return err
	}
	for _, c := range f.clients {
		_ = c.Close() // no call is in flight
	}
	if f.at == leading {
		return f.connect(func(int) int { return leader })
	}
	return f.connect(func(i int) int { return (leader + 1 + i%(members-1)) % members })
}

func (f *fleet) data(i int) string { return filepath.Join(f.dir, fmt.Sprint(i)) }

// house creates directory and identity of a peer.
func (f *fleet) house(ctx context.Context, i int) error {
	if err := os.MkdirAll(f.data(i), 0o700); err != nil {
		return fault.As("house", fault.Invalid, err)
	}
	id, err := exec.CommandContext(ctx, f.binary, "id", "--data", f.data(i)).Output()
	if err != nil {
		return fault.As("house", fault.Unavailable, err)
	}
	f.ids = append(f.ids, strings.TrimSpace(string(id)))
	return nil
}

// peer is a peer ready to start. It joins through the members.
func (f *fleet) peer(i int, contact, address string) *kit.Process {
	args := []string{"run", "--profile", "dev", "--data", f.data(i), "--listen", contact, "--http", "off", "--dns", "off", "--grpc", address}
	for j := range members {
		if j != i {
			args = append(args, "--bootstrap", f.contacts[j]+"/p2p/"+f.ids[j])
		}
	}
	founders := "BLACKHOLE_COORDINATION_FOUNDERS=" + strings.Join(f.ids[:members], ",")
	return &kit.Process{Binary: f.binary, Args: args, Log: f.log, Env: []string{founders}}
}

func spreadOver(i int) int { return i % members }

// connect creates the clients, one server each.
func (f *fleet) connect(to func(i int) int) error {
	f.clients = nil
	for i := range maxConnections {
		c, err := client.New(f.address[to(i)])
		if err != nil {
			return err
		}
		f.clients = append(f.clients, c)
	}
	return nil
}

func (f *fleet) mend(ctx context.Context) error {
	for _, p := range f.peers {
		if !p.Runs() {
			if err := p.Start(); err != nil {
				return err
			}
		}
	}
	for i := range members {
		err := kit.Until(ctx, serving, asking, "one group", func(ctx context.Context) error {
			g, err := f.clients[i].Coordination().Group(ctx)
			switch {
			case err != nil:
				return err
			case g.Leader == "" || len(g.Voters) != members:
				return fault.New("mend", fault.Unavailable, "%d voters, leader %q, %s %s", len(g.Voters), g.Leader, g.Phase, g.Missing)
			}
			_, _, err = ops.Of(f.clients[i].Coordination()).Range(ctx, ops.Query{Span: coord.Exactly("ready")}, ops.Linearizable)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (f *fleet) stop() {
	var all sync.WaitGroup
	for _, c := range f.clients {
		all.Go(func() { _ = c.Close() }) // no call is in flight
	}
	all.Wait()
	for _, p := range f.peers {
		all.Go(p.Stop)
	}
	all.Wait()
}

func (f *fleet) do(ctx context.Context, t task) (kit.Sample, error) {
	switch t.Op {
	case opLock, opContended:
		return f.lock(ctx, t)
	case opKeepAlive:
		return f.keepAlive(ctx, t)
	case opRead:
		return f.read(ctx, t)
	case opWatch:
		return f.watch(ctx, t)
	case opKill:
		return f.kill(ctx)
	}
	return kit.Sample{}, fault.Invalidf("op", t.Op, "is not known")
}

func (f *fleet) client(i int) *client.Client { return f.clients[i%len(f.clients)] }

// sessions starts one session for each client and returns their end.
func (f *fleet) sessions(ctx context.Context, n int) (all []*client.Session, end func(), err error) {
	end = func() {
		var closing sync.WaitGroup
		for _, s := range all {
			closing.Go(func() { _ = s.Close(ctx) }) // otherwise it lapses
		}
		closing.Wait()
	}
	for i := range n {
		s, err := f.client(i).Session(ctx, client.TTL(sessionTTL))
		if err != nil {
			return nil, end, err
		}
		all = append(all, s)
	}
	return all, end, nil
}

// lock acquires and releases locks: one lock for each client, or one for all. The tokens of one
// lock must rise from holder to holder.
func (f *fleet) lock(ctx context.Context, t task) (kit.Sample, error) {
	sessions, end, err := f.sessions(ctx, t.Clients)
	defer end()
	if err != nil {
		return kit.Sample{}, err
	}
	var last atomic.Int64
	var disorder atomic.Bool
	var waits durations
	workers := make([]kit.Worker, t.Clients)
	for i, s := range sessions {
		name := fmt.Sprintf("bench/%s/%d/%d", t.Op, t.Run, i)
		if t.Op == opContended {
			name = fmt.Sprintf("bench/%s/%d", t.Op, t.Run)
		}
		workers[i] = func(ctx context.Context) (int, error) {
			began := time.Now()
			held, err := s.Lock(ctx, name)
			if err != nil {
				return 0, err
			}
			if t.Op == opContended {
				waits.add(time.Since(began))
				if token := int64(held.Token()); last.Swap(token) >= token {
					disorder.Store(true)
				}
			}
			return 1, held.Unlock(ctx)
		}
	}
	got := kit.Closed(ctx, t.Duration, workers)
	if disorder.Load() {
		return got, fault.New("contended", fault.Internal, "the lock was not given in the order of the claims")
	}
	if t.Op == opContended {
		got.Latencies(waits.after(2 * t.Clients)) // the first waits came at once
		got.Extra = map[string]float64{"longest/median": float64(got.Max) / float64(max(1, got.P50))}
	}
	return got, nil
}

// durations collects durations from several goroutines, in order.
type durations struct {
	mu  sync.Mutex
	all []time.Duration
}

func (d *durations) add(one time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.all = append(d.all, one)
}

func (d *durations) after(n int) []time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.all[min(n, len(d.all)):]
}

// grants lets clients grant leases in turn, each with a time to live.
func grants(ctx context.Context, clients []*client.Client, n int, ttl func() time.Duration) ([]coord.LeaseID, error) {
	const atOnce = 256
	ids := make([]coord.LeaseID, n)
	var next atomic.Int64
	var failed atomic.Pointer[error]
	var all sync.WaitGroup
	for range min(n, atOnce) {
		all.Go(func() {
			for {
				i := int(next.Add(1) - 1)
				if i >= n || failed.Load() != nil {
					return
				}
				id, _, err := clients[i%len(clients)].Leases().Grant(ctx, ttl())
				if err != nil {
					failed.Store(&err)
					return
				}
				ids[i] = id
			}
		})
	}
	all.Wait()
	if err := failed.Load(); err != nil {
		return nil, *err
	}
	return ids, nil
}

// keepAlive renews leases, Batch in a message.
func (f *fleet) keepAlive(ctx context.Context, t task) (kit.Sample, error) {
	const strides = maxConnections // a lease belongs to its peer and is renewed there
	ids, err := grants(ctx, f.clients, max(t.Clients, strides)*t.Batch, func() time.Duration { return sessionTTL })
	if err != nil {
		return kit.Sample{}, err
	}
	workers := make([]kit.Worker, t.Clients)
	for i := range workers {
		var own []coord.LeaseID
		for j := i; len(own) < t.Batch; j = (j + strides) % len(ids) {
			own = append(own, ids[j])
		}
		actor := f.client(i).Coordination()
		workers[i] = func(ctx context.Context) (int, error) {
			renewed, _, err := ops.Of(actor).KeepAlive(ctx, "", own)
			for _, r := range renewed {
				if r.TTL <= 0 {
					return 0, fault.New("keepalive", fault.NotFound, "lease %d is gone", r.ID)
				}
			}
			return len(own), err
		}
	}
	got := kit.Closed(ctx, t.Duration, workers)
	return got, f.revoke(ctx, ids)
}

func (f *fleet) revoke(ctx context.Context, ids []coord.LeaseID) error {
	const atOnce = 64
	errs := make([]error, atOnce)
	var all sync.WaitGroup
	for w := range atOnce {
		all.Go(func() {
			for i := w; i < len(ids); i += atOnce {
				if err := f.client(i).Leases().Revoke(ctx, ids[i]); fault.KindOf(err) != fault.NotFound {
					errs[w] = err
				}
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// read reads one key.
func (f *fleet) read(ctx context.Context, t task) (kit.Sample, error) {
	const key = "bench/read"
	put := ops.Command{Op: &ops.Txn{Then: []ops.Step{{Put: &ops.Put{Key: key, Value: make([]byte, 128)}}}}}
	if _, _, err := ops.Of(f.client(0).Coordination()).Do(ctx, put); err != nil {
		return kit.Sample{}, err
	}
	workers := make([]kit.Worker, t.Clients)
	for i := range workers {
		workers[i] = readOf(f.client(i), key)
	}
	return kit.Closed(ctx, t.Duration, workers), nil
}

func readOf(c *client.Client, key string) kit.Worker {
	return func(ctx context.Context) (int, error) {
		page, _, err := ops.Of(c.Coordination()).Range(ctx, ops.Query{Span: coord.Exactly(key)}, ops.Linearizable)
		if err == nil && len(page.Keys) != 1 {
			err = fault.New("read", fault.NotFound, "%s is gone", key)
		}
		return 1, err
	}
}
