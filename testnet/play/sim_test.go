package main

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/fault"
)

func TestSimulationNamesTheFlagItRefuses(t *testing.T) {
	for args, field := range map[string]string{
		"-scenario nope":        "-scenario",
		"-peers 3":              "-peers",
		"-peers 1001":           "-peers",
		"-records -1":           "-records",
		"-peers 4 -records 401": "-records",
		"-connections 3":        "-connections",
		"-rtt 3s":               "-rtt",
		"-loss 0.6":             "-loss",
		"-loss NaN":             "-loss",
		"join":                  "arguments",
	} {
		_, _, err := parseSimulation(call{args: strings.Fields(args), stderr: io.Discard})
		require.Equal(t, fault.Invalid, fault.KindOf(err), args)
		require.Equal(t, field, fault.FieldOf(err), args)
	}
	s, raw, err := parseSimulation(call{stderr: io.Discard})
	require.NoError(t, err)
	require.False(t, raw)
	require.Equal(t, 3*s.Peers, s.Records)
	require.False(t, s.Light)
	s, _, err = parseSimulation(call{args: []string{"-light"}, stderr: io.Discard})
	require.NoError(t, err)
	require.True(t, s.Light)
}

func TestSimulateRefusesBadFlags(t *testing.T) {
	var out, told bytes.Buffer
	require.Equal(t, exitUsage, execute(context.Background(), []string{"sim", "-peers", "0"}, &out, &told))
	require.Empty(t, out.String())
	require.Contains(t, told.String(), "-peers")
	require.Equal(t, exitOK, execute(context.Background(), []string{"sim", "-h"}, &out, io.Discard))
}

func TestFollowTellsFiguresFromTheRest(t *testing.T) {
	var people bytes.Buffer
	line := follow(strings.NewReader("=== RUN\nstage one\nsim {\"queries\":1}\n--- PASS\n"), &people)
	require.Equal(t, "  === RUN\n  one\n  --- PASS\n", people.String())
	require.JSONEq(t, `{"queries":1}`, string(line))
	require.Nil(t, follow(strings.NewReader("PASS\n"), io.Discard))
}
