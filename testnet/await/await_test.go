package await_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/testnet/await"
)

func TestUntil(t *testing.T) {
	notYet := errors.New("not yet")
	t.Run("true in the end", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			began, asked := time.Now(), 0
			err := await.Until(t.Context(), time.Minute, "it", func(context.Context) error {
				if asked++; time.Since(began) < time.Second {
					return notYet
				}
				return nil
			})
			require.NoError(t, err)
			require.Equal(t, 51, asked)
		})
	})
	t.Run("never in time", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			err := await.Until(t.Context(), time.Minute, "the end", func(ctx context.Context) error {
				if ctx.Err() != nil {
					return ctx.Err()
				}
				return notYet
			})
			require.ErrorIs(t, err, fault.Timeout)
			require.ErrorContains(t, err, "the end")
			require.ErrorContains(t, err, "not yet")
			require.Equal(t, time.Minute, time.Since(began))
		})
	})
	t.Run("hopeless", func(t *testing.T) {
		err := await.Until(t.Context(), time.Minute, "it", func(context.Context) error { return await.Never(notYet) })
		require.ErrorIs(t, err, notYet)
	})
	t.Run("given up", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		err := await.Until(ctx, time.Minute, "it", func(context.Context) error { cancel(); return notYet })
		require.ErrorIs(t, err, fault.Canceled)
	})
}

func TestPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		require.NoError(t, await.Pause(t.Context(), time.Hour))
		require.Equal(t, time.Hour, time.Since(began))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.ErrorIs(t, await.Pause(ctx, time.Hour), context.DeadlineExceeded)
		require.Equal(t, time.Hour+time.Minute, time.Since(began))
	})
}
