package main

import (
	"context"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSoakNamesTheFlagItRefuses checks the command line. The run itself needs half an hour to say something: see README.md.
func TestSoakNamesTheFlagItRefuses(t *testing.T) {
	for args, field := range map[string]string{
		"-peers 1":     "-peers",
		"-every 1ms":   "-every",
		"-duration 1m": "-duration",
		"now":          "arguments",
	} {
		var errs strings.Builder
		require.Equal(t, exitUsage, execute(context.Background(), append([]string{"soak"}, strings.Fields(args)...), io.Discard, &errs), args)
		require.Contains(t, errs.String(), field)
	}
	require.Equal(t, exitOK, execute(context.Background(), []string{"soak", "-h"}, io.Discard, io.Discard))
}
