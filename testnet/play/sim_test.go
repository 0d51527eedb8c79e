package main

import (
	"io"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSimulationDefaults(t *testing.T) {
	s, err := parseSimulation(call{stderr: io.Discard})
	require.NoError(t, err)
	require.Equal(t, 3*s.Peers, s.Records)
}
