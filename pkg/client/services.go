package client

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"iter"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// Services is the agent plane as applications want it: what they register stays registered, what
// they look up is at hand and says how old it is, and what they watch goes on over lost
// connections. Below it lies the contract as it is: Client.Agent.
type Services struct {
	client *Client
	agent  *Agent
	beats  *beater
	cache  *cache
}

// Services gives the agent plane. It is safe for concurrent use and ends with the client.
func (c *Client) Services() *Services { return c.services }

func newServices(c *Client) *Services {
	s := &Services{client: c, agent: c.agent}
	s.beats = newBeater(&beatStream{open: c.agent.service.HeartbeatStream}, c.clock, c.vary)
	s.cache = newCache(s.agent.Discover, s.follow, c.clock)
	return s
}

// close ends what goes on, and deregisters what was not closed, as far as ctx allows.
func (s *Services) close(ctx context.Context) {
	s.cache.close()
	s.beats.close(ctx)
}

// Register registers an instance and keeps it registered until it is closed: heartbeats go out in
// time, and when the peer does not know it any more it is registered again. It tries again
// while the peer cannot be reached, until ctx ends. An empty id is made up, so that trying again
// cannot make two of one.
//
// Errors: those of instance.Registrar; Unavailable when no peer was reached in time; LimitReached for
// too many on one client.
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
		done, sent, err := p.register(ctx, r)
		if err != nil {
			return err
		}
		if err = s.beats.add(p, done, sent); err != nil {
			_, _ = s.agent.Deregister(ctx, done.Key) // it would end by itself
		}
		return err
	})
	if err != nil {
		return nil, fault.Wrap(op, err)
	}
	return p, nil
}

// suffix tells instances apart. Whoever meets another's makes its own come back at the next heartbeat, and
// that is one in 2^32 of the instances of one service.
func suffix() string {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// List names the services of a namespace that have instances.
func (s *Services) List(ctx context.Context, namespace string) (instance.Services, error) {
	return s.agent.Services(ctx, namespace)
}

// Watch gives the changes of a result until ctx ends, across lost connections and peers that come
// back: each time it goes on after the last batch it has given, without gap or duplicate, or
// begins anew with a Reset. Whenever the peer is lost there is a batch without events that is
// Stale. Begin with after 0, or the Index of the last batch of an earlier watch.
//
// The last pair has an error and no batch: Invalid, Forbidden, LimitReached or another that no retry makes
// right; Canceled or Timeout when ctx ended.
func (s *Services) Watch(ctx context.Context, q instance.Query, after uint64) iter.Seq2[instance.Batch, error] {
	return func(yield func(instance.Batch, error) bool) {
		err := s.watch(ctx, q, after, func(b instance.Batch, _ error) bool { return yield(b, nil) })
		if err != nil {
			yield(instance.Batch{}, fault.Wrap("client.Services.Watch", err))
		}
	}
}

// Follow is Watch in whole results: each is the present one. What changes between two of them are the
// instances, and the View then, or the state of contact alone.
func (s *Services) Follow(ctx context.Context, q instance.Query) iter.Seq2[instance.Result, error] {
	return func(yield func(instance.Result, error) bool) {
		err := s.follow(ctx, q, func(r instance.Result, _ error) bool { return yield(r, nil) })
		if err != nil {
			yield(instance.Result{}, fault.Wrap("client.Services.Follow", err))
		}
	}
}
