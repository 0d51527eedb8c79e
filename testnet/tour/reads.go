package tour

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
	"github.com/blackhole/blackhole/testnet/app"
	"github.com/blackhole/blackhole/testnet/network"
)

// readers read at every peer but one, repeatedly, until stopped.
type readers struct {
	cancel context.CancelFunc
	work   sync.WaitGroup
	reads  atomic.Int64
	stale  atomic.Int64

	once   sync.Once
	failed error // the first error
}

// read starts one reader for each peer. Every answer must fit.
func read(ctx context.Context, peers []*network.Peer, fits func(instance.Result) error) *readers {
	ctx, cancel := context.WithCancel(ctx)
	r := &readers{cancel: cancel}
	for _, p := range peers {
		r.work.Go(func() {
			for ctx.Err() == nil {
				if err := r.both(ctx, p, fits); err != nil && ctx.Err() == nil {
					r.once.Do(func() { r.failed = fault.Wrap(p.Name, err) })
					return
				}
			}
		})
	}
	return r
}

// both reads by REST and by gRPC.
func (r *readers) both(ctx context.Context, p *network.Peer, fits func(instance.Result) error) error {
	list, err := p.API.Instances(ctx, resident, true)
	if err != nil {
		return err
	}
	got := make([]*instance.Instance, len(list.Instances))
	for n, i := range list.Instances {
		got[n] = &instance.Instance{Key: instance.Key{ID: i.ID}}
	}
	if err := fits(instance.Result{View: &instance.View{Index: 0, Instances: got}}); err != nil {
		return fault.Wrap("REST", err)
	}
	found, err := p.Agent().Discover(ctx, everything(resident))
	if err != nil {
		return err
	}
	if r.reads.Add(2); found.Stale {
		r.stale.Add(1)
	}
	return fault.Wrap("gRPC", fits(found))
}

// stop ends the readers and returns their first error.
func (r *readers) stop() error {
	r.cancel()
	r.work.Wait()
	return r.failed
}

// readsGoOn kills the leader under readers at every other peer. No read fails or lacks an
// instance. Registrations made meanwhile, at every peer, are kept and later known everywhere. A
// requirement set under the old leader is satisfied under the new leader.
func readsGoOn(ctx context.Context, t *Tour) (string, error) {
	state, err := t.awaitGroup(ctx, formed, allActive)
	if err != nil {
		return "", err
	}
	killed := t.living(state.Leader)
	var steady []string
	var others []*network.Peer
	for _, p := range t.Network.Living() {
		if p == killed { // its own instances leave with its lease
			continue
		}
		steady, others = append(steady, idOf(stays, p), idOf(moves, p)), append(others, p)
		if p == t.consumer() {
			steady = append(steady, idOf(moves, t.victim())) // the adopted instance
		}
	}
	if err := t.followAll(ctx, resident, includes(steady)); err != nil {
		return "", err
	}
	met, err := awaitMany(ctx, others[0], len(others))
	if err != nil {
		return "", err
	}
	r := read(ctx, others, includes(steady))
	began := time.Now()
	killed.Kill()
	kept, took, err := registerMeanwhile(ctx, others, began)
	if err == nil {
		err = t.followAll(ctx, awaited, includes(kept))
	}
	if failed := r.stop(); failed != nil {
		return "", failed
	}
	if err := errors.Join(err, <-met); err != nil {
		return "", err
	}
	t.Resumed = took
	return fmt.Sprintf("%s killed; %d reads at %d peers went on without an error (%d of them said to be stale); what registered meanwhile was "+
		"committed after %v, is known everywhere, and met a requirement", killed.Name, r.reads.Load(), len(others), r.stale.Load(),
		took.Round(time.Millisecond)), nil
}

// awaitMany requires n instances of a service without instances, and returns the result of the
// wait.
func awaitMany(ctx context.Context, p *network.Peer, n int) (<-chan error, error) {
	const name = awaited
	if err := p.API.Require(ctx, name, app.Requirement{Service: awaited, Min: n}); err != nil {
		return nil, err
	}
	met := make(chan error, 1)
	go func() { met <- satisfiedBy(ctx, p, name, turn.String()) }() // ends with its call
	return met, nil
}

// registerMeanwhile registers an instance with each peer, with or without a leader, and returns
// the time until a commit.
func registerMeanwhile(ctx context.Context, peers []*network.Peer, began time.Time) (ids []string, took time.Duration, err error) {
	for _, p := range peers {
		id := idOf("new", p)
		if _, err := p.API.Register(ctx, awaited, comer(id), false); err != nil {
			return nil, 0, err
		}
		ids = append(ids, id)
	}
	if err := register(ctx, peers[0], awaited, comer(ids[0])); err != nil {
		return nil, 0, err
	}
	return ids, time.Since(began), nil
}

// includes demands instances with these ids, each once; others may be present.
func includes(ids []string) func(instance.Result) error {
	return func(r instance.Result) error {
		times := make(map[string]int, len(r.Instances))
		for _, i := range r.Instances {
			times[i.ID]++
		}
		for _, id := range ids {
			if times[id] != 1 {
				return fault.New("tour.includes", fault.Conflict, "%s is there %d times", id, times[id])
			}
		}
		return nil
	}
}
