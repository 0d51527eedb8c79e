package machine

import (
	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// limits adds the checks of one field to Limits.
type limits struct{ coord.Limits }

// configure replaces the limits. Existing state above them stays and cannot grow.
func configure(m *Machine, r *coordv1.Configure) error {
	l := coord.LimitsOf(r.GetLimits())
	if err := l.Validate(); err != nil {
		return fault.In("limits", err)
	}
	m.limits = limits{l}
	m.trim(&m.limits)
	return nil
}

// key checks a key's length.
func (l *limits) key(field string, size int) error {
	switch {
	case size == 0:
		return fault.Invalidf(field, nil, "is missing")
	case size > int(l.KeyBytes):
		return tooLarge(field, size, int64(l.KeyBytes))
	}
	return nil
}

func (l *limits) value(field string, value []byte) error {
	if len(value) > int(l.ValueBytes) {
		return tooLarge(field, len(value), int64(l.ValueBytes))
	}
	return nil
}

func tooLarge(field string, size int, most int64) error {
	return fault.Refused(fault.TooLarge, field, "has %d bytes, at most %d", size, most)
}

func limitReached(field, what string, most uint64) error {
	return fault.Refused(fault.LimitReached, field, "%s: at most %d", what, most)
}
