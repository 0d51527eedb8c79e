package machine

import (
	"github.com/blackhole/blackhole/pkg/fault"

	"github.com/blackhole/blackhole/pkg/coord"
)

// limits adds the checks of one field to Limits.
type limits struct{ coord.Limits }

func (o *configureOp) run(m *Machine, _ *call) error {
	if err := o.Limits.Validate(); err != nil {
		return fault.In("limits", err)
	}
	m.limits = limits{o.Limits}
	m.trim(&m.limits)
	return nil
}

// key checks a key's length.
func (l *limits) key(field, key string) error {
	switch {
	case key == "":
		return fault.Invalidf(field, nil, "is missing")
	case len(key) > int(l.KeyBytes):
		return tooLarge(field, len(key), int64(l.KeyBytes))
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

func noSpace(field, what string, most uint64) error {
	return fault.Refused(fault.NoSpace, field, "%s: at most %d", what, most)
}

func limitReached(field, what string, most uint64) error {
	return fault.Refused(fault.LimitReached, field, "%s: at most %d", what, most)
}
