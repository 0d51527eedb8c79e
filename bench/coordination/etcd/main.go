// Command etcd drives an etcd cluster by etcd's own Go client, for one task of
// bench/coordination, and prints the result as JSON. It is a separate module, so the project does
// not depend on etcd.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

const (
	maxConnections = 16
	sessionTTL     = 60 // seconds
)

// task and sample match those of the calling command.
type task struct {
	Op       string        `json:"op"`
	Clients  int           `json:"clients"`
	Duration time.Duration `json:"duration"`
	Batch    int           `json:"batch"`
	Run      int           `json:"run"`
	At       string        `json:"at"` // leader, follower, or empty: spread
}

type sample struct {
	Count      int                `json:"count"`
	Seconds    float64            `json:"seconds"`
	P50        time.Duration      `json:"p50"`
	P99        time.Duration      `json:"p99"`
	Max        time.Duration      `json:"max"`
	Errors     int                `json:"errors"`
	FirstError string             `json:"first_error"`
	Client     time.Duration      `json:"client"`
	Extra      map[string]float64 `json:"extra"`
}

func (s sample) rate() float64 { return float64(s.Count) / s.Seconds }

// driver is the cluster from the view of its clients.
type driver struct {
	endpoints []string
	pids      []string
	clients   []*clientv3.Client
}

func main() {
	endpoints := flag.String("endpoints", "127.0.0.1:2379", "of the servers, with commas")
	pids := flag.String("pids", "", "of the servers, in the same order")
	asked := flag.String("task", "", "JSON")
	flag.Parse()
	var t task
	err := json.Unmarshal([]byte(*asked), &t)
	if err == nil {
		var out sample
		if out, err = run(t, strings.Split(*endpoints, ","), strings.Split(*pids, ",")); err == nil {
			err = json.NewEncoder(os.Stdout).Encode(out)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "etcd driver:", err)
		os.Exit(1)
	}
}

func run(t task, endpoints, pids []string) (sample, error) {
	ctx := context.Background()
	d := &driver{endpoints: endpoints, pids: pids}
	some, err := d.place(ctx, t.At)
	if err != nil {
		return sample{}, err
	}
	for i := range maxConnections {
		c, err := dial(some[i%len(some)])
		if err != nil {
			return sample{}, err
		}
		defer c.Close()
		d.clients = append(d.clients, c)
	}
	switch t.Op {
	case "ready":
		return sample{}, d.ready(ctx, t.Duration)
	case "lock":
		return d.lock(ctx, t)
	case "contended":
		return d.contended(ctx, t)
	case "v3lock":
		return d.service(ctx, t)
	case "keepalive":
		return d.keepAlive(ctx, t)
	case "read":
		return d.read(ctx, t)
	case "serializable":
		return d.read(ctx, t, clientv3.WithSerializable())
	case "watch":
		return d.watch(ctx, t)
	case "kill":
		return d.kill(ctx)
	}
	return sample{}, fmt.Errorf("there is no operation %q", t.Op)
}

func dial(endpoints ...string) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Endpoints: endpoints, DialTimeout: 5 * time.Second, Logger: zap.NewNop()})
}

func (d *driver) client(i int) *clientv3.Client { return d.clients[i%len(d.clients)] }

// ready waits until each server answers.
func (d *driver) ready(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for i := range d.endpoints {
		for {
			bounded, done := context.WithTimeout(ctx, time.Second)
			_, err := d.clients[i].Get(bounded, "ready")
			done()
			if err == nil {
				break
			}
			if ctx.Err() != nil {
				return err
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
	return nil
}

// worker does one operation.
type worker func(ctx context.Context) error

// closed lets each worker repeat its operation for a time.
func closed(ctx context.Context, d time.Duration, workers []worker) sample {
	took := make([][]time.Duration, len(workers))
	var mu sync.Mutex
	var out sample
	var all sync.WaitGroup
	before, began := used(), time.Now()
	for i, work := range workers {
		all.Go(func() {
			for time.Since(began) < d {
				start := time.Now()
				if err := work(ctx); err != nil {
					mu.Lock()
					if out.Errors++; out.Errors == 1 {
						out.FirstError = err.Error()
					}
					mu.Unlock()
					continue
				}
				took[i] = append(took[i], time.Since(start))
			}
		})
	}
	all.Wait()
	out.Seconds, out.Client = time.Since(began).Seconds(), used()-before
	every := slices.Concat(took...)
	out.Count = len(every)
	out.latencies(every)
	return out
}

func (s *sample) latencies(all []time.Duration) {
	slices.Sort(all)
	s.P50, s.P99, s.Max = quantile(all, 0.5), quantile(all, 0.99), quantile(all, 1)
}

func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

// used is the processor time of this process.
func used() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
