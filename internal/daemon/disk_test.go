package daemon

import (
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/condition"
	"github.com/blackhole/blackhole/internal/platform/disk"
)

// TestDiskLow: a nearly full disk is told of until there is room. A system that does not tell raises nothing.
func TestDiskLow(t *testing.T) {
	conditions := condition.NewSet(slog.New(slog.DiscardHandler), time.Now)
	look := func(left uint64, err error) []string {
		checkDisk("/data", func(string) (uint64, error) { return left, err }, conditions)
		return conditions.ActiveNames()
	}
	require.Empty(t, look(disk.Low, nil))
	require.Equal(t, []string{"disk_low"}, look(disk.Low-1, nil))
	require.Contains(t, conditions.Active()[0].Message, "the disk of /data")
	require.Equal(t, []string{"disk_low"}, look(0, nil))
	require.Empty(t, look(0, errors.ErrUnsupported))
}
