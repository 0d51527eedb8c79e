package place

import (
	"context"
	"slices"
	"sync"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/discovery/route"
	"github.com/blackhole/blackhole/internal/discovery/wire"
)

// A lookup knows its likely result before its end: most of the closest peers have answered, and it only waits for connections
// to the others, which name a closer peer in one of many lookups. Records go to the likely keepers meanwhile, over the same new
// connections. The end of the lookup decides who the keepers are: a likely keeper that is none does not count, and a keeper that
// was not foreseen gets the records then. kad-dht's optimistic provide stores on the way too, but returns without the end of the
// lookup, so its provider does not learn which of the closest peers lack the value.

// aheadRecords is the number of records in one Store up to which they go to likely keepers. Many records share lookups, and
// their deliveries take longer than these.
const aheadRecords = 4

// aheadRound delivers records to the likely keepers. A nil round has no deliveries.
type aheadRound struct {
	cancel context.CancelFunc // ends the deliveries
	routed context.CancelFunc // ends the wait for likely keepers
	ready  chan struct{}      // closed when batches is set
	work   sync.WaitGroup

	batches map[peer.ID]*aheadBatch // read it after ready
}

// aheadBatch is one delivery.
type aheadBatch struct {
	asked []storeItem // as routed
	batch storeBatch  // read it after done
	done  chan struct{}
}

// storeAhead begins to deliver records to the likely keepers of their cells. The caller must call close. It returns nil for many records, and
// in a small network, whose one lookup serves all cells.
func (p *Publisher) storeAhead(ctx context.Context, targets []target) *aheadRound {
	if len(targets) > aheadRecords || p.Router.Size() < route.Network {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	waiting, routed := context.WithCancel(ctx)
	a := &aheadRound{cancel: cancel, routed: routed, ready: make(chan struct{})}
	a.work.Go(func() {
		var round []storeBatch
		if sets := p.closest.Foreseen(waiting, cellsIn(targets)); sets != nil {
			round = batchesOf(targets, sets, p.wants())
		}
		a.batches = make(map[peer.ID]*aheadBatch, len(round))
		for _, b := range round {
			a.batches[b.to] = &aheadBatch{asked: b.items, batch: storeBatch{to: b.to, items: slices.Clone(b.items)}, done: make(chan struct{})}
		}
		close(a.ready)
		wire.Bounded(deliveries, len(round), func(i int) {
			b := a.batches[round[i].to]
			defer close(b.done)
			p.deliver(ctx, &b.batch)
		})
	})
	return a
}

// take waits for a delivery of the same records for the same cells and takes over its results. It reports whether there was one.
func (a *aheadRound) take(b *storeBatch) bool {
	if a == nil {
		return false
	}
	a.routed()
	<-a.ready
	early, ok := a.batches[b.to]
	if !ok || !slices.EqualFunc(early.asked, b.items, func(x, y storeItem) bool {
		return x.of == y.of && slices.Equal(x.wire.Cells, y.wire.Cells)
	}) {
		return false
	}
	<-early.done
	*b = early.batch
	return true
}

// close ends the deliveries that nobody took, and waits for them.
func (a *aheadRound) close() {
	if a != nil {
		a.cancel()
		a.work.Wait()
	}
}
