package tour

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
	"github.com/blackhole/blackhole/testnet/app"
	"github.com/blackhole/blackhole/testnet/network"
)

// readers read at every peer but one, again and again, until they are stopped.
type readers struct {
	cancel context.CancelFunc
	work   sync.WaitGroup
	reads  atomic.Int64
	stale  atomic.Int64

	once   sync.Once
	failed error // the first
}

// read puts a reader to work at each of some peers. Each answer must have all of some instances.
func read(ctx context.Context, peers []*network.Peer, fits func(instance.Result) error) *readers {
	ctx, cancel := context.WithCancel(ctx)
	r := &readers{cancel: cancel}
	for _, p := range peers {
		r.work.Go(func() {
			api := app.At(p.HTTP, nil)
			defer api.Close()
			for ctx.Err() == nil {
				if err := r.both(ctx, p, api, fits); err != nil && ctx.Err() == nil {
					r.once.Do(func() { r.failed = fault.Wrap(p.Name, err) })
					return
				}
			}
		})
	}
	return r
}

// both reads by REST and by gRPC.
func (r *readers) both(ctx context.Context, p *network.Peer, api *app.REST, fits func(instance.Result) error) error {
	list, err := api.Instances(ctx, resident, true)
	if err != nil {
		return err
	}
	got := make([]*instance.Instance, len(list.Instances))
	for n, i := range list.Instances {
		got[n] = &instance.Instance{Key: instance.Key{ID: i.ID}}
	}
	if err := fits(instance.Result{View: instance.NewView(0, got)}); err != nil {
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

// stop ends the readers and gives the first error that any of them had.
func (r *readers) stop() error {
	r.cancel()
	r.work.Wait()
	return r.failed
}

// readsGoOn kills the leader while clients read at every other peer. No read fails or lacks an instance, and
// registrations are soon taken again, at every peer.
func (t *Tour) readsGoOn(ctx context.Context) (string, error) {
	state, err := t.awaitGroup(ctx, formed, allActive)
	if err != nil {
		return "", err
	}
	killed, steady := t.living(state.Leader), []string{idOf(moves, t.victim())}
	var others []*network.Peer
	for _, p := range t.Network.Living() {
		if steady = append(steady, idOf(stays, p), idOf(moves, p)); p != killed {
			others = append(others, p)
		}
	}
	if err := t.followAll(ctx, resident, includes(steady)); err != nil {
		return "", err
	}
	r := read(ctx, others, includes(steady))
	began := time.Now()
	killed.Kill()
	took, err := t.registerAgain(ctx, others, began)
	if failed := r.stop(); failed != nil {
		return "", failed
	}
	if err != nil {
		return "", err
	}
	t.Resumed = took
	if err := t.followAll(ctx, resident, includes(steady)); err != nil {
		return "", err
	}
	return fmt.Sprintf("%s killed; %d reads at %d peers went on without an error (%d of them said to be stale); registrations taken %v later",
		killed.Name, r.reads.Load(), len(others), r.stale.Load(), took.Round(time.Millisecond)), nil
}

// registerAgain registers a resident more with each of some peers, and gives the time until the first was committed.
func (t *Tour) registerAgain(ctx context.Context, peers []*network.Peer, began time.Time) (first time.Duration, err error) {
	for _, p := range peers {
		id := idOf("new", p)
		if err := register(ctx, p, resident, comer(id)); err != nil {
			return 0, err
		}
		if t.residents = append(t.residents, id); first == 0 {
			first = time.Since(began)
		}
	}
	return first, nil
}

// includes wants instances of these ids, each once; others may be there.
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
