// Package endpoint reads the endpoints of offers: what stands in records, what keepers order by, and what package probe measures agree here.
package endpoint

import (
	"net/url"
	"slices"
	"strings"
)

// schemes are those of endpoints that peers can measure: package probe has a row for each. An endpoint without one is a
// host and a port.
func schemes() []string {
	return []string{
		"", "http", "https", "grpc", "grpcs", "tcp", "tls", "libp2p", "quic", "h3", "http3", "udp", "socks5", "socks5h", "socks", "ws", "wss",
		"a2a", "a2a+http", "a2a+https", "mcp", "mcp+http", "mcp+https", "ollama", "s3",
	}
}

const maxCallable = 256 // bytes of an endpoint

// Callable reports whether peers can measure an endpoint, or it is the provider's peer itself.
func Callable(endpoint string) bool { return Host(endpoint) != "" }

// Reserved reports whether a name is for documentation and tests (RFC 2606, RFC 6761): it stands for no service.
func Reserved(host string) bool {
	host = "." + strings.ToLower(strings.TrimSuffix(host, "."))
	return slices.ContainsFunc([]string{".example", ".test", ".invalid", ".example.com", ".example.net", ".example.org"},
		func(end string) bool { return strings.HasSuffix(host, end) })
}

// Host returns the host of an endpoint that somebody can call and measure: a URL of a known scheme, HOST:PORT, or a
// multiaddr of TCP, QUIC or the provider's peer itself. It returns "" for another one.
func Host(endpoint string) string {
	if len(endpoint) > maxCallable {
		return ""
	}
	if rest, ok := strings.CutPrefix(endpoint, "/"); ok {
		parts := strings.Split(rest, "/")
		switch {
		case len(parts) == 2 && parts[0] == "p2p",
			len(parts) >= 4 && (parts[2] == "tcp" || parts[2] == "udp") && slices.Contains([]string{"ip4", "ip6", "dns", "dns4", "dns6"}, parts[0]):
			return parts[1]
		}
		return ""
	}
	scheme, rest, ok := strings.Cut(endpoint, "://")
	if !ok {
		scheme, rest = "", endpoint
	}
	u, err := url.Parse("x://" + rest)
	if err != nil || u.User != nil || !slices.Contains(schemes(), strings.ToLower(scheme)) || scheme == "" && u.Port() == "" ||
		Reserved(u.Hostname()) {
		return ""
	}
	return u.Hostname()
}
