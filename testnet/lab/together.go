package lab

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/network"
	"github.com/blackhole/blackhole/pkg/network/invite"
	"github.com/blackhole/blackhole/testnet/await"
	"github.com/blackhole/blackhole/testnet/netns"
	"github.com/blackhole/blackhole/testnet/process"
)

const formLimit = 15 * time.Second // until hosts that start together are one group that survives a kill

// together starts the hosts of a local network at once with the same invitation, the inviting host neither first nor last. They
// are one group of three or five voters, and go on after a kill of the leader.
func together(ctx context.Context, w *world) error {
	all, err := invited(ctx, w)
	if err != nil {
		return err
	}
	for _, i := range []int{3, 1, 0, 4, 2} {
		if err := all[i].start(); err != nil {
			return err
		}
	}
	began := time.Now()
	var leader string
	if err := await.Until(ctx, time.Minute, "one group", func(ctx context.Context) (err error) {
		leader, err = oneGroup(ctx, all)
		return err
	}); err != nil {
		w.violated("%v", err)
		return ctx.Err()
	}
	took := time.Since(began)
	w.say("%d hosts with one join line are one group that survives a kill, %.1f s after the last start", len(all), took.Seconds())
	if took > formLimit {
		w.violated("one group took %v, at most %v", took, formLimit)
	}
	return killLeader(ctx, w, all, leader)
}

// invited makes hosts whose peers have the same invitation, of the first one.
func invited(ctx context.Context, w *world) (all []*peer, err error) {
	key, err := network.NewKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	segment := w.network(netns.Quality{})
	line := ""
	for i := range lanHosts {
		h, err := w.host(segment, fmt.Sprintf("host-%d", i+1), lan4(i))
		if err != nil {
			return nil, err
		}
		p, err := w.peer(ctx, h, func(s *process.Spec) { s.Profile = "lan" })
		if err != nil {
			return nil, err
		}
		if i == 0 {
			line, err = invite.Invitation{Name: "office", Profile: "lan", Key: key, Addresses: p.addresses()}.Text()
			if err != nil {
				return nil, err
			}
		}
		p.spec.Settings = append(p.spec.Settings, "JOIN="+line)
		all = append(all, p)
	}
	return all, nil
}

// oneGroup returns the leader of the group that all peers see, with enough voters to survive a failure.
func oneGroup(ctx context.Context, all []*peer) (leader string, err error) {
	seen := ""
	for _, p := range all {
		ctx, cancel := context.WithTimeout(ctx, callLimit)
		g, err := p.Coordination().Group(ctx)
		cancel()
		switch {
		case err != nil:
			return "", err
		case g.Leader == "" || g.Missing != "" || len(g.Voters) < 3 || g.Survives < 1:
			return "", fault.New("lab.together", fault.Unavailable, "%s: leader %q, %d voters, %s, missing %q", p.name, g.Leader, len(g.Voters), g.Tolerance, g.Missing)
		case seen != "" && g.ID != seen:
			return "", fault.New("lab.together", fault.Unavailable, "%s has another group", p.name)
		}
		seen, leader = g.ID, g.Leader
	}
	return leader, nil
}

// killLeader kills the leader, and takes the same lock at every survivor.
func killLeader(ctx context.Context, w *world, all []*peer, leader string) error {
	for _, p := range all {
		if p.id == leader {
			p.stopped = true
			p.now.Kill()
		}
	}
	began := time.Now()
	for _, p := range all {
		if p.id == leader {
			continue
		}
		if err := await.Until(ctx, time.Minute, p.name+" takes the lock", p.lock); err != nil {
			w.violated("after the kill of the leader: %v", err)
			return ctx.Err()
		}
	}
	w.say("all survivors of the leader held the same lock, one after the other, %.1f s after its kill", time.Since(began).Seconds())
	return nil
}

// lock takes a lock and gives it back.
func (p *peer) lock(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	s, err := p.Session(ctx, client.TTL(5*time.Second))
	if err != nil {
		return err
	}
	defer func() { _ = s.Close(ctx) }() // else the lease expires
	held, err := s.Lock(ctx, "jobs")
	if err != nil {
		return err
	}
	return held.Unlock(ctx)
}
