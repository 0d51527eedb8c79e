package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLabUsage(t *testing.T) {
	for args, message := range map[string]string{
		"-scenario=moon": "-scenario: must be all or of homes, ",
		"-runs=0":        "-runs: must be 1 to 1000, not 0",
		"homes":          "arguments: there are none",
	} {
		var stdout, stderr bytes.Buffer
		require.Equal(t, exitUsage, execute(t.Context(), []string{"lab", args}, &stdout, &stderr), args)
		require.Contains(t, stderr.String(), message)
		require.Empty(t, stdout.String())
	}
}
