package health

import "github.com/blackhole/blackhole/pkg/instance"

// Damping after C. Villamizar, R. Chandra, R. Govindan, "BGP Route Flap
// Damping" (RFC 2439, 1998), section 4.2: each loss adds to a figure of merit
// with exponential decay. Above the cutoff an available route is suppressed
// until the figure falls below the reuse threshold. The ratio of cutoff to
// reuse comes from its common profile, 2 to 0.75. The figure decays per check
// instead of per second, so that one rule fits all intervals and a suspension
// forgives nothing. A target with a loss in fewer than every 12 checks is
// suppressed in the end; the ceiling ends that after at most 24 checks without
// a loss.
const (
	lossMerit   = 1
	cutoffMerit = 2
	reuseMerit  = 0.75
	decayMerit  = 0.9438743126816935 // per check: 2^(-1/12), a half-life of 12 checks
	ceiling     = 3                  // reuseMerit * 2^(24/12)
)

// thresholds are the parameters of a checkState.
type thresholds struct {
	healthy, unhealthy uint8 // consecutive results, 1 to 100
}

// checkState is the state machine of one target. It uses neither time nor
// network.
type checkState struct {
	found  instance.Status // by the thresholds alone: StatusUnknown, StatusUp or StatusDown
	merit  float32
	held   bool  // suppressed by damping
	streak uint8 // consecutive equal results, up to 255
	passed bool  // last result
}

// advance applies the next result.
func (v *checkState) advance(passing bool, r thresholds) {
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
	case v.merit < reuseMerit:
		v.held = false
	case v.merit > cutoffMerit:
		v.held = true
	}
}

// damped reports whether damping alone holds the target down.
func (v *checkState) damped() bool { return v.held && v.found == instance.StatusUp }

// status returns the status after damping.
func (v *checkState) status() instance.Status {
	if v.damped() {
		return instance.StatusDown
	}
	return v.found
}
