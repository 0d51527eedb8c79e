package client

import (
	"context"
	"sync"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// InstanceHandle is an instance that is kept registered. It is safe for concurrent use.
type InstanceHandle struct {
	services *Services
	ctx      context.Context // ends with it
	end      context.CancelCauseFunc
	close    sync.Once
	busy     chan struct{} // capacity 1: full while it is being registered, changed or deregistered

	mu           sync.Mutex // guards what follows
	registration instance.Registration
	override     instance.Status // set through this presence; Unknown: none
	instance     *instance.Instance

	registrationState // guarded by the beater
}

func newInstanceHandle(s *Services, r instance.Registration) *InstanceHandle {
	p := &InstanceHandle{services: s, registration: r, busy: make(chan struct{}, 1)}
	p.ctx, p.end = context.WithCancelCause(context.Background())
	return p
}

// Instance is how the peer last had it: when it was registered or changed through this presence.
func (p *InstanceHandle) Instance() *instance.Instance {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.instance
}

// Done is closed when it is kept no more.
func (p *InstanceHandle) Done() <-chan struct{} { return p.ctx.Done() }

// Err tells why it is kept no more: Canceled after Close, or why the peer refused to register it
// again; nil while it is kept.
func (p *InstanceHandle) Err() error { return context.Cause(p.ctx) }

// Update replaces what the instance says of itself. Its key, and with it its lease, stay.
func (p *InstanceHandle) Update(ctx context.Context, s instance.Spec) error {
	const op = "client.Presence.Update"
	return fault.Wrap(op, p.serialised(ctx, func() error {
		p.mu.Lock()
		r := p.registration
		p.mu.Unlock()
		r.Spec, r.Status = s, instance.StatusUnknown
		if err := r.Normalize(); err != nil {
			return err
		}
		return p.services.retry(ctx, func() error {
			done, sent, err := p.register(ctx, r)
			if err == nil {
				p.services.beats.renewed(p, done, sent)
			}
			return err
		})
	}))
}

// SetStatus overrides the instance's status, as instance.Registrar. The override comes back with the
// instance when that has to be registered again.
func (p *InstanceHandle) SetStatus(ctx context.Context, s instance.Status) error {
	const op = "client.Presence.SetStatus"
	return fault.Wrap(op, p.serialised(ctx, func() error {
		changed, err := p.services.agent.SetStatus(ctx, p.Instance().Key, s)
		if err != nil {
			return err
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.override, p.instance = changed.Override, changed
		return nil
	}))
}

// Close deregisters the instance, trying again while the peer cannot be reached, until ctx ends. It then
// runs out by itself; the error says so. Closing again does nothing.
func (p *InstanceHandle) Close(ctx context.Context) error {
	var err error
	p.close.Do(func() {
		p.services.beats.remove(p, fault.New("client.Presence", fault.Canceled, "the instance was deregistered"))
		if err = p.lock(ctx); err != nil { // what was under way is over now
			return
		}
		err = p.services.retry(ctx, func() error {
			_, err := p.services.agent.Deregister(ctx, p.Instance().Key)
			return err
		})
		if k := fault.KindOf(err); k == fault.NotFound || k == fault.Gone {
			err = nil // it has ended
		}
	})
	return fault.Wrap("client.Presence.Close", err)
}

// lock takes the presence's turn.
func (p *InstanceHandle) lock(ctx context.Context) error {
	select {
	case p.busy <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// serialised does something that no other change of the instance may overtake.
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

// register has the peer register what r says, with the override that there was, and tells when the
// request was sent by the client's clock.
func (p *InstanceHandle) register(ctx context.Context, r instance.Registration) (done instance.Registered, sent time.Duration, err error) {
	s := p.services
	sent = s.client.clock()
	if done, err = s.agent.Register(ctx, r); err != nil {
		return done, sent, err
	}
	r.Strict, r.RequireCommit = false, false // it is there now
	p.mu.Lock()
	p.registration, p.instance = r, done.Instance
	override := p.override
	p.mu.Unlock()
	if override != instance.StatusUnknown && done.Override != override {
		changed, err := s.agent.SetStatus(ctx, done.Key, override)
		if err != nil {
			return done, sent, err
		}
		p.mu.Lock()
		p.instance = changed
		p.mu.Unlock()
	}
	return done, sent, nil
}

// retryAtterAgain registers what the peer has lost.
func (p *InstanceHandle) registerAgain(ctx context.Context) (done instance.Registered, sent time.Duration, err error) {
	err = p.serialised(ctx, func() error {
		p.mu.Lock()
		r := p.registration
		p.mu.Unlock()
		done, sent, err = p.register(ctx, r)
		return err
	})
	return done, sent, err
}

// retry tries again for as long as the peer cannot be reached and ctx lasts. The error is that of
// the last try.
func (s *Services) retry(ctx context.Context, try func() error) error {
	for delay := firstPause; ; delay = min(2*delay, lastPause) {
		err := try()
		if err == nil || !s.client.passing(ctx, err) {
			return err
		}
		if pause(ctx, s.client.vary(delay)) != nil {
			return err
		}
	}
}
