package peer

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/fault"
)

// TestEventFields: an error about a field names the flag, also if the peer calls one of several values by its own name.
func TestEventFields(t *testing.T) {
	for field, flag := range map[string]string{"type": "--types", "types": "--types", "since": "--since", "other": "other"} {
		require.Equal(t, flag, fault.FieldOf(eventFields(fault.Invalidf(field, nil, "is wrong"))))
	}
}
