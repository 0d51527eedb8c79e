package health_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/pkg/instance"
)

// TestLast: the last checks are known, newest first, with the cause of a failure and the status from then on. Older ones
// are forgotten, and a removed target has none.
func TestLast(t *testing.T) {
	const every = 10 * time.Second // the default
	synctest.Test(t, func(t *testing.T) {
		l, one := newFixture(t, nil), target(1)
		require.Empty(t, l.Last(one.Key))
		require.NoError(t, l.Set(one))
		synctest.Wait()
		began := time.Now().UTC()
		require.Equal(t, []instances.LastCheck{{At: began, Passing: true, State: "answers", Status: instance.StatusUp}}, l.Last(one.Key))

		l.set(address(one), refuse)
		for range 2 * instances.MaxLastChecks {
			time.Sleep(every)
			synctest.Wait()
		}
		last := l.Last(one.Key)
		require.Len(t, last, instances.MaxLastChecks)
		for i, end := range last {
			require.False(t, end.Passing)
			require.NotEmpty(t, end.Cause)
			require.Equal(t, "refuses", end.State)
			require.Equal(t, instance.StatusDown, end.Status)
			if i > 0 {
				require.Equal(t, every, last[i-1].At.Sub(end.At))
			}
		}
		last[0].Cause = "changed by the caller"
		require.NotEqual(t, last[0], l.Last(one.Key)[0])

		l.Remove(one.Key)
		require.Empty(t, l.Last(one.Key))
	})
}

// TestLastCause: a cause is cut, because it may hold words of the target.
func TestLastCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, one := newFixture(t, nil), target(1)
		l.set(address(one), func(context.Context) error { return fmt.Errorf("%s", strings.Repeat("é", 1000)) })
		require.NoError(t, l.Set(one))
		synctest.Wait()
		last := l.Last(one.Key)
		require.Len(t, last, 1)
		require.LessOrEqual(t, len(last[0].Cause), 200)
		require.True(t, utf8.ValidString(last[0].Cause))
		require.Equal(t, instance.StatusUnknown, last[0].Status, "one failure is not enough")
	})
}
