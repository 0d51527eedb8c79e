package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A clone without the commit of the previous version skips, with the reason.
func TestUpgradeSkips(t *testing.T) {
	var out, errs strings.Builder
	missing := strings.Repeat("0", 40)
	require.Equal(t, exitOK, execute(t.Context(), []string{"upgrade", "-from", missing}, &out, &errs))
	require.Contains(t, out.String(), "skipped: the previous version "+missing+" is not in this clone: ")
	require.Empty(t, errs.String())
	require.Equal(t, exitUsage, execute(t.Context(), []string{"upgrade", "more"}, &out, &errs))
	require.Equal(t, exitUsage, execute(t.Context(), []string{"upgrade", "-colour", "red"}, &out, &errs))
}
