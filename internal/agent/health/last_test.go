package health_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/instance"
)

// TestLast: the end of the last check is known, with the cause of a failure.
func TestLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, one := newFixture(t, nil), target(1)
		_, ok := l.Last(one.Key)
		require.False(t, ok)
		require.NoError(t, l.Set(one))
		synctest.Wait()
		last, ok := l.Last(one.Key)
		require.True(t, ok)
		require.Equal(t, instance.LastCheck{At: time.Now(), Passing: true}, last)

		l.set(address(one), refuse)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		last, _ = l.Last(one.Key)
		require.False(t, last.Passing)
		require.NotEmpty(t, last.Cause)
	})
}
