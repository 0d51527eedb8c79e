package main

import (
	"bytes"
	"encoding/json"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/testnet/scenario"
)

// plays plays a script of package scenario on processes.
func plays(t *testing.T, name string) {
	t.Helper()
	t.Parallel()
	o, err := scenario.Run(t.Context(), scenario.Config{Scenario: name, Binary: built(t), Dir: t.TempDir(), Seed: 1, Bound: 2 * time.Minute, Progress: io.Discard})
	require.NoError(t, err)
	require.Empty(t, o.Failure)
}

// TestJoinedPeersHaveOneGroup starts peers as the README says, without a list of founders.
func TestJoinedPeersHaveOneGroup(t *testing.T) { plays(t, "joined") }

// TestSeparateGroupsBecomeOne connects three peers that founded a group each.
func TestSeparateGroupsBecomeOne(t *testing.T) {
	long(t)
	plays(t, "separate")
}

// TestStartup starts peers in any order under applications, and cuts their network in two.
func TestStartup(t *testing.T) {
	long(t)
	plays(t, "startup")
}

// TestBackupDrill plays docs/howto/backup.md.
func TestBackupDrill(t *testing.T) {
	long(t)
	plays(t, "backup")
}

// TestPromoteDrill plays "The majority is gone for good" of docs/group.md.
func TestPromoteDrill(t *testing.T) {
	long(t)
	plays(t, "promote")
}

// TestMajorityLost restarts a peer in order, and then kills two of three.
func TestMajorityLost(t *testing.T) {
	long(t)
	plays(t, "majority")
}

// TestYoungGroupCrashes kills all voters of a young group; two return without a bootstrap peer.
func TestYoungGroupCrashes(t *testing.T) {
	long(t)
	plays(t, "young")
}

// TestGroupsMeet plays a script from the command line.
func TestGroupsMeet(t *testing.T) {
	long(t)
	t.Parallel()
	var stdout, stderr bytes.Buffer
	code := execute(t.Context(), []string{"nemesis", "-scenario", "merge", "-recovery", "2m", "-json", "-data", t.TempDir()}, &stdout, &stderr)
	require.Equal(t, exitOK, code, "%s%s", &stdout, &stderr)
	var got []scenario.Outcome
	require.NoError(t, json.Unmarshal(stdout.Bytes(), &got))
	require.Positive(t, got[0].Tokens)
}

// TestScriptFails: a script that demands what does not hold fails, and says what.
func TestScriptFails(t *testing.T) {
	o, err := scenario.Run(t.Context(), scenario.Config{Scenario: "joined", Binary: "/nonexistent", Dir: t.TempDir(), Seed: 1, Bound: time.Second})
	require.NoError(t, err)
	require.Contains(t, o.Failure, "/nonexistent")
	require.Contains(t, o.Failure, "FAIL: ")
	require.NotEmpty(t, o.Data)
	require.True(t, slices.Contains(scenario.Names(), "joined"))
}
