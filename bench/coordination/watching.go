package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/blackhole/blackhole/bench/kit"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

const (
	writers  = 32               // that share the write rate
	catching = 30 * time.Second // for the last event, after the last write
)

// watch writes at a rate, while watchers at all servers look for gaps and repetitions. The age of
// an event counts from the start of its write.
func (f *fleet) watch(ctx context.Context, t task) (kit.Sample, error) {
	prefix := fmt.Sprintf("bench/watch/%d/", t.Run)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	total := int(t.Duration.Seconds() * float64(t.Batch))
	watchers := make([]*watcher, t.Clients)
	var ready, all sync.WaitGroup
	for i := range watchers {
		w := &watcher{total: total, seen: make(map[string]coord.Revision, total)}
		watchers[i] = w
		ready.Add(1)
		all.Go(func() { w.follow(ctx, f.client(i), prefix, ready.Done) })
	}
	ready.Wait()
	before, began := kit.Used(), time.Now()
	var writes durations
	if err := f.pour(ctx, prefix, total, t, &writes); err != nil {
		return kit.Sample{}, err
	}
	out := kit.Sample{Seconds: time.Since(began).Seconds()}
	late := time.AfterFunc(catching, cancel)
	all.Wait()
	late.Stop()
	out.Client = kit.Used() - before
	var ages []time.Duration
	batches := 0
	for i, w := range watchers {
		if w.err != nil || len(w.seen) != total {
			return out, fault.New("watch", fault.Internal, "watcher %d has %d of %d events: %w", i, len(w.seen), total, w.err)
		}
		ages, batches = append(ages, w.ages...), batches+w.batches
	}
	out.Count = len(ages)
	out.Latencies(writes.after(0))
	out.Extra = map[string]float64{"events a batch": float64(len(ages)) / float64(max(1, batches)), "p99 of the writes, ms": kit.Ms(out.P99)}
	out.Latencies(ages)
	return out, nil
}

// pour writes events at a rate: the clock sets the time of the next write, so late writes catch
// up. took collects the duration of each write.
func (f *fleet) pour(ctx context.Context, prefix string, total int, t task, took *durations) error {
	var next atomic.Int64
	var failed atomic.Pointer[error]
	var all sync.WaitGroup
	began := time.Now()
	for w := range writers {
		all.Go(func() {
			for failed.Load() == nil {
				n := int(next.Add(1) - 1)
				if n >= total || kit.Rest(ctx, time.Until(began.Add(time.Duration(n)*time.Second/time.Duration(t.Batch)))) != nil {
					return
				}
				sent := time.Now()
				value := binary.BigEndian.AppendUint64(nil, uint64(sent.UnixNano()))
				put := &ops.Put{Key: fmt.Sprint(prefix, n), Value: value}
				_, _, err := ops.Of(f.client(w).Coordination()).Do(ctx, ops.Command{Op: &ops.Txn{Then: []ops.Step{{Put: put}}}})
				if err != nil {
					failed.Store(&err)
				}
				took.add(time.Since(sent))
			}
		})
	}
	all.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}

// watcher checks the events of one watch.
type watcher struct {
	total int
	seen  map[string]coord.Revision
	last  coord.Revision
	ages  []time.Duration
	err   error

	batches int
}

// follow ends after the last event, or with ctx.
func (w *watcher) follow(ctx context.Context, c *client.Client, prefix string, ready func()) {
	told := sync.OnceFunc(ready)
	defer told()
	for batch, err := range c.KV().Watch(ctx, client.Watch{Span: coord.Under(prefix)}) {
		told() // the first message announces the start of the watch
		now := time.Now()
		if len(batch.Events) > 0 {
			w.batches++
		}
		for _, e := range batch.Events {
			if err = w.see(e, now); err != nil {
				break
			}
		}
		if err != nil {
			w.err = err
			return
		}
		if len(w.seen) == w.total {
			return
		}
	}
}

func (w *watcher) see(e coord.Event, now time.Time) error {
	if _, twice := w.seen[e.KV.Key]; twice || e.Revision <= w.last || len(e.KV.Value) != 8 {
		return fault.New("watch", fault.Internal, "%s at %d came twice or out of order, after %d", e.KV.Key, e.Revision, w.last)
	}
	w.seen[e.KV.Key], w.last = e.Revision, e.Revision
	w.ages = append(w.ages, now.Sub(time.Unix(0, int64(binary.BigEndian.Uint64(e.KV.Value)))))
	return nil
}
