package main

import (
	"bytes"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/fault"
)

// TestProof plays tests that exist, and one that does not.
func TestProof(t *testing.T) {
	all := proofs("# head\nQ1 internal/query TestFoldIsEqualFold TestScoreEnds\n\nQ1 plant less is less or equal\n")
	require.Equal(t, proof{promise: "Q1", where: "internal/coordination/simulation", tests: []string{"TestPlanted"}, plant: "less is less or equal"}, all[1])
	var out bytes.Buffer
	require.NoError(t, all[0].play(t.Context(), &out))
	require.Regexp(t, `(?m)^  pass  internal/query TestFoldIsEqualFold \(\S+\)$`, out.String())
	all[0].tests[1] = "TestNothing"
	err := all[0].play(t.Context(), io.Discard)
	require.ErrorContains(t, err, "internal/query has no test TestNothing")
	require.Equal(t, fault.Conflict, fault.KindOf(err))
}

// TestProofFails shows what a failed test said.
func TestProofFails(t *testing.T) {
	var out bytes.Buffer
	rest, ended := proof{where: "a"}.follow(bytes.NewReader([]byte("    a_test.go:3: torn\n--- FAIL: TestA (0.01s)\n    planted_test.go:9: seed 3, 1s: L4: early\nFAIL\n")), &out)
	require.Equal(t, []string{"    a_test.go:3: torn", "FAIL"}, rest)
	require.Equal(t, []string{"TestA"}, ended)
	require.Equal(t, "  fail  a TestA (0.01s)\n  noticed: seed 3, 1s: L4: early\n", out.String())
}

func TestProveUsage(t *testing.T) {
	var told bytes.Buffer
	require.Equal(t, exitUsage, prove(t.Context(), []string{"C99"}, io.Discard, &told))
	require.Contains(t, told.String(), "C10 C15")
	require.Equal(t, exitOK, prove(t.Context(), []string{"-h"}, io.Discard, io.Discard))
}
