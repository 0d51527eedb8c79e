package access

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/fault"
)

func TestCheckListener(t *testing.T) {
	for _, loopback := range []string{"127.0.0.1:1", "127.9.9.9:1", "localhost:0", "LOCALHOST:1", "[::1]:1", "[::ffff:127.0.0.1]:1"} {
		require.NoError(t, CheckListener("http", loopback, false, false), loopback)
	}
	for _, beyond := range []string{"0.0.0.0:1", ":1", "[::]:1", "10.0.0.1:1", "example.org:1", "localhost.example.org:1", "127.0.0.1.example.org:1"} {
		require.NoError(t, CheckListener("http", beyond, true, true), beyond)
		for _, c := range []struct {
			tls, auth bool
			hint      string
		}{{false, false, "TLS and authentication"}, {true, false, "auth.enabled"}, {false, true, "auth.server_cert"}} {
			err := CheckListener("http", beyond, c.tls, c.auth)
			require.ErrorIs(t, err, &fault.Error{Kind: fault.Invalid, Field: "http"}, beyond)
			require.ErrorContains(t, err, c.hint)
		}
	}
	for _, wrong := range []string{"", "nowhere", "1.2.3.4", "::1:2:3"} {
		require.ErrorIs(t, CheckListener("grpc", wrong, true, true), &fault.Error{Kind: fault.Invalid, Field: "grpc"}, wrong)
	}
}

func TestHosts(t *testing.T) {
	h := Hosts{"peer.example.org", "10.0.0.7", "2001:db8::1"}
	for _, ours := range []string{
		"peer.example.org", "peer.example.org:8500", "PEER.example.org.:1", "10.0.0.7", "10.0.0.7:1", "[2001:db8::1]:1", "[2001:db8::1]",
		"localhost", "localhost:8500", "127.0.0.1:8500", "[::1]:1", "[::1]",
	} {
		require.True(t, h.Answers(ours), ours)
	}
	for _, other := range []string{"", ":80", "evil.example.org", "peer.example.org.evil.org", "xpeer.example.org", "10.0.0.8", "0.0.0.0", "[::]", "127.0.0.1.evil.org"} {
		require.False(t, h.Answers(other), other)
	}
	require.False(t, Hosts(nil).Answers("10.0.0.7"))
}
