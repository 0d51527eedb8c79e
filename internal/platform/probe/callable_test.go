package probe

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/endpoint"
)

// What records count as callable is what can be measured: a scheme of a kind, and nothing else.
func TestCallableIsMeasurable(t *testing.T) {
	var all []string
	for _, k := range kinds() {
		for _, scheme := range append(k.schemes, k.over...) {
			all = append(all, strings.TrimPrefix(scheme+"://shop.net:9", "://"), strings.TrimPrefix(scheme+"://198.51.100.7:9/x", "://"))
		}
	}
	all = append(all, "/ip4/198.51.100.7/tcp/4001", "/dns4/shop.net/udp/4001/quic-v1", "http://[2001:db8::1]/")
	for _, text := range all {
		_, measurable := Parse(text, []string{"quic"})
		require.Equal(t, measurable, endpoint.Callable(text), text)
	}
	for _, text := range []string{"", "x", "wg://shop.net:9", "ftp://shop.net", "http://shop.example", "http://u@shop.net", "http://", "/ip4/1.2.3.4", strings.Repeat("a", 300) + ":1"} {
		_, measurable := Parse(text, nil)
		require.False(t, measurable || endpoint.Callable(text), text)
	}
}
