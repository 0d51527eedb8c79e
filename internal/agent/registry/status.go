package registry

import (
	"time"

	"github.com/blackhole/blackhole/pkg/instance"
)

// state determines the status of an instance. It is a value: each event returns
// the next state, and the time is an argument.
type state struct {
	unhealthyAfter time.Duration
	removeAfter    time.Duration
	lasting        bool // only heartbeats that stop remove the instance

	checked    bool            // the instance has a check, which alone can make it UP
	beaten     bool            // a heartbeat came since the registration, as far as known
	override   instance.Status // set by hand; StatusUnknown: none
	checkState instance.Status // UP, DOWN, or StatusUnknown before the first result
	starting   bool            // declared by the instance itself
	lastSeen   time.Time       // heartbeat, passed check or registration since the start of this peer; zero: none
	heard      bool            // alive before a short stop of this peer

	// since is the start of silence: lastSeen or the start of this peer, moved
	// forward by the time of a suspended process.
	since time.Time
}

// recovered returns the state of an instance loaded from disk.
func recovered(i *instance.Instance, now time.Time) state {
	return state{override: i.Override, since: now}.withSpec(i)
}

// withSpec applies the fields of a registration.
func (s state) withSpec(i *instance.Instance) state {
	s.checked = i.Spec.Check != nil
	s.unhealthyAfter, s.removeAfter, s.lasting = i.Spec.UnhealthyAfter, i.Spec.RemoveAfter, i.Spec.Lasting
	return s
}

// beat applies a sign of life. Without a check it ends starting.
func (s state) beat(now time.Time) state {
	if s.lastSeen.Before(now) {
		s.lastSeen = now
	}
	if s.since.Before(now) {
		s.since = now
	}
	if !s.checked {
		s.starting = false
	}
	return s
}

// heartbeat applies a heartbeat of the application. Silence after it removes a lasting instance too.
func (s state) heartbeat(now time.Time) state {
	s.beaten = true
	return s.beat(now)
}

// registered applies a registration, also a sign of life. The state of the
// check survives only with the same check and without a declared start.
func (s state) registered(i *instance.Instance, starting, same bool, now time.Time) state {
	s = s.withSpec(i).beat(now)
	s.starting = starting
	if !same || starting {
		s.checkState = instance.StatusUnknown
	}
	return s
}

// withCheck applies a check result. A passed check is a sign of life, also
// while thresholds or damping keep the state.
func (s state) withCheck(passing bool, found instance.Status, now time.Time) state {
	if passing {
		s = s.beat(now)
	}
	switch found {
	case instance.StatusUp:
		s.checkState, s.starting = found, false
	case instance.StatusDown:
		s.checkState = found
	}
	return s
}

// shifted moves the start of silence forward, at most to now.
func (s state) shifted(by time.Duration, now time.Time) state {
	s.since = s.since.Add(by)
	if s.since.After(now) {
		s.since = now
	}
	return s
}

// status derives the status. A manual override comes first, then the check,
// then silence, then the instance's own declaration.
func (s state) status(now time.Time) instance.Status {
	switch {
	case s.override != instance.StatusUnknown:
		return s.override
	case s.checked && s.checkState == instance.StatusDown && !s.starting:
		return instance.StatusDown
	case !now.Before(s.since.Add(s.unhealthyAfter)):
		return instance.StatusUnhealthy
	case s.starting:
		return instance.StatusStarting
	case s.checked:
		return s.checkState
	case s.lastSeen.IsZero() && !s.heard:
		return instance.StatusUnknown
	default:
		return instance.StatusUp
	}
}

// stays reports whether silence never removes the instance.
func (s state) stays() bool { return s.removeAfter == instance.Never || s.lasting && !s.beaten }

// lost reports whether the instance was silent for RemoveAfter.
func (s state) lost(now time.Time) bool {
	return !s.stays() && !now.Before(s.since.Add(s.removeAfter))
}

// due returns the next time at which silence changes the status, or a later one.
func (s state) due(now time.Time) time.Time {
	if t := s.since.Add(s.unhealthyAfter); now.Before(t) {
		return t
	}
	if s.stays() {
		return now.Add(instance.MaxTTL)
	}
	return s.since.Add(s.removeAfter)
}
