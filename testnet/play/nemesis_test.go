package main

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/testnet/nemesis"
)

// TestNemesis is a short day of faults on real processes. The long ones are run by hand.
func TestNemesis(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	var stdout, stderr bytes.Buffer
	code := execute(t.Context(), []string{
		"nemesis", "-duration", "12s", "-seed", "7", "-pause", "3s", "-recovery", "3m", "-json", "-data", data,
	}, &stdout, &stderr)
	require.Equal(t, exitOK, code, "%s%s", &stdout, &stderr)

	var got nemesis.Report
	require.NoError(t, json.Unmarshal(stdout.Bytes(), &got), "one object and nothing else: %s", &stdout)
	require.Empty(t, got.Violations)
	require.NotEmpty(t, got.Faults)
	require.Positive(t, got.Events)
	for _, kind := range []string{"read", "put", "swap", "guarded", "fenced", "lock", "trylock", "unlock", "session"} {
		require.Positive(t, got.Operations[kind]["ok"], kind)
	}
	for _, check := range got.Checks {
		if check.Rule != "X, V, T" { // this rule counts findings of the load, not operations
			require.Positive(t, check.Checked, check.Rule)
		}
	}
	left, err := os.ReadDir(data)
	require.NoError(t, err)
	require.Empty(t, left, "nothing is kept of a day without violations")
}

// TestScenarios checks that each scenario has faults, and that all faults are used.
func TestScenarios(t *testing.T) {
	some := 0
	for name := range sorts() {
		o, err := parseTrial(call{args: []string{"-scenario", name}, stderr: io.Discard})
		require.NoError(t, err)
		require.NotEmpty(t, o.Faults, name)
		if name != "all" {
			some += len(o.Faults)
		}
	}
	require.Len(t, nemesis.Faults(), some)
}
