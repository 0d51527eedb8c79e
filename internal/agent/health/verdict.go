package health

import "github.com/blackhole/blackhole/pkg/instance"

// Damping after C. Villamizar, R. Chandra, R. Govindan, "BGP Route Flap Damping" (RFC 2439,
// 1998), section 4.2: each loss adds to a figure of merit that decays exponentially; above the
// cutoff the route is withheld though it is there, until the figure is below the reuse threshold.
// The ratio of cutoff to reuse is that of its common profile, 2 to 0.75. The figure decays with
// each check and not with time, so that a rule fits all intervals and a suspension forgives
// nothing. What goes down once in fewer than 12 checks ends up withheld; the ceiling lets go of it
// after at most 24 checks without another loss.
const (
	lossMerit   = 1
	cutoffMerit = 2
	reuseMerit  = 0.75
	decayMerit  = 0.9438743126816935 // of each check: 2^(-1/12), a half-life of 12 checks
	ceiling     = 3                  // reuseMerit * 2^(24/12)
)

// rules are the numbers of a check by which verdicts are reached.
type rules struct {
	healthy, unhealthy uint8 // in a row, 1 to 100
	undamped           bool
}

// verdict is the state machine of one target: it knows neither time nor network.
type verdict struct {
	found  instance.Status // by the thresholds alone: StatusUnknown, StatusUp or StatusDown
	merit  float32
	held   bool  // withheld for flapping
	streak uint8 // results in a row that are as the last one, up to 255
	passed bool  // the last result
}

// advance takes the next result.
func (v *verdict) advance(passing bool, r rules) {
	if passing != v.passed {
		v.streak = 0
	}
	v.passed = passing
	if v.streak < 255 {
		v.streak++
	}
	v.merit *= decayMerit
	switch {
	case passing && v.streak >= r.healthy:
		v.found = instance.StatusUp
	case !passing && v.streak >= r.unhealthy:
		if v.found == instance.StatusUp {
			v.merit = min(v.merit+lossMerit, ceiling)
		}
		v.found = instance.StatusDown
	}
	switch {
	case r.undamped, v.merit < reuseMerit:
		v.held = false
	case v.merit > cutoffMerit:
		v.held = true
	}
}

// damped reports whether the target is held down though it would be up.
func (v *verdict) damped() bool { return v.held && v.found == instance.StatusUp }

// status is the verdict that counts.
func (v *verdict) status() instance.Status {
	if v.damped() {
		return instance.StatusDown
	}
	return v.found
}
