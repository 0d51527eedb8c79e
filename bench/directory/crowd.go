package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	libp2p "github.com/libp2p/go-libp2p/core/peer"
	"google.golang.org/grpc"

	"github.com/blackhole/blackhole/bench/child"
	"github.com/blackhole/blackhole/bench/figure"
	"github.com/blackhole/blackhole/internal/agent/catalog"
	"github.com/blackhole/blackhole/internal/agent/directory"
	"github.com/blackhole/blackhole/internal/platform/p2p"
	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

const (
	services = 1000 // of one peer
	repeated = 20   // times that a peer learns about the leader
)

// core is a group of three members, each a process without the rest of a peer.
type core struct {
	members []*process
	ids     []string
	address []string // of gRPC
	leader  int
	term    uint64
	shared  *client.Client // of the leader
	spread  bool           // peers watch at all members
}

// core starts a group and waits for its leader.
func (s *session) core(ctx context.Context) (*core, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fault.As("core", fault.Unavailable, err)
	}
	dir, err := s.room()
	if err != nil {
		return nil, err
	}
	free, err := child.Ports(2 * members)
	if err != nil {
		return nil, err
	}
	g := &core{spread: s.spread}
	founders := ""
	for i := range members {
		data := filepath.Join(dir, fmt.Sprint(i))
		if err := os.Mkdir(data, 0o700); err != nil {
			return nil, fault.As("core", fault.Invalid, err)
		}
		key, err := p2p.LoadIdentity(filepath.Join(data, identityFile))
		if err != nil {
			return nil, err
		}
		id, err := libp2p.IDFromPrivateKey(key)
		if err != nil {
			return nil, fault.As("core", fault.Internal, err)
		}
		g.ids, g.address = append(g.ids, id.String()), append(g.address, "127.0.0.1:"+free[2*i])
		founders += "," + id.String()
	}
	for i := range members {
		args := []string{
			memberCommand, "-data", filepath.Join(dir, fmt.Sprint(i)), "-listen", "/ip4/127.0.0.1/tcp/" + free[2*i+1],
			"-grpc", g.address[i], "-founders", founders[1:],
		}
		if i > 0 {
			args = append(args, "-contact", "/ip4/127.0.0.1/tcp/"+free[1]+"/p2p/"+g.ids[0])
		}
		p := &process{child.Process{Binary: self, Args: args, Log: s.Log}}
		g.members = append(g.members, p)
		if err := p.Start(); err != nil {
			return g, err
		}
	}
	return g, g.find(ctx)
}

// find searches the leader.
func (g *core) find(ctx context.Context) error {
	for i, address := range g.address {
		c, err := client.New(address, grpc.WithPerRPCCredentials(said{ownerKey, "bench"}))
		if err != nil {
			return err
		}
		err = child.Until(ctx, serving, asking, "a leader", func(ctx context.Context) error {
			state, err := c.Coordination().Group(ctx)
			if err == nil && (state.Leader == "" || len(state.Voters) != members) {
				err = fault.New("find", fault.Unavailable, "leader %q, %d voters", state.Leader, len(state.Voters))
			}
			if err == nil && state.Leader == g.ids[i] {
				g.leader, g.term, g.shared = i, state.Term, c
			}
			return err
		})
		if err != nil {
			return errors.Join(err, c.Close())
		}
		if g.shared != c {
			if err := c.Close(); err != nil {
				return err
			}
		}
	}
	if g.shared == nil {
		return fault.New("find", fault.Unavailable, "the leader changed meanwhile")
	}
	return nil
}

func (g *core) stop() {
	if g.shared != nil {
		_ = g.shared.Close() // no call is in flight
	}
	var all sync.WaitGroup
	for _, p := range g.members {
		all.Go(p.stop)
	}
	all.Wait()
}

// played is a peer played by this process: a directory with its own lease, catalog and
// connections.
type played struct {
	*client.Coordination
	*directory.Directory

	core   *core
	id     string
	client *client.Client  // of the leader
	watch  *client.Client  // client of the watched member
	whole  bool            // lists the whole directory; other peers start with changes after gate
	gate   <-chan struct{} // closed when the other peers may start to watch; nil: at once, after their list
	begun  func()          // called once after the start of a watch
	seen   func(key string, p *played)
	known  chan struct{} // closed when the peer may learn about the leader, who stays
}

var _ directory.Group = (*played)(nil)

// play creates a peer.
func (g *core) play(n int, whole bool, gate <-chan struct{}, begun func(), seen func(string, *played)) (*played, error) {
	p := &played{core: g, id: fmt.Sprintf("played-%04d", n), whole: whole, gate: gate, begun: sync.OnceFunc(begun), seen: seen, known: make(chan struct{})}
	var err error
	if p.client, err = client.New(g.address[g.leader], grpc.WithPerRPCCredentials(said{ownerKey, p.id})); err != nil {
		return nil, err
	}
	p.Coordination, p.watch = p.client.Coordination(), p.client
	if at := n % members; g.spread && at != g.leader {
		if p.watch, err = client.New(g.address[at], grpc.WithPerRPCCredentials(said{ownerKey, p.id})); err != nil {
			return nil, err
		}
	}
	known, err := catalog.New(catalog.Config{})
	if err != nil {
		return nil, err
	}
	p.Directory = directory.New(directory.Config{Group: p, Catalog: known, Self: p.id, Lost: func([]instance.Key) {}})
	return p, nil
}

func (p *played) end() error {
	return errors.Join(p.Directory.Close(), p.watch.Close(), p.client.Close())
}

// Leading implements directory.Group.
func (p *played) Leading() (uint64, string, <-chan struct{}) {
	select {
	case <-p.known:
		return p.core.term, p.core.ids[p.core.leader], nil // the leader stays
	default:
		return 0, "", p.known
	}
}

// Read implements directory.Group. A thousand whole catalogs exceed the memory, so most peers
// start empty.
func (p *played) Read(ctx context.Context, q *coordv1.Question) (*coordv1.Answer, error) {
	r := q.GetRange()
	if p.whole || r == nil {
		return p.Coordination.Read(ctx, q)
	}
	r.Limit = 1
	a, err := p.Coordination.Read(ctx, q)
	if page := a.GetRange(); page != nil {
		page.Kvs, page.Next = nil, nil
	}
	return a, err
}

// Watch implements directory.Group.
func (p *played) Watch(ctx context.Context, w *api.WatchKeysRequest, send func(*api.WatchKeysResponse) error) error {
	if !p.whole && p.gate != nil {
		select {
		case <-p.gate:
			w.StartRevision = 0
		case <-ctx.Done():
			return fault.Wrap("watch", ctx.Err())
		}
	}
	return p.watch.Coordination().Watch(ctx, w, func(b *api.WatchKeysResponse) error {
		p.begun()
		if err := send(b); err != nil {
			return err
		}
		for _, e := range b.GetEvents() {
			p.seen(string(e.GetKv().GetKey()), p)
		}
		return nil
	})
}

// publish adds instances to the peer.
func (p *played) publish(entries ...entry) {
	changes := make([]instance.Change, len(entries))
	for i, e := range entries {
		changes[i] = instance.Change{Key: e.key(), Instance: e.instance()}
	}
	p.Publish(changes)
}

func (e entry) key() instance.Key {
	return instance.Key{Namespace: instance.DefaultNamespace, Service: e.service, ID: e.id}
}

// instance is the registered form of body.
func (e entry) instance() *instance.Instance {
	return &instance.Instance{
		Key: e.key(), Status: instance.StatusUp, Lease: "lease-" + e.id, RegisteredAt: time.Now(),
		Spec: instance.Spec{
			Host: "10.0.0.1", Port: 8080, Weight: 1, Tags: []string{"a", "b"}, Metadata: map[string]string{"v": e.mark},
			UnhealthyAfter: time.Hour, RemoveAfter: time.Hour,
		},
	}
}

func entryOf(e entry) coord.Entry {
	return coord.Entry{Key: coord.DirectoryKey(instance.DefaultNamespace, e.service, e.id), Value: e.instance().Marshal()}
}

// known measures the time from a peer learning about the leader until the group has all its
// instances.
func (s *session) known(ctx context.Context) error {
	g, err := s.core(ctx)
	if g != nil {
		defer g.stop()
	}
	if err != nil {
		return err
	}
	s.table(fmt.Sprintf("%d services at a peer that is played, at a group of three processes: from the moment at which it learned who leads until the group had them; %d times", services, repeated),
		"p50 ms", "most ms", "CPU ms of all members each", "load")
	var took []time.Duration
	before := spent(g.members...)
	for n := range repeated {
		one, err := g.learns(ctx, n)
		if err != nil {
			return err
		}
		took = append(took, one)
	}
	s.row("%.1f | %.1f | %.1f | %s", figure.Ms(figure.Quantile(took, 0.5)), figure.Ms(figure.Quantile(took, 1)), figure.Ms(spent(g.members...)-before)/repeated, child.Load())
	return nil
}

// learns plays a peer that learns about the leader after all its services started.
func (g *core) learns(ctx context.Context, n int) (took time.Duration, err error) {
	p, err := g.play(n, false, nil, func() {}, func(string, *played) {})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, p.end()) }()
	all := make([]entry, services)
	for i := range all {
		all[i] = entry{fmt.Sprintf("known%d-%d", n, i), "one", "1"}
	}
	p.publish(all...)
	p.Start()
	if err := child.Rest(ctx, settle); err != nil {
		return 0, err
	}
	began := time.Now()
	close(p.known)
	for _, e := range all { // it reports the missing leader first
		err := child.Until(ctx, late, time.Millisecond, "it is registered", func(ctx context.Context) error {
			_, err := p.Committed(ctx, e.key())
			return err
		})
		if err != nil {
			return 0, err
		}
	}
	return time.Since(began), nil
}

// batched publishes the entries of one peer one by one, and in batches.
func (s *session) batched(ctx context.Context) error {
	g, err := s.core(ctx)
	if g != nil {
		defer g.stop()
	}
	if err != nil {
		return err
	}
	s.table("Entries that one peer gives a group of three processes, a command after the other has its answer", "entries a command", "entries/s", "ms a command", "CPU us an entry, all members", "load")
	p := g.shared.Coordination()
	got, _, err := coord.OpsOf(p).Do(ctx, coord.Command{Op: &coord.LeaseGrant{TTL: time.Hour.Milliseconds()}})
	if err != nil {
		return err
	}
	var rates []float64
	for generation, size := range []int{1, 10, 100, coord.MaxBatch} {
		before, began, commands := spent(g.members...), time.Now(), 0
		for ; time.Since(began) < s.Duration; commands++ {
			batch := &coord.RegisterBatch{Lease: got.Lease, Generation: uint64(generation) + 1}
			for n := range size {
				id := (commands*size + n) % 5000 // ids repeat, each time with a new mark
				batch.Puts = append(batch.Puts, entryOf(entry{fmt.Sprintf("batched%d", id%100), fmt.Sprint(id), fmt.Sprintf("%d-%d", size, commands)}))
			}
			if _, _, err := coord.OpsOf(p).Do(ctx, coord.Command{Op: batch}); err != nil {
				return err
			}
		}
		took := time.Since(began)
		rates = append(rates, float64(commands*size)/took.Seconds())
		s.row("%d | %.0f | %.2f | %.1f | %s", size, rates[generation], figure.Ms(took)/float64(commands), figure.PerOp(spent(g.members...)-before, commands*size), child.Load())
	}
	s.row("the last to the first: %.0f times | | | |", rates[len(rates)-1]/rates[0])
	return nil
}

// sight records the observers of a change.
type sight struct {
	began time.Time
	left  atomic.Int64
	last  chan time.Time
}
