package remote

import (
	"testing"

	"github.com/stretchr/testify/require"
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
