package scenario

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// looksOf returns one look a minute with these values of the first gauge.
func looksOf(values ...float64) []look {
	looks := make([]look, len(values))
	for i, v := range values {
		looks[i].at, looks[i].values[0] = time.Duration(i)*time.Minute, v
	}
	return looks
}

func TestLine(t *testing.T) {
	for name, c := range map[string]struct {
		values       []float64
		mean, growth float64
	}{
		"a leak":        {[]float64{10, 20, 30, 40}, 25, 30},
		"nothing moves": {[]float64{7, 7, 7, 7}, 7, 0},
		"saw teeth":     {[]float64{1, 3, 3, 1}, 2, 0},
		"it shrinks":    {[]float64{4, 3, 2, 1}, 2.5, -3},
		"one look":      {[]float64{5}, 5, 0},
	} {
		mean, growth := line(looksOf(c.values...), 0)
		require.InDelta(t, c.mean, mean, 1e-9, name)
		require.InDelta(t, c.growth, growth, 1e-9, name)
	}
}

// A goroutine lost each minute is a leak within half an hour; ten connections more or less are none.
func TestAllowed(t *testing.T) {
	goroutines := gauges()[2]
	require.Equal(t, "goroutines", goroutines.name)
	leaking, quiet := make([]float64, 31), make([]float64, 31)
	for i := range leaking {
		leaking[i], quiet[i] = 200+2*float64(i), 200+10*math.Sin(float64(i))
	}
	mean, growth := line(looksOf(leaking...), 0)
	require.Greater(t, growth, goroutines.allowed(mean))
	mean, growth = line(looksOf(quiet...), 0)
	require.LessOrEqual(t, growth, goroutines.allowed(mean))
}

func TestSize(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "sub"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "a"), make([]byte, 10), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "sub", "b"), make([]byte, 5), 0o600))
	sum, err := size(dir)
	require.NoError(t, err)
	require.InDelta(t, 15, sum, 0)
	sum, err = size(filepath.Join(dir, "gone"))
	require.NoError(t, err)
	require.Zero(t, sum)
}

// A load that mostly fails shows nothing.
func TestFailingLoad(t *testing.T) {
	c := newCounts()
	for i := range 10 {
		c.note("good", nil)
		c.note("bad", map[bool]error{true: errors.New("no luck")}[i < 4])
	}
	var out strings.Builder
	require.True(t, c.show(&out))
	require.Contains(t, out.String(), "no luck")
	c.note("bad", errors.New("no luck"))
	c.note("bad", errors.New("no luck"))
	require.False(t, c.show(&out))
}
