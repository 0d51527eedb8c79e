package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

// leader returns the index of the leader.
func (d *driver) leader(ctx context.Context) (int, error) {
	for i, e := range d.endpoints {
		bounded, cancel := context.WithTimeout(ctx, time.Second)
		s, err := d.clients[0].Status(bounded, e)
		cancel()
		if err == nil && s.Leader == s.Header.MemberId {
			return i, nil
		}
	}
	return 0, errors.New("there is no leader")
}

// kill ends the leader and times the next lock of a session at the other two.
func (d *driver) kill(ctx context.Context) (sample, error) {
	leader, err := d.leader(ctx)
	if err != nil {
		return sample{}, err
	}
	c, err := dial(d.endpoints[(leader+1)%3], d.endpoints[(leader+2)%3])
	if err != nil {
		return sample{}, err
	}
	defer c.Close()
	s, err := concurrency.NewSession(c, concurrency.WithTTL(sessionTTL))
	if err != nil {
		return sample{}, err
	}
	warm := concurrency.NewMutex(s, "/bench/warm")
	if err := warm.Lock(ctx); err != nil {
		return sample{}, err
	}
	if err := warm.Unlock(ctx); err != nil {
		return sample{}, err
	}
	pid, err := strconv.Atoi(d.pids[leader])
	if err != nil {
		return sample{}, err
	}
	p, err := os.FindProcess(pid)
	if err != nil {
		return sample{}, err
	}
	began := time.Now()
	if err := p.Kill(); err != nil {
		return sample{}, err
	}
	for n := 0; time.Since(began) < time.Minute; n++ {
		// The client does not retry a write with an unknown outcome.
		bounded, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		err = concurrency.NewMutex(s, fmt.Sprintf("/bench/kill/%d/%d", pid, n)).Lock(bounded)
		cancel()
		if err == nil {
			took := time.Since(began)
			return sample{Count: 1, Seconds: took.Seconds(), Max: took}, nil
		}
	}
	return sample{}, fmt.Errorf("no lock in a minute: %w", err)
}

// storm lets leases end together; see the calling command.
func (d *driver) storm(ctx context.Context, t task) (sample, error) {
	const granting = 4000
	out := sample{Extra: map[string]float64{}}
	ends := time.Now().Add(time.Duration(t.Batch/granting)*time.Second + 2*t.Duration + 10*time.Second)
	if err := d.grants(ctx, t.Batch, ends); err != nil {
		return out, err
	}
	if err := d.others(ctx, t.Duration, func(op string, s sample) { out.Extra[op+" before"] = s.rate() }); err != nil {
		return out, err
	}
	freed, err := d.dies(ctx, time.Until(ends))
	if err != nil {
		return out, err
	}
	time.Sleep(time.Until(ends))
	if err := d.others(ctx, t.Duration, func(op string, s sample) { out.Extra[op] = s.rate() }); err != nil {
		return out, err
	}
	out.Extra["freed"] = float64(<-freed) / 1e6
	for time.Since(ends) < 5*time.Minute {
		l, err := d.client(0).Leases(ctx)
		if err == nil && len(l.Leases) < 100 {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	out.Extra["ended"] = time.Since(ends).Seconds()
	return out, nil
}

func (d *driver) grants(ctx context.Context, n int, ends time.Time) error {
	var next atomic.Int64
	var failed atomic.Pointer[error]
	var all sync.WaitGroup
	for range 256 {
		all.Go(func() {
			for i := int(next.Add(1)); i <= n && failed.Load() == nil; i = int(next.Add(1)) {
				if _, err := d.client(i).Grant(ctx, int64(time.Until(ends).Seconds()+0.5)); err != nil {
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

// dies binds a lock to an unrenewed lease, and returns the delay of its end for a waiter.
func (d *driver) dies(ctx context.Context, left time.Duration) (<-chan time.Duration, error) {
	const name = "/bench/dies"
	granted := time.Now()
	lease, err := d.client(0).Grant(ctx, int64(left.Seconds()+1.5))
	if err != nil {
		return nil, err
	}
	// A session would renew the lease; a closed client does not.
	holder, err := dial(d.endpoints[0])
	if err != nil {
		return nil, err
	}
	s, err := concurrency.NewSession(holder, concurrency.WithLease(lease.ID))
	if err != nil {
		return nil, err
	}
	if err := concurrency.NewMutex(s, name).Lock(ctx); err != nil {
		return nil, err
	}
	s.Orphan()
	_ = holder.Close() // no call is in flight
	waiting, err := concurrency.NewSession(d.client(1), concurrency.WithTTL(600))
	if err != nil {
		return nil, err
	}
	freed := make(chan time.Duration, 1)
	go func() {
		m := concurrency.NewMutex(waiting, name)
		if m.Lock(ctx) != nil {
			freed <- time.Hour
			return
		}
		freed <- time.Since(granted) - time.Duration(lease.TTL)*time.Second
		_ = m.Unlock(ctx) // otherwise it lapses
		_ = waiting.Close()
	}()
	return freed, nil
}

// others lets three clients do one operation each, all at the same time.
func (d *driver) others(ctx context.Context, length time.Duration, tell func(op string, s sample)) error {
	s, err := concurrency.NewSession(d.client(2), concurrency.WithTTL(600))
	if err != nil {
		return err
	}
	defer s.Close()
	value := string(make([]byte, 128))
	m := concurrency.NewMutex(s, "/bench/others")
	work := map[string]worker{
		"write": func(ctx context.Context) error { _, err := d.client(0).Put(ctx, "/bench/other", value); return err },
		"read": func(ctx context.Context) error {
			_, err := d.client(1).Get(ctx, "/bench/other", []clientv3.OpOption(nil)...)
			return err
		},
		"lock": func(ctx context.Context) error {
			if err := m.Lock(ctx); err != nil {
				return err
			}
			return m.Unlock(ctx)
		},
	}
	var mu sync.Mutex
	var all sync.WaitGroup
	for op, w := range work {
		all.Go(func() {
			got := closed(ctx, length, []worker{w})
			mu.Lock()
			defer mu.Unlock()
			tell(op, got)
		})
	}
	all.Wait()
	return nil
}
