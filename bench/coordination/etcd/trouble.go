package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"go.etcd.io/etcd/client/v3/concurrency"
)

// place returns the endpoints at the leader, at a follower, or all.
func (d *driver) place(ctx context.Context, at string) ([]string, error) {
	if at == "" {
		return d.endpoints, nil
	}
	i, err := d.leader(ctx)
	if at == "follower" {
		i = (i + 1) % len(d.endpoints)
	}
	return d.endpoints[i : i+1], err
}

// leader returns the index of the leader.
func (d *driver) leader(ctx context.Context) (int, error) {
	c, err := dial(d.endpoints...)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	for i, e := range d.endpoints {
		bounded, cancel := context.WithTimeout(ctx, time.Second)
		s, err := c.Status(bounded, e)
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
