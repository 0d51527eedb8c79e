package agent

import (
	"context"

	"github.com/blackhole/blackhole/internal/contract/coord/principals"
	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// Direct returns the Registrar for calls of other peers: it serves instances of
// this peer alone, answers NotFound for others and forwards nothing. Register is
// Unsupported, because applications register at their own peer. Instances of
// authenticated callers change at the word of peers that Config.Speaks admits.
func (s *Service) Direct() instances.Registrar { return direct{s.local} }

type direct struct{ local *local }

func (d direct) Register(context.Context, instance.Registration) (instances.Registered, error) {
	return instances.Registered{}, fault.New("agent.Register", fault.Unsupported, "peers do not register instances with each other: register at the peer on the same host")
}

func (d direct) Deregister(ctx context.Context, k instance.Key) (instances.Removal, error) {
	k = k.WithDefaults()
	if err := d.consents(ctx, instances.Ref{Key: k}); err != nil {
		return instances.Removal{}, fault.Wrap("agent.Deregister", err)
	}
	gone, err := d.local.remove(ctx, k, forwardTimeout/2)
	return gone, fault.Wrap("agent.Deregister", err)
}

// Heartbeat needs no name: an application that moves to a peer without authentication still keeps its instance alive.
func (d direct) Heartbeat(ctx context.Context, refs []instances.Ref) ([]instances.Beat, error) {
	const op = "agent.Heartbeat"
	if _, err := d.local.config.Speaks(ctx); err != nil {
		for _, ref := range refs {
			if err := d.consents(ctx, ref); err != nil {
				return nil, fault.Wrap(op, err)
			}
		}
	}
	beats, err := d.local.beat(refs)
	return beats, fault.Wrap(op, err)
}

func (d direct) SetStatus(ctx context.Context, k instance.Key, status instance.Status) (*instance.Instance, error) {
	k = k.WithDefaults()
	if err := d.consents(ctx, instances.Ref{Key: k}); err != nil {
		return nil, fault.Wrap("agent.SetStatus", err)
	}
	i, err := d.local.override(ctx, k, status, forwardTimeout/2)
	return i, fault.Wrap("agent.SetStatus", err)
}

// consents refuses a peer that changes the instance of an authenticated caller, unless the peer's word counts and it
// speaks for an authenticated caller, whose right to the service it has checked.
func (d direct) consents(ctx context.Context, ref instances.Ref) error {
	i, ok := d.local.registered(ref)
	if !ok || i.Principal == "" {
		return nil
	}
	said, err := d.local.config.Speaks(ctx)
	if err == nil && principals.Valid(said) {
		return nil
	}
	return &fault.Error{Kind: fault.Forbidden, Field: "id", Value: i.Key.String(), Err: errOwned}
}

// registered returns the instance of this peer that a reference names.
func (l *local) registered(ref instances.Ref) (*instance.Instance, bool) {
	if i, ok := l.registry.Find(ref); ok {
		return i, true
	}
	if k, ok := l.aliases.Get(ref.Lease); ok {
		return l.registry.Get(k)
	}
	return nil, false
}
