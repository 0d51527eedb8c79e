package dnsapi

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/require"
)

// FuzzPacket: no packet causes a panic, and another implementation can read each answer. An answer
// fits the limit, repeats the question, and without records is hardly longer than the packet.
func FuzzPacket(f *testing.F) {
	b := newFixture(f)
	b.catalog.set(append(shop(), crowd(40)...)...)
	for _, name := range []string{
		"web.service.consul.", "_web._tcp.service.blackhole.", "canary.web.service.us-east-1a.consul.", "db.service.consul.",
		"n1.node.consul.", "0a000101.addr.consul.", "ns.consul.", "consul.", "nobody.service.prod.ns.consul.", "example.com.",
	} {
		for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeSRV, dns.TypeTXT, dns.TypeANY, dns.TypeSOA, dns.TypeIXFR} {
			m := question(name, qtype, 1232)
			raw, err := m.Pack()
			require.NoError(f, err)
			f.Add(raw, true)
			f.Add(raw[:len(raw)-11], false)
		}
	}
	f.Fuzz(func(t *testing.T, raw []byte, udp bool) {
		b.t = t
		front := []byte{7, 7}
		out := b.r.respond(front, raw, loopback(), udp)
		require.Equal(t, front, out[:2])
		out = out[2:]
		if len(out) == 0 {
			require.True(t, len(raw) < headerSize || raw[2]&0x80 != 0)
			return
		}
		limit := maxMessage
		if udp {
			limit = b.r.query.size
		}
		require.LessOrEqual(t, len(out), limit)
		a := new(dns.Msg)
		require.NoError(t, a.Unpack(out))
		require.Equal(t, raw[:2], out[:2])
		require.True(t, a.Response)
		if len(a.Question) > 0 {
			n := headerSize + len(b.r.query.question)
			require.Equal(t, raw[headerSize:n], out[headerSize:n])
		}
		if len(a.Answer)+len(a.Ns) == 0 {
			require.LessOrEqual(t, len(out), len(raw)+errorSize+maxErrorText)
		}
		theirs := new(dns.Msg)
		if theirs.Unpack(raw) == nil && a.Rcode == dns.RcodeFormatError {
			// The library accepts some malformed messages: wrong counts, missing parts, names that point into
			// the header.
			pointer := func(r byte) bool { return r >= 0xC0 }
			wellFormed := len(theirs.Question) == 1 && raw[5] == 1 && raw[4] == 0 && binary.BigEndian.Uint32(raw[6:]) == 0 &&
				raw[10] == 0 && int(raw[11]) == len(theirs.Extra) && len(theirs.Extra) <= maxAfter &&
				theirs.IsEdns0() == nil && theirs.Len() <= len(raw) && !slices.ContainsFunc(raw[headerSize:], pointer)
			require.False(t, wellFormed, "a question that others read: %v", theirs)
		}
	})
}

// FuzzName: labels never cause a panic, and a parsed name has the parts of its form.
func FuzzName(f *testing.F) {
	for _, name := range []string{"web.service", "a.b.web.service.z.ns", "_web._tcp", "_tcp", "zone", "ns.ns", "x.zone.y.ns", "my_svc.service.dc1", "web.service.dc1.dc", "n.node", "0a.addr"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, text string) {
		labels := dns.SplitDomainName(dns.CanonicalName(text))
		for _, l := range labels {
			if l == "" {
				return
			}
		}
		n := parseName(labels)
		switch n.form {
		case formService:
			require.True(t, isService(n.label))
			require.True(t, isPlain(n.inNamespace()))
		case formNode, formAddr:
			require.NotEmpty(t, n.label)
		}
		require.True(t, n.zone == "" || isPlain(n.zone))
	})
}

// TestAmplification: the most that a packet over UDP can be made into, for the documentation of the limits.
func TestAmplification(t *testing.T) {
	b := newFixture(t)
	b.catalog.set(crowd(300)...)
	for name, most := range map[string]float64{
		"web.service.consul.": 30, "nobody.service.consul.": 3, "consul.": 3, "example.com.": 1, "n1.node.consul.": 3,
	} {
		for _, qtype := range []uint16{dns.TypeA, dns.TypeSRV, dns.TypeTXT, dns.TypeANY} {
			m := question(name, qtype, 4096)
			raw, err := m.Pack()
			require.NoError(t, err)
			out := b.r.respond(nil, raw, loopback(), true)
			require.LessOrEqual(t, float64(len(out))/float64(len(raw)), most, "%s %s", name, dns.TypeToString[qtype])
		}
	}
}
