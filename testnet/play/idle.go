package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/blackhole/blackhole/testnet/await"
	"github.com/blackhole/blackhole/testnet/network"
	"github.com/blackhole/blackhole/testnet/process"
)

const (
	idleAfter = 80 * time.Second // from the last change to the measurement
	minIdle   = 10 * time.Second // a tick of the processor's time is 10 ms
)

// observation is what a peer had used at one moment.
type observation struct {
	process.Usage
	traffic  map[string]network.Traffic // by protocol
	resident uint64                     // bytes
}

// observeIdle measures all peers after some time without a change. No peer may distrust another afterwards.
func (s *session) observeIdle(ctx context.Context) (held bool, err error) {
	fmt.Fprintf(s.out, "waiting %v, then measuring for %v ...\n", idleAfter, s.idle)
	if err := await.Pause(ctx, idleAfter); err != nil {
		return false, err
	}
	if s.report.Idle, err = s.observe(ctx); err != nil {
		return false, err
	}
	honest, err := s.network.NoDistrust(ctx)
	if err != nil {
		return false, err
	}
	fmt.Fprintf(s.out, "%d peers distrust nobody\n", honest)
	s.report.end(s.network)
	return true, s.report.write(s)
}

// observe measures all peers for a while, and prints the result.
func (s *session) observe(ctx context.Context) (*reportUsage, error) {
	before, began, err := s.look(ctx, false)
	if err != nil {
		return nil, err
	}
	if err := await.Pause(ctx, s.idle); err != nil {
		return nil, err
	}
	after, ended, err := s.look(ctx, true)
	if err != nil {
		return nil, err
	}
	u := usageOf(before, after, ended.Sub(began))
	fmt.Fprintf(s.out, "a peer, median (least to most): %.2f %% of a processor (%.2f to %.2f), %.0f KB written a minute (%.0f to %.0f), %.1f MiB resident\n",
		u.CPUPercent.Median, u.CPUPercent.Min, u.CPUPercent.Max, u.KBPerMinute.Median, u.KBPerMinute.Min, u.KBPerMinute.Max, u.RSSMiB.Median)
	fmt.Fprintln(s.out, "KB a minute by protocol, without encryption and multiplexing, median (least to most):")
	w := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	for _, name := range slices.Sorted(maps.Keys(u.Protocols)) {
		f := u.Protocols[name]
		fmt.Fprintf(w, "%s\tsent %.1f (%.1f to %.1f)\treceived %.1f (%.1f to %.1f)\n",
			name, f.Sent.Median, f.Sent.Min, f.Sent.Max, f.Received.Median, f.Received.Min, f.Received.Max)
	}
	_ = w.Flush() // a closed output must not stop the measurement
	return u, nil
}

// look asks all peers for their traffic, and the system for the rest, at the time returned. An answer of a peer is itself 100 KB:
// the question comes first before a measurement, and last after it.
func (s *session) look(ctx context.Context, after bool) (all []observation, at time.Time, err error) {
	all = make([]observation, len(s.network.Peers))
	system := func() (err error) {
		at = time.Now()
		for i, p := range s.network.Peers {
			if all[i].Usage, err = p.Used(); err != nil {
				return err
			}
			all[i].resident = p.Resident()
		}
		return nil
	}
	if after {
		if err := system(); err != nil {
			return nil, at, err
		}
	}
	for i, p := range s.network.Peers {
		if all[i].traffic, err = p.Traffic(ctx); err != nil {
			return nil, at, err
		}
	}
	if !after {
		err = system()
	}
	return all, at, err
}
