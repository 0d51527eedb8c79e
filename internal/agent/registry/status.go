package registry

import (
	"time"

	"github.com/blackhole/blackhole/pkg/instance"
)

// state is all that the status of an instance follows from. It is a value: what happens to an
// instance gives its next state, and time is an argument.
type state struct {
	unhealthyAfter time.Duration
	removeAfter    time.Duration

	checked  bool            // it has a check, which alone tells whether it is UP
	override instance.Status // by hand; StatusUnknown: none
	verdict  instance.Status // of the check: UP, DOWN, or StatusUnknown before the first
	starting bool            // by its own word
	heard    time.Time       // last heartbeat, passed check or registration since this peer started; zero: none

	// since is from when on silence counts: heard, or the start of this peer, or later by as long as this
	// peer stood still and could not hear anybody.
	since time.Time
}

// recovered is the state of an instance that was registered before this peer started.
func recovered(i *instance.Instance, now time.Time) state {
	return state{override: i.Override, since: now}.of(i)
}

// of takes over what the registration says.
func (s state) of(i *instance.Instance) state {
	s.checked = i.Check != nil
	s.unhealthyAfter, s.removeAfter = i.UnhealthyAfter, i.RemoveAfter
	return s
}

// beat is a sign of life. It ends starting where there is no check.
func (s state) beat(now time.Time) state {
	if s.heard.Before(now) {
		s.heard = now
	}
	if s.since.Before(now) {
		s.since = now
	}
	if !s.checked {
		s.starting = false
	}
	return s
}

// registered is a registration, which is a sign of life too. The verdict of a check goes on to
// count if the same is checked still, and the instance does not say that it begins anew.
func (s state) registered(i *instance.Instance, starting, same bool, now time.Time) state {
	s = s.of(i).beat(now)
	s.starting = starting
	if !same || starting {
		s.verdict = instance.StatusUnknown
	}
	return s
}

// judged is a check that has ended. One that passed is a sign of life, even when thresholds or
// damping keep the verdict as it was.
func (s state) judged(v Verdict, now time.Time) state {
	if v.Passing {
		s = s.beat(now)
	}
	switch v.Status {
	case instance.StatusUp:
		s.verdict, s.starting = v.Status, false
	case instance.StatusDown:
		s.verdict = v.Status
	}
	return s
}

// excused moves the beginning of silence by a time in which nobody could be heard, but not
// beyond now.
func (s state) excused(by time.Duration, now time.Time) state {
	s.since = s.since.Add(by)
	if s.since.After(now) {
		s.since = now
	}
	return s
}

// status follows from the state: what people say goes before what checks say, and that before
// what silence says, which goes before the instance's own word.
func (s state) status(now time.Time) instance.Status {
	switch {
	case s.override != instance.StatusUnknown:
		return s.override
	case s.checked && s.verdict == instance.StatusDown && !s.starting:
		return instance.StatusDown
	case !now.Before(s.since.Add(s.unhealthyAfter)):
		return instance.StatusUnhealthy
	case s.starting:
		return instance.StatusStarting
	case s.checked:
		return s.verdict
	case s.heard.IsZero():
		return instance.StatusUnknown
	default:
		return instance.StatusUp
	}
}

// lost reports whether it has been silent for so long that it is to be removed.
func (s state) lost(now time.Time) bool { return !now.Before(s.since.Add(s.removeAfter)) }

// due is the next moment at which time alone makes a difference.
func (s state) due(now time.Time) time.Time {
	if t := s.since.Add(s.unhealthyAfter); now.Before(t) {
		return t
	}
	return s.since.Add(s.removeAfter)
}
