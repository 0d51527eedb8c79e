package main

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSimulationDefaults(t *testing.T) {
	s, raw, err := parseSimulation(call{args: []string{"-light"}, stderr: io.Discard})
	require.NoError(t, err)
	require.False(t, raw)
	require.Equal(t, 3*s.Peers, s.Records)
	require.True(t, s.Light)
}

func TestFollowTellsFiguresFromTheRest(t *testing.T) {
	var people bytes.Buffer
	line := follow(strings.NewReader("=== RUN\nstage one\nsim {\"queries\":1}\n--- PASS\n"), &people)
	require.Equal(t, "  === RUN\n  one\n  --- PASS\n", people.String())
	require.JSONEq(t, `{"queries":1}`, string(line))
	require.Nil(t, follow(strings.NewReader("PASS\n"), io.Discard))
}
