package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3lock/v3lockpb"
)

// lock is the client-side mutex of etcd, the faster of its two for uncontended names.
func (d *driver) lock(ctx context.Context, t task) (sample, error) {
	workers := make([]worker, t.Clients)
	for i := range workers {
		s, err := concurrency.NewSession(d.client(i), concurrency.WithTTL(sessionTTL))
		if err != nil {
			return sample{}, err
		}
		defer s.Close()
		m := concurrency.NewMutex(s, fmt.Sprintf("/bench/lock/%d/%d", t.Run, i))
		workers[i] = func(ctx context.Context) error {
			if err := m.Lock(ctx); err != nil {
				return err
			}
			return m.Unlock(ctx)
		}
	}
	return closed(ctx, t.Duration, workers), nil
}

// contended is the server-side lock of etcd, the faster of its two for one name.
func (d *driver) contended(ctx context.Context, t task) (sample, error) {
	name := fmt.Appendf(nil, "/bench/contended/%d", t.Run)
	var mu sync.Mutex
	var waits []time.Duration
	workers := make([]worker, t.Clients)
	for i := range workers {
		lease, err := d.client(i).Grant(ctx, sessionTTL)
		if err != nil {
			return sample{}, err
		}
		service := v3lockpb.NewLockClient(d.client(i).ActiveConnection())
		workers[i] = func(ctx context.Context) error {
			began := time.Now()
			held, err := service.Lock(ctx, &v3lockpb.LockRequest{Name: name, Lease: int64(lease.ID)})
			if err != nil {
				return err
			}
			mu.Lock()
			waits = append(waits, time.Since(began))
			mu.Unlock()
			_, err = service.Unlock(ctx, &v3lockpb.UnlockRequest{Key: held.Key})
			return err
		}
	}
	got := closed(ctx, t.Duration, workers)
	got.latencies(waits[min(len(waits), 2*t.Clients):])
	got.Extra = map[string]float64{"longest/median": float64(got.Max) / float64(max(1, got.P50))}
	return got, nil
}

// service is the server-side lock of etcd, each client with a name and a lease of its own.
func (d *driver) service(ctx context.Context, t task) (sample, error) {
	workers := make([]worker, t.Clients)
	for i := range workers {
		lease, err := d.client(i).Grant(ctx, sessionTTL)
		if err != nil {
			return sample{}, err
		}
		service := v3lockpb.NewLockClient(d.client(i).ActiveConnection())
		name := fmt.Appendf(nil, "/bench/v3lock/%d/%d", t.Run, i)
		workers[i] = func(ctx context.Context) error {
			held, err := service.Lock(ctx, &v3lockpb.LockRequest{Name: name, Lease: int64(lease.ID)})
			if err == nil {
				_, err = service.Unlock(ctx, &v3lockpb.UnlockRequest{Key: held.Key})
			}
			return err
		}
	}
	return closed(ctx, t.Duration, workers), nil
}

// keepAlive uses one stream and one lease for each client.
func (d *driver) keepAlive(ctx context.Context, t task) (sample, error) {
	workers := make([]worker, t.Clients)
	for i := range workers {
		lease, err := d.client(i).Grant(ctx, sessionTTL)
		if err != nil {
			return sample{}, err
		}
		stream, err := pb.NewLeaseClient(d.client(i).ActiveConnection()).LeaseKeepAlive(ctx)
		if err != nil {
			return sample{}, err
		}
		workers[i] = func(context.Context) error {
			if err := stream.Send(&pb.LeaseKeepAliveRequest{ID: int64(lease.ID)}); err != nil {
				return err
			}
			_, err := stream.Recv()
			return err
		}
	}
	return closed(ctx, t.Duration, workers), nil
}

// read reads one key, or with Batch a range of so many.
func (d *driver) read(ctx context.Context, t task, how ...clientv3.OpOption) (sample, error) {
	key := "/bench/read"
	for n := range t.Batch {
		if _, err := d.client(0).Put(ctx, fmt.Sprintf("%s/%d", key, n), string(make([]byte, 128))); err != nil {
			return sample{}, err
		}
	}
	if t.Batch > 0 {
		key, how = key+"/", append(how, clientv3.WithPrefix())
	} else if _, err := d.client(0).Put(ctx, key, string(make([]byte, 128))); err != nil {
		return sample{}, err
	}
	workers := make([]worker, t.Clients)
	for i := range workers {
		workers[i] = func(ctx context.Context) error { _, err := d.client(i).Get(ctx, key, how...); return err }
	}
	return closed(ctx, t.Duration, workers), nil
}

// watch writes at a rate; each watcher is a stream. The age of an event counts from the start of
// its write.
func (d *driver) watch(ctx context.Context, t task) (sample, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	prefix, total := fmt.Sprintf("/bench/watch/%d/", t.Run), int(t.Duration.Seconds()*float64(t.Batch))
	ages := make([][]time.Duration, t.Clients)
	var ready, all sync.WaitGroup
	for i := range ages {
		ready.Add(1)
		own := context.WithValue(ctx, watcher{}, i)
		all.Go(func() { ages[i] = follow(own, d.client(i), prefix, total, ready.Done) })
	}
	ready.Wait()
	before, began := used(), time.Now()
	if err := d.pour(ctx, prefix, total, t.Batch); err != nil {
		return sample{}, err
	}
	out := sample{Seconds: time.Since(began).Seconds()}
	late := time.AfterFunc(30*time.Second, cancel)
	all.Wait()
	late.Stop()
	out.Client = used() - before
	var every []time.Duration
	for i, one := range ages {
		if len(one) != total {
			return out, fmt.Errorf("watcher %d has %d of %d events", i, len(one), total)
		}
		every = append(every, one...)
	}
	out.Count = len(every)
	out.latencies(every)
	return out, nil
}

// watcher is a context key.
type watcher struct{}

func follow(ctx context.Context, c *clientv3.Client, prefix string, total int, ready func()) (ages []time.Duration) {
	created := sync.OnceFunc(ready)
	for resp := range c.Watch(clientv3.WithRequireLeader(ctx), prefix, clientv3.WithPrefix(), clientv3.WithCreatedNotify()) {
		created()
		now := time.Now()
		for _, e := range resp.Events {
			ages = append(ages, now.Sub(time.Unix(0, int64(binary.BigEndian.Uint64(e.Kv.Value)))))
		}
		if len(ages) >= total {
			return ages
		}
	}
	created()
	return ages
}

// pour writes events at a rate.
func (d *driver) pour(ctx context.Context, prefix string, total, rate int) error {
	const writers = 32
	var next atomic.Int64
	var failed atomic.Pointer[error]
	var all sync.WaitGroup
	began := time.Now()
	for w := range writers {
		all.Go(func() {
			for failed.Load() == nil {
				n := int(next.Add(1) - 1)
				if n >= total {
					return
				}
				time.Sleep(time.Until(began.Add(time.Duration(n) * time.Second / time.Duration(rate))))
				value := binary.BigEndian.AppendUint64(nil, uint64(time.Now().UnixNano()))
				if _, err := d.client(w).Put(ctx, fmt.Sprint(prefix, n), string(value)); err != nil {
					failed.Store(&err)
				}
			}
		})
	}
	all.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}
