package main

import (
	"context"
	"fmt"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/testnet/network"
	"github.com/blackhole/blackhole/testnet/process"
)

const (
	idleAfter = 80 * time.Second // from the last change to the measurement
	minIdle   = 10 * time.Second // a tick of the processor's time is 10 ms
)

// observeIdle measures all peers after some time without a change.
func (s *session) observeIdle(ctx context.Context) (held bool, err error) {
	fmt.Fprintf(s.out, "waiting %v, then measuring for %v ...\n", idleAfter, s.idle)
	if err := pause(ctx, idleAfter); err != nil {
		return false, err
	}
	before, err := usages(s.network.Peers)
	if err != nil {
		return false, err
	}
	began := time.Now()
	if err := pause(ctx, s.idle); err != nil {
		return false, err
	}
	after, err := usages(s.network.Peers)
	if err != nil {
		return false, err
	}
	s.report.idle(before, after, time.Since(began))
	s.report.end(s.network)
	r := s.report
	fmt.Fprintf(s.out, "a peer, median (least to most): %.2f %% of a processor (%.2f to %.2f), %.0f KB written a minute (%.0f to %.0f), %.1f MiB resident\n",
		r.IdleCPUPercent.Median, r.IdleCPUPercent.Min, r.IdleCPUPercent.Max,
		r.IdleKBPerMinute.Median, r.IdleKBPerMinute.Min, r.IdleKBPerMinute.Max, r.RSSEndMiB.Median)
	return true, s.report.write(s)
}

func usages(peers []*network.Peer) ([]process.Usage, error) {
	all := make([]process.Usage, len(peers))
	for i, p := range peers {
		var err error
		if all[i], err = p.Used(); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return fault.Wrap("testnet.idle", ctx.Err())
	}
}
