package nemesis

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/internal/operator"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/testnet/await"
)

const (
	shortest   = time.Second // of a pause or a cut
	longestOff = 8 * time.Second
	quiet      = 3 * time.Second // longest time from a recovery to the next fault
	probeLimit = 2 * time.Second
)

// kind is one kind of fault. heal repairs its damage.
type kind struct {
	name   string
	weight int
	needs  need
	do     func(context.Context, *faults, victims) error
}

// need is what a fault needs of this machine.
type need int

const (
	nothing need = iota
	hosts        // a host for each peer: network namespaces
	disks        // a disk for each peer: the right to mount
	limits       // limits of running processes: prlimit(2)
)

// has reports whether the run has what a fault needs.
func (r *run) has(n need) bool {
	switch n {
	case hosts:
		return r.split
	case disks:
		return slices.ContainsFunc(r.peers, func(p *peer) bool { return p.disk != nil })
	case limits:
		return runtime.GOOS == "linux"
	default:
		return true
	}
}

// victims are the indices of peers, by their part in the group.
type victims struct {
	leader    int
	followers []int // voters besides the leader
	others    []int // all other peers
}

// Faults lists the faults with a name that begins with one of words; without words, all faults.
func Faults(words ...string) []string {
	var names []string
	for _, k := range kinds() {
		first, _, _ := strings.Cut(k.name, " ")
		if len(words) == 0 || slices.Contains(words, first) {
			names = append(names, k.name)
		}
	}
	return names
}

func kinds() []kind {
	return []kind{
		{"stop leader", 6, nothing, stop(leader)},
		{"stop follower", 2, nothing, stop(follower)},
		{"stop a peer that does not vote", 1, nothing, stop(other)},
		{"stop leader again and again", 3, nothing, flapLeader},
		{"stop two voters, one after the other", 2, nothing, stopTwo},
		{"kill leader", 4, nothing, kill(leader)},
		{"kill follower", 2, nothing, kill(follower)},
		{"kill a minority", 2, nothing, kill(voter, other)}, // possibly the replacement,
		{"kill everybody", 1, nothing, killAll},
		{"kill a voter until it is replaced", 2, nothing, loseVoter},
		{"interrupt leader", 1, nothing, interruptLeader},
		{"hand the leadership over", 1, nothing, transfer},
		{"cut leader off", 4, hosts, cutOff(true, true, leader)},
		{"cut what the leader sends", 3, hosts, cutOff(true, false, leader)},
		{"cut what the leader hears", 3, hosts, cutOff(false, true, leader)},
		{"cut follower off", 2, hosts, cutOff(true, true, follower)},
		{"cut in two, the leader with the fewer", 3, hosts, cutOff(true, true, leader, other)},
		{"cut leader from one voter", 2, hosts, cutBridge},
		{"cut leader off, then kill it", 1, hosts, cutAndKill},
		{"flap the link of the leader", 2, hosts, flapLink},
		{"lose 30 % of all packets", 2, hosts, loseAll},
		{"step the clock of a voter", 2, nothing, stepClock},
		{"fill the disk of a voter", 2, disks, fillDisk},
		{"starve a voter of descriptors", 2, limits, starveOfFiles},
		{"starve a voter of memory", 1, limits, starveOfMemory},
	}
}

// faults breaks the network of a run and repairs it.
type faults struct {
	*run
	rng  *rand.Rand
	cuts [][2]int // current cuts: from and to
	ends []func() // end what else is wrong
}

func newFaults(r *run) *faults {
	return &faults{run: r, rng: rand.New(rand.NewPCG(r.Seed, 1))}
}

// chosen returns the kinds of faults of this run.
func (f *faults) chosen() []kind {
	return slices.DeleteFunc(kinds(), func(k kind) bool {
		return !f.has(k.needs) || len(f.Faults) > 0 && !slices.Contains(f.Faults, k.name)
	})
}

// disturb applies one fault after the other until the deadline.
func (f *faults) disturb(ctx context.Context, until time.Duration) error {
	all, total := f.chosen(), 0
	for _, k := range all {
		total += k.weight
	}
	if total == 0 {
		return fault.Invalidf("faults", f.Faults, "none of them can be made here")
	}
	for f.now() < until && ctx.Err() == nil {
		at := f.rng.IntN(total)
		i := slices.IndexFunc(all, func(k kind) bool { at -= k.weight; return at < 0 })
		v, err := f.victims(ctx)
		if err != nil {
			return err
		}
		f.say("%s (the leader is %s)", all[i].name, f.peers[v.leader].name)
		f.report.Faults[all[i].name]++
		if err := all[i].do(ctx, f, v); err != nil {
			return fault.Wrap(all[i].name, err)
		}
		if err := f.heal(ctx); err != nil {
			return err
		}
		if err := await.Pause(ctx, f.span(0, quiet)); err != nil {
			return err
		}
	}
	return nil
}

// victims waits for a leader.
func (f *faults) victims(ctx context.Context) (victims, error) {
	if err := f.awaitGroup(ctx, formLimit); err != nil {
		return victims{}, err
	}
	s := f.group(ctx)
	v := victims{leader: f.index(s.Leader)}
	if v.leader < 0 {
		return f.victims(ctx) // the leader changed meanwhile
	}
	votes := func(i int) bool {
		return slices.ContainsFunc(s.Voters, func(m coord.Member) bool { return f.index(m.Peer) == i })
	}
	for i := range f.peers {
		switch {
		case i == v.leader:
		case votes(i):
			v.followers = append(v.followers, i)
		default:
			v.others = append(v.others, i)
		}
	}
	return v, nil
}

// span draws a duration, short ones more often.
func (f *faults) span(least, most time.Duration) time.Duration {
	x := f.rng.Float64()
	return least + time.Duration(x*x*float64(max(most-least, 0)))
}

func (f *faults) outage() time.Duration { return f.span(shortest, f.Pause) }

// trouble notes peers under a fault, until heal.
func (f *faults) trouble(some ...int) {
	for _, i := range some {
		f.peers[i].troubled.Store(true)
		f.seen.offers.Cut(f.peers[i].name+marketID, f.now())
	}
}

func (f *faults) any(of []int) int { return of[f.rng.IntN(len(of))] }

func (f *faults) pause(i int) error {
	f.peers[i].paused = true
	f.trouble(i)
	return f.net.Peers[i].Process.Pause()
}

func (f *faults) resume(i int) error {
	f.peers[i].paused = false
	return f.net.Peers[i].Process.Resume()
}

func (f *faults) stopFor(ctx context.Context, i int, d time.Duration) error {
	return errors.Join(f.pause(i), await.Pause(ctx, d), f.resume(i))
}

// pick chooses a peer.
type pick func(*faults, victims) int

func leader(_ *faults, v victims) int   { return v.leader }
func follower(f *faults, v victims) int { return f.any(v.followers) }
func other(f *faults, v victims) int    { return f.any(v.others) }
func voter(f *faults, v victims) int    { return f.any(append(v.followers, v.leader)) }

// those are the peers of picks.
func (f *faults) those(v victims, picks []pick) (all []int) {
	for _, p := range picks {
		all = append(all, p(f, v))
	}
	return all
}

// stop pauses a peer for a while.
func stop(whom pick) func(context.Context, *faults, victims) error {
	return func(ctx context.Context, f *faults, v victims) error { return f.stopFor(ctx, whom(f, v), f.outage()) }
}

// kill kills peers.
func kill(whom ...pick) func(context.Context, *faults, victims) error {
	return func(ctx context.Context, f *faults, v victims) error { return f.kill(ctx, f.those(v, whom)...) }
}

// cutOff drops what some peers send to all others, or what these send to them.
func cutOff(sent, heard bool, whom ...pick) func(context.Context, *faults, victims) error {
	return func(ctx context.Context, f *faults, v victims) error {
		side := f.those(v, whom)
		if sent {
			f.cut(side, f.rest(side...))
		}
		if heard {
			f.cut(f.rest(side...), side)
		}
		return await.Pause(ctx, f.outage())
	}
}

// flapLeader pauses each leader for about the time of an election, several times.
func flapLeader(ctx context.Context, f *faults, v victims) error {
	for range 4 {
		if err := errors.Join(f.stopFor(ctx, v.leader, f.span(100*time.Millisecond, 3*time.Second)), await.Pause(ctx, f.span(0, time.Second))); err != nil {
			return err
		}
		if next := f.index(f.group(ctx).Leader); next >= 0 {
			v.leader = next
		}
	}
	return nil
}

// stopTwo removes the majority for a while: it pauses the leader and a follower, and resumes them
// in the other order.
func stopTwo(ctx context.Context, f *faults, v victims) error {
	second := f.any(v.followers)
	return errors.Join(
		f.pause(v.leader), await.Pause(ctx, f.span(0, 2*time.Second)), f.pause(second),
		await.Pause(ctx, f.outage()), f.resume(v.leader), await.Pause(ctx, f.span(0, 2*time.Second)), f.resume(second),
	)
}

func (f *faults) kill(ctx context.Context, some ...int) error {
	for _, i := range some {
		f.trouble(i)
		f.net.Peers[i].Kill()
	}
	return await.Pause(ctx, f.span(0, longestOff))
}

func killAll(ctx context.Context, f *faults, _ victims) error {
	all := make([]int, len(f.peers))
	for i := range all {
		all[i] = i
	}
	return f.kill(ctx, all...)
}

// loseVoter kills a voter and waits for its replacement.
func loseVoter(ctx context.Context, f *faults, v victims) error {
	lost := voter(f, v)
	id := f.net.Peers[lost].ID.String()
	f.trouble(lost)
	f.net.Peers[lost].Kill()
	limit := f.now() + replaceAfter + f.Recovery
	for f.now() < limit {
		s := f.group(ctx)
		if s.Leader != "" && !slices.ContainsFunc(s.Voters, func(m coord.Member) bool { return m.Peer == id }) {
			f.say("%s was voted out", f.peers[lost].name)
			return nil
		}
		if err := await.Pause(ctx, 200*time.Millisecond); err != nil {
			return err
		}
	}
	f.violated("V1", "%s was dead for %v and still votes", f.peers[lost].name, replaceAfter+f.Recovery)
	return nil
}

// interruptLeader stops the leader like an operator.
func interruptLeader(ctx context.Context, f *faults, v victims) error {
	f.trouble(v.leader)
	f.net.Peers[v.leader].Interrupt()
	return await.Pause(ctx, f.span(0, longestOff))
}

func transfer(ctx context.Context, f *faults, v victims) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	to := f.net.Peers[f.any(v.followers)].ID.String()
	order := coord.MemberChange{Action: coord.TransferLeadership, Peer: to}
	if _, err := f.net.Peers[v.leader].Coordination().ChangeMembers(ctx, order); err != nil {
		f.say("not handed over: %v", err) // a busy group may refuse the transfer
	}
	return nil
}

// cut drops all packets from some hosts to others.
func (f *faults) cut(from, to []int) {
	if len(from) <= len(to) {
		f.trouble(from...)
	} else {
		f.trouble(to...)
	}
	for _, a := range from {
		for _, b := range to {
			if a != b {
				f.cuts = append(f.cuts, [2]int{a, b})
				f.ground.Cut(a, b)
			}
		}
	}
}

func (f *faults) rest(of ...int) (rest []int) {
	for i := range f.peers {
		if !slices.Contains(of, i) {
			rest = append(rest, i)
		}
	}
	return rest
}

// cutBridge separates two voters and leaves the third connected to both.
func cutBridge(ctx context.Context, f *faults, v victims) error {
	a, b := []int{v.leader}, []int{f.any(v.followers)}
	f.cut(a, b)
	f.cut(b, a)
	return await.Pause(ctx, f.outage())
}

func cutAndKill(ctx context.Context, f *faults, v victims) error {
	return errors.Join(cutOff(true, true, leader)(ctx, f, v), f.kill(ctx, v.leader))
}

// heal repairs everything and waits until the clients of every peer are served again (V1).
func (f *faults) heal(ctx context.Context) error {
	for _, lost := range f.net.Lost() {
		f.violated("X1", "a peer ended by itself: %v", lost)
	}
	for i := range f.peers {
		if f.net.Peers[i].Running() {
			_ = f.resume(i)
		}
	}
	f.mend()
	for _, end := range f.ends {
		end()
	}
	f.ends = nil
	if err := f.revive(ctx); err != nil {
		return err
	}
	repaired := f.now()
	for i, p := range f.net.Peers {
		if !p.Running() {
			f.peers[i].paused = false
			if err := f.net.Restart(ctx, p); err != nil {
				return err
			}
		}
	}
	restarted := f.now()
	last := f.probe(ctx)
	if ctx.Err() != nil {
		return fault.Wrap("nemesis.heal", ctx.Err())
	}
	took := f.now() - restarted
	f.report.Recoveries = append(f.report.Recoveries, took.Seconds())
	for _, p := range f.peers {
		if p.troubled.Load() {
			p.healed.Store(int64(f.now()))
			p.troubled.Store(false)
		}
	}
	f.seen.offers.Heal(f.now())
	f.say("repaired; processes up after %.1f s, all served after another %.2f s, %s last",
		(restarted - repaired).Seconds(), took.Seconds(), f.peers[last].name)
	return nil
}

// probe writes through every peer until each write succeeds, and returns the slowest peer.
func (f *faults) probe(ctx context.Context) (last int) {
	limit := f.now() + f.Recovery
	var wg sync.WaitGroup
	var mu sync.Mutex // guards last
	for i, p := range f.net.Peers {
		wg.Go(func() {
			defer func() {
				mu.Lock()
				defer mu.Unlock()
				last = i
			}()
			var err error
			for n := 0; f.now() < limit && ctx.Err() == nil; n++ {
				value := fmt.Sprintf("probe %d %d %d", i, f.now(), n)
				if err = probe(ctx, p.Client, fmt.Sprintf("%s/%d", probes, i), value); err == nil {
					return
				}
				if await.Pause(ctx, 20*time.Millisecond) != nil {
					return
				}
			}
			f.violated("V1", "%s does not serve %v after the last fault was repaired: %v", f.peers[i].name, f.Recovery, err)
		})
	}
	wg.Wait()
	return last
}

func probe(ctx context.Context, c *operator.Client, key, value string) error {
	ctx, cancel := context.WithTimeout(ctx, probeLimit)
	defer cancel()
	_, _, err := ops.Of(c.Coordination()).Do(ctx, ops.Command{Op: &ops.Txn{Then: []ops.Step{{Put: &ops.Put{Key: key, Value: []byte(value)}}}}})
	return err
}
