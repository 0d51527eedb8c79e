package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
)

const (
	checkEvery  = 10 * time.Second
	checkWithin = 5 * time.Second
	calm        = 5 * time.Second // for a server that has just started
)

// checks has each system in turn, alone, check all instances, and tells what that takes.
func (s *session) checks(ctx context.Context) error {
	fmt.Fprintf(s.out, "\n%d instances with HTTP checks every %v, for %v\n\n"+
		"| | checks a second | healthy | CPU, of one core | RSS MiB (anonymous) without instances | with them | growth an instance | load |\n"+
		"|---|---|---|---|---|---|---|---|\n", s.instances, checkEvery, s.checking)
	target, err := listenTarget()
	if err != nil {
		return err
	}
	defer target.server.Close()
	for _, k := range s.kinds {
		if err := s.checked(ctx, k, target); err != nil {
			return err
		}
	}
	return nil
}

func (s *session) checked(ctx context.Context, k kind, target *target) error {
	systems, end, err := s.open(ctx, []kind{k})
	if err != nil {
		return err
	}
	defer end()
	one := systems[0]
	if err := rest(ctx, calm); err != nil {
		return err
	}
	idle := one.server.memory()
	all := crowd(s.instances, target.url)
	if _, err := one.each(ctx, all, one.enroll); err != nil {
		return err
	}
	if err := rest(ctx, checkEvery+checkWithin); err != nil {
		return err
	}
	spent, asked, began := one.server.spent(), target.asked.Load(), time.Now()
	if err := rest(ctx, s.checking); err != nil {
		return err
	}
	took, full := time.Since(began), one.server.memory()
	spent, asked = one.server.spent()-spent, target.asked.Load()-asked
	healthy, err := s.healthy(ctx, one)
	if err != nil {
		return err
	}
	fmt.Fprintf(s.out, "| %s | %.0f | %d | %.1f %% | %s | %s | %d B | %s |\n", one.name, float64(asked)/took.Seconds(), healthy,
		100*spent.Seconds()/took.Seconds(), idle, full, (full.resident-idle.resident)/int64(s.instances), load())
	return nil
}

// healthy counts the instances that are listed as such.
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
