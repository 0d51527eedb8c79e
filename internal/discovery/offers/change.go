package offers

import (
	"errors"
	"time"

	"github.com/blackhole/blackhole/internal/platform/share"
	"github.com/blackhole/blackhole/internal/platform/store"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
)

// change collects new states of services. All are durable before any is visible. The caller holds writing.
type change struct {
	of     *Registry
	states map[string]*service // nil: deleted
	ids    []string            // keys of states, in order of set
	live   int                 // live services after the change
}

func (r *Registry) change() *change {
	return &change{of: r, states: make(map[string]*service), live: r.live}
}

// at returns the state of a service after the change.
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

// commit makes the change durable, then visible. After an error the change is invisible, but may be on disk.
func (c *change) commit(now time.Time) error {
	r := c.of
	if r.closed || r.stopped {
		return fault.New("", fault.Unavailable, "the registry is closed: the peer is shutting down")
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

// edits converts the change for the store. The last sequence of a deleted service survives in the floor, so
// that later sequences are higher.
func (c *change) edits() (edits []store.Edit, floor uint64, err error) {
	for _, id := range c.ids {
		e := store.Edit{Name: id}
		if s := c.states[id]; s != nil {
			if e.Value, err = s.encode(); err != nil {
				return nil, 0, err
			}
		} else if last := c.of.services[id]; last != nil {
			floor = max(floor, last.current.Sequence(), c.of.floor())
		}
		edits = append(edits, e)
	}
	return edits, floor, nil
}

// Register adds services in one durable step: a crash keeps all accepted offers or none. It returns a record or
// an error for each offer, in order. Errors:
//
//   - Exists: the id is registered, also by an earlier offer of this call;
//   - LimitReached: Config.MaxServices are registered; the first offers take the remaining room;
//   - PoolExhausted, pool "offers", value the time.Duration to wait: too many withdrawn services are not deleted yet;
//   - Invalid: an invalid field of the offer, named by the error;
//   - Unavailable: the registry is closed or its database failed. After a failure, only the next Open shows
//     the registration's result.
//
// A withdrawn id can be registered again, as a new service.
//
// The records are handed out: the caller announces them and reports the outcome to Announced. Until then, for
// at most 30 s, Due does not return them.
func (r *Registry) Register(offers []records.Offer, now time.Time) ([]*records.Record, []error) {
	return r.RegisterFor(Caller{Operator: true}, offers, now)
}

// Caller is who registers an offer. Each has a share of the ids, and all but operators leave a quarter of them to
// these.
type Caller struct {
	Name     string
	Operator bool // of this peer
}

// RegisterFor is Register for a caller. Its withdrawn services count in its share until they are deleted.
func (r *Registry) RegisterFor(caller Caller, offers []records.Offer, now time.Time) ([]*records.Record, []error) {
	const op = "registry.Register"
	now = wall(now)
	accepted, errs := make([]*records.Record, len(offers)), make([]error, len(offers))
	r.writing.Lock()
	defer r.writing.Unlock()
	c := r.change()
	for i, o := range offers {
		s, err := c.register(caller, o, now)
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

// handOut hands new versions to their caller; nil entries are skipped. The caller still holds writing since the
// commit, so Due has not returned them before.
func (r *Registry) handOut(made []*records.Record, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, rec := range made {
		if rec != nil {
			r.scheduler.handOut(versionOf(rec), 0, now)
		}
	}
}

// register creates the first version of a service.
func (c *change) register(caller Caller, o records.Offer, now time.Time) (*service, error) {
	last := c.at(o.ID)
	switch {
	case last.live():
		return nil, &fault.Error{Kind: fault.Exists, Field: "id", Value: o.ID, Err: errors.New("is already registered: update it instead")}
	case c.live >= c.of.max:
		return nil, fault.New("", fault.LimitReached, "this peer offers the maximum of %d services: withdraw one, or raise discovery.limits.services_per_provider", c.of.max)
	}
	if err := c.fits(caller, last, now); err != nil {
		return nil, err
	}
	s, err := c.of.signer.nextVersion(last, c.of.floor(), o, nil, now)
	if err == nil {
		s.caller = caller
	}
	return s, err
}

// fits refuses a new id without room, or beyond the share of its caller.
func (c *change) fits(caller Caller, last *service, now time.Time) error {
	if last != nil {
		return nil
	}
	places := NamesPerService * c.of.max
	free := max(places-len(c.of.services)-len(c.ids), 0)
	kept := places / reserve // of the ids for operators, less those they have
	// Both count the caller alone while an id is free, else all.
	own := 0            // ids
	next := time.Time{} // when the first withdrawn one is deleted
	for _, s := range c.of.services {
		if s.caller.Operator {
			kept--
		}
		if free > 0 && s.caller != caller {
			continue
		}
		own++
		if !s.live() && (next.IsZero() || s.until.Before(next)) {
			next = s.until
		}
	}
	for _, id := range c.ids {
		if s := c.states[id]; c.of.services[id] == nil && s != nil && s.caller == caller {
			own++
		}
	}
	room := free
	if !caller.Operator {
		room = max(free-max(kept, 0), 0)
	}
	if share.Fits(uint64(own), 1, uint64(room)) {
		return nil
	}
	wait := max(next.Sub(now), time.Second)
	whose, rest := "all callers have", ""
	if free > 0 {
		whose, rest = "this caller has", ", and the rest is for others"
	}
	err := fault.Exhausted("", "offers", free > 0,
		"%s %d of %d ids of offers, withdrawn ones too until their records lapse%s: retry in %v, or use an id again", whose, own, places, rest, wait.Round(time.Second))
	var refusal *fault.Error
	if errors.As(err, &refusal) {
		refusal.Value = wait // for Retry-After
	}
	return err
}

// Update replaces the offer of a registered service and keeps its created_at. Like Register it hands the new
// version out; outcomes of older versions no longer count. A tombstone for the place that the service leaves is
// due at once. Errors: NotFound, and as Register except Exists.
func (r *Registry) Update(o records.Offer, now time.Time) (*records.Record, error) {
	s, err := r.alter(o.ID, wall(now), func(last *service) (*service, error) {
		return r.signer.nextVersion(last, r.floor(), o, last.pause(wall(now)), wall(now))
	})
	if err != nil {
		return nil, fault.Wrap("registry.Update", err)
	}
	return s.current, nil
}

// Withdraw ends a service and hands its tombstone out, like Register. The tombstone is due again from time to
// time until all versions of the service have lapsed. Errors: NotFound, also for a withdrawn service, and
// Unavailable as in Register.
func (r *Registry) Withdraw(id string, now time.Time) (*records.Record, error) {
	s, err := r.alter(id, wall(now), func(last *service) (*service, error) {
		return r.signer.withdraw(last, r.floor(), wall(now))
	})
	if err != nil {
		return nil, fault.Wrap("registry.Withdraw", err)
	}
	return s.current, nil
}

// MaxPause bounds a pause with an end.
const MaxPause = 366 * 24 * time.Hour

// Pause signs a version that leaves a service out of all answers: for a time, or with 0 until Resume. Later versions keep it. Like
// Update it hands the version out. Errors: NotFound, Invalid naming "for", and Unavailable as in Register.
func (r *Registry) Pause(id string, length time.Duration, now time.Time) (*records.Record, error) {
	const op = "registry.Pause"
	if length < 0 || length > MaxPause {
		return nil, fault.Wrap(op, fault.Invalidf("for", length, "must be at most %v; 0 pauses until resumed", MaxPause))
	}
	p := &records.Pause{Since: wall(now)}
	if length > 0 {
		p.Until = wall(now).Add(length)
	}
	s, err := r.repeat(id, p, wall(now))
	return s, fault.Wrap(op, err)
}

// Resume ends a pause. It hands the new version out. Errors: NotFound, Conflict for a service without a pause, and Unavailable as in
// Register.
func (r *Registry) Resume(id string, now time.Time) (*records.Record, error) {
	s, err := r.repeat(id, nil, wall(now))
	return s, fault.Wrap("registry.Resume", err)
}

// repeat signs the offer of a live service again, with another pause.
func (r *Registry) repeat(id string, p *records.Pause, now time.Time) (*records.Record, error) {
	s, err := r.alter(id, now, func(last *service) (*service, error) {
		if p == nil && last.current.Paused() == nil {
			return nil, &fault.Error{Kind: fault.Conflict, Field: "id", Value: id, Err: errors.New("is not paused")}
		}
		o, err := last.decodeOffer()
		if err != nil {
			return nil, fault.As("", fault.Internal, err)
		}
		return r.signer.nextVersion(last, r.floor(), o, p, now)
	})
	if err != nil {
		return nil, err
	}
	return s.current, nil
}

// Stop signs, in one durable step, a version of each live service that says that this peer stopped, and hands them out. Services
// that their provider paused stay as they are. Later changes are refused, and Due returns nothing. The next Open makes Due sign the
// services without it. A suspended registry signs nothing. Error: Unavailable.
func (r *Registry) Stop(now time.Time) ([]*records.Record, error) {
	now = wall(now)
	r.writing.Lock()
	defer r.writing.Unlock()
	if _, suspended := r.Suspended(); suspended || r.stopped {
		return nil, nil
	}
	c := r.change()
	var last []*records.Record
	for id, s := range r.services {
		if !s.live() || s.pause(now) != nil {
			continue
		}
		o, err := s.decodeOffer()
		var stopped *service
		if err == nil {
			stopped, err = r.signer.nextVersion(s, r.floor(), o, &records.Pause{Stopped: true, Since: now}, now)
		}
		if err != nil {
			r.log.Warn("this service does not say that its peer stops", "id", id, "err", err)
			continue
		}
		c.set(id, stopped)
		last = append(last, stopped.current)
	}
	err := c.commit(now)
	r.stopped = true
	if err != nil {
		return nil, fault.Wrap("registry.Stop", err)
	}
	r.handOut(last, now)
	return last, nil
}

// alter changes one live service.
func (r *Registry) alter(id string, now time.Time, to func(*service) (*service, error)) (*service, error) {
	r.writing.Lock()
	defer r.writing.Unlock()
	last := r.services[id]
	if !last.live() {
		return nil, &fault.Error{Kind: fault.NotFound, Field: "id", Value: id, Err: errors.New("is not registered: register it first")}
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
