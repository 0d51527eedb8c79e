package fencing

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	"github.com/blackhole/blackhole/internal/frontend/grpcapi"
	"github.com/blackhole/blackhole/testnet/process"
)

// peer serves a coordination plane on loopback and returns its address.
func peer(t *testing.T) string {
	solo := coordtest.New(coordtest.Config{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := grpcapi.New(grpcapi.Config{Coordination: &grpcapi.Coordination{
		Service: solo, Admin: solo,
		Owner: func(context.Context) (string, error) { return "application", nil },
	}})
	done := make(chan error)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() { s.Close(); require.NoError(t, <-done) })
	return l.Addr().String()
}

// TestPrograms builds and runs the examples.
func TestPrograms(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs programs")
	}
	dir, grpc := t.TempDir(), peer(t)
	path := filepath.Join(dir, "written")
	for _, c := range []struct {
		program string
		args    []string
		lines   string
	}{
		{"file", []string{"-file", path}, "token 4 wrote " + path + "\ntoken 2 was refused: 2 is stale, 4 was seen\n"},
		{"file", []string{"-file", path}, "token 8 wrote " + path + "\ntoken 6 was refused: 6 is stale, 8 was seen\n"},
		{"row", nil, "token 12 set the balance to 80\ntoken 10 was refused: no row changed: the token is stale, or the row does not exist\n"},
		{"endpoint", nil, "PUT with token 16: 204 No Content\nPUT with token 14: 412 Precondition Failed\n"},
	} {
		program, err := process.Program(t.Context(), dir, "./"+c.program)
		require.NoError(t, err)
		cmd := exec.CommandContext(t.Context(), program, append(c.args, "-grpc", grpc)...)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Equal(t, c.lines, string(out))
	}
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "written by the holder\n", string(text))
}
