package network_test

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/testnet/network"
)

// binary is a stand-in for blackholed.
func binary(t *testing.T, body string) string {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("needs a shell")
	}
	path := filepath.Join(t.TempDir(), "blackholed")
	require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"+body), 0o700))
	return path
}

func TestStartTellsLastWords(t *testing.T) {
	dir := t.TempDir()
	_, err := network.Start(t.Context(), network.Config{Peers: 3, Dir: dir, Binary: binary(t, "echo no luck today; exit 7")})
	require.ErrorContains(t, err, "peer-1 ended: exit status 7")
	require.ErrorContains(t, err, "no luck today")
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
}

// TestStartRetries: another process may take a port between its choice and its use.
func TestStartRetries(t *testing.T) {
	dir := t.TempDir()
	count := filepath.Join(t.TempDir(), "count")
	_, err := network.Start(t.Context(), network.Config{
		Peers: 1, Dir: dir, Binary: binary(t, "echo x >>"+count+"; echo bind: address already in use; exit 1"), Keep: true,
	})
	require.ErrorContains(t, err, "address already in use")
	trials, err := os.ReadFile(count)
	require.NoError(t, err)
	require.Equal(t, "x\nx\nx\n", string(trials))

	identity := filepath.Join(dir, "peer-1", "identity.key")
	require.NoError(t, os.WriteFile(identity, nil, 0o600), "the directory is kept")
	_, err = network.Start(t.Context(), network.Config{Peers: 1, Dir: dir, Binary: binary(t, "exit 1")})
	require.ErrorIs(t, err, fault.Invalid)
	require.ErrorContains(t, err, "earlier run")
	require.FileExists(t, identity, "not ours to remove")
}

func TestStartCanBeInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := network.Start(ctx, network.Config{Peers: 1, Dir: t.TempDir(), Binary: binary(t, "exec cat /dev/zero >/dev/null")})
	require.ErrorIs(t, err, fault.Canceled)
}
