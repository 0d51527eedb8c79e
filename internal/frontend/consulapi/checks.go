package consulapi

import (
	"context"
	"maps"
	"time"

	"github.com/blackhole/blackhole/internal/platform/clean"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// clock keeps the times of one check. The check itself stands in the record of an instance of this peer.
type clock struct {
	of      instance.Key
	ttl     time.Duration // 0: this peer runs the check
	remove  time.Duration // 0: never
	status  string
	found   string    // by a check that this peer runs; "": nothing yet
	output  string    // the last one
	expires time.Time // when it becomes critical
	since   time.Time // of a critical check
}

// track keeps the clocks of an instance's checks, and runs those without a TTL. A check whose id is that of another
// service has no clock: the first one stays.
func (a *agentAPI) track(k instance.Key, spec instance.Spec, rec *record) {
	a.forget(func(id string, c *clock) bool { return c.of == k && rec.check(id) == nil })
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	for _, c := range rec.Checks {
		t := a.clocks[c.ID]
		if t == nil {
			t = &clock{of: k}
			a.clocks[c.ID] = t
		}
		if t.of.ID != k.ID {
			continue
		}
		if t.status != c.Status {
			t.since, t.expires, t.output = now, now.Add(c.TTL), c.Output
		}
		t.of, t.ttl, t.remove, t.status = k, c.TTL, c.Remove, c.Status
		switch {
		case c.Run == nil:
			a.Checks.Remove(c.ID)
			t.found = ""
		default:
			if err := a.Checks.Set(c.probe(spec, rec)); err != nil {
				a.Logger.Warn("a check of a service does not run; its status stays", "instance", k.String(), "check", c.ID, "error", err)
			}
		}
	}
}

// forget ends checks.
func (a *agentAPI) forget(which func(id string, c *clock) bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.DeleteFunc(a.clocks, func(id string, c *clock) bool {
		ends := which(id, c)
		if ends {
			a.Checks.Remove(id)
		}
		return ends
	})
}

// Checked hears the status of a check that this peer runs, and does not block. Run tells it to others.
func (s *Server) Checked(id string, status instance.Status) {
	if s.agent == nil || status == instance.StatusUnknown {
		return
	}
	s.agent.mu.Lock()
	defer s.agent.mu.Unlock()
	if c := s.agent.clocks[id]; c != nil && c.ttl == 0 {
		if c.found = critical; status == instance.StatusUp {
			c.found = passing
		}
	}
}

func (a *agentAPI) clockOf(id string) (clock, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if c := a.clocks[id]; c != nil {
		return *c, true
	}
	return clock{}, false
}

// checks answers the checks of this peer's services, with their last output.
func (a *agentAPI) checks(r *request) error {
	list, err := a.own(r.Context(), "")
	if err != nil {
		return err
	}
	return a.render(r, 1, bytesOf(list), func() (any, error) {
		out := map[string]healthCheck{}
		for _, i := range list {
			for _, shown := range checksOf(i) {
				c, clocked := a.clockOf(shown.CheckID)
				if clocked && c.of != i.Key {
					continue // another service has this id
				}
				if clocked {
					shown.Output = c.output
				}
				out[shown.CheckID] = shown
			}
		}
		return filtered(r, out)
	})
}

// registerCheck adds a check to a service, or replaces the one with its id.
func (a *agentAPI) registerCheck(r *request) error {
	var d checkDefinition
	if err := a.object(r, &d); err != nil {
		return err
	}
	if err := r.none(d.scope); err != nil {
		return err
	}
	if d.Name == "" {
		return fault.New("", fault.Invalid, "Missing check name")
	}
	find := a.ownEntry
	if d.ServiceID != "" {
		find = func(r *request) (*instance.Instance, error) { return a.changeable(r, d.ServiceID) }
	}
	i, err := find(r)
	if err != nil {
		return err
	}
	c, err := d.check(d.Name, i.Service)
	if err != nil {
		return err
	}
	return a.done(r, a.update(r.Context(), i.Key, r.local(), func(rec *record) error {
		rec.drop(c.ID)
		rec.Checks = append(rec.Checks, c)
		return nil
	}))
}

// holder returns the instance of this peer with a check.
func (a *agentAPI) holder(r *request, id string) (*instance.Instance, error) {
	if c, ok := a.clockOf(id); ok {
		i, err := a.at(r.Context(), c.of)
		if err == nil {
			err = a.allowed(r, i.Service)
		}
		return i, err
	}
	list, err := a.own(r.Context(), "")
	if err != nil {
		return nil, err
	}
	for _, i := range list {
		if rec := recordOf(i); rec != nil && rec.check(id) != nil {
			return i, a.allowed(r, i.Service)
		}
	}
	return nil, fault.New("", fault.NotFound, "Unknown check ID %q. Ensure that the check ID is passed, not the check name.", id)
}

func (a *agentAPI) deregisterCheck(r *request) error {
	id := r.PathValue("id")
	i, err := a.holder(r, id)
	if err != nil {
		return err
	}
	return a.done(r, a.update(r.Context(), i.Key, r.local(), func(rec *record) error {
		rec.drop(id)
		return nil
	}))
}

// report takes the status of a check with a TTL. One without news only moves its clock: no disk, no group.
func (a *agentAPI) report(r *request) error {
	id, output := r.PathValue("id"), r.values.Get("note")
	status := map[string]string{"pass": passing, "warn": warning, "fail": critical}[r.PathValue("status")]
	if r.PathValue("status") == "update" {
		var body struct{ Status, Output string }
		if err := a.object(r, &body); err != nil {
			return err
		}
		status, output = body.Status, body.Output
	}
	if status != passing && status != warning && status != critical {
		return fault.Invalidf("Status", status, "must be passing, warning or critical")
	}
	c, ok := a.clockOf(id)
	if ok {
		if err := a.allowed(r, c.of.Service); err != nil {
			return err
		}
	} else {
		i, err := a.holder(r, id)
		if err != nil {
			return err
		}
		c = clock{of: i.Key, ttl: recordOf(i).check(id).TTL}
	}
	if c.ttl == 0 {
		return fault.New("", fault.Invalid, "CheckID %q does not have associated TTL", id)
	}
	return a.done(r, a.tell(r.Context(), id, c.of, status, clean.Lines(output, maxOutput), r.local()))
}

// tell gives a check a status.
func (a *agentAPI) tell(ctx context.Context, id string, k instance.Key, status, output string, local bool) error {
	a.mu.Lock()
	c := a.clocks[id]
	still := c != nil && c.of == k && c.status == status
	if still {
		c.output, c.expires = output, time.Now().Add(c.ttl)
	}
	a.mu.Unlock()
	if still {
		return nil
	}
	return a.update(ctx, k, local, reported(id, status, output))
}

// reported gives a check of a record a status.
func reported(id, status, output string) func(*record) error {
	return func(rec *record) error {
		one := rec.check(id)
		if one == nil {
			return fault.New("", fault.NotFound, "Unknown check ID %q", id)
		}
		one.Status, one.Output = status, output
		return nil
	}
}

// expire makes checks critical whose clock ran out, tells what others found, and ends instances that were critical for
// too long.
func (a *agentAPI) expire(ctx context.Context) error {
	all := map[string]instance.Key{}
	a.mu.Lock()
	now := time.Now()
	for id, c := range a.clocks {
		if _, _, due := c.due(now); due {
			all[id] = c.of
		}
	}
	a.mu.Unlock()
	together(maps.Keys(all), func(id string) {
		err := a.alone(ctx, all[id].ID, func(ctx context.Context) error { return a.overdue(ctx, id) })
		if err != nil && ctx.Err() == nil {
			a.Logger.Debug("a check could not be changed", "check", id, "error", err)
		}
	})
	return nil
}

// due returns the status that a check must get; "" if its service must end.
func (c *clock) due(now time.Time) (status, output string, due bool) {
	switch {
	case c.found == critical && c.status != critical:
		return critical, "the check of the peer fails", true
	case c.found != "" && c.found != c.status:
		return c.found, "", true
	case c.ttl > 0 && c.status != critical && !now.Before(c.expires):
		return critical, "TTL expired", true
	}
	return "", "", c.status == critical && c.remove > 0 && !now.Before(c.since.Add(c.remove))
}

// overdue gives a check the status that it must get, if it still must: a report may have come before its turn. The
// clock gets it first, so a report during the change counts as news and waits for its own turn.
func (a *agentAPI) overdue(ctx context.Context, id string) error {
	a.mu.Lock()
	c := a.clocks[id]
	if c == nil {
		a.mu.Unlock()
		return nil
	}
	now, last := time.Now(), *c
	status, output, due := c.due(now)
	if due && status != "" {
		c.status, c.output, c.since, c.expires = status, output, now, now.Add(c.ttl)
	}
	a.mu.Unlock()
	switch {
	case !due:
		return nil
	case status == "":
		a.Logger.Info("a service was critical for too long and is removed", "instance", last.of.String(), "check", id)
		_, err := a.Registrar.Deregister(ctx, last.of)
		return err
	}
	err := a.change(ctx, last.of, false, reported(id, status, output))
	if err != nil {
		a.mu.Lock()
		c.status, c.since, c.expires = last.status, last.since, last.expires // the next run tries again
		a.mu.Unlock()
	}
	return err
}
