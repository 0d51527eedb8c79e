package remote

import (
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/cli/term"
)

// TestDialed: a failed connection is told by its cause.
func TestDialed(t *testing.T) {
	for text, short := range map[string]string{
		`connection error: desc = "transport: Error while dialing: dial tcp 127.0.0.1:1: connect: connection refused"`:                     "connection refused",
		`connection error: desc = "transport: authentication handshake failed: tls: first record does not look like a TLS handshake"`:      "tls: first record does not look like a TLS handshake",
		`connection error: desc = "error reading server preface: http2: frame too large, ... frame header looked like an HTTP/1.1 header"`: HTTPListens,
		"the peer stops": "the peer stops",
	} {
		require.Equal(t, short, dialed(text))
	}
}

// TestGiven: a recommended command names the same peer, and never a secret.
func TestGiven(t *testing.T) {
	cmd := New(&term.Console{}, &cobra.Command{Use: "ls"}, 0).Cmd
	require.Empty(t, Given(cmd))
	require.NoError(t, cmd.ParseFlags([]string{"--token-file", "my token's", "--grpc", "[::1]:8512", "--token", "secret", "--tls-ca", "system", "--timeout", "3s"}))
	require.Equal(t, ` --grpc '[::1]:8512' --token-file 'my token'\''s' --tls-ca system`, Given(cmd))
	require.Empty(t, Given(&cobra.Command{}))
}
