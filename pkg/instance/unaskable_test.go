package instance

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestUnaskable: names at the bounds of a label of DNS.
func TestUnaskable(t *testing.T) {
	long := func(n int) string { return strings.Repeat("x", n) }
	for _, c := range []struct{ service, namespace, tag, said string }{
		{long(62), long(63), long(63), ""},
		{long(63), "", "", "_" + long(63) + "._tcp, only for "},
		{long(64), "", "", "the service " + long(64) + ": a label has 64 bytes, limit 63"},
		{"web", "", "v1." + long(64), "the tag v1." + long(64) + ": a label has 64 bytes"},
		{"web", "", long(63) + "." + long(63), ""},
		{"-web", "", "", "the service -web: a label begins or ends with a hyphen"},
		{"web", "blue-", "", "the namespace blue-"},
		{"web", "", "x-", "the tag x-"},
		{"web", "blue", "v1.2", ""},
	} {
		k := Key{Service: c.service, Namespace: c.namespace}
		if got := k.Unaskable([]string{"ok", c.tag}); c.said == "" {
			require.Empty(t, got, c)
		} else {
			require.Contains(t, got, c.said)
		}
	}
}
