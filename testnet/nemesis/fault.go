package nemesis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
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
	cuts   bool // needs a LAN
	do     func(*run, context.Context, victims) error
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
		{"stop leader", 6, false, (*run).stopLeader},
		{"stop follower", 2, false, (*run).stopFollower},
		{"stop a peer that does not vote", 1, false, (*run).stopOther},
		{"stop leader again and again", 3, false, (*run).flapLeader},
		{"stop two voters, one after the other", 2, false, (*run).stopTwo},
		{"kill leader", 4, false, (*run).killLeader},
		{"kill follower", 2, false, (*run).killFollower},
		{"kill a minority", 2, false, (*run).killMinority},
		{"kill everybody", 1, false, (*run).killAll},
		{"kill a voter until it is replaced", 2, false, (*run).loseVoter},
		{"interrupt leader", 1, false, (*run).interruptLeader},
		{"hand the leadership over", 1, false, (*run).transfer},
		{"cut leader off", 4, true, (*run).cutLeader},
		{"cut what the leader sends", 3, true, (*run).muteLeader},
		{"cut what the leader hears", 3, true, (*run).deafenLeader},
		{"cut follower off", 2, true, (*run).cutFollower},
		{"cut in two, the leader with the fewer", 3, true, (*run).split},
		{"cut leader from one voter", 2, true, (*run).cutBridge},
		{"cut leader off, then kill it", 1, true, (*run).cutAndKill},
	}
}

// chosen returns the kinds of faults of this run.
func (r *run) chosen() []kind {
	return slices.DeleteFunc(kinds(), func(k kind) bool {
		return k.cuts && r.lan == nil || len(r.Faults) > 0 && !slices.Contains(r.Faults, k.name)
	})
}

// torment applies one fault after the other until the deadline.
func (r *run) torment(ctx context.Context, until time.Duration) error {
	all, total := r.chosen(), 0
	for _, k := range all {
		total += k.weight
	}
	if total == 0 {
		return fault.Invalidf("faults", r.Faults, "none of them can be made here")
	}
	for r.now() < until && ctx.Err() == nil {
		at := r.rng.IntN(total)
		i := slices.IndexFunc(all, func(k kind) bool { at -= k.weight; return at < 0 })
		v, err := r.victims(ctx)
		if err != nil {
			return err
		}
		r.say("%s (the leader is %s)", all[i].name, r.peers[v.leader].name)
		r.report.Faults[all[i].name]++
		if err := all[i].do(r, ctx, v); err != nil {
			return fault.Wrap(all[i].name, err)
		}
		if err := r.heal(ctx); err != nil {
			return err
		}
		if err := r.wait(ctx, r.span(0, quiet)); err != nil {
			return err
		}
	}
	return nil
}

// victims waits for a leader.
func (r *run) victims(ctx context.Context) (victims, error) {
	if err := r.awaitGroup(ctx, formLimit); err != nil {
		return victims{}, err
	}
	s := r.group(ctx)
	v := victims{leader: r.index(s.Leader)}
	if v.leader < 0 {
		return r.victims(ctx) // the leader changed meanwhile
	}
	votes := func(i int) bool {
		return slices.ContainsFunc(s.Voters, func(m client.Member) bool { return r.index(m.Peer) == i })
	}
	for i := range r.peers {
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
func (r *run) span(least, most time.Duration) time.Duration {
	x := r.rng.Float64()
	return least + time.Duration(x*x*float64(max(most-least, 0)))
}

func (r *run) outage() time.Duration { return r.span(shortest, r.Pause) }

func (r *run) wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return fault.Wrap("nemesis.wait", ctx.Err())
	}
}

func (r *run) any(of []int) int { return of[r.rng.IntN(len(of))] }

func (r *run) pause(i int) error {
	r.peers[i].paused = true
	return r.net.Peers[i].Pause()
}

func (r *run) resume(i int) error {
	r.peers[i].paused = false
	return r.net.Peers[i].Resume()
}

func (r *run) stopFor(ctx context.Context, i int, d time.Duration) error {
	return errors.Join(r.pause(i), r.wait(ctx, d), r.resume(i))
}

func (r *run) stopLeader(ctx context.Context, v victims) error {
	return r.stopFor(ctx, v.leader, r.outage())
}

func (r *run) stopFollower(ctx context.Context, v victims) error {
	return r.stopFor(ctx, r.any(v.followers), r.outage())
}

func (r *run) stopOther(ctx context.Context, v victims) error {
	return r.stopFor(ctx, r.any(v.others), r.outage())
}

// flapLeader pauses each leader for about the time of an election, several times.
func (r *run) flapLeader(ctx context.Context, v victims) error {
	for range 4 {
		if err := errors.Join(r.stopFor(ctx, v.leader, r.span(100*time.Millisecond, 3*time.Second)), r.wait(ctx, r.span(0, time.Second))); err != nil {
			return err
		}
		if next := r.index(r.group(ctx).Leader); next >= 0 {
			v.leader = next
		}
	}
	return nil
}

// stopTwo removes the majority for a while: it pauses the leader and a follower, and resumes them
// in the other order.
func (r *run) stopTwo(ctx context.Context, v victims) error {
	second := r.any(v.followers)
	return errors.Join(
		r.pause(v.leader), r.wait(ctx, r.span(0, 2*time.Second)), r.pause(second),
		r.wait(ctx, r.outage()), r.resume(v.leader), r.wait(ctx, r.span(0, 2*time.Second)), r.resume(second),
	)
}

func (r *run) kill(ctx context.Context, some ...int) error {
	for _, i := range some {
		r.net.Peers[i].Kill()
	}
	return r.wait(ctx, r.span(0, longestOff))
}

func (r *run) killLeader(ctx context.Context, v victims) error { return r.kill(ctx, v.leader) }

func (r *run) killFollower(ctx context.Context, v victims) error {
	return r.kill(ctx, r.any(v.followers))
}

// killMinority kills one of three voters and one peer without a vote, possibly the replacement.
func (r *run) killMinority(ctx context.Context, v victims) error {
	return r.kill(ctx, r.any(append(v.followers, v.leader)), r.any(v.others))
}

func (r *run) killAll(ctx context.Context, _ victims) error {
	all := make([]int, len(r.peers))
	for i := range all {
		all[i] = i
	}
	return r.kill(ctx, all...)
}

// loseVoter kills a voter and waits for its replacement.
func (r *run) loseVoter(ctx context.Context, v victims) error {
	lost := r.any(append(v.followers, v.leader))
	id := r.net.Peers[lost].ID.String()
	r.net.Peers[lost].Kill()
	limit := r.now() + replaceAfter + r.Recovery
	for r.now() < limit {
		s := r.group(ctx)
		if s.Leader != "" && !slices.ContainsFunc(s.Voters, func(m client.Member) bool { return m.Peer == id }) {
			r.say("%s was voted out", r.peers[lost].name)
			return nil
		}
		if err := r.wait(ctx, 200*time.Millisecond); err != nil {
			return err
		}
	}
	r.violated("V1", "%s was dead for %v and still votes", r.peers[lost].name, replaceAfter+r.Recovery)
	return nil
}

// interruptLeader stops the leader like an operator.
func (r *run) interruptLeader(ctx context.Context, v victims) error {
	r.net.Peers[v.leader].Interrupt()
	return r.wait(ctx, r.span(0, longestOff))
}

func (r *run) transfer(ctx context.Context, v victims) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	to := r.net.Peers[r.any(v.followers)].ID.String()
	if err := r.net.Peers[v.leader].Coordination().Transfer(ctx, to); err != nil {
		r.say("not handed over: %v", err) // a busy group may refuse the transfer
	}
	return nil
}

// cut drops all packets from some hosts to others.
func (r *run) cut(from, to []int) error {
	for _, a := range from {
		for _, b := range to {
			if a != b {
				r.cuts = append(r.cuts, [2]int{a, b})
				if err := r.lan.Cut(a, b); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (r *run) cutFor(ctx context.Context, from, to []int, both bool) error {
	err := r.cut(from, to)
	if both && err == nil {
		err = r.cut(to, from)
	}
	return errors.Join(err, r.wait(ctx, r.outage()))
}

func (r *run) rest(of ...int) (rest []int) {
	for i := range r.peers {
		if !slices.Contains(of, i) {
			rest = append(rest, i)
		}
	}
	return rest
}

func (r *run) cutLeader(ctx context.Context, v victims) error {
	return r.cutFor(ctx, []int{v.leader}, r.rest(v.leader), true)
}

func (r *run) muteLeader(ctx context.Context, v victims) error {
	return r.cutFor(ctx, []int{v.leader}, r.rest(v.leader), false)
}

func (r *run) deafenLeader(ctx context.Context, v victims) error {
	return r.cutFor(ctx, r.rest(v.leader), []int{v.leader}, false)
}

func (r *run) cutFollower(ctx context.Context, v victims) error {
	f := r.any(v.followers)
	return r.cutFor(ctx, []int{f}, r.rest(f), true)
}

func (r *run) split(ctx context.Context, v victims) error {
	side := []int{v.leader, r.any(v.others)}
	return r.cutFor(ctx, side, r.rest(side...), true)
}

// cutBridge separates two voters and leaves the third connected to both.
func (r *run) cutBridge(ctx context.Context, v victims) error {
	return r.cutFor(ctx, []int{v.leader}, []int{r.any(v.followers)}, true)
}

func (r *run) cutAndKill(ctx context.Context, v victims) error {
	return errors.Join(r.cutLeader(ctx, v), r.kill(ctx, v.leader))
}

// heal repairs everything and waits until the clients of every peer are served again (V1).
func (r *run) heal(ctx context.Context) error {
	for _, lost := range r.net.Lost() {
		r.violated("X1", "a peer ended by itself: %v", lost)
	}
	for i := range r.peers {
		if r.net.Peers[i].Running() {
			_ = r.resume(i)
		}
	}
	for _, c := range r.cuts {
		if err := r.lan.Mend(c[0], c[1]); err != nil {
			return err
		}
	}
	r.cuts = nil
	repaired := r.now()
	for i, p := range r.net.Peers {
		if !p.Running() {
			r.peers[i].paused = false
			if err := r.net.Restart(ctx, p); err != nil {
				return err
			}
		}
	}
	restarted := r.now()
	last := r.probe(ctx)
	if ctx.Err() != nil {
		return fault.Wrap("nemesis.heal", ctx.Err())
	}
	took := r.now() - restarted
	r.report.Recoveries = append(r.report.Recoveries, took.Seconds())
	r.say("repaired; processes up after %.1f s, all served after another %.2f s, %s last",
		(restarted - repaired).Seconds(), took.Seconds(), r.peers[last].name)
	return nil
}

// probe writes through every peer until each write succeeds, and returns the slowest peer.
func (r *run) probe(ctx context.Context) (last int) {
	limit := r.now() + r.Recovery
	var wg sync.WaitGroup
	var mu sync.Mutex // guards last
	for i, p := range r.net.Peers {
		wg.Go(func() {
			defer func() {
				mu.Lock()
				defer mu.Unlock()
				last = i
			}()
			var err error
			for n := 0; r.now() < limit && ctx.Err() == nil; n++ {
				value := fmt.Sprintf("probe %d %d %d", i, r.now(), n)
				if err = probe(ctx, p.Client, fmt.Sprintf("%s/%d", probes, i), value); err == nil {
					return
				}
				if r.wait(ctx, 20*time.Millisecond) != nil {
					return
				}
			}
			r.violated("V1", "%s does not serve %v after the last fault was repaired: %v", r.peers[i].name, r.Recovery, err)
		})
	}
	wg.Wait()
	return last
}

func probe(ctx context.Context, c *client.Client, key, value string) error {
	ctx, cancel := context.WithTimeout(ctx, probeLimit)
	defer cancel()
	_, _, err := c.Coordination().Do(ctx, coord.Command{Op: &coord.Write{Then: []coord.Change{{Put: &coord.Put{Key: key, Value: []byte(value)}}}}})
	return err
}
