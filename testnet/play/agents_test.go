package main

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestAgents lets some agents share files by hold and guarded pushes, while each fate is met and a leader dies.
func TestAgents(t *testing.T) {
	long(t)
	t.Parallel()
	var stdout, stderr bytes.Buffer
	code := execute(t.Context(), []string{
		"agents", "-agents", "6", "-files", "100", "-edits", "50", "-kill", "6s", "-beside=false", "-json", "-data", t.TempDir(),
	}, &stdout, &stderr)
	require.Equal(t, exitOK, code, "%s%s", &stdout, &stderr)
	var got agentsReport
	require.NoError(t, json.Unmarshal(stdout.Bytes(), &got), "%s", &stdout)
	require.Positive(t, got.Leaders)
	require.Positive(t, got.Rows[0].Frozen)
	require.Greater(t, got.Rows[0].Died, 1)
}
