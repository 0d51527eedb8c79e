package registry

import (
	"encoding/json"
	"time"

	"github.com/blackhole/blackhole/internal/platform/store"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

const (
	// resumeName is the name of the value of Suspend. Instances have slashes in their names.
	resumeName = "resume"
	// resumeWithin is the longest stop that keeps the status of instances: the
	// lease of a peer's entries in the directory.
	resumeWithin = 15 * time.Second
)

// suspended is the status of all instances at an orderly stop.
type suspended struct {
	At     time.Time                  `json:"at"`
	Status map[string]instance.Status `json:"status"` // by Key.String, without overrides and unknown ones
	Beaten map[string]bool            `json:"beaten"` // lasting instances with heartbeats: valid after any stop
}

// Suspend stores the status of all instances for the next Open, which takes it
// over within 15 s: a restart of the peer is no outage of its instances. Each
// change after it ends with the process. Error: Unavailable after a disk failure.
func (r *Registry) Suspend(now time.Time) error {
	const op = "instances.Suspend"
	s := suspended{At: now, Status: make(map[string]instance.Status), Beaten: make(map[string]bool)}
	r.mu.RLock()
	for k, e := range r.entries {
		state := e.state
		state.override = instance.StatusUnknown
		if status := state.status(now); status != instance.StatusUnknown {
			s.Status[k.String()] = status
		}
		if state.lasting && state.beaten {
			s.Beaten[k.String()] = true
		}
	}
	r.mu.RUnlock()
	value, err := json.Marshal(s)
	if err != nil {
		return fault.As(op, fault.Internal, err)
	}
	return fault.Wrap(op, r.write(func(c *commit) error {
		c.edits = append(c.edits, store.Edit{Name: resumeName, Value: value})
		return nil
	}))
}

// ended removes the value from the disk: it is valid for one start.
func (s suspended) ended() []store.Edit {
	if s.At.IsZero() {
		return nil
	}
	return []store.Edit{{Name: resumeName}}
}

// of returns the last status of an instance, if the stop was short by the clock
// of the host. A clock that was set meanwhile makes the status unknown.
func (s suspended) of(k instance.Key, now time.Time) instance.Status {
	if stop := now.Round(0).Sub(s.At); stop < 0 || stop > resumeWithin {
		return instance.StatusUnknown
	}
	return s.Status[k.String()]
}

// resumed applies the last status before a short stop. Silence counts from now,
// except that an unhealthy instance stays unhealthy.
func (s state) resumed(last instance.Status, now time.Time) state {
	switch last {
	case instance.StatusUp, instance.StatusDown:
		s.heard = true
		if s.checked {
			s.checkState = last
		}
	case instance.StatusStarting:
		s.starting = true
	case instance.StatusUnhealthy:
		s.since = now.Add(-s.unhealthyAfter)
	}
	return s
}
