package dnsapi

import (
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/instance"
)

// shop returns instances of each kind.
func shop() []*instance.Instance {
	return []*instance.Instance{
		at("web", "web-1", "10.0.1.1", 8080, tagged("canary", "v1.2"), inZone("us-east-1a")),
		at("web", "web-2", "10.0.1.2", 8080, inZone("us-east-1b"), weighing(3)),
		at("web", "web-3", "2001:db8::3", 8443, inZone("us-east-1b"), tagged("Blue")),
		at("web", "web-4", "10.0.1.4", 8080, withStatus(instance.StatusDown), tagged("broken")),
		at("db", "db-1", "db.example.com", 5432),
		at("idle", "idle-1", "10.0.2.1", 80, withStatus(instance.StatusUnhealthy)),
		at("web", "web-9", "10.0.9.9", 8080, inNamespace("prod"), inZone("eu-1")),
		at("service", "odd-1", "10.0.3.1", 80),
		at("cli", "cli-1", "", 0, func(i *instance.Instance) {
			i.Spec.Interfaces = map[string]string{"CLI": "cli://x"}
			i.Spec.Metadata = map[string]string{"zone": "us-east-1a", "beta": "true", "quote": `a"b\c`}
		}),
		at("mixed", "mixed-1", "10.0.4.1", 80),
		at("mixed", "mixed-2", "mixed.example.com", 80),
		at("twice", "twice-1", "10.0.5.1", 81, weighing(2)),
		at("twice", "twice-2", "10.0.5.1", 82, weighing(2)),
	}
}

const (
	soaBlackhole = "blackhole. 5 IN SOA ns.blackhole. hostmaster.blackhole. 1 3600 600 86400 5"
	soaConsul    = "consul. 5 IN SOA ns.consul. hostmaster.consul. 1 3600 600 86400 5"
)

// golden is a question with the whole expected answer.
type golden struct {
	name   string
	qtype  uint16
	rcode  int
	answer []string
	extra  []string
}

func (g golden) soa() []string {
	switch {
	case g.rcode == dns.RcodeRefused || len(g.answer) > 0:
		return nil
	case dns.IsSubDomain("consul.", g.name):
		return []string{soaConsul}
	}
	return []string{soaBlackhole}
}

func (g golden) check(t *testing.T, b *fixture) {
	for _, m := range []*dns.Msg{question(g.name, g.qtype, 0), question(g.name, g.qtype, 4096)} {
		a := b.udp(m)
		require.Equal(t, dns.RcodeToString[g.rcode], dns.RcodeToString[a.Rcode])
		require.Equal(t, g.rcode != dns.RcodeRefused, a.Authoritative)
		require.False(t, a.Truncated)
		require.ElementsMatch(t, g.answer, lines(a.Answer))
		require.ElementsMatch(t, g.soa(), lines(a.Ns))
		require.ElementsMatch(t, g.extra, lines(a.Extra))
	}
}

func check(t *testing.T, list []golden) {
	b := newFixture(t)
	b.catalog.set(shop()...)
	for _, g := range list {
		t.Run(g.name+" "+dns.TypeToString[g.qtype], func(t *testing.T) { g.check(t, b) })
	}
}

func TestServiceAddresses(t *testing.T) {
	a := func(name, addr string) string { return name + " 30 IN A " + addr }
	check(t, []golden{
		{name: "web.service.blackhole.", qtype: dns.TypeA, answer: []string{a("web.service.blackhole.", "10.0.1.1"), a("web.service.blackhole.", "10.0.1.2")}},
		{name: "web.service.consul.", qtype: dns.TypeA, answer: []string{a("web.service.consul.", "10.0.1.1"), a("web.service.consul.", "10.0.1.2")}},
		{name: "web.service.blackhole.", qtype: dns.TypeAAAA, answer: []string{"web.service.blackhole. 30 IN AAAA 2001:db8::3"}},
		{name: "canary.web.service.consul.", qtype: dns.TypeA, answer: []string{a("canary.web.service.consul.", "10.0.1.1")}},
		{name: "v1.2.web.service.consul.", qtype: dns.TypeA, answer: []string{a("v1.2.web.service.consul.", "10.0.1.1")}},
		{name: "blue.web.service.consul.", qtype: dns.TypeAAAA, answer: []string{"blue.web.service.consul. 30 IN AAAA 2001:db8::3"}},
		{name: "web.service.us-east-1a.consul.", qtype: dns.TypeA, answer: []string{a("web.service.us-east-1a.consul.", "10.0.1.1")}},
		{name: "web.service.us-east-1a.zone.consul.", qtype: dns.TypeA, answer: []string{a("web.service.us-east-1a.zone.consul.", "10.0.1.1")}},
		{name: "web.service.us-east-1b.dc.consul.", qtype: dns.TypeA, answer: []string{a("web.service.us-east-1b.dc.consul.", "10.0.1.2")}},
		{name: "canary.web.service.us-east-1a.consul.", qtype: dns.TypeA, answer: []string{a("canary.web.service.us-east-1a.consul.", "10.0.1.1")}},
		{name: "web.service.prod.ns.blackhole.", qtype: dns.TypeA, answer: []string{a("web.service.prod.ns.blackhole.", "10.0.9.9")}},
		{name: "web.service.eu-1.prod.ns.blackhole.", qtype: dns.TypeA, answer: []string{a("web.service.eu-1.prod.ns.blackhole.", "10.0.9.9")}},
		{name: "web.service.eu-1.zone.prod.ns.blackhole.", qtype: dns.TypeA, answer: []string{a("web.service.eu-1.zone.prod.ns.blackhole.", "10.0.9.9")}},
		{name: "web.service.prod.ns.eu-1.dc.blackhole.", qtype: dns.TypeA, answer: []string{a("web.service.prod.ns.eu-1.dc.blackhole.", "10.0.9.9")}},
		{name: "service.service.blackhole.", qtype: dns.TypeA, answer: []string{a("service.service.blackhole.", "10.0.3.1")}},
		{name: "_web._tcp.service.blackhole.", qtype: dns.TypeA, answer: []string{a("_web._tcp.service.blackhole.", "10.0.1.1"), a("_web._tcp.service.blackhole.", "10.0.1.2")}},
		{name: "twice.service.blackhole.", qtype: dns.TypeA, answer: []string{a("twice.service.blackhole.", "10.0.5.1")}}, // RFC 2181, section 5
		{name: "mixed.service.blackhole.", qtype: dns.TypeA, answer: []string{a("mixed.service.blackhole.", "10.0.4.1")}}, // RFC 1034, section 3.6.2
		{name: "db.service.blackhole.", qtype: dns.TypeA, answer: []string{"db.service.blackhole. 0 IN CNAME db.example.com."}},
		{name: "db.service.blackhole.", qtype: dns.TypeAAAA, answer: []string{"db.service.blackhole. 0 IN CNAME db.example.com."}},
	})
}

// TestSpellings: DNS has no letter case, so a question finds a service however it is written, and two services that
// differ by case alone together. A name that is no label is not asked for and not listed.
func TestSpellings(t *testing.T) {
	b := newFixture(t)
	b.catalog.set(
		at("UserService", "u1", "10.0.1.1", 80), at("my_svc", "m1", "10.0.1.2", 80), at("_svc", "s1", "10.0.1.3", 80),
		at("com.acme.app", "c1", "10.0.1.4", 80), at("Web", "w1", "10.0.1.5", 80), at("web", "w2", "10.0.1.6", 80),
		at("Down", "d1", "10.0.1.7", 80, withStatus(instance.StatusDown)), at("portless", "p1", "10.0.1.8", 0),
	)
	addresses := func(name string) (all []string) {
		for range 2 { // the second answer may come from the cache
			all = nil
			for _, r := range b.udp(question(name, dns.TypeA, 0)).Answer {
				all = append(all, r.(*dns.A).A.String())
			}
		}
		slices.Sort(all)
		return all
	}
	for name, want := range map[string][]string{
		"UserService.service.consul.": {"10.0.1.1"}, "userservice.service.consul.": {"10.0.1.1"}, "_USERSERVICE._tcp.blackhole.": {"10.0.1.1"},
		"my_svc.service.consul.": {"10.0.1.2"}, "_my_svc._tcp.consul.": {"10.0.1.2"}, "_svc.service.consul.": {"10.0.1.3"}, "__svc._tcp.consul.": {"10.0.1.3"},
		"com.acme.app.service.consul.": nil, "web.service.consul.": {"10.0.1.5", "10.0.1.6"}, "portless.service.consul.": {"10.0.1.8"},
		"web.service.dc1.consul.": {"10.0.1.5", "10.0.1.6"}, "web.service.dc1.dc.consul.": {"10.0.1.5", "10.0.1.6"}, "web.service.dc2.consul.": nil,
		"web.service.dc1.zone.consul.": nil,
	} {
		require.Equal(t, want, addresses(name), name)
	}
	require.Equal(t, dns.RcodeSuccess, b.udp(question("down.service.consul.", dns.TypeA, 0)).Rcode, "it exists")
	none := b.udp(question("portless.service.consul.", dns.TypeSRV, 0))
	require.Empty(t, none.Answer)
	require.Equal(t, dns.RcodeSuccess, none.Rcode)
	b.catalog.set(at("web", "w2", "10.0.1.6", 80))
	require.Equal(t, []string{"10.0.1.6"}, addresses("web.service.consul."), "the other spelling is gone")
	b.catalog.set(at("WEB", "w3", "10.0.1.9", 80), at("web", "w2", "10.0.1.6", 80), at("a.b", "c", "10.0.1.6", 80))
	listed := lines(b.udp(question("_services._dns-sd._udp.consul.", dns.TypePTR, 0)).Answer)
	require.Len(t, listed, 1)
	require.Contains(t, strings.ToLower(listed[0]), "_web._tcp.consul.")
}

func TestServiceRecords(t *testing.T) {
	v6 := "20010db8000000000000000000000003.addr."
	check(t, []golden{
		{
			name: "_web._tcp.service.blackhole.", qtype: dns.TypeSRV,
			answer: []string{
				"_web._tcp.service.blackhole. 30 IN SRV 1 1 8080 0a000101.addr.blackhole.",
				"_web._tcp.service.blackhole. 30 IN SRV 1 3 8080 0a000102.addr.blackhole.",
				"_web._tcp.service.blackhole. 30 IN SRV 1 1 8443 " + v6 + "blackhole.",
			},
			extra: []string{
				"0a000101.addr.blackhole. 30 IN A 10.0.1.1", "0a000102.addr.blackhole. 30 IN A 10.0.1.2",
				v6 + "blackhole. 30 IN AAAA 2001:db8::3",
			},
		},
		{
			name: "_web._tcp.us-east-1a.consul.", qtype: dns.TypeSRV,
			answer: []string{"_web._tcp.us-east-1a.consul. 30 IN SRV 1 1 8080 0a000101.addr.consul."},
			extra:  []string{"0a000101.addr.consul. 30 IN A 10.0.1.1"},
		},
		{
			name: "_web._canary.service.consul.", qtype: dns.TypeSRV,
			answer: []string{"_web._canary.service.consul. 30 IN SRV 1 1 8080 0a000101.addr.consul."},
			extra:  []string{"0a000101.addr.consul. 30 IN A 10.0.1.1"},
		},
		{
			name: "_web._tcp.consul.", qtype: dns.TypeSRV, rcode: dns.RcodeSuccess,
			answer: []string{
				"_web._tcp.consul. 30 IN SRV 1 1 8080 0a000101.addr.consul.", "_web._tcp.consul. 30 IN SRV 1 3 8080 0a000102.addr.consul.",
				"_web._tcp.consul. 30 IN SRV 1 1 8443 " + v6 + "consul.",
			},
			extra: []string{
				"0a000101.addr.consul. 30 IN A 10.0.1.1", "0a000102.addr.consul. 30 IN A 10.0.1.2", v6 + "consul. 30 IN AAAA 2001:db8::3",
			},
		},
		{name: "db.service.consul.", qtype: dns.TypeSRV, answer: []string{"db.service.consul. 30 IN SRV 1 1 5432 db.example.com."}},
		{
			name: "twice.service.blackhole.", qtype: dns.TypeSRV, // one address beside two ports
			answer: []string{
				"twice.service.blackhole. 30 IN SRV 1 2 81 0a000501.addr.blackhole.", "twice.service.blackhole. 30 IN SRV 1 2 82 0a000501.addr.blackhole.",
			},
			extra: []string{"0a000501.addr.blackhole. 30 IN A 10.0.5.1"},
		},
		{
			name: "canary.web.service.consul.", qtype: dns.TypeTXT,
			answer: []string{`canary.web.service.consul. 30 IN TXT "id=web-1" "zone=us-east-1a" "tags=canary,v1.2"`},
		},
		{
			name: "cli.service.consul.", qtype: dns.TypeTXT,
			answer: []string{`cli.service.consul. 30 IN TXT "id=cli-1" "interfaces.CLI=cli://x" "beta=true" "quote=a\"b\\c" "zone=us-east-1a"`},
		},
		{name: "cli.service.consul.", qtype: dns.TypeSRV},
		{name: "cli.service.consul.", qtype: dns.TypeA},
		{name: "beta.cli.service.consul.", qtype: dns.TypeA},
		{name: "web.service.consul.", qtype: dns.TypeANY, answer: []string{`web.service.consul. 30 IN HINFO "RFC8482" ""`}},
	})
}

func TestNodesAndDomains(t *testing.T) {
	check(t, []golden{
		{name: "n1.node.consul.", qtype: dns.TypeA, answer: []string{"n1.node.consul. 30 IN A 10.0.0.1"}},
		{name: "n1.node.consul.", qtype: dns.TypeAAAA, answer: []string{"n1.node.consul. 30 IN AAAA fd00::1"}},
		{name: "n1.node.consul.", qtype: dns.TypeTXT, answer: []string{`n1.node.consul. 30 IN TXT "os=linux"`}},
		{name: "n1.node.consul.", qtype: dns.TypeSRV},
		{name: "n1.node.consul.", qtype: dns.TypeANY, answer: []string{`n1.node.consul. 30 IN HINFO "RFC8482" ""`}},
		{name: "n1.node.eu-1.dc.consul.", qtype: dns.TypeA, answer: []string{"n1.node.eu-1.dc.consul. 30 IN A 10.0.0.1"}},
		{name: "n1.node.eu-2.dc.consul.", qtype: dns.TypeA, rcode: dns.RcodeNameError},
		{name: "n2.node.consul.", qtype: dns.TypeAAAA},
		{name: "n3.node.consul.", qtype: dns.TypeA, rcode: dns.RcodeNameError},
		{name: "0a000101.addr.consul.", qtype: dns.TypeA, answer: []string{"0a000101.addr.consul. 30 IN A 10.0.1.1"}},
		{name: "0a000101.addr.consul.", qtype: dns.TypeAAAA},
		{name: "20010db8000000000000000000000003.addr.consul.", qtype: dns.TypeAAAA, answer: []string{"20010db8000000000000000000000003.addr.consul. 30 IN AAAA 2001:db8::3"}},
		{name: "00000000000000000000ffff0a000101.addr.consul.", qtype: dns.TypeAAAA, rcode: dns.RcodeNameError},
		{name: "00000000.addr.consul.", qtype: dns.TypeA, rcode: dns.RcodeNameError},
		{name: "0a00010.addr.consul.", qtype: dns.TypeA, rcode: dns.RcodeNameError},
		{name: "+a000101.addr.consul.", qtype: dns.TypeA, rcode: dns.RcodeNameError},
		{name: "consul.", qtype: dns.TypeSOA, answer: []string{soaConsul}},
		{name: "consul.", qtype: dns.TypeNS, answer: []string{"consul. 30 IN NS ns.consul."}},
		{name: "consul.", qtype: dns.TypeA},
		{name: "ns.consul.", qtype: dns.TypeA, answer: []string{"ns.consul. 30 IN A 10.0.0.1"}},
		{name: "web.service.consul.", qtype: dns.TypeSOA},
	})
}

// TestAbsence checks the difference between "no such name" and "no such record", which caches and
// search lists depend on.
func TestAbsence(t *testing.T) {
	for name, rcode := range map[string]int{
		"idle.service.consul.":              dns.RcodeSuccess, // registered, not UP
		"broken.web.service.consul.":        dns.RcodeSuccess,
		"nobody.service.consul.":            dns.RcodeNameError,
		"a_b.service.consul.":               dns.RcodeNameError, // no service can have the name
		"ghost.web.service.consul.":         dns.RcodeNameError, // a tag of nobody
		"web.service.us-west-9.consul.":     dns.RcodeNameError, // a zone of nobody
		"web.service.nobody.ns.consul.":     dns.RcodeNameError,
		"web.service.us-east-1a.x.consul.":  dns.RcodeNameError, // invented words
		"web.invented.service.x.y.consul.":  dns.RcodeNameError,
		"web.invented.consul.":              dns.RcodeNameError,
		"invented.consul.":                  dns.RcodeNameError,
		"web.service.a.zone.b.zone.consul.": dns.RcodeNameError,
		"n1.node.prod.ns.consul.":           dns.RcodeNameError,
		"a.n1.node.consul.":                 dns.RcodeNameError,
		"_web.service.consul.":              dns.RcodeNameError,
		"_web._.service.consul.":            dns.RcodeNameError,
		"_web._ghost.service.consul.":       dns.RcodeNameError,
		"x._web._tcp.service.consul.":       dns.RcodeNameError,
		"we_b.service.consul.":              dns.RcodeNameError,
		"service.consul.":                   dns.RcodeSuccess, // names above names
		"node.consul.":                      dns.RcodeSuccess,
		"addr.consul.":                      dns.RcodeSuccess,
		"zone.consul.":                      dns.RcodeSuccess,
		"dc.consul.":                        dns.RcodeSuccess,
		"_tcp.service.consul.":              dns.RcodeSuccess,
		"_tcp.consul.":                      dns.RcodeSuccess,
		"us-east-1a.consul.":                dns.RcodeSuccess,
		"service.us-east-1a.consul.":        dns.RcodeSuccess,
		"us-east-1a.zone.consul.":           dns.RcodeSuccess,
		"prod.ns.consul.":                   dns.RcodeSuccess,
		"service.prod.ns.consul.":           dns.RcodeSuccess,
		"eu-1.prod.ns.consul.":              dns.RcodeSuccess,
		"default.ns.consul.":                dns.RcodeSuccess,
		"2.web.service.consul.":             dns.RcodeSuccess, // above the tag v1.2
		"eu-1.consul.":                      dns.RcodeNameError,
		"nobody.ns.consul.":                 dns.RcodeNameError,
		"service.nobody.ns.consul.":         dns.RcodeNameError,
	} {
		check(t, []golden{{name: name, qtype: dns.TypeA, rcode: rcode}, {name: name, qtype: dns.TypeANY, rcode: rcode}})
	}
}

func TestNotOurs(t *testing.T) {
	var list []golden
	for _, name := range []string{".", "com.", "example.com.", "xconsul.", "web.service.xconsul.", "consul.example.", "1.0.0.127.in-addr.arpa."} {
		list = append(list, golden{name: name, qtype: dns.TypeA, rcode: dns.RcodeRefused})
	}
	check(t, list)
}

// TestServiceDiscovery browses as a client of DNS-SD does (RFC 6763): the types, the instances of a type, and what an instance is.
func TestServiceDiscovery(t *testing.T) {
	ptr := func(name string, targets ...string) golden {
		g := golden{name: name, qtype: dns.TypePTR}
		for _, target := range targets {
			g.answer = append(g.answer, name+" 30 IN PTR "+target)
		}
		return g
	}
	one := func(name string, qtype uint16, data ...string) golden {
		g := golden{name: name, qtype: qtype}
		for _, d := range data {
			g.answer = append(g.answer, name+" 30 IN "+dns.TypeToString[qtype]+" "+d)
		}
		return g
	}
	srv := one("WEB-2._web._tcp.blackhole.", dns.TypeSRV, "1 3 8080 0a000102.addr.blackhole.")
	srv.extra = []string{"0a000102.addr.blackhole. 30 IN A 10.0.1.2"}
	absent := golden{name: "web-7._web._tcp.blackhole.", qtype: dns.TypeSRV, rcode: dns.RcodeNameError}
	unknown := golden{name: "_b._dns-sd._udp.blackhole.", qtype: dns.TypePTR, rcode: dns.RcodeNameError}
	check(t, []golden{
		ptr("_services._dns-sd._udp.prod.ns.blackhole.", "_web._tcp.prod.ns.blackhole."),
		ptr("_services._dns-sd._udp.blackhole.", "_cli._tcp.blackhole.", "_db._tcp.blackhole.", "_idle._tcp.blackhole.", "_mixed._tcp.blackhole.",
			"_service._tcp.blackhole.", "_twice._tcp.blackhole.", "_web._tcp.blackhole."),
		ptr("_web._tcp.blackhole.", "web-1._web._tcp.blackhole.", "web-2._web._tcp.blackhole.", "web-3._web._tcp.blackhole."),
		ptr("_web._tcp.us-east-1a.consul.", "web-1._web._tcp.us-east-1a.consul."),
		srv,
		one("web-2._web._tcp.blackhole.", dns.TypeTXT, `"id=web-2" "zone=us-east-1b"`),
		one("web-1._web._tcp.blackhole.", dns.TypeA, "10.0.1.1"),
		{name: "web-4._web._tcp.blackhole.", qtype: dns.TypeSRV}, // DOWN
		absent, unknown,
		{name: "_dns-sd._udp.blackhole.", qtype: dns.TypePTR},
		{name: "web.service.blackhole.", qtype: dns.TypePTR},
	})
}
