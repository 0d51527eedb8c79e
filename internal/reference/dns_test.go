package reference_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/agent/catalog"
	"github.com/blackhole/blackhole/internal/frontend/dnsapi"
	"github.com/blackhole/blackhole/pkg/instance"
)

// dnsPage asks a server for each form of a name and lists its answers.
func dnsPage(t *testing.T) string {
	b := begin("DNS names", "The answers of a server with one peer and two services: `web` has one instance `web-1` at 10.0.1.1:8080 in zone `eu` with the tag\n"+
		"`canary`; `idle` has one instance, which is DOWN. All forms exist in each of the domains (`dns_domain`). [agent.md](../agent.md#names-in-dns) explains them.\n\n"+
		"*Nothing* means: the name exists and has nothing of the type now. This and NXDOMAIN carry the SOA.\n")
	server := nameServer(t)
	for _, q := range []struct {
		name  string
		types []uint16
	}{
		{"web.service.blackhole.", []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeSRV, dns.TypeTXT, dns.TypeANY}},
		{"web.service.consul.", []uint16{dns.TypeA}},
		{"canary.web.service.blackhole.", []uint16{dns.TypeA}},
		{"web.service.eu.zone.blackhole.", []uint16{dns.TypeA}},
		{"web.service.eu.blackhole.", []uint16{dns.TypeA}},
		{"web.service.eu.dc.blackhole.", []uint16{dns.TypeA}},
		{"web.service.dc1.blackhole.", []uint16{dns.TypeA}},
		{"web.service.default.ns.blackhole.", []uint16{dns.TypeA}},
		{"_web._tcp.blackhole.", []uint16{dns.TypeSRV, dns.TypePTR}},
		{"web-1._web._tcp.blackhole.", []uint16{dns.TypeSRV, dns.TypeTXT}},
		{"_services._dns-sd._udp.blackhole.", []uint16{dns.TypePTR}},
		{"_web._tcp.service.blackhole.", []uint16{dns.TypeSRV}},
		{"_web._canary.service.blackhole.", []uint16{dns.TypeSRV}},
		{"self.node.blackhole.", []uint16{dns.TypeA, dns.TypeTXT}},
		{"0a000101.addr.blackhole.", []uint16{dns.TypeA}},
		{"ns.blackhole.", []uint16{dns.TypeA}},
		{"blackhole.", []uint16{dns.TypeSOA, dns.TypeNS}},
		{"service.blackhole.", []uint16{dns.TypeA}},
		{"idle.service.blackhole.", []uint16{dns.TypeA}},
		{"unknown.service.blackhole.", []uint16{dns.TypeA}},
		{"1.1.0.10.in-addr.arpa.", []uint16{dns.TypePTR}},
		{"example.com.", []uint16{dns.TypeA}},
	} {
		for _, qtype := range q.types {
			m := new(dns.Msg)
			m.SetQuestion(q.name, qtype)
			answer, err := dns.Exchange(m, server)
			require.NoError(t, err, q.name)
			said := records(answer.Answer)
			if said == "" {
				said = "*nothing*"
			}
			if answer.Rcode != dns.RcodeSuccess {
				said = dns.RcodeToString[answer.Rcode]
			}
			if extra := records(answer.Extra); extra != "" {
				said += " with " + extra
			}
			b.WriteString("- " + dns.TypeToString[qtype] + " " + code(q.name) + ": " + said + "\n")
		}
	}
	require.Greater(t, strings.Count(b.String(), "\n- "), 20)
	return b.String()
}

// records returns the records of a section without names and classes.
func records(all []dns.RR) string {
	var lines []string
	for _, rr := range all {
		h := rr.Header()
		lines = append(lines, code(dns.TypeToString[h.Rrtype]+" "+strings.TrimPrefix(rr.String(), h.String())))
	}
	slices.Sort(lines) // a server shuffles equal records
	return strings.Join(lines, " ")
}

// nameServer starts a server with the services of the page.
func nameServer(t *testing.T) string {
	known := catalog.New(catalog.Config{})
	at := func(service, host string, status instance.Status) *instance.Instance {
		return &instance.Instance{
			Key:  instance.Key{Namespace: instance.DefaultNamespace, Service: service, ID: service + "-1"},
			Spec: instance.Spec{Host: host, Port: 8080, Zone: "eu", Tags: []string{"canary"}}, Status: status, Peer: "self", Revision: 1,
		}
	}
	require.NoError(t, known.Reset(1, []*instance.Instance{at("idle", "10.0.1.2", instance.StatusDown), at("web", "10.0.1.1", instance.StatusUp)}))
	addr := netip.MustParseAddr("192.0.2.1")
	server, err := dnsapi.New(dnsapi.Config{
		Catalog: lasting{known}, Self: "self", SelfName: "self", TTL: 30 * time.Second, Now: time.Now, Random: func() uint64 { return 1 },
		Node: func(name string) (dnsapi.Node, bool) {
			return dnsapi.Node{Addrs: []netip.Addr{addr}, Text: []string{"peer_id=ID"}}, name == "self"
		},
	})
	require.NoError(t, err)
	require.NoError(t, server.Listen("127.0.0.1:0"))
	done := make(chan error, 1)
	go func() { done <- server.Serve() }()
	t.Cleanup(func() {
		server.Close()
		require.NoError(t, <-done)
	})
	return server.Addr().String()
}

// lasting is a catalog whose instances never expire.
type lasting struct{ *catalog.Catalog }

// Expires implements instance.Catalog.
func (lasting) Expires([]*instance.Instance) time.Time { return time.Time{} }

// LastBeat implements instance.Catalog.
func (lasting) LastBeat(instance.Key) (time.Time, bool) { return time.Time{}, false }
