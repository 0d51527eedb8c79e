// Package groups lets the peers of a network join its group, or meet with groups of their own, while clients take
// locks at all of them. Some peers are killed on the way. In the end there is one group, and it kept its promises.
//
// A seed decides the play, but real processes run freely.
package groups

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
	"github.com/blackhole/blackhole/testnet/await"
	"github.com/blackhole/blackhole/testnet/network"
	"github.com/blackhole/blackhole/testnet/process"
)

// Scenarios.
const (
	Join   = "join"   // peers join the first one, at different times
	Grow   = "grow"   // the same, and each group of three loses its leader
	Merge  = "merge"  // peers that founded a group each meet
	Backup = "backup" // three peers lose their disks, and one restores the group
)

const (
	callLimit = 5 * time.Second
	workers   = 4
	voters    = 3
)

// Config describes a run.
type Config struct {
	Scenario string
	Binary   string
	Dir      string // existing directory for data and logs of violations
	Seed     uint64
	Bound    time.Duration // longest time from the last event to one group that serves all peers
}

// Outcome is the result of one seed, written as JSON. Times are seconds.
type Outcome struct {
	Seed       uint64   `json:"seed"`
	Peers      int      `json:"peers"`
	Killed     int      `json:"killed"`
	Ordered    int      `json:"ordered"` // groups that were given up by an order
	Tokens     int      `json:"tokens"`
	Formed     float64  `json:"formed"` // longest from a start, registered, to one group with all its voters
	Seconds    float64  `json:"seconds"`
	Violations []string `json:"violations"`
	Data       string   `json:"data,omitempty"`
}

// run is one network. Each peer is a network.Network of its own, because it may have a group of its own.
type run struct {
	Config
	rng     *rand.Rand
	dir     string
	began   time.Time
	log     *os.File
	islands []*network.Network
	outcome Outcome

	mu     sync.Mutex
	serves []*network.Peer // for clients; nil: ended
	bridge []string        // addresses for the next start
	holds  []hold
}

// Run plays one seed. The error concerns the run itself; the outcome has the violations.
func Run(ctx context.Context, c Config) (Outcome, error) {
	const op = "groups.Run"
	r := &run{Config: c, rng: rand.New(rand.NewPCG(c.Seed, 7)), dir: filepath.Join(c.Dir, fmt.Sprintf("%s-%d", c.Scenario, c.Seed)), began: time.Now()}
	r.outcome = Outcome{Seed: c.Seed, Violations: []string{}}
	if err := os.Mkdir(r.dir, 0o700); err != nil {
		return r.outcome, fault.As(op, fault.Invalid, err)
	}
	var err error
	if r.log, err = os.Create(filepath.Join(r.dir, "peers.log")); err != nil {
		return r.outcome, fault.As(op, fault.Invalid, err)
	}
	err = r.play(ctx)
	for _, n := range r.islands {
		r.outcome.Violations = append(r.outcome.Violations, lostOf(n)...)
		n.Stop()
	}
	err = errors.Join(err, r.log.Close())
	r.outcome.Seconds = time.Since(r.began).Seconds()
	if err == nil && len(r.outcome.Violations) == 0 {
		err = os.RemoveAll(r.dir)
	} else {
		r.outcome.Data = r.dir
	}
	return r.outcome, fault.Wrap(op, err)
}

func lostOf(n *network.Network) (all []string) {
	for _, err := range n.Lost() {
		all = append(all, fmt.Sprintf("a peer ended by itself: %v", err))
	}
	return all
}

// play starts clients, changes the network, and judges.
func (r *run) play(ctx context.Context) error {
	if err := r.add(ctx); err != nil {
		return err
	}
	working, stop := context.WithCancel(ctx)
	var work sync.WaitGroup
	defer func() { stop(); work.Wait() }()
	for i := range workers {
		rng := rand.New(rand.NewPCG(r.Seed, uint64(100+i)))
		work.Go(func() { r.work(working, rng) })
	}
	met, err := map[string]func(context.Context) (span, error){Join: r.join, Grow: r.grow, Merge: r.merge, Backup: r.backup}[r.Scenario](ctx)
	if err != nil {
		return err
	}
	if err := await.Pause(ctx, 2*time.Second); err != nil {
		return err
	}
	stop()
	work.Wait()
	r.outcome.Tokens = len(r.holds)
	r.outcome.Violations = append(r.outcome.Violations, check(r.holds, met)...)
	return r.everywhere(ctx)
}

// add starts one more peer, and registers an instance at it.
func (r *run) add(ctx context.Context) error {
	i := len(r.islands)
	dir := filepath.Join(r.dir, fmt.Sprint("at-", i+1))
	if err := os.Mkdir(dir, 0o700); err != nil {
		return fault.As("groups.add", fault.Unavailable, err)
	}
	n, err := network.Start(ctx, network.Config{
		Peers: 1, Binary: r.Binary, Dir: dir, Keep: true, Log: r.log,
		Adapt: func(_ int, s *process.Spec) { s.Name, s.Bootstrap = fmt.Sprint("peer-", i+1), r.bridge },
	})
	if err != nil {
		return err
	}
	r.islands = append(r.islands, n)
	r.outcome.Peers++
	r.mu.Lock()
	r.serves = append(r.serves, n.Peers[0])
	r.mu.Unlock()
	return await.Until(ctx, r.Bound, "a registration", func(ctx context.Context) error {
		_, err := n.Peers[0].Services().Register(ctx, instance.Registration{
			Key: instance.Key{Service: "app", ID: fmt.Sprint("at-", i+1)}, Spec: instance.Spec{Host: "127.0.0.1", Port: 9, UnhealthyAfter: time.Hour},
		})
		return err
	})
}

// restart ends a peer, by a crash or in order, and starts it again on its data.
func (r *run) restart(ctx context.Context, i int, crash bool, pause time.Duration) error {
	n := r.islands[i]
	r.mu.Lock()
	r.serves[i] = nil
	r.mu.Unlock()
	if crash {
		r.outcome.Killed++
		n.Peers[0].Kill()
	} else {
		n.Peers[0].Interrupt()
	}
	return errors.Join(await.Pause(ctx, pause), r.start(ctx, i))
}

// start starts an ended peer on its data.
func (r *run) start(ctx context.Context, i int) error {
	n := r.islands[i]
	if err := n.Restart(ctx, n.Peers[0]); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.serves[i] = n.Peers[0]
	return nil
}

// join starts two to four more peers at any time, and may kill one.
func (r *run) join(ctx context.Context) (span, error) {
	r.bridge = r.islands[0].Peers[0].Listen
	for range 2 + r.rng.IntN(3) {
		if err := errors.Join(await.Pause(ctx, r.span(0, 2*time.Second)), r.add(ctx)); err != nil {
			return span{}, err
		}
	}
	if r.rng.IntN(2) == 0 {
		if err := r.restart(ctx, 1+r.rng.IntN(len(r.islands)-1), true, r.span(0, 3*time.Second)); err != nil {
			return span{}, err
		}
	}
	_, err := r.one(ctx, nil)
	return span{}, err
}

// grow adds peers in pairs. Each time the group has its voters, the leader is killed, and a survivor must serve.
func (r *run) grow(ctx context.Context) (span, error) {
	r.bridge = r.islands[0].Peers[0].Listen
	for range 2 {
		for range 2 {
			if err := r.add(ctx); err != nil {
				return span{}, err
			}
		}
		g, err := r.one(ctx, nil)
		if err != nil {
			return span{}, err
		}
		leads := slices.IndexFunc(r.islands, func(n *network.Network) bool { return n.Peers[0].ID.String() == g.Leader })
		for i, n := range r.islands {
			if i != leads {
				r.bridge = n.Peers[0].Listen
			}
		}
		if err := r.restart(ctx, max(leads, 0), true, r.span(0, 8*time.Second)); err != nil {
			return span{}, err
		}
	}
	_, err := r.one(ctx, nil)
	return span{}, err
}

// merge founds one or two more groups, connects all, and gives those with data up by orders.
func (r *run) merge(ctx context.Context) (met span, err error) {
	for range 1 + r.rng.IntN(2) {
		if err := r.add(ctx); err != nil {
			return met, err
		}
	}
	for i, n := range r.islands {
		if r.rng.IntN(2) == 0 {
			continue // without kept data the group may give itself up
		}
		write := &coord.Txn{Then: []coord.Step{{Put: &coord.Put{Key: fmt.Sprint("app/", i), Value: []byte("kept")}}}}
		if _, _, err := coord.OpsOf(n.Peers[0].Coordination()).Do(ctx, coord.Command{Op: write}); err != nil {
			return met, err
		}
	}
	if err := await.Pause(ctx, r.span(time.Second, 3*time.Second)); err != nil {
		return met, err
	}
	met.from = r.now()
	r.bridge = r.islands[0].Peers[0].Listen
	for i := range r.islands[1:] {
		if err := r.restart(ctx, i+1, r.rng.IntN(2) == 0, 0); err != nil {
			return met, err
		}
	}
	if r.rng.IntN(2) == 0 {
		victim := 1 + r.rng.IntN(len(r.islands)-1)
		if err := errors.Join(await.Pause(ctx, r.span(0, 3*time.Second)), r.restart(ctx, victim, true, r.span(0, 2*time.Second))); err != nil {
			return met, err
		}
	}
	orders := time.Now().Add(r.span(2*time.Second, 6*time.Second))
	_, err = r.one(ctx, func(ctx context.Context) {
		if time.Now().After(orders) {
			r.order(ctx)
		}
	})
	met.to = r.now()
	return met, err
}

// order gives up the group of a peer that has another one than the first peer.
func (r *run) order(ctx context.Context) {
	first := r.islands[0].Peers[0]
	for _, n := range r.islands[1:] {
		if g, err := n.Peers[0].Coordination().Group(ctx); err != nil || g.ID == "" || g.ID == r.groupOf(ctx, first) {
			continue
		}
		if JoinGroups(ctx, n.Peers[0].Coordination(), first.Coordination()) == nil {
			r.outcome.Ordered++
		}
	}
}

// JoinGroups gives a group up for another one, as blackholed group join does.
func JoinGroups(ctx context.Context, ends, survivor coord.Admin) error {
	from, err := ends.Group(ctx)
	if err != nil {
		return err
	}
	to, err := survivor.Group(ctx)
	if err != nil {
		return err
	}
	done, err := ends.ChangeMembers(ctx, coord.MemberChange{Action: coord.JoinGroup, Group: to.ID, Force: true})
	if err != nil {
		return err
	}
	_, err = survivor.ChangeMembers(ctx, coord.MemberChange{Action: coord.RaiseGroup, Group: from.ID, Revision: done.Revision})
	return err
}

func (r *run) groupOf(ctx context.Context, p *network.Peer) string {
	g, _ := p.Coordination().Group(ctx) // no answer is no group
	return g.ID
}

// one waits for a single group of all peers with all its voters, and returns it.
func (r *run) one(ctx context.Context, meanwhile func(context.Context)) (group coord.GroupState, err error) {
	began := time.Now()
	err = await.Until(ctx, r.Bound, "one group", func(ctx context.Context) error {
		if meanwhile != nil {
			meanwhile(ctx)
		}
		seen := ""
		for i, n := range r.islands {
			ctx, cancel := context.WithTimeout(ctx, callLimit)
			g, err := n.Peers[0].Coordination().Group(ctx)
			cancel()
			wanted := min(voters, len(r.islands)-(len(r.islands)+1)%2)
			switch {
			case err != nil:
				return err
			case g.Leader == "" || g.Missing != "" || len(g.Voters) != wanted:
				return fault.New("groups", fault.Unavailable, "peer %d: leader %q, %d voters, missing %q", i+1, g.Leader, len(g.Voters), g.Missing)
			case seen != "" && g.ID != seen:
				return fault.New("groups", fault.Unavailable, "peer %d has another group", i+1)
			}
			seen, group = g.ID, g
		}
		return nil
	})
	r.outcome.Formed = max(r.outcome.Formed, time.Since(began).Seconds())
	if fault.KindOf(err) == fault.Timeout && ctx.Err() == nil {
		r.outcome.Violations = append(r.outcome.Violations, fmt.Sprint("N1 ", err))
		err = nil
	}
	return group, err
}

// everywhere expects all instances at all peers. After a crash of its peer an instance has no status until a sign of life.
func (r *run) everywhere(ctx context.Context) error {
	for i, n := range r.islands {
		err := await.Until(ctx, r.Bound, fmt.Sprintf("all instances at peer %d", i+1), func(ctx context.Context) error {
			got, err := n.Peers[0].Services().Discover(ctx, instance.Query{Name: instance.Name{Service: "app"}, Selector: instance.Selector{AnyStatus: true}})
			if err == nil && len(got.Instances) != len(r.islands) {
				err = fault.New("groups", fault.NotFound, "%d of %d: %v", len(got.Instances), len(r.islands), got.Instances)
			}
			return err
		})
		if ctx.Err() != nil {
			return fault.Wrap("groups", ctx.Err())
		}
		if err != nil {
			r.outcome.Violations = append(r.outcome.Violations, fmt.Sprint("A9 ", err))
		}
	}
	return nil
}

func (r *run) now() time.Duration { return time.Since(r.began) }

func (r *run) span(least, most time.Duration) time.Duration {
	return least + time.Duration(r.rng.Int64N(int64(most-least)))
}
