package instance

import (
	"strings"

	"github.com/blackhole/blackhole/pkg/fault"
)

// String returns the name in the low-level design "Service Discovery".
func (s Status) String() string {
	names := [statuses]string{"UNKNOWN", "UP", "DOWN", "OUT_OF_SERVICE", "STARTING", "UNHEALTHY"}
	if s >= statuses {
		return "UNKNOWN"
	}
	return names[s]
}

// MarshalText implements encoding.TextMarshaler: the name.
func (s Status) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *Status) UnmarshalText(text []byte) (err error) {
	*s, err = ParseStatus(string(text))
	return err
}

// ParseStatus parses a name in either case. Errors: Invalid, field "status".
func ParseStatus(text string) (Status, error) {
	for s := StatusUnknown; s < statuses; s++ {
		if strings.EqualFold(s.String(), text) {
			return s, nil
		}
	}
	return StatusUnknown, fault.Invalidf("status", text, "must be UNKNOWN, UP, DOWN, OUT_OF_SERVICE, STARTING or UNHEALTHY")
}
