package exit

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/fault"
)

// TestEveryKindHasOneExitCode checks all kinds of errors.
func TestEveryKindHasOneExitCode(t *testing.T) {
	kind := fault.Kind(0)
	for ; !strings.HasPrefix(kind.String(), "kind("); kind++ {
		var codes []int
		for _, e := range exits() {
			for _, k := range e.kinds {
				if k == kind {
					codes = append(codes, e.code)
				}
			}
		}
		require.Len(t, codes, 1, "kind %s", kind)
		require.Equal(t, codes[0], CodeOf(fault.New("op", kind, "text")))
	}
	require.Greater(t, kind, fault.Canceled)
	require.Equal(t, Failure, CodeOf(errors.New("unknown")))
	require.Equal(t, Failure, CodeOf(fault.New("op", kind, "a kind of tomorrow")))
	require.Zero(t, CodeOf(nil))
}
