package condition_test

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/condition"
	"github.com/blackhole/blackhole/pkg/fault"
)

func TestSetLogsBeginAndEndOnce(t *testing.T) {
	var log strings.Builder
	now := time.Unix(1000, 0)
	s := condition.NewSet(slog.New(slog.NewTextHandler(&log, nil)), func() time.Time { return now })

	s.Raise(condition.ClockOffset, fault.Problem{What: "the clock is 40s late"})
	now = now.Add(time.Minute)
	s.Raise(condition.ClockOffset, fault.Problem{What: "the clock is 41s late", Effect: "answers are incomplete"})
	require.Equal(t, []condition.Condition{{
		Name:    condition.ClockOffset,
		Problem: fault.Problem{What: "the clock is 41s late", Effect: "answers are incomplete", State: fault.Now, Since: time.Unix(1000, 0)},
	}}, s.Active())
	require.Equal(t, 1, strings.Count(log.String(), "level=WARN"))

	s.Clear(condition.ClockOffset)
	s.Clear(condition.ClockOffset)
	require.Empty(t, s.Active())
	require.Equal(t, 1, strings.Count(log.String(), "level=INFO"))
	require.Contains(t, log.String(), "lasted=1m0s")
}

// TestWorseTakesThePlaceOfMilder: the log and the set never have a better moment between two bad ones.
func TestWorseTakesThePlaceOfMilder(t *testing.T) {
	var log strings.Builder
	s := condition.NewSet(slog.New(slog.NewTextHandler(&log, nil)), time.Now)
	s.Raise(condition.NoReserve, fault.Problem{What: "2 of 3 voters answer"})
	s.Raise(condition.Isolated, fault.Problem{What: "no connection"})
	s.Raise(condition.NoQuorum, fault.Problem{What: "1 of 3 voters answers"})
	require.Equal(t, []string{"isolated", "no_quorum"}, s.ActiveNames())
	require.NotContains(t, log.String(), "ended")
	require.Contains(t, log.String(), "condition=no_reserve now=no_quorum")
}

func TestSetDoubt(t *testing.T) {
	s := condition.NewSet(slog.New(slog.DiscardHandler), time.Now)
	s.Raise(condition.NotReachable, fault.Problem{What: "no relay"})
	require.Empty(t, s.Doubt(), "an unreachable peer still receives complete answers")
	s.Raise(condition.Isolated, fault.Problem{What: "no connection since 12:00"})
	require.Equal(t, "no connection since 12:00", s.Doubt())
	s.Clear(condition.Isolated)
	require.Empty(t, s.Doubt())
}

func TestNilSetIsEmpty(t *testing.T) {
	var s *condition.Set
	s.Raise(condition.Isolated, fault.Problem{What: "ignored"})
	s.Clear(condition.Isolated)
	require.Empty(t, s.Active())
	require.Empty(t, s.Doubt())
}
