package daemon

import (
	"errors"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/condition"
	"github.com/blackhole/blackhole/internal/platform/disk"
	"github.com/blackhole/blackhole/pkg/fault"
)

// TestDisk: a nearly full disk is told of until there is room, and a lost directory. A system that does not tell raises nothing.
func TestDisk(t *testing.T) {
	conditions := condition.NewSet(slog.New(slog.DiscardHandler), time.Now)
	look := func(left uint64, err error) []string {
		checkDisk("/data", func(string) (uint64, error) { return left, err }, conditions)
		return conditions.ActiveNames()
	}
	require.Empty(t, look(disk.Low, nil))
	require.Equal(t, []string{"disk"}, look(disk.Low-1, nil))
	require.Contains(t, conditions.Active()[0].What, "the disk of /data is nearly full")
	require.Equal(t, fault.Coming, conditions.Active()[0].State)
	conditions.Raise(condition.MemberStopped, fault.Problem{What: "the disk is full"})
	require.Equal(t, []string{"disk", "member_stopped"}, look(1000, nil))
	require.Contains(t, conditions.Active()[0].What, "the disk of /data is full")
	require.Equal(t, fault.Now, conditions.Active()[0].State)
	conditions.Clear(condition.MemberStopped)
	require.Equal(t, []string{"disk"}, look(0, nil))
	require.Empty(t, look(0, errors.ErrUnsupported))
	require.Equal(t, []string{"disk"}, look(disk.Free(filepath.Join(t.TempDir(), "gone"))))
	require.Contains(t, conditions.Active()[0].String(), "is gone")
}
