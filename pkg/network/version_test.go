package network_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/network"
)

func TestCompatible(t *testing.T) {
	const own = "/blackhole/main/keeper/1.0.0"
	for id, want := range map[string]bool{
		own: true, "/blackhole/main/keeper/1.7.0": true, "/blackhole/main/keeper/1.99.0": true, "/blackhole/main/keeper/1.7": true, "/blackhole/main/keeper/1": true,
		"/blackhole/main/keeper/2.0.0": false, "/blackhole/main/keeper/11.0.0": false,
		"/blackhole/main/keeper/1.0.0.0": false, "/blackhole/main/keeper/1.0.x": false, "/blackhole/main/keeper/": false,
		"/blackhole/main/keeper/1.00.0": false, "/blackhole/main/keeper/1.100.0": false, "/blackhole/main/keeper/1.0.1": false, "/blackhole/main/keeper/1.-1": false,
		"/blackhole/main/sync/1.0.0": false, "/blackhole/other/keeper/1.0.0": false, "1.0.0": false, "": false,
	} {
		require.Equal(t, want, network.Compatible(own, id), id)
		require.Equal(t, want, network.Compatible(id, own), id)
	}
	require.True(t, network.Compatible("/blackhole/keeper", "/blackhole/keeper"))
	require.False(t, network.Compatible("/blackhole/keeper", "/blackhole/keeper/1"))
}
