package dnsapi

import (
	"strings"
	"testing"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/instance"
)

// TestUnaskable: a registration warns of each name, at the bounds of a label, for which some form of the question finds nothing.
func TestUnaskable(t *testing.T) {
	x := func(n int) string { return strings.Repeat("x", n) }
	for _, c := range []struct{ service, tag string }{
		{service: x(62)}, {service: x(63)}, {service: x(64)},
		{service: "web", tag: x(62)}, {service: "web", tag: x(63)}, {service: "web", tag: x(64)}, {service: "web", tag: x(128)},
	} {
		b := newFixture(t)
		i := at(c.service, "a", "192.0.2.1", 80)
		forms := []string{c.service + ".service.blackhole.", "_" + c.service + "._tcp.blackhole."}
		if c.tag != "" {
			i = at(c.service, "a", "192.0.2.1", 80, tagged(c.tag))
			forms = []string{c.tag + "." + c.service + ".service.blackhole."}
		}
		b.catalog.set(i)
		found := true
		for _, name := range forms {
			if _, ok := dns.IsDomainName(name); !ok {
				found = false // no resolver can send it
				continue
			}
			answer := b.udp(question(name, dns.TypeSRV, 0))
			found = found && len(answer.Answer) == 1
		}
		require.Equal(t, !found, (instance.Key{Namespace: "default", Service: c.service}).Unaskable(i.Spec.Tags) != "", "%s %s", c.service, c.tag)
	}
}
