package client

import (
	"context"
	"sync"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// Presence is an instance that is kept registered. It is safe for concurrent use.
type Presence struct {
	services *Services
	ctx      context.Context // ends with it
	end      context.CancelCauseFunc
	close    sync.Once
	turn     chan struct{} // capacity 1: full while it is being registered, changed or deregistered

	mu       sync.Mutex // guards what follows
	said     instance.Registration
	override instance.Status // set through this presence; Unknown: none
	known    *instance.Instance

	tenancy // guarded by the beater
}

func newPresence(s *Services, r instance.Registration) *Presence {
	p := &Presence{services: s, said: r, turn: make(chan struct{}, 1)}
	p.ctx, p.end = context.WithCancelCause(context.Background())
	return p
}

// Instance is how the peer last had it: when it was registered or changed through this presence.
func (p *Presence) Instance() *instance.Instance {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.known
}

// Done is closed when it is kept no more.
func (p *Presence) Done() <-chan struct{} { return p.ctx.Done() }

// Err tells why it is kept no more: Canceled after Close, or why the peer refused to register it
// again; nil while it is kept.
func (p *Presence) Err() error { return context.Cause(p.ctx) }

// Update replaces what the instance says of itself. Its key, and with it its lease, stay.
func (p *Presence) Update(ctx context.Context, s instance.Spec) error {
	const op = "client.Presence.Update"
	return fault.Wrap(op, p.exclusively(ctx, func() error {
		p.mu.Lock()
		r := p.said
		p.mu.Unlock()
		r.Spec, r.Status = s, instance.StatusUnknown
		if err := r.Normalize(); err != nil {
			return err
		}
		return p.services.persist(ctx, func() error {
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
func (p *Presence) SetStatus(ctx context.Context, s instance.Status) error {
	const op = "client.Presence.SetStatus"
	return fault.Wrap(op, p.exclusively(ctx, func() error {
		changed, err := p.services.agent.SetStatus(ctx, p.Instance().Key, s)
		if err != nil {
			return err
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.override, p.known = changed.Override, changed
		return nil
	}))
}

// Close deregisters the instance, trying again while the peer cannot be reached, until ctx ends. It then
// runs out by itself; the error says so. Closing again does nothing.
func (p *Presence) Close(ctx context.Context) error {
	var err error
	p.close.Do(func() {
		p.services.beats.remove(p, fault.New("client.Presence", fault.Canceled, "the instance was deregistered"))
		if err = p.wait(ctx); err != nil { // what was under way is over now
			return
		}
		err = p.services.persist(ctx, func() error {
			_, err := p.services.agent.Deregister(ctx, p.Instance().Key)
			return err
		})
		if k := fault.KindOf(err); k == fault.NotFound || k == fault.Gone {
			err = nil // it has ended
		}
	})
	return fault.Wrap("client.Presence.Close", err)
}

// wait takes the presence's turn.
func (p *Presence) wait(ctx context.Context) error {
	select {
	case p.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// exclusively does something that no other change of the instance may overtake.
func (p *Presence) exclusively(ctx context.Context, do func() error) error {
	if err := p.wait(ctx); err != nil {
		return err
	}
	defer func() { <-p.turn }()
	if err := p.Err(); err != nil {
		return err
	}
	return do()
}

// register has the peer register what r says, with the override that there was, and tells when the
// request was sent by the client's clock.
func (p *Presence) register(ctx context.Context, r instance.Registration) (done instance.Registered, sent time.Duration, err error) {
	s := p.services
	sent = s.client.clock()
	if done, err = s.agent.Register(ctx, r); err != nil {
		return done, sent, err
	}
	r.Strict, r.RequireCommit = false, false // it is there now
	p.mu.Lock()
	p.said, p.known = r, done.Instance
	override := p.override
	p.mu.Unlock()
	if override != instance.StatusUnknown && done.Override != override {
		changed, err := s.agent.SetStatus(ctx, done.Key, override)
		if err != nil {
			return done, sent, err
		}
		p.mu.Lock()
		p.known = changed
		p.mu.Unlock()
	}
	return done, sent, nil
}

// again registers what the peer has lost.
func (p *Presence) again(ctx context.Context) (done instance.Registered, sent time.Duration, err error) {
	err = p.exclusively(ctx, func() error {
		p.mu.Lock()
		r := p.said
		p.mu.Unlock()
		done, sent, err = p.register(ctx, r)
		return err
	})
	return done, sent, err
}

// persist tries again for as long as the peer cannot be reached and ctx lasts. The error is that of
// the last try.
func (s *Services) persist(ctx context.Context, try func() error) error {
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
