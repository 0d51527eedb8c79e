package registry

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/instance"
)

// event is an input of state.
type event = func(state, time.Time) state

func judged(passing bool, by instance.Status) event {
	return func(s state, now time.Time) state { return s.withCheck(passing, by, now) }
}

func again(i *instance.Instance, starting, same bool) event {
	return func(s state, now time.Time) state { return s.registered(i, starting, same, now) }
}

func overridden(by instance.Status) event {
	return func(s state, _ time.Time) state {
		s.override = by
		return s
	}
}

// TestStatus plays stories: events by second, and the status after each.
func TestStatus(t *testing.T) {
	const (
		unknown   = instance.StatusUnknown
		up        = instance.StatusUp
		down      = instance.StatusDown
		out       = instance.StatusOutOfService
		starting  = instance.StatusStarting
		unhealthy = instance.StatusUnhealthy
	)
	at := func(second int) time.Time { return epoch().Add(time.Duration(second) * time.Second) }
	plain := &instance.Instance{Spec: instance.Spec{UnhealthyAfter: 30 * time.Second, RemoveAfter: 60 * time.Second}}
	check := &instance.Instance{Spec: plain.Spec}
	check.Spec.Check = &instance.Check{}
	var (
		beat     event = state.beat
		nothing  event = func(s state, _ time.Time) state { return s }
		pass           = judged(true, up)
		almost         = judged(true, unknown)
		fail           = judged(false, down)
		missed         = judged(false, up)
		flapping       = judged(true, down)
		excused  event = func(s state, now time.Time) state { return s.shifted(40*time.Second, now) }
	)
	type step struct {
		second int
		event  event
		want   instance.Status
	}
	fresh := func(i *instance.Instance, word bool) state { return state{}.registered(i, word, false, at(0)) }
	for _, c := range []struct {
		name  string
		begin state
		steps []step
		lost  int // second
	}{
		{"registering is being UP", fresh(plain, false), []step{{0, nothing, up}, {29, nothing, up}, {30, nothing, unhealthy}, {59, nothing, unhealthy}}, 60},
		{"heartbeats keep it UP", fresh(plain, false), []step{{20, beat, up}, {40, beat, up}, {69, nothing, up}, {70, nothing, unhealthy}}, 100},
		{"a heartbeat heals", fresh(plain, false), []step{{31, nothing, unhealthy}, {45, beat, up}}, 105},
		{"heartbeats out of order", fresh(plain, false), []step{{20, beat, up}, {10, beat, up}, {49, nothing, up}}, 80},
		{"starting ends with a heartbeat", fresh(plain, true), []step{{0, nothing, starting}, {10, beat, up}}, 70},
		{"starting and silent", fresh(plain, true), []step{{30, nothing, unhealthy}}, 60},
		{"by hand wins", fresh(plain, false), []step{{1, overridden(out), out}, {2, beat, out}, {40, nothing, out}, {41, overridden(unknown), unhealthy}}, 62},
		{"by hand over a check", fresh(check, false), []step{{1, fail, down}, {2, overridden(starting), starting}, {3, pass, starting}, {4, overridden(unknown), up}}, 63},
		{"unknown until the first result", fresh(check, false), []step{{0, nothing, unknown}, {10, almost, unknown}, {20, pass, up}}, 80},
		{"a heartbeat does not pass a check", fresh(check, false), []step{{10, beat, unknown}, {39, nothing, unknown}, {40, nothing, unhealthy}}, 70},
		{"never checked", fresh(check, false), []step{{30, nothing, unhealthy}}, 60},
		{"one failure changes nothing", fresh(check, false), []step{{5, pass, up}, {15, missed, up}, {34, nothing, up}, {35, nothing, unhealthy}}, 65},
		{"fails and is lost", fresh(check, false), []step{{5, pass, up}, {30, fail, down}, {40, fail, down}}, 65},
		{"fails, but beats", fresh(check, false), []step{{5, pass, up}, {30, fail, down}, {60, beat, down}, {100, nothing, down}}, 120},
		{"passes while damped", fresh(check, false), []step{{10, fail, down}, {20, flapping, down}}, 80},
		{"recovers", fresh(check, false), []step{{10, fail, down}, {20, pass, up}}, 80},
		{"starting until it passes", fresh(check, true), []step{{5, beat, starting}, {10, fail, starting}, {20, almost, starting}, {30, pass, up}}, 90},
		{"starting, never passes", fresh(check, true), []step{{5, fail, starting}, {30, fail, unhealthy}}, 60},
		{"registers again: the state of the check stays", fresh(check, false), []step{{10, pass, up}, {20, again(check, false, true), up}}, 80},
		{"registers again as starting", fresh(check, false), []step{{10, pass, up}, {20, again(check, true, true), starting}, {30, pass, up}}, 90},
		{"registers with another check", fresh(check, false), []step{{10, fail, down}, {20, again(check, false, false), unknown}}, 80},
		{"after a restart", recovered(plain, at(0)), []step{{0, nothing, unknown}, {29, nothing, unknown}, {30, nothing, unhealthy}, {31, beat, up}}, 91},
		{"after a restart, checked", recovered(check, at(0)), []step{{1, beat, unknown}, {2, pass, up}}, 62},
		{"after a restart, lost", recovered(plain, at(0)), nil, 60},
		{"not heard for a reason", fresh(plain, false), []step{{40, excused, up}, {69, nothing, up}, {70, nothing, unhealthy}}, 100},
		{"excused no further than now", fresh(plain, false), []step{{10, excused, up}, {40, nothing, unhealthy}}, 70},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := c.begin
			for _, step := range c.steps {
				s = step.event(s, at(step.second))
				require.Equal(t, step.want, s.status(at(step.second)), "second %d", step.second)
				due := s.due(at(step.second))
				require.True(t, due.After(at(step.second)))
				require.Equal(t, step.want, s.status(due.Add(-1)), "nothing happens before it is due")
			}
			require.False(t, s.lost(at(c.lost).Add(-1)))
			require.True(t, s.lost(at(c.lost)))
			require.Equal(t, at(c.lost), s.due(at(c.lost-1)))
		})
	}
}

func TestOverrideSurvivesARestart(t *testing.T) {
	i := &instance.Instance{Spec: instance.Spec{UnhealthyAfter: time.Second, RemoveAfter: time.Second}, Override: instance.StatusOutOfService}
	require.Equal(t, instance.StatusOutOfService, recovered(i, epoch()).status(epoch()))
}
