package nemesis

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/pkg/client"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
	"github.com/blackhole/blackhole/testnet/await"
	"github.com/blackhole/blackhole/testnet/nemesis/history"
)

const (
	wanderers = 2               // watches that move from peer to peer
	stay      = 8 * time.Second // longest stay at one peer
	lateness  = 2 * time.Minute
)

// watches follow all keys, from the first revision on.
type watches struct {
	crew
	passed []chan int64 // progress of each watch, latest value only
}

// startWatches starts one watch at every peer, and some that move.
func (r *run) startWatches(ctx context.Context) *watches {
	ctx, cancel := context.WithCancel(ctx)
	w := &watches{crew: crew{cancel: cancel}}
	follow := func(name string, at func() (*peer, time.Duration)) {
		r.report.Watches++
		passed := make(chan int64, 1)
		w.passed = append(w.passed, passed)
		w.wg.Go(func() { r.follow(ctx, r.seen.ledger.Follow(name), passed, at) })
	}
	for _, p := range r.clients() {
		follow(p.name, func() (*peer, time.Duration) { return p, 0 })
	}
	for i := range wanderers {
		rng := rand.New(rand.NewPCG(r.Seed, uint64(2000+i)))
		follow(fmt.Sprintf("wanderer-%d", i+1), func() (*peer, time.Duration) {
			return r.clients()[rng.IntN(len(r.clients()))], time.Duration(rng.Int64N(int64(stay)))
		})
	}
	return w
}

// follow watches at one peer after the other until ctx ends.
func (r *run) follow(ctx context.Context, s *history.Stream, passed chan int64, at func() (*peer, time.Duration)) {
	for n := 0; ctx.Err() == nil; n++ {
		if n > 0 {
			r.resumed.Add(1)
		}
		p, d := at()
		limited, cancel := ctx, context.CancelFunc(func() {})
		if d > 0 {
			limited, cancel = context.WithTimeout(ctx, d)
		}
		err := r.followAt(limited, p, s, passed)
		over := limited.Err() != nil
		cancel()
		if err != nil && !over {
			r.violated("W", "watch %s ended at %s, revision %d: %v", s.Name, p.name, s.Next(), err)
			return
		}
	}
}

func (r *run) followAt(ctx context.Context, p *peer, s *history.Stream, passed chan int64) error {
	c, err := r.client(p)
	if err != nil {
		return err
	}
	defer c.Close()
	for batch, err := range c.KV().Watch(ctx, client.Watch{Span: client.Under(prefix), From: client.Revision(s.Next()), Prev: true}) {
		if err != nil {
			return err
		}
		now := r.now()
		events := make([]history.Event, len(batch.Events))
		for i, e := range batch.Events {
			events[i] = event(e, now)
		}
		s.Take(events, int64(batch.Next))
		select {
		case <-passed: // replaces an unread value
		default:
		}
		passed <- s.Next()
	}
	return nil
}

// event converts an event of a watch.
func event(e client.KeyEvent, at time.Duration) history.Event {
	h := history.Event{Revision: int64(e.Revision), Key: e.Key, Deleted: e.KV == nil, Seen: at}
	if e.Prev != nil {
		h.Replaces = int64(e.Prev.ModRevision)
	}
	kv := e.KV
	if kv == nil {
		kv = e.Prev
	}
	if kv == nil {
		return h
	}
	h.Create, h.Version, h.Value, h.Lease = int64(kv.CreateRevision), kv.Version, string(kv.Value), int64(kv.Lease)
	if end := strings.LastIndexByte(e.Key, '/'); strings.HasPrefix(e.Key, lockNames) {
		var claim coordv1.LockEntry
		if proto.Unmarshal(kv.Value, &claim) == nil {
			h.Lock, h.Value, h.Permits = e.Key[:end], string(claim.GetMetadata()), int(claim.GetPermits())
			h.Mode = modes(claim.GetMode())
		}
	}
	return h
}

func modes(m apiv1.ShareMode) history.Mode {
	switch coord.Mode(m) {
	case coord.Shared:
		return history.Shared
	case coord.Permit:
		return history.Permit
	}
	return history.Exclusive
}

// settle writes a last key, waits for every watch to reach it, and compares the state of each
// peer with the watched events.
func (r *run) settle(ctx context.Context, w *watches) {
	var last coord.Revision
	err := await.Until(ctx, r.Recovery, "a last write", func(ctx context.Context) error {
		limited, cancel := context.WithTimeout(ctx, probeLimit)
		defer cancel()
		result, _, err := ops.Of(r.net.Peers[0].Coordination()).Do(limited, ops.Command{Op: &ops.Txn{
			Then: []ops.Step{{Put: &ops.Put{Key: probes + "/last", Value: fmt.Appendf(nil, "last %d", r.now())}}},
		}})
		last = result.Revision
		return err
	})
	if err != nil {
		r.violated("V1", "%v", err)
		return
	}
	limit := time.NewTimer(lateness)
	defer limit.Stop()
	for i, passed := range w.passed {
		for next := int64(0); next <= int64(last); {
			select {
			case next = <-passed:
			case <-limit.C:
				r.violated("W", "watch %d has not come to revision %d in %v", i, last, lateness)
				return
			case <-ctx.Done():
				return
			}
		}
	}
	for i := range r.net.Peers {
		r.compare(ctx, i, last)
	}
}

// compare reads the keys of a peer at a revision, which may not have arrived there yet.
func (r *run) compare(ctx context.Context, i int, at coord.Revision) {
	name := r.peers[i].name
	err := await.Until(ctx, lateness, name+" reads what it has", func(ctx context.Context) error {
		page, _, err := ops.Of(r.net.Peers[i].Coordination()).Range(ctx, ops.Query{Span: coord.Under(prefix), At: at}, ops.Local)
		if err == nil {
			r.contrast(name, at, page.Keys)
		}
		return err
	})
	if err != nil {
		r.violated("D2", "%s cannot read revision %d: %v", name, at, err)
	}
}

// contrast compares the keys of a peer with the watched events.
func (r *run) contrast(name string, at coord.Revision, keys []*coord.KeyValue) {
	want := r.seen.ledger.Keys(int64(at))
	for _, kv := range keys {
		if e, ok := want[kv.Key]; !ok || e.Revision != int64(kv.ModRevision) || e.Version != kv.Version {
			r.violated("D2", "%s has %s of revision %d, version %d at %d; the watches had %d, version %d",
				name, kv.Key, kv.ModRevision, kv.Version, at, e.Revision, e.Version)
			return
		}
		delete(want, kv.Key)
	}
	for key, e := range want {
		r.violated("D2", "%s lacks %s of revision %d at %d", name, key, e.Revision, at)
		return
	}
}
