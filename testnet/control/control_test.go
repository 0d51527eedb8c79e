package control

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/fault"
)

// at opens a server that answers every order with its name, and returns its directory.
func at(t *testing.T, parent, name string) string {
	t.Helper()
	dir := filepath.Join(parent, Prefix+name)
	require.NoError(t, os.Mkdir(dir, 0o700))
	s, err := Listen(dir, func(_ context.Context, o Order) (string, error) {
		if o.Verb == "refuse" {
			return "", fault.New("testnet", fault.Conflict, "not now")
		}
		return name + " " + o.Verb + " " + o.Args[0], nil
	})
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return dir
}

func TestOrders(t *testing.T) {
	parent := t.TempDir()
	one, two := at(t, parent, "1"), at(t, parent, "2")
	for dir, want := range map[string]string{one: "1 kill peer-1", two: "2 kill peer-1"} {
		got, err := Send(t.Context(), dir, Order{Verb: "kill", Args: []string{"peer-1"}})
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	_, err := Send(t.Context(), one, Order{Verb: "refuse"})
	require.ErrorIs(t, err, fault.Conflict)
	require.ErrorContains(t, err, "not now")
	_, err = Send(t.Context(), parent, Order{Verb: "kill"})
	require.ErrorIs(t, err, fault.Unavailable)
	require.ErrorContains(t, err, "no testnet takes orders in "+parent)

	_, err = Send(t.Context(), one, Order{Verb: "kill", Args: []string{string(make([]byte, maxOrder))}})
	require.ErrorContains(t, err, "too large", "orders are bounded")
}

// TestFind: a socket that a killed testnet left is no testnet.
func TestFind(t *testing.T) {
	parent := t.TempDir()
	t.Setenv("TMPDIR", parent)
	_, err := Here(t.Context())
	require.ErrorIs(t, err, fault.NotFound)

	dead := filepath.Join(parent, Prefix+"0")
	require.NoError(t, os.Mkdir(dead, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dead, file), nil, 0o600))
	one := at(t, parent, "1")
	got, err := Here(t.Context())
	require.NoError(t, err)
	require.Equal(t, one, got)

	two := at(t, parent, "2")
	found, err := Find(t.Context(), parent)
	require.NoError(t, err)
	require.Equal(t, []string{one, two}, found)
	_, err = Here(t.Context())
	require.ErrorIs(t, err, fault.Invalid)
	require.ErrorContains(t, err, "-at: 2 testnets run")
}
