package access

import (
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/blackhole/blackhole/pkg/fault"
)

// CheckListener reports whether the address of a listener, host:port, fits its protection:
// beyond loopback it needs both TLS and authentication. It fails with Invalid, naming the key
// of the setting.
func CheckListener(key, addr string, tls, auth bool) error {
	host, _, err := net.SplitHostPort(addr)
	switch {
	case err != nil:
		return fault.Invalidf(key, addr, "must be host:port: %w", err)
	case isLoopback(host) || (tls && auth):
		return nil
	case tls:
		return fault.Invalidf(key, addr, "is beyond loopback and needs auth.enabled")
	case auth:
		return fault.Invalidf(key, addr, "is beyond loopback and needs TLS: auth.server_cert and auth.server_key")
	default:
		return fault.Invalidf(key, addr, "is beyond loopback and needs TLS and authentication: auth.server_cert, auth.server_key and auth.enabled")
	}
}

// isLoopback reports whether a host is this one by its name alone: other names are in the
// hands of whoever answers for them.
func isLoopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap().IsLoopback()
}

// Hosts are the names, or addresses, besides loopback's that a listener answers to.
type Hosts []string

// Answers reports whether a request with this Host header is meant for the listener. A page
// whose own name was pointed at this machine has another (DNS rebinding).
func (h Hosts) Answers(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	} else if len(host) > 1 && host[0] == '[' && host[len(host)-1] == ']' {
		host = host[1 : len(host)-1]
	}
	host = strings.TrimSuffix(host, ".")
	return isLoopback(host) || slices.ContainsFunc(h, func(name string) bool { return strings.EqualFold(name, host) })
}
