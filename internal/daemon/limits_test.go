package daemon

import (
	"reflect"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/config"
	"github.com/blackhole/blackhole/pkg/coord"
)

// TestIndexBytes: a setting wins, a leaf has a small index, and else the memory limit decides.
func TestIndexBytes(t *testing.T) {
	p := &parts{config: config.Default()}
	require.Positive(t, p.indexBytes())
	require.LessOrEqual(t, p.indexBytes(), int64(maxIndex))
	old := debug.SetMemoryLimit(64 << 20)
	t.Cleanup(func() { debug.SetMemoryLimit(old) })
	require.Equal(t, int64(16<<20), p.indexBytes())
	p.config.Leaf = "on"
	require.Equal(t, int64(leafIndex), p.indexBytes())
	p.config.Discovery.Limits.IndexBytes = 1 << 20
	require.Equal(t, int64(1<<20), p.indexBytes())
}

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
