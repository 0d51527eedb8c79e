package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/blackhole/blackhole/bench/child"
	"github.com/blackhole/blackhole/pkg/fault"
)

const (
	checkEvery  = 10 * time.Second
	checkWithin = 5 * time.Second
	calm        = 5 * time.Second // pause after the start of a server
)

// checks lets each system check instances alone, one after the other, and reports the cost. Only
// ours checks all of them: the Consul agent compares its whole state with the server at each
// registration, and had not reached 10,000 after six minutes.
func (s *session) checks(ctx context.Context) error {
	fmt.Fprintf(s.Out, "\nInstances with HTTP checks every %v, for %v\n\n"+
		"| | instances | checks a second | healthy | CPU, of one core | RSS MiB (anonymous) without instances | with them | growth an instance | live heap an instance | load |\n"+
		"|---|---|---|---|---|---|---|---|---|---|\n", checkEvery, s.checking)
	target, err := listenTarget()
	if err != nil {
		return err
	}
	defer target.server.Close()
	for _, k := range s.kinds {
		if err := s.checked(ctx, k, s.instances/10, target); err != nil {
			return err
		}
	}
	return s.checked(ctx, s.kinds[0], s.instances, target)
}

func (s *session) checked(ctx context.Context, k kind, n int, target *target) error {
	systems, end, err := s.open(ctx, []kind{k})
	if err != nil {
		return err
	}
	defer end()
	one := systems[0]
	if err := child.Rest(ctx, calm); err != nil {
		return err
	}
	idle, err := footprint(ctx, one)
	if err != nil {
		return err
	}
	all := crowd(n, target.url)
	if _, err := one.each(ctx, all, one.enroll); err != nil {
		return err
	}
	if err := child.Rest(ctx, checkEvery+checkWithin); err != nil {
		return err
	}
	spent, asked, began := one.server.Spent(), target.asked.Load(), time.Now()
	if err := child.Rest(ctx, s.checking); err != nil {
		return err
	}
	took := time.Since(began)
	spent, asked = one.server.Spent()-spent, target.asked.Load()-asked
	full, err := footprint(ctx, one)
	if err != nil {
		return err
	}
	healthy, err := s.healthy(ctx, one)
	if err != nil {
		return err
	}
	fmt.Fprintf(s.Out, "| %s | %d | %.0f | %d | %.1f %% | %s | %s | %s | %s | %s |\n", one.name, n, float64(asked)/took.Seconds(), healthy,
		100*spent.Seconds()/took.Seconds(), idle.memory, full.memory,
		each(full.resident-idle.resident, n), each(full.live-idle.live, n), child.Load())
	return nil
}

// healthy counts the healthy instances of all lists.
func (s *session) healthy(ctx context.Context, one *system) (n int, err error) {
	for i := range services {
		err := one.once(ctx, one.list(fmt.Sprintf("crowd%d", i)), func(got answer) error {
			n += one.count(got.body)
			return nil
		})
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// held is the memory of a server.
type held struct {
	memory
	live int64 // heap bytes in use at the last collection; 0 if unknown
}

// footprint also asks our own server for its next collection: it runs at twice the live heap of
// the last one (runtime package, GOGC), and most resident memory is that room.
func footprint(ctx context.Context, one *system) (held, error) {
	h := held{memory: memoryOf(one.server.ID())}
	if one.metrics == nil {
		return h, nil
	}
	return h, one.once(ctx, one.metrics, func(got answer) error {
		for line := range strings.Lines(string(got.body)) {
			if text, ok := strings.CutPrefix(line, "go_memstats_next_gc_bytes "); ok {
				next, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
				h.live = int64(next) / 2
				return err
			}
		}
		return fault.New("footprint", fault.NotFound, "the metrics do not tell when the collector runs next")
	})
}

func each(bytes int64, n int) string {
	if bytes == 0 {
		return "not told"
	}
	return fmt.Sprintf("%d B", bytes/int64(n))
}

func (m memory) String() string {
	return fmt.Sprintf("%.1f (%.1f)", float64(m.resident)/(1<<20), float64(m.anonymous)/(1<<20))
}

// target answers health checks.
type target struct {
	server *http.Server
	url    string
	asked  atomic.Int64
}

func listenTarget() (*target, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fault.As("target", fault.Unavailable, err)
	}
	t := &target{url: "http://" + l.Addr().String() + "/health"}
	t.server = &http.Server{ReadHeaderTimeout: checkWithin, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		t.asked.Add(1)
		w.WriteHeader(http.StatusOK)
	})}
	go func() { _ = t.server.Serve(l) }() // until Close
	return t, nil
}
