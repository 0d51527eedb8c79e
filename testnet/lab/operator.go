package lab

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
	"github.com/blackhole/blackhole/testnet/await"
	"github.com/blackhole/blackhole/testnet/netns"
	"github.com/blackhole/blackhole/testnet/process"
)

const (
	founderLate  = 8 * time.Second
	founderLimit = 15 * time.Second // from the start of the late founder until it votes
	refusalLimit = 6 * time.Second  // of a call without a majority, on a busy machine
)

// trio makes three founders on hosts of their own, without a start.
func trio(ctx context.Context, w *world) (all []*peer, err error) {
	segment := w.network(netns.Quality{})
	var ids, addresses []string
	for i := range 3 {
		h, err := w.host(segment, fmt.Sprintf("founder-%d", i+1), lan4(i))
		if err != nil {
			return nil, err
		}
		p, err := w.peer(ctx, h, func(s *process.Spec) { s.Profile = "lan" })
		if err != nil {
			return nil, err
		}
		all, ids, addresses = append(all, p), append(ids, p.id), append(addresses, p.addresses()...)
	}
	for _, p := range all {
		p.spec.Founders, p.spec.Bootstrap = ids, addresses
	}
	return all, nil
}

// votes waits until all peers see a group with a number of voters.
func votes(ctx context.Context, all []*peer, voters int) (leader *peer, err error) {
	err = await.Until(ctx, time.Minute, fmt.Sprintf("%d voters", voters), func(ctx context.Context) error {
		for _, p := range all {
			g, err := p.Coordination().Group(ctx)
			if err == nil && (g.Leader == "" || g.Missing != "" || len(g.Voters) != voters) {
				err = fault.New("lab.votes", fault.Unavailable, "%s: leader %q, %d voters, missing %q", p.name, g.Leader, len(g.Voters), g.Missing)
			}
			if err != nil {
				return err
			}
			for _, q := range all {
				if q.id == g.Leader {
					leader = q
				}
			}
		}
		return nil
	})
	return leader, err
}

// operator measures what an operator of three founders sees: a late founder, a restart in order, and the loss of the majority.
func operator(ctx context.Context, w *world) error {
	all, err := trio(ctx, w)
	if err != nil {
		return err
	}
	for _, p := range all[:2] {
		if err := p.start(); err != nil {
			return err
		}
	}
	select {
	case <-time.After(founderLate):
	case <-ctx.Done():
		return fault.Wrap("lab.operator", ctx.Err())
	}
	began := time.Now()
	if err := all[2].start(); err != nil {
		return err
	}
	leader, err := votes(ctx, all, 3)
	if err != nil {
		w.violated("%v", err)
		return ctx.Err()
	}
	took := time.Since(began)
	w.say("a founder that is %v late votes %.1f s after its start", founderLate, took.Seconds())
	if took > founderLimit {
		w.violated("the late founder took %v to vote, at most %v", took, founderLimit)
	}
	if err := restarted(ctx, w, all, leader); err != nil {
		return err
	}
	return withoutMajority(ctx, w, all)
}

// restarted stops and starts a peer with an instance in order, while another peer asks for the instance all the time.
func restarted(ctx context.Context, w *world, all []*peer, leader *peer) error {
	owner, asker := all[0], all[1]
	if leader == owner {
		owner, asker = asker, owner
	}
	if _, err := owner.Services().Register(ctx, registration(0)); err != nil {
		return err
	}
	present := func(ctx context.Context) (bool, error) {
		ctx, cancel := context.WithTimeout(ctx, callLimit)
		defer cancel()
		found, err := asker.Services().Discover(ctx, instance.Query{Name: instance.Name{Service: "app"}})
		return len(found.Instances) == 1, err
	}
	if err := await.Until(ctx, findLimit, "the instance at another peer", func(ctx context.Context) error {
		ok, err := present(ctx)
		if err == nil && !ok {
			err = fault.New("lab.restarted", fault.NotFound, "it is missing")
		}
		return err
	}); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { // ends below
		owner.stop(ctx)
		if err := owner.start(); err != nil {
			done <- err
			return
		}
		done <- owner.awaitReady(ctx, startLimit, 2)
	}()
	asked, empty := 0, 0
	began := time.Now()
	settled := time.NewTimer(time.Hour)
	defer settled.Stop()
	for tick := time.NewTicker(5 * time.Millisecond); ; <-tick.C {
		ok, err := present(ctx)
		if err != nil {
			return err
		}
		if asked++; !ok {
			empty++
		}
		select {
		case err := <-done:
			if err != nil {
				return err
			}
			settled.Reset(2 * time.Second) // its first publications follow
			continue
		case <-settled.C:
		default:
			continue
		}
		break
	}
	w.say("a peer restarted in order: %d of %d answers of another peer lacked its instance, in %.1f s", empty, asked, time.Since(began).Seconds())
	if empty > 0 {
		w.violated("%d of %d answers lacked the instance of a peer that restarted in order", empty, asked)
	}
	return nil
}

// withoutMajority kills two of three voters, and times the refusals of the last one.
func withoutMajority(ctx context.Context, w *world, all []*peer) error {
	for _, p := range all[:2] {
		p.stopped = true
		p.now.Kill()
	}
	last := all[2]
	calls := map[string]func(context.Context) error{
		"a key over gRPC": func(ctx context.Context) error {
			_, _, err := coord.OpsOf(last.Coordination()).Range(ctx, coord.Query{Span: coord.Exactly("a")}, coord.Linearizable)
			return err
		},
		"a key over HTTP": func(ctx context.Context) error {
			body, err := last.get(ctx, "/v1/coordination/keys/a")
			if err == nil {
				err = fault.New("lab.http", fault.Unavailable, "%s", body)
			}
			return err
		},
	}
	for name, call := range calls {
		began := time.Now()
		err := call(ctx)
		took := time.Since(began)
		w.say("without a majority %s fails after %.1f s: %v", name, took.Seconds(), err)
		switch {
		case err == nil:
			w.violated("%s succeeded without a majority", name)
		case took > refusalLimit || !mentionsQuorum(err):
			w.violated("without a majority %s took %v and said %v", name, took, err)
		}
	}
	return ctx.Err()
}

func mentionsQuorum(err error) bool { return strings.Contains(err.Error(), "no_quorum") }
