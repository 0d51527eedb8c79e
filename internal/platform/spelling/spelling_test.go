package spelling_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/internal/platform/spelling"
)

func TestNearest(t *testing.T) {
	words := []string{"payment", "payments", "pay", "web", "orchestrator", strings.Repeat("x", 1000)}
	for typed, want := range map[string][]string{
		"paymnt": {"payment", "payments"}, "wbe": {"web"}, "payment": {"payment", "payments"}, "orch": {"orchestrator"}, "zzz": {}, "": {},
		"PAYMENT": {"payment", "payments"}, strings.Repeat("x", 1001): {},
	} {
		require.Equal(t, want, spelling.Nearest(typed, words), typed)
	}
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.StringN(0, 12, -1)
		a, b := word.Draw(t, "a"), word.Draw(t, "b")
		require.Equal(t, spelling.Distance(a, b), spelling.Distance(b, a))
		require.Equal(t, string([]rune(a)) == string([]rune(b)), spelling.Distance(a, b) == 0)
		require.LessOrEqual(t, spelling.Distance(a, b), max(len([]rune(a)), len([]rune(b))))
	})
}
