package config_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/config"
	"github.com/blackhole/blackhole/pkg/fault"
)

func TestJoinedNetworkIsRemembered(t *testing.T) {
	dir := t.TempDir()
	office := config.Joined{Name: "office", Profile: "lan", Bootstrap: []string{"/ip4/192.0.2.1/tcp/1", "/ip4/192.0.2.1/tcp/2"}}
	in := config.Source{Flags: map[string]any{"data": dir}}
	first := in
	first.Joined = &office
	c, origin, err := config.Load(first)
	require.NoError(t, err)
	require.EqualValues(t, "office", c.NetworkName())
	require.Equal(t, "the invitation", origin["network.name"])

	require.NoError(t, office.Save(dir))
	c, origin, err = config.Load(in)
	require.NoError(t, err)
	require.EqualValues(t, "office", c.NetworkName())
	require.Equal(t, "lan", c.Profile)
	require.Equal(t, office.Bootstrap, c.Bootstrap)
	require.Equal(t, "file "+filepath.Join(dir, "network.yaml"), origin["bootstrap"])
	info, err := os.Stat(filepath.Join(dir, "network.yaml"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())

	require.False(t, c.Network.Closed)

	office.Closed = true
	require.NoError(t, office.Save(dir))
	c, origin, err = config.Load(in)
	require.NoError(t, err)
	require.True(t, c.Network.Closed)
	require.Equal(t, "file "+filepath.Join(dir, "network.yaml"), origin["network.closed"])

	in.Flags = map[string]any{"data": dir, "profile": "public", "bootstrap": []string{"/ip4/192.0.2.9/tcp/1"}, "network": "office"}
	c, _, err = config.Load(in)
	require.NoError(t, err)
	require.Equal(t, "public", c.Profile)
	require.Equal(t, []string{"/ip4/192.0.2.9/tcp/1"}, c.Bootstrap)
}

// TestFounderRemembersItsNetwork: a later start without settings stays in the network that the first one founded.
func TestFounderRemembersItsNetwork(t *testing.T) {
	dir := t.TempDir()
	load := func(flags map[string]any) (config.Config, error) {
		flags["data"] = dir
		c, _, err := config.Load(config.Source{Flags: flags})
		return c, err
	}
	plain, err := load(map[string]any{})
	require.NoError(t, err)
	require.NoError(t, plain.Remember())
	same, err := load(map[string]any{})
	require.NoError(t, err)
	require.EqualValues(t, "dev", same.NetworkName())
	_, _, err = config.Load(config.Source{Joined: &config.Joined{Name: "office", Profile: "lan"}, Flags: map[string]any{"data": dir}})
	require.ErrorContains(t, err, `belongs to the network "dev"`)
	_, err = load(map[string]any{"profile": "public"})
	require.ErrorContains(t, err, `profile: is the network "main", but `+dir+` belongs to the network "dev" of profile dev: leave it out to stay there, or give this network a directory of its own, by --data DIRECTORY`)
	dir = t.TempDir()
	public, err := load(map[string]any{"profile": "public"})
	require.NoError(t, err)
	require.NoError(t, public.Remember())
	again, err := load(map[string]any{})
	require.NoError(t, err)
	require.Equal(t, public, again, "a start without settings stays in the network and its profile")
	dir = t.TempDir()
	founded, err := load(map[string]any{"network": "office", "profile": "lan"})
	require.NoError(t, err)
	require.NoError(t, founded.Remember())
	later, err := load(map[string]any{})
	require.NoError(t, err)
	require.Equal(t, founded, later)
	require.NoError(t, later.Remember(), "it is remembered already")
	_, err = load(map[string]any{"network": "home"})
	require.ErrorIs(t, err, &fault.Error{Kind: fault.Invalid, Field: "network.name"})
}

func TestJoinedNetworkIsNotContradicted(t *testing.T) {
	dir := t.TempDir()
	office := config.Joined{Name: "office", Profile: "lan", Bootstrap: []string{"/ip4/192.0.2.1/tcp/1"}}
	home := config.Joined{Name: "home", Profile: "lan", Bootstrap: office.Bootstrap}
	refused := func(text string, src config.Source) {
		t.Helper()
		src.Flags["data"] = dir
		_, _, err := config.Load(src)
		require.ErrorIs(t, err, &fault.Error{Kind: fault.Invalid, Field: "network.name"})
		require.ErrorContains(t, err, text)
	}
	refused(`"home" contradicts the network "office" of the invitation (set by flag --network)`,
		config.Source{Joined: &office, Flags: map[string]any{"network": "home"}})
	require.NoError(t, office.Save(dir))
	refused(`"home" contradicts the network "office" of file `, config.Source{Flags: map[string]any{"network": "home"}})
	refused(`belongs to the network "office": leave out the invitation to stay there; another network needs another data directory, and so another identity`, config.Source{Joined: &home, Flags: map[string]any{}})

	for _, damaged := range []string{"", "format: 1\nnetwork: {name: X}\nprofile: lan\nbootstrap: []", "network: {name: x}\nprofile: lan\nbootstrap: []",
		"format: 0\nnetwork: {name: x}\nprofile: lan\nbootstrap: []", "format: 1\nnetwork: {name: x}\nprofile: lan\nbootstrap: []\nhttp: off", ":",
		"format: 1\nnetwork: {name: x, closed: maybe}\nprofile: lan\nbootstrap: []"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "network.yaml"), []byte(damaged), 0o600))
		_, _, err := config.Load(config.Source{Flags: map[string]any{"data": dir}})
		require.ErrorIs(t, err, &fault.Error{Kind: fault.Invalid, Field: "join"}, damaged)
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "network.yaml"), []byte("format: 2\nnet: {}\n"), 0o600))
	_, _, err := config.Load(config.Source{Flags: map[string]any{"data": dir}})
	require.ErrorIs(t, err, fault.Unsupported)
	require.ErrorContains(t, err, "network.yaml has format 2, this program reads formats 1 to 1: run the later program again")
}
