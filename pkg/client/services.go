package client

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"iter"

	"github.com/blackhole/blackhole/internal/link"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// Services is the agent plane for applications. It keeps registered instances alive, caches
// lookups with their age, and continues watches over lost connections.
type Services struct {
	client *Client
	agent  *link.Agent
	beats  *heartbeats
	cache  *cache
}

// Services returns the agent plane. It is safe for concurrent use and ends with the client.
func (c *Client) Services() *Services { return c.services }

func newServices(c *Client) *Services {
	s := &Services{client: c, agent: c.link.Agent, beats: newHeartbeats(c)}
	s.cache = newCache(s.agent.Discover, s.follow, c.clock)
	return s
}

// close ends all watches, and deregisters open instances until ctx ends.
func (s *Services) close(ctx context.Context) {
	s.cache.close()
	s.beats.close(ctx)
}

// Register registers an instance and keeps it registered until the handle is closed. It sends
// heartbeats, and repeats the registration after a loss at the peer. Register retries until
// ctx ends while the peer is unreachable. An empty id becomes a random id, so that a retry
// cannot register a second instance.
//
// Errors: the errors of instance.Registrar; Unavailable if the peer was unreachable until ctx
// ended; LimitReached for too many instances of one client.
func (s *Services) Register(ctx context.Context, r instance.Registration) (*InstanceHandle, error) {
	const op = "client.Services.Register"
	if err := r.Normalize(); err != nil {
		return nil, fault.Wrap(op, err)
	}
	if r.ID == "" {
		r.ID = r.Service + "-" + suffix()
	}
	p := newInstanceHandle(s, r)
	err := s.retry(ctx, func() error {
		if err := p.register(ctx, r); err != nil {
			return err
		}
		err := s.beats.add(p)
		if err != nil {
			_, _ = s.agent.Deregister(ctx, p.Instance().Key) // on failure the instance expires
		}
		return err
	})
	if err != nil {
		return nil, fault.Wrap(op, err)
	}
	return p, nil
}

// suffix distinguishes the instances of one service. Two instances share a suffix with a
// probability of 2^-32; each then replaces the other at its heartbeats.
func suffix() string {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// List returns the services of a namespace that have instances.
func (s *Services) List(ctx context.Context, namespace string) (instance.Services, error) {
	return s.agent.Services(ctx, namespace)
}

// Watch returns the changes of a result until ctx ends, across lost connections and restarts of
// the peer. It resumes after the last batch without gaps or duplicates, or starts again with a
// Reset. A lost peer produces a Stale batch without events. after is 0, or the Index of the
// last batch of an earlier watch.
//
// The last pair has an error and no batch: Invalid, Forbidden, LimitReached or another
// permanent error; Canceled or Timeout after the end of ctx.
func (s *Services) Watch(ctx context.Context, q instance.Query, after uint64) iter.Seq2[instance.Batch, error] {
	return func(yield func(instance.Batch, error) bool) {
		err := s.watch(ctx, q, after, func(b instance.Batch, _ error) bool { return yield(b, nil) })
		if err != nil {
			yield(instance.Batch{}, fault.Wrap("client.Services.Watch", err))
		}
	}
}

// Follow is Watch with complete results. Successive results differ in their instances and View,
// or in their contact only.
func (s *Services) Follow(ctx context.Context, q instance.Query) iter.Seq2[instance.Result, error] {
	return func(yield func(instance.Result, error) bool) {
		err := s.follow(ctx, q, func(r instance.Result, _ error) bool { return yield(r, nil) })
		if err != nil {
			yield(instance.Result{}, fault.Wrap("client.Services.Follow", err))
		}
	}
}
