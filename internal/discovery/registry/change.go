package registry

import (
	"errors"
	"time"

	"github.com/blackhole/blackhole/internal/platform/store"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
)

// change collects new states of services. They are on disk together before one of them is
// visible. Its user holds writing.
type change struct {
	of     *Registry
	states map[string]*service // nil: forgotten
	ids    []string            // of states, in the order in which they were set
	live   int                 // services there will be
}

func (r *Registry) change() *change {
	return &change{of: r, states: make(map[string]*service), live: r.live}
}

// at is the state of a service with the change.
func (c *change) at(id string) *service {
	if s, ok := c.states[id]; ok {
		return s
	}
	return c.of.services[id]
}

func (c *change) set(id string, s *service) {
	if c.at(id).live() {
		c.live--
	}
	if s.live() {
		c.live++
	}
	if _, ok := c.states[id]; !ok {
		c.ids = append(c.ids, id)
	}
	c.states[id] = s
}

// commit makes the change durable, then visible. After an error it is neither visible
// nor certain not to be on disk.
func (c *change) commit(now time.Time) error {
	r := c.of
	if r.closed {
		return fault.New("", fault.Unavailable, "the registry is closed")
	}
	if len(c.ids) == 0 {
		return nil
	}
	edits, floor, err := c.edits()
	if err != nil {
		return err
	}
	if err := r.store.Commit(edits, floor); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, id := range c.ids {
		r.replace(id, c.states[id], now)
	}
	return nil
}

// edits are the change for the ledger. The last sequence of a service that is forgotten
// lives on in the floor, so that none follows it that is lower.
func (c *change) edits() (edits []store.Edit, floor uint64, err error) {
	for _, id := range c.ids {
		e := store.Edit{Name: id}
		if s := c.states[id]; s != nil {
			if e.Value, err = s.encode(); err != nil {
				return nil, 0, err
			}
		} else if last := c.of.services[id]; last != nil {
			floor = max(floor, last.current.Sequence())
		}
		edits = append(edits, e)
	}
	return edits, floor, nil
}

// Register adds services in one durable step: after a crash all that were accepted are
// there or none. It gives a record or an error for each offer, in their order. Errors are
//
//   - Exists: the id is registered, or an earlier offer of this call has it;
//   - LimitReached: there are Config.MaxServices, or too many withdrawn ones that are not
//     yet forgotten; room that is left goes to the first offers;
//   - Invalid: the offer's field that the error names;
//   - Unavailable: the registry is closed or its database failed. After a failure it is
//     open until the next Open whether the service is registered.
//
// A withdrawn id can be registered again, as a new service.
//
// The records are handed out: the caller announces them and tells the outcome with
// Announced. Until it has, Due does not give them, for 30 s at most.
func (r *Registry) Register(offers []records.Offer, now time.Time) ([]*records.Record, []error) {
	const op = "registry.Register"
	now = wall(now)
	accepted, errs := make([]*records.Record, len(offers)), make([]error, len(offers))
	r.writing.Lock()
	defer r.writing.Unlock()
	c := r.change()
	for i, o := range offers {
		s, err := c.register(o, now)
		if err != nil {
			errs[i] = fault.Wrap(op, err)
			continue
		}
		c.set(o.ID, s)
		accepted[i] = s.current
	}
	if err := c.commit(now); err != nil {
		for i := range offers {
			if errs[i] == nil {
				accepted[i], errs[i] = nil, fault.Wrap(op, err)
			}
		}
		return accepted, errs
	}
	r.handOut(accepted, now)
	return accepted, errs
}

// handOut leases new versions, or none where an entry is nil, to the caller who made them.
// Its user still holds writing since their commit, so that Due has not given them before.
func (r *Registry) handOut(made []*records.Record, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, rec := range made {
		if rec != nil {
			r.scheduler.handOut(versionOf(rec), 0, now)
		}
	}
}

// register makes the first version of a service.
func (c *change) register(o records.Offer, now time.Time) (*service, error) {
	last := c.at(o.ID)
	switch {
	case last.live():
		return nil, &fault.Error{Kind: fault.Exists, Field: "id", Value: o.ID, Err: errors.New("is registered already")}
	case c.live >= c.of.max:
		return nil, fault.New("", fault.LimitReached, "all %d services that this peer may offer are registered", c.of.max)
	case last == nil && len(c.of.services)+len(c.ids) >= namesPerService*c.of.max:
		return nil, fault.New("", fault.LimitReached, "too many services were withdrawn; the first are forgotten when their records have lapsed")
	}
	return c.of.signer.nextVersion(last, c.of.store.Floor(), o, now)
}

// Update replaces the offer of a registered service and keeps its created_at. The new
// version is handed out as by Register, and outcomes of older ones no longer count. The
// tombstone for a place that the service leaves is due at once. Errors are NotFound, and
// those of Register but Exists.
func (r *Registry) Update(o records.Offer, now time.Time) (*records.Record, error) {
	s, err := r.alter(o.ID, wall(now), func(last *service) (*service, error) {
		return r.signer.nextVersion(last, r.store.Floor(), o, wall(now))
	})
	if err != nil {
		return nil, fault.Wrap("registry.Update", err)
	}
	return s.current, nil
}

// Withdraw ends a service and gives its tombstone, handed out as by Register and then due
// from time to time until no version of the service can be believed any more. Errors are
// NotFound, also when the service was withdrawn before, and Unavailable as of Register.
func (r *Registry) Withdraw(id string, now time.Time) (*records.Record, error) {
	s, err := r.alter(id, wall(now), func(last *service) (*service, error) {
		return r.signer.withdraw(last, wall(now))
	})
	if err != nil {
		return nil, fault.Wrap("registry.Withdraw", err)
	}
	return s.current, nil
}

// alter changes one live service.
func (r *Registry) alter(id string, now time.Time, to func(*service) (*service, error)) (*service, error) {
	r.writing.Lock()
	defer r.writing.Unlock()
	last := r.services[id]
	if !last.live() {
		return nil, &fault.Error{Kind: fault.NotFound, Field: "id", Value: id, Err: errors.New("is not registered")}
	}
	s, err := to(last)
	if err != nil {
		return nil, err
	}
	c := r.change()
	c.set(id, s)
	if err := c.commit(now); err != nil {
		return nil, err
	}
	r.handOut([]*records.Record{s.current}, now)
	return s, nil
}
