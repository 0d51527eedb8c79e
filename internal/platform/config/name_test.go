package config_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/config"
	"github.com/blackhole/blackhole/internal/platform/identity"
	"github.com/blackhole/blackhole/pkg/fault"
)

// TestPeerName: the flag and the short variable set the name, and an unset one is the host's.
func TestPeerName(t *testing.T) {
	c, origin, err := config.Load(config.Source{Flags: map[string]any{"name": "attic"}, Environ: []string{"BLACKHOLE_NAME=cellar"}})
	require.NoError(t, err)
	require.Equal(t, identity.PeerName("attic"), c.PeerName())
	require.Equal(t, "flag --name", origin["connections.name"])
	c, _, err = config.Load(config.Source{Environ: []string{"BLACKHOLE_NAME=cellar"}})
	require.NoError(t, err)
	require.Equal(t, identity.PeerName("cellar"), c.PeerName())
	c, _, err = config.Load(config.Source{})
	require.NoError(t, err)
	if host := c.PeerName(); host != "" {
		require.NoError(t, host.Validate())
	}
	_, _, err = config.Load(config.Source{Environ: []string{"BLACKHOLE_NAME=two words"}})
	require.ErrorIs(t, err, fault.Invalid)
	require.Equal(t, "connections.name", fault.FieldOf(err))
}
