package view

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	groupv1 "github.com/blackhole/blackhole/proto/blackhole/group/v1"
)

// TestHear keeps claims that may be shown, and forgets a peer that says nothing.
func TestHear(t *testing.T) {
	v := New(Config{Self: "self", Name: "here", Etcd: "http://here:2379"})
	require.Equal(t, "http://here:2379", v.EtcdOf("self"))
	for _, url := range []string{"", "ftp://a", "b:2379", "http://", "http://" + strings.Repeat("a", maxURL), "http://a\x1b[2J"} {
		v.Hear("p", &groupv1.InfoRequest{Name: "name", EtcdUrl: url})
		require.Empty(t, v.EtcdOf("p"), url)
		require.Equal(t, "name", v.NameOf("p"))
	}
	v.Hear("p", &groupv1.InfoResponse{Name: "a b", EtcdUrl: "https://[fd00::1]:2379"})
	require.Equal(t, "https://[fd00::1]:2379", v.EtcdOf("p"))
	require.Empty(t, v.NameOf("p"))
	v.Hear("p", new(groupv1.InfoRequest))
	require.Empty(t, v.claims)
}
