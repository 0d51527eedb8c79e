package remote

import (
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/pkg/fault"
)

// TestDialed: a failed connection is told by its cause.
func TestDialed(t *testing.T) {
	for text, short := range map[string]string{
		`connection error: desc = "transport: Error while dialing: dial tcp 127.0.0.1:1: connect: connection refused"`:                     "connection refused",
		`connection error: desc = "transport: authentication handshake failed: tls: first record does not look like a TLS handshake"`:      "tls: first record does not look like a TLS handshake",
		`connection error: desc = "error reading server preface: http2: frame too large, ... frame header looked like an HTTP/1.1 header"`: httpListens,
		"the peer stops": "the peer stops",
	} {
		require.Equal(t, short, dialed(text))
	}
}

// TestMismatch: a peer that is asked in another protocol than it speaks is not called absent.
func TestMismatch(t *testing.T) {
	for text, flag := range map[string]string{
		"tls: first record does not look like a TLS handshake":       "leave out --tls-ca",
		"tls: failed to verify certificate: x509: unknown authority": "the CA of the peer's certificate with --tls-ca",
		"remote error: tls: bad certificate":                         "--cert, --key",
		"error reading server preface: EOF":                          "seems to speak TLS",
		"error reading server preface: connection reset by peer":     "seems to speak TLS",
		"error reading server preface: http2: frame too large":       "gRPC address",
		httpListens:          "gRPC address",
		"connection refused": "",
	} {
		said := Mismatch(fault.New("", fault.Unavailable, "no peer answers at 127.0.0.1:1: %s", text))
		require.Equal(t, flag == "", said == "", text)
		require.Contains(t, said, flag)
	}
	require.Empty(t, Mismatch(nil))
}

// TestGiven: a recommended command names the same peer, and never a secret.
func TestGiven(t *testing.T) {
	cmd := New(&term.Console{}, &cobra.Command{Use: "ls"}, 0).Cmd
	require.Empty(t, Given(cmd))
	require.NoError(t, cmd.ParseFlags([]string{"--token-file", "my token's", "--grpc", "[::1]:8512", "--token", "secret", "--tls-ca", "system", "--timeout", "3s"}))
	require.Equal(t, ` --grpc '[::1]:8512' --token-file 'my token'\''s' --tls-ca system`, Given(cmd))
	require.Empty(t, Given(&cobra.Command{}))
}
