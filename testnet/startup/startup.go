// Package startup starts the peers of a network in any order, kills and restarts some, and cuts
// the network in two, while applications register with any answering peer, move between peers and
// leave through any peer. In every order, every peer must learn every instance within a limit:
// once, in the form registered last, and without departed instances.
//
// A seed decides the order, but real processes run freely.
package startup

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/testnet/app"
	"github.com/blackhole/blackhole/testnet/await"
	"github.com/blackhole/blackhole/testnet/lan"
	"github.com/blackhole/blackhole/testnet/process"
)

// Peers of a network.
const Peers = 8

// Config describes a run.
type Config struct {
	Binary   string
	Dir      string // existing directory for data and logs of violations
	Seed     uint64
	Peers    int
	Founders int           // founders of the group; three vote
	Bound    time.Duration // longest time from the last event until every peer knows every instance
	LAN      *lan.LAN      // one host for each peer; nil: all on loopback, without a cut
}

// Outcome is the result of one seed, written as JSON. Times are seconds.
type Outcome struct {
	Seed         uint64   `json:"seed"`
	Order        string   `json:"order"` // start order by number; ! marks killed and restarted peers
	Killed       int      `json:"killed"`
	Committed    int      `json:"committed"` // registrations of which the whole cluster knew at once
	Kept         int      `json:"kept"`      // registrations that were kept for later
	Refused      int      `json:"refused"`   // attempts without an answer, or with a refusal
	Deregistered int      `json:"deregistered"`
	Instances    int      `json:"instances"` // in the end
	Converged    float64  `json:"converged"` // from the last event of the start to all known everywhere
	Cut          float64  `json:"cut"`       // 0: none
	Side         int      `json:"side"`      // peers on one side
	Healed       float64  `json:"healed"`    // from the cut's end to all known everywhere
	Seconds      float64  `json:"seconds"`   // of it all
	Overtaken    []string `json:"overtaken"` // instances that are as registered before they were registered elsewhere and committed, because the earlier registration was never answered as committed: it was kept, or had no answer, and came later
	Violations   []string `json:"violations"`
	Data         string   `json:"data,omitempty"` // where data and logs are
}

// run is one network.
type run struct {
	Config
	plan  plan
	dir   string
	peers []*peer
	began time.Time

	mu      sync.Mutex // guards what follows
	book    map[string]entry
	outcome Outcome
}

// Run plays one seed. The error concerns the run itself; the outcome has the violations.
func Run(ctx context.Context, c Config) (Outcome, error) {
	const op = "startup.Run"
	r := &run{Config: c, plan: draw(c.Seed, c.Peers), dir: filepath.Join(c.Dir, fmt.Sprintf("seed-%d", c.Seed)), book: make(map[string]entry)}
	r.outcome = Outcome{Seed: c.Seed, Order: r.plan.order(), Killed: r.plan.killed(), Violations: []string{}, Overtaken: []string{}}
	if err := os.Mkdir(r.dir, 0o700); err != nil {
		return r.outcome, fault.As(op, fault.Invalid, err)
	}
	r.began = time.Now()
	err := errors.Join(r.play(ctx), r.end())
	r.outcome.Seconds = time.Since(r.began).Seconds()
	return r.outcome, fault.Wrap(op, err)
}

// play executes the plan.
func (r *run) play(ctx context.Context) error {
	if err := r.house(ctx); err != nil {
		return err
	}
	if err := r.rise(ctx); err != nil {
		return err
	}
	took, err := r.converge(ctx, "the start")
	if r.outcome.Converged = took; err != nil || len(r.outcome.Violations) > 0 || r.LAN == nil {
		return err
	}
	r.settle()
	if err := r.move(ctx); err != nil {
		return err
	}
	if err := r.part(ctx); err != nil {
		return err
	}
	r.outcome.Healed, err = r.converge(ctx, "the cut")
	return err
}

// rise starts the peers, and kills and restarts some, while applications come and go.
func (r *run) rise(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for i, at := range r.plan.starts {
		group.Go(func() error { return r.live(ctx, i, at) })
	}
	r.visit(ctx, group, r.plan.visits)
	return group.Wait()
}

// live starts a peer, and kills and restarts it if planned.
func (r *run) live(ctx context.Context, i int, at time.Duration) error {
	if err := errors.Join(await.Pause(ctx, at), r.start(i)); err != nil {
		return err
	}
	o := r.plan.outages[i]
	if o.kill == 0 {
		return nil
	}
	if err := await.Pause(ctx, o.kill); err != nil {
		return err
	}
	r.peers[i].kill()
	return errors.Join(await.Pause(ctx, o.back-o.kill), r.start(i))
}

// move registers applications elsewhere. Their old peers learn about it after a delay, or after a
// cut.
func (r *run) move(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for n, v := range r.plan.moving {
		rng := r.rng(200 + n)
		group.Go(func() error {
			_, err := r.register(ctx, rng, v.id, 2)
			return err
		})
	}
	return group.Wait()
}

// part cuts the network in two for a while. Applications register and leave on both sides.
func (r *run) part(ctx context.Context) error {
	var cuts [][2]int
	for _, a := range r.plan.side {
		for b := range r.peers {
			if !slices.Contains(r.plan.side, b) {
				cuts = append(cuts, [2]int{a, b}, [2]int{b, a})
			}
		}
	}
	defer func() {
		for _, c := range cuts {
			r.LAN.Mend(c[0], c[1])
		}
	}()
	began := time.Now()
	for _, c := range cuts {
		r.LAN.Cut(c[0], c[1])
	}
	group, groupCtx := errgroup.WithContext(ctx)
	r.visit(groupCtx, group, r.plan.during)
	for n, v := range r.plan.parting {
		rng := r.rng(300 + n)
		group.Go(func() error { return errors.Join(await.Pause(groupCtx, v.at), r.leave(groupCtx, rng, v.id)) })
	}
	if err := errors.Join(group.Wait(), await.Pause(ctx, r.plan.cut-time.Since(began))); err != nil {
		return err
	}
	r.outcome.Cut, r.outcome.Side = time.Since(began).Seconds(), len(r.plan.side)
	return nil
}

// end kills every peer, records peers that ended by themselves, and removes files without
// evidence.
func (r *run) end() (err error) {
	var work sync.WaitGroup
	for _, p := range r.peers {
		if p == nil {
			continue
		}
		if lost := p.failure(); lost != nil {
			r.violated("a peer ended by itself: %v", lost)
		}
		work.Go(p.kill)
	}
	work.Wait()
	for _, p := range r.peers {
		if p == nil {
			continue
		}
		if p.api != nil {
			p.api.Close()
		}
		if p.log != nil {
			err = errors.Join(err, p.log.Close())
		}
	}
	if len(r.outcome.Violations) > 0 {
		r.outcome.Data = r.dir
		return err
	}
	return errors.Join(err, os.RemoveAll(r.dir))
}

func (r *run) violated(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.outcome.Violations = append(r.outcome.Violations, fmt.Sprintf(format, args...))
}

// Parameters of a plan.
const (
	spread    = 2500 * time.Millisecond // longest time from the first start to the last
	uptime    = 2 * time.Second         // longest uptime of a killed peer
	downtime  = time.Second             // longest time until its restart
	busy      = 4500 * time.Millisecond // duration of registrations
	maxKilled = 4
	arrivals  = 32              // applications that register
	movers    = 6               // of these register again later, with any answering peer
	leavers   = 6               // of these deregister later
	cutApps   = 8               // applications that register during the cut
	cutMovers = 8               // of the remaining arrivals register again just before the cut
	cutLeft   = 6               // of these deregister during the cut, through any answering peer
	shortCut  = 2 * time.Second // shortest cut; the longest is twice as long
	longCut   = 17 * time.Second
	longEvery = 10 // seeds
)

// outage is the end and the return of one process, counted from its first start.
type outage struct {
	kill time.Duration // 0 means none
	back time.Duration
}

// visit is the plan of one application.
type visit struct {
	id    string
	at    time.Duration
	again time.Duration // time of the second registration; 0 means never
	leave time.Duration // time of the deregistration; 0 means never
}

// plan is the course of one network, drawn from a seed alone.
type plan struct {
	starts  []time.Duration // of each peer
	outages []outage        // of each peer
	visits  []visit
	cut     time.Duration
	side    []int   // the peers on one side of the cut
	during  []visit // during the cut, counted from its start
	moving  []visit // just before the cut
	parting []visit // during the cut, counted from its start
}

func draw(seed uint64, peers int) plan {
	rng := rand.New(rand.NewPCG(seed, 3))
	within := func(least, most time.Duration) time.Duration {
		return least + time.Duration(rng.Int64N(int64(most-least)))
	}
	p := plan{starts: make([]time.Duration, peers), outages: make([]outage, peers)}
	length := within(0, spread) + 1 // from all at once to one after the other
	for i := range p.starts {
		p.starts[i] = within(0, length)
	}
	for _, i := range rng.Perm(peers)[:rng.IntN(min(maxKilled, peers)+1)] {
		kill := within(50*time.Millisecond, uptime)
		p.outages[i] = outage{kill: kill, back: kill + within(0, downtime)}
	}
	for i := range arrivals {
		v := visit{id: fmt.Sprintf("app-%02d", i), at: within(0, busy)}
		switch {
		case i < movers:
			v.again = v.at + within(0, busy)
		case i < movers+leavers:
			v.leave = v.at + within(0, busy)
		}
		p.visits = append(p.visits, v)
	}
	if p.cut = within(shortCut, 2*shortCut); seed%longEvery == 0 {
		p.cut += longCut - shortCut
	}
	p.side = rng.Perm(peers)[:1+rng.IntN(peers/2)]
	for i := range cutApps {
		p.during = append(p.during, visit{id: fmt.Sprintf("cut-%02d", i), at: within(0, shortCut)})
	}
	staying := p.visits[movers+leavers:]
	for _, v := range staying[:cutMovers] {
		p.moving = append(p.moving, visit{id: v.id})
	}
	for _, v := range staying[cutMovers : cutMovers+cutLeft] {
		p.parting = append(p.parting, visit{id: v.id, at: within(0, shortCut)})
	}
	return p
}

// order lists the peers by start, and marks the killed ones.
func (p plan) order() string {
	all := make([]int, len(p.starts))
	for i := range all {
		all[i] = i
	}
	slices.SortFunc(all, func(a, b int) int { return int(p.starts[a] - p.starts[b]) })
	names := make([]string, len(all))
	for n, i := range all {
		names[n] = fmt.Sprint(i + 1)
		if p.outages[i].kill > 0 {
			names[n] += "!"
		}
	}
	return strings.Join(names, " ")
}

func (p plan) killed() (n int) {
	for _, o := range p.outages {
		if o.kill > 0 {
			n++
		}
	}
	return n
}

const (
	apiPort    = 8500 // on the loopback of every host, and the next two ports
	listenPort = 4001 // for other peers
	portsEach  = 4    // ports for each peer, with all peers on one machine
	checkEvery = time.Minute
	replace    = 6 * time.Second // silence before a voter is replaced
)

// peer is the place of one peer across its processes. Its addresses stay.
type peer struct {
	process.Place
	name string
	data string
	id   string
	api  *app.REST
	log  *os.File

	mu     sync.Mutex // guards what follows
	now    *process.Process
	killed bool // by this program
}

// house gives every peer its place and its identity, so that each knows all others before the
// first start.
func (r *run) house(ctx context.Context) (err error) {
	r.peers = make([]*peer, r.Peers)
	var free []string // all ports at once, so that none is used twice
	if r.LAN == nil {
		if free, err = process.FreePorts(r.Peers * portsEach); err != nil {
			return err
		}
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(4)
	for i := range r.peers {
		p := &peer{name: fmt.Sprintf("peer-%d", i+1)}
		r.peers[i] = p
		if err := r.place(i, free); err != nil {
			return err
		}
		group.Go(func() (err error) {
			p.data = filepath.Join(r.dir, p.name)
			p.id, err = process.Identity(ctx, r.Binary, p.data)
			return err
		})
	}
	return group.Wait()
}

// place assigns addresses to a peer; free has the ports for peers on one machine.
func (r *run) place(i int, free []string) (err error) {
	p := r.peers[i]
	if p.log, err = os.Create(filepath.Join(r.dir, p.name+".log")); err != nil {
		return fault.As("startup.place", fault.Unavailable, err)
	}
	if r.LAN == nil {
		at := free[i*portsEach:]
		_, port, _ := net.SplitHostPort(at[0]) // FreePorts returns host:port
		p.Place = process.Place{Listen: "/ip4/127.0.0.1/tcp/" + port, HTTP: at[1], GRPC: at[2], DNS: at[3]}
		p.api = app.At(p.HTTP, nil)
		return nil
	}
	host := r.LAN.Hosts[i]
	at := func(n int) string { return fmt.Sprintf("127.0.0.1:%d", apiPort+n) }
	p.Place = process.Place{
		Listen: fmt.Sprintf("/ip4/%s/tcp/%d", host.IP, listenPort), HTTP: at(0), DNS: at(1), GRPC: at(2), Within: host.Do,
	}
	p.api = app.At(p.HTTP, func(ctx context.Context, _, address string) (net.Conn, error) { return host.Dial(ctx, address) })
	return nil
}

// start starts a stopped peer.
func (r *run) start(i int) error {
	p := r.peers[i]
	spec := process.Spec{
		Name: p.name, Binary: r.Binary, Data: p.data, Check: checkEvery, Replace: replace, Log: p.log, Place: p.Place,
	}
	for j, other := range r.peers {
		if j < r.Founders {
			spec.Founders = append(spec.Founders, other.id)
		}
		if j != i {
			spec.Bootstrap = append(spec.Bootstrap, other.Listen+"/p2p/"+other.id)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	proc, err := process.Start(spec)
	if err != nil {
		return err
	}
	p.now, p.killed = proc, false
	return nil
}

// kill ends a peer like a crash.
func (p *peer) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now != nil {
		p.killed = true
		p.now.Kill()
	}
}

func (p *peer) running() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.now != nil && p.now.Running()
}

// failure explains why a peer ended by itself; nil if it did not.
func (p *peer) failure() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now == nil || p.killed || p.now.Running() {
		return nil
	}
	return p.now.Failure()
}
