package client

import (
	"context"
	"sync"

	"github.com/blackhole/blackhole/internal/contract/coord/attempt"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// InstanceHandle is a registered instance that the client keeps alive. It is safe for
// concurrent use.
type InstanceHandle struct {
	services *Services
	close    sync.Once
	busy     chan struct{} // capacity 1: full during a registration, change or deregistration

	mu           sync.Mutex // guards the fields below
	registration instance.Registration
	overridden   instance.Status // status set through this handle; Unknown means none
	instance     *instance.Instance

	renewal        // guarded by the renewer; its context ends with the registration
	lease   string // guarded by the renewer
}

func newInstanceHandle(s *Services, r instance.Registration) *InstanceHandle {
	return &InstanceHandle{services: s, registration: r, busy: make(chan struct{}, 1), renewal: newRenewal()}
}

// Instance returns the instance as of the last registration or change through this handle.
func (p *InstanceHandle) Instance() *instance.Instance {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.instance
}

// Done is closed after the registration has ended.
func (p *InstanceHandle) Done() <-chan struct{} { return p.ctx.Done() }

// Err returns the cause of the end: Canceled after Close, or the refusal of the peer to register
// the instance again. It is nil while the registration lasts.
func (p *InstanceHandle) Err() error { return context.Cause(p.ctx) }

// Missed returns why the last heartbeat failed, or that the peer lost the instance, which is being registered again. It is nil
// after a success.
func (p *InstanceHandle) Missed() error { return p.services.beats.missed(p) }

// Update replaces the description of the instance. The key and the lease stay.
func (p *InstanceHandle) Update(ctx context.Context, s instance.Spec) error {
	const op = "client.InstanceHandle.Update"
	return fault.Wrap(op, p.serialised(ctx, func() error {
		p.mu.Lock()
		r := p.registration
		p.mu.Unlock()
		r.Spec, r.Status = s, instance.StatusUnknown
		if err := r.Normalize(); err != nil {
			return err
		}
		return p.services.retry(ctx, func() error { return p.register(ctx, r) })
	}))
}

// SetStatus overrides the status of the instance, as instance.Registrar. The override survives
// a repeated registration.
func (p *InstanceHandle) SetStatus(ctx context.Context, s instance.Status) error {
	const op = "client.InstanceHandle.SetStatus"
	return fault.Wrap(op, p.serialised(ctx, func() error {
		return p.override(ctx, p.Instance().Key, s)
	}))
}

// override sets the status of the instance. Its lease stays: only the answer to a registration has it.
func (p *InstanceHandle) override(ctx context.Context, k instance.Key, s instance.Status) error {
	changed, err := p.services.agent.SetStatus(ctx, k, s)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	changed.Lease = p.instance.Lease
	p.overridden, p.instance = changed.Override, changed
	return nil
}

// Close deregisters the instance. It retries until ctx ends while the peer is unreachable, and
// then returns the error; the instance expires. A second Close does nothing.
func (p *InstanceHandle) Close(ctx context.Context) error {
	var err error
	p.close.Do(func() {
		p.services.beats.remove(p, fault.New("client.InstanceHandle", fault.Canceled, "the instance was deregistered"))
		if err = p.lock(ctx); err != nil { // waits for the end of other changes
			return
		}
		err = p.services.retry(ctx, func() error {
			_, err := p.services.agent.Deregister(ctx, p.Instance().Key)
			return err
		})
		if k := fault.KindOf(err); k == fault.NotFound || k == fault.Gone {
			err = nil // already deregistered
		}
	})
	return fault.Wrap("client.InstanceHandle.Close", err)
}

// lock waits for the end of other changes of the instance.
func (p *InstanceHandle) lock(ctx context.Context) error {
	select {
	case p.busy <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// serialised runs do without concurrent changes of the instance.
func (p *InstanceHandle) serialised(ctx context.Context, do func() error) error {
	if err := p.lock(ctx); err != nil {
		return err
	}
	defer func() { <-p.busy }()
	if err := p.Err(); err != nil {
		return err
	}
	return do()
}

// register registers r with the current override, and schedules the heartbeats.
func (p *InstanceHandle) register(ctx context.Context, r instance.Registration) error {
	s := p.services
	sent := s.client.clock()
	done, err := s.agent.Register(ctx, r)
	if err != nil {
		return err
	}
	r.Strict, r.RequireCommit = false, false // for the first registration only
	p.mu.Lock()
	p.registration, p.instance = r, done.Instance
	override := p.overridden
	p.mu.Unlock()
	if override != instance.StatusUnknown && done.Override != override {
		if err := p.override(ctx, done.Key, override); err != nil {
			return err
		}
	}
	s.beats.registered(p, done, sent)
	return nil
}

// registerAgain registers a lost instance, unless an update has done so.
func (p *InstanceHandle) registerAgain(ctx context.Context) error {
	return p.serialised(ctx, func() error {
		if !p.services.beats.lost(p) {
			return nil
		}
		p.mu.Lock()
		r := p.registration
		p.mu.Unlock()
		return p.register(ctx, r)
	})
}

// retry repeats try while the peer is unreachable, until ctx ends. It returns the error of the
// last attempt.
func (s *Services) retry(ctx context.Context, try func() error) error {
	return s.client.repeat(ctx, func(*attempt.Run) error { return try() })
}
