package dnsapi

import (
	"fmt"
	"testing"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/require"
)

// BenchmarkRespond is an answer without the system's part: 10 and 1,000 instances, EDNS.
func BenchmarkRespond(b *testing.B) {
	for _, n := range []int{10, 1000} {
		for _, qtype := range []uint16{dns.TypeA, dns.TypeSRV} {
			for _, weights := range []int{1, 10} {
				b.Run(fmt.Sprintf("%s/instances=%d/weights=%d", dns.TypeToString[qtype], n, weights), func(b *testing.B) {
					s := newFixture(b)
					list := crowd(n)
					for k, i := range list {
						i.Spec.Weight = 1 + k%weights
					}
					s.catalog.set(list...)
					raw, err := question("web.service.consul.", qtype, 4096).Pack()
					require.NoError(b, err)
					out := s.r.respond(nil, raw, loopback(), true)
					b.ReportAllocs()
					for b.Loop() {
						out = s.r.respond(out[:0], raw, loopback(), true)
					}
				})
			}
		}
	}
}

// BenchmarkAbsent asks for a name that does not exist.
func BenchmarkAbsent(b *testing.B) {
	s := newFixture(b)
	s.catalog.set(crowd(10)...)
	raw, err := question("nobody.service.consul.", dns.TypeA, 4096).Pack()
	require.NoError(b, err)
	var out []byte
	b.ReportAllocs()
	for b.Loop() {
		out = s.r.respond(out[:0], raw, loopback(), true)
	}
}
