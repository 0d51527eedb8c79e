package authority

import (
	"context"
	"slices"

	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Leases implements coord.Reader. A caller sees its own leases, and an admin those of all applications.
func (g *Gate) Leases(ctx context.Context, q coord.LeaseQuery) ([]coord.LeaseState, coord.Header, error) {
	c := g.caller(ctx)
	q.VisibleTo = c.visibleTo()
	states, h, err := g.Reader.Leases(ctx, q)
	if err != nil {
		return nil, h, err
	}
	for i := range states {
		if q.ID != 0 && !q.Shows(states[i].Owner) {
			return nil, h, fault.Wrap("authority.Leases", fault.Refused(fault.NotFound, "lease", "is not known, or belongs to another caller"))
		}
		if q.ID == 0 && !c.learns(states[i].Owner) {
			states[i].ID = coord.HiddenLease
		}
	}
	return states, h, nil
}

// Locks implements coord.Reader.
func (g *Gate) Locks(ctx context.Context, q coord.LockQuery) ([]coord.LockState, coord.Header, error) {
	c := g.caller(ctx)
	states, h, err := g.Reader.Locks(ctx, q)
	for _, s := range states {
		c.hideClaims(s.Holding)
		c.hideClaims(s.Waiting)
	}
	return states, h, err
}

func (c *caller) hideClaims(claims []coord.ClaimState) {
	for i := range claims {
		if !c.learns(claims[i].Holder) {
			claims[i].Lease = coord.HiddenLease
		}
	}
}

// Range implements coord.Reader.
func (g *Gate) Range(ctx context.Context, q coord.Query, consistency coord.Consistency) (coord.Page, coord.Header, error) {
	c := g.caller(ctx)
	page, h, err := g.Reader.Range(ctx, q, consistency)
	for i, kv := range page.Keys {
		page.Keys[i] = c.hide(kv)
	}
	return page, h, err
}

// Watch implements coord.Reader.
func (g *Gate) Watch(ctx context.Context, w coord.Watch, send func(coord.Batch, coord.Header) error) error {
	c := g.caller(ctx)
	if c.admin {
		return g.Reader.Watch(ctx, w, send)
	}
	return g.Reader.Watch(ctx, w, func(b coord.Batch, h coord.Header) error {
		events := make([]coord.Event, len(b.Events))
		for i, e := range b.Events {
			e.KV, e.Prev = c.hide(e.KV), c.hide(e.Prev)
			events[i] = e
		}
		b.Events = events
		return send(b, h)
	})
}

// hideSteps hides leases in the results of a transaction, which the plane shares.
func (c *caller) hideSteps(steps []coord.StepResult) []coord.StepResult {
	shown := slices.Clone(steps)
	for i := range shown {
		shown[i].Keys = slices.Clone(shown[i].Keys)
		for k, kv := range shown[i].Keys {
			shown[i].Keys[k] = c.hide(kv)
		}
	}
	return shown
}

// hide returns a version without the id of its lease. A key does not tell who owns its lease, so only admins
// learn the id.
func (c *caller) hide(kv *coord.KeyValue) *coord.KeyValue {
	if kv == nil || kv.Lease == 0 || c.admin {
		return kv
	}
	shown := *kv // the plane shares its versions
	shown.Lease = coord.HiddenLease
	return &shown
}
