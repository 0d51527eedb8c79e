package daemon

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/config"
	"github.com/blackhole/blackhole/pkg/coord"
)

// TestEveryLimitIsProposed: each setting changes the limits of the group, and none is there for nothing.
func TestEveryLimitIsProposed(t *testing.T) {
	initial := coord.DefaultLimits()
	require.Equal(t, initial, limitsOf(config.GroupLimits{})(initial))
	for i := range reflect.TypeFor[config.GroupLimits]().NumField() {
		var c config.GroupLimits
		reflect.ValueOf(&c).Elem().Field(i).SetInt(7)
		require.NotEqual(t, initial, limitsOf(c)(initial), reflect.TypeFor[config.GroupLimits]().Field(i).Name)
	}
}
