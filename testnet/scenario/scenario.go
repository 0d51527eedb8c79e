// Package scenario plays scripts of testscript over networks of real peers: who starts, joins, crashes and returns, and
// what must hold then. Clients take one lock at all peers meanwhile, and no two may hold it at once. Folder scripts has
// the scenarios; commands.go has their words.
//
// A seed decides what a script leaves to chance, but real processes run freely.
package scenario

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/operator"
	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/client/fence"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
	"github.com/blackhole/blackhole/testnet/app"
	"github.com/blackhole/blackhole/testnet/await"
	"github.com/blackhole/blackhole/testnet/lan"
	"github.com/blackhole/blackhole/testnet/network"
	"github.com/blackhole/blackhole/testnet/process"
	"github.com/blackhole/blackhole/testnet/script"
)

//go:embed scripts
var scripts embed.FS

// Names lists the scenarios.
func Names() (all []string) {
	files, _ := scripts.ReadDir("scripts") // it is part of the program
	for _, f := range files {
		all = append(all, strings.TrimSuffix(f.Name(), ".txt"))
	}
	return all
}

// Config describes a run.
type Config struct {
	Scenario string
	Binary   string
	Dir      string // existing directory for data and logs of failures
	Seed     uint64
	Bound    time.Duration // longest time from the last event to one group that serves all peers
	Duration time.Duration // $duration of a script
	Progress io.Writer
}

// Outcome is the result of one seed, written as JSON. Times are seconds.
type Outcome struct {
	Scenario string  `json:"scenario"`
	Seed     uint64  `json:"seed"`
	Peers    int     `json:"peers"`
	Killed   int     `json:"killed"`
	Tokens   int     `json:"tokens"` // that clients got
	Formed   float64 `json:"formed"` // longest wait for one group with its voters
	Seconds  float64 `json:"seconds"`
	Failure  string  `json:"failure,omitempty"` // the end of the script's log
	Data     string  `json:"data,omitempty"`    // where data and logs are
}

// run is one play of a script. Each peer is a network.Network of its own, because it may have a group of its own.
type run struct {
	Config
	ctx     context.Context
	rng     *rand.Rand
	dir     string
	began   time.Time
	log     *os.File
	all     []*member
	outcome Outcome
	met     span        // in which separate groups became one
	last    fence.Token // greatest of the commands token and lock
	end     func()      // of the clients; nil: there are none
	answers func() error

	lan    *lan.LAN // of a house; nil: all peers are on loopback
	cuts   [][2]int // from and to
	ledger ledger
	apps   int // applications so far
	crew   *errgroup.Group
	counts *counts // of a load

	mu    sync.Mutex // guards holds, and changes of all beside clients
	holds []hold
}

// member is one peer of a script.
type member struct {
	*network.Network // nil before the first start of a peer of a house
	name             string
	joined           bool // it connects to the others when it starts
	bridge           []string
	home             string // where it listens; empty: anywhere

	spec process.Spec // of a peer of a house, as are the next
	api  *app.REST
	up   atomic.Bool // applications may ask it

	mu     sync.Mutex
	serves *network.Peer // for clients; nil: ended
}

func (m *member) peer() *network.Peer { return m.Peers[0] }

// dials returns the options of clients of the i-th peer of a house.
func (r *run) dials(i int) func(int) []grpc.DialOption {
	dial := r.lan.Dial(i)
	return func(int) []grpc.DialOption {
		return []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) { return dial(ctx, "tcp", address) })}
	}
}

// Run plays one seed. The error concerns the run itself; the outcome has the failure.
func Run(ctx context.Context, c Config) (Outcome, error) {
	const op = "scenario.Run"
	text, err := scripts.ReadFile("scripts/" + c.Scenario + ".txt")
	if err != nil {
		return Outcome{}, fault.As(op, fault.Invalid, err)
	}
	playing, cancel := context.WithCancel(ctx)
	defer cancel()
	r := &run{Config: c, ctx: playing, rng: rand.New(rand.NewPCG(c.Seed, 7)), began: time.Now(), outcome: Outcome{Scenario: c.Scenario, Seed: c.Seed}}
	r.ledger, r.crew = ledger{began: r.began, book: make(map[string]entry)}, new(errgroup.Group)
	r.counts = newCounts()
	r.dir = filepath.Join(c.Dir, fmt.Sprintf("%s-%d", c.Scenario, c.Seed))
	if err := os.Mkdir(r.dir, 0o700); err != nil {
		return r.outcome, fault.As(op, fault.Invalid, err)
	}
	if r.log, err = os.Create(filepath.Join(r.dir, "peers.log")); err != nil {
		return r.outcome, fault.As(op, fault.Invalid, err)
	}
	log, held, err := script.Play(r.dir, c.Scenario, string(text), r.commands(), r.condition, map[string]string{"duration": c.Duration.String()})
	cancel()
	for _, lost := range r.stop() {
		log, held = fmt.Sprintf("%s\na peer ended by itself: %v", log, lost), false
	}
	r.outcome.Seconds, r.outcome.Tokens = time.Since(r.began).Seconds(), len(r.holds)
	switch {
	case err == nil && !held && ctx.Err() == nil:
		r.outcome.Failure, r.outcome.Data = log, r.dir
		return r.outcome, r.log.Close()
	default:
		return r.outcome, errors.Join(fault.Wrap(op, ctx.Err()), err, r.log.Close(), os.RemoveAll(r.dir))
	}
}

// condition is one of a script: chance, or lan, for a house whose peers have hosts of their own.
func (r *run) condition(cond string) (bool, error) {
	switch cond {
	case "chance":
		return r.rng.IntN(2) == 0, nil
	case "lan":
		return r.lan != nil, nil
	}
	return false, fault.Invalidf("condition", cond, "must be chance or lan, not %q", cond)
}

// stop ends clients and peers, and returns the failures of those that ended by themselves.
func (r *run) stop() (lost []error) {
	if r.end != nil {
		r.end()
	}
	if r.answers != nil {
		_ = r.answers() // the script did not want it
	}
	_ = r.rest() // the script has the failures of applications
	for _, m := range r.all {
		if m.api != nil {
			m.api.Close()
		}
		if m.Network == nil {
			continue
		}
		lost = append(lost, m.Lost()...)
		m.Stop()
	}
	if r.lan != nil {
		r.lan.Close()
	}
	return lost
}

// add starts a new peer, and registers an instance at it.
func (r *run) add(name string, joined bool) error {
	m := &member{name: name, joined: joined}
	if joined {
		m.bridge = r.addresses(m)
	}
	dir := filepath.Join(r.dir, "at-"+name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return fault.As("scenario.add", fault.Unavailable, err)
	}
	var err error
	m.Network, err = network.Start(r.ctx, network.Config{
		Peers: 1, Binary: r.Binary, Dir: dir, Keep: true, Log: r.log,
		Adapt: func(_ int, s *process.Spec) { s.Name, s.Bootstrap, s.Listen = name, m.bridge, m.home },
	})
	if err != nil {
		return err
	}
	r.mu.Lock()
	r.all = append(r.all, m)
	r.mu.Unlock()
	r.outcome.Peers++
	m.serve(m.peer())
	return await.Until(r.ctx, r.Bound, "a registration", func(ctx context.Context) error {
		_, err := m.peer().Services().Register(ctx, instance.Registration{
			Key: instance.Key{Service: "app", ID: name}, Spec: instance.Spec{Host: "127.0.0.1", Port: 9, UnhealthyAfter: time.Hour},
		})
		return err
	})
}

func (m *member) serve(p *network.Peer) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.serves = p
}

func (m *member) client() *operator.Client {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.serves == nil {
		return nil
	}
	return m.serves.Client
}

// addresses are those of the other peers that run.
func (r *run) addresses(m *member) (all []string) {
	for _, o := range r.living() {
		if o != m {
			all = append(all, o.peer().Listen...)
		}
	}
	return all
}

func (r *run) living() (all []*member) {
	for _, m := range r.all {
		if m.peer().Running() {
			all = append(all, m)
		}
	}
	return all
}

// halt ends a peer, by a crash or in order.
func (r *run) halt(m *member, crash bool) {
	m.serve(nil)
	if !crash {
		m.peer().Interrupt()
		return
	}
	r.outcome.Killed++
	m.peer().Kill()
}

// start starts an ended peer on its data.
func (r *run) start(m *member) error {
	if m.bridge = nil; m.joined {
		m.bridge = r.addresses(m)
	}
	if err := m.Restart(r.ctx, m.peer()); err != nil {
		return err
	}
	m.serve(m.peer())
	return nil
}

// one waits until all running peers know one group with a number of voters, and returns it.
func (r *run) one(voters int, meanwhile func(context.Context) error) (group coord.GroupState, err error) {
	began := time.Now()
	err = await.Until(r.ctx, r.Bound, "one group", func(ctx context.Context) error {
		if err := meanwhile(ctx); err != nil {
			return err
		}
		seen := ""
		for _, m := range r.living() {
			ctx, cancel := context.WithTimeout(ctx, callLimit)
			g, err := m.peer().Coordination().Group(ctx)
			cancel()
			switch {
			case err != nil:
				return err
			case g.Leader == "" || g.Missing != "" || len(g.Voters) != voters:
				return fault.New(m.name, fault.Unavailable, "leader %q, %d voters, missing %q", g.Leader, len(g.Voters), g.Missing)
			case seen != "" && g.ID != seen:
				return fault.New(m.name, fault.Unavailable, "it has another group")
			}
			seen, group = g.ID, g
		}
		return nil
	})
	r.outcome.Formed = max(r.outcome.Formed, time.Since(began).Seconds())
	return group, err
}

// everywhere expects the instances of all peers at all peers that run. After a crash of its peer an instance has no status
// until a sign of life.
func (r *run) everywhere() error {
	for _, m := range r.living() {
		err := await.Until(r.ctx, r.Bound, "all instances at "+m.name, func(ctx context.Context) error {
			got, err := m.peer().Services().Discover(ctx, instance.Query{Name: instance.Name{Service: "app"}, Selector: instance.Selector{AnyStatus: true}})
			if err == nil && len(got.Instances) != len(r.all) {
				err = fault.New(m.name, fault.NotFound, "A9 %d of %d: %v", len(got.Instances), len(r.all), got.Instances)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// empty deletes the keys of a group that is not the survivor's, and raises the survivor's revision by a write, as an operator does.
func empty(ctx context.Context, ends, survivor *network.Peer) error {
	from, err := ends.Coordination().Group(ctx)
	if err != nil {
		return err
	}
	to, err := survivor.Coordination().Group(ctx)
	if err != nil || from.ID == "" || from.ID == to.ID {
		return err
	}
	if _, err = ends.KV().Delete(ctx, client.Under("app/")); err != nil {
		return err
	}
	_, err = survivor.KV().Put(ctx, "app/raised", nil)
	return err
}

func (r *run) now() time.Duration { return time.Since(r.began) }
