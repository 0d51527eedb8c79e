package dnsapi

import (
	"bytes"
	"cmp"
	"slices"
	"time"

	"github.com/miekg/dns"

	"github.com/blackhole/blackhole/pkg/fault"
)

// Times of the SOA in seconds (RFC 1912, section 2.2). They concern secondary servers, which do not exist.
const (
	soaRefresh = 3600
	soaRetry   = 600
	soaExpire  = 86400
)

// zone is a served domain with its fixed records.
type zone struct {
	wire    []byte // name of the domain
	soa     record // with the TTL of absences
	ns      record
	minimal record // the answer to ANY (RFC 8482, section 4.2)
}

// newZones packs the domains, longest first, so that the first match of a name is the right one.
func newZones(domains []string) ([]*zone, error) {
	zones := make([]*zone, 0, len(domains))
	for _, d := range domains {
		z, err := newZone(d, uint32(negativeTTL/time.Second))
		if err != nil {
			return nil, fault.In("domains", err)
		}
		zones = append(zones, z)
	}
	slices.SortStableFunc(zones, func(a, b *zone) int { return cmp.Compare(len(b.wire), len(a.wire)) })
	return zones, nil
}

func newZone(domain string, negative uint32) (*zone, error) {
	z := &zone{}
	var err error
	if z.wire, err = packName(domain); err != nil {
		return nil, err
	}
	header := func(t uint16, ttl uint32) dns.RR_Header {
		return dns.RR_Header{Name: ".", Rrtype: t, Class: dns.ClassINET, Ttl: ttl}
	}
	soa := &dns.SOA{
		Hdr: header(dns.TypeSOA, negative), Ns: labelNamespace + "." + domain, Mbox: "hostmaster." + domain,
		Serial: 1, Refresh: soaRefresh, Retry: soaRetry, Expire: soaExpire, Minttl: negative,
	}
	if z.soa, err = packRecord(soa); err != nil {
		return nil, err
	}
	if z.ns, err = packRecord(&dns.NS{Hdr: header(dns.TypeNS, 0), Ns: labelNamespace + "." + domain}); err != nil {
		return nil, err
	}
	if z.minimal, err = packRecord(&dns.HINFO{Hdr: header(dns.TypeHINFO, 0), Cpu: "RFC8482"}); err != nil {
		return nil, err
	}
	return z, nil
}

// packRecord packs a record and replaces its owner, the root, by a pointer to the question.
func packRecord(rr dns.RR) (record, error) {
	buf := make([]byte, dns.Len(rr)+maxName)
	n, err := dns.PackRR(rr, buf, 0, nil, false)
	if err != nil {
		return record{}, fault.As("dnsapi.packRecord", fault.Invalid, err)
	}
	return record{wire: append(slices.Clone(questionPointer()), buf[1:n]...)}, nil
}

// packName packs a fully qualified name without compression.
func packName(text string) ([]byte, error) {
	buf := make([]byte, maxName)
	n, err := dns.PackDomainName(text, buf, 0, nil, false)
	if err != nil {
		return nil, fault.As("dnsapi.packName", fault.Invalid, err)
	}
	return buf[:n], nil
}

// questionPointer returns a pointer to the name of the question.
func questionPointer() []byte { return []byte{0xC0, headerSize} }

// find returns the zone of a lower-case name and the labels in front of it, or nil for names outside the
// domains.
func find(zones []*zone, wire []byte) (*zone, []string) {
	for _, z := range zones {
		if labels, ok := z.below(wire); ok {
			return z, labels
		}
	}
	return nil, nil
}

func (z *zone) below(wire []byte) (labels []string, ok bool) {
	if !bytes.HasSuffix(wire, z.wire) {
		return nil, false
	}
	end := len(wire) - len(z.wire)
	at := 0
	for at < end {
		at += 1 + int(wire[at])
	}
	if at != end { // the suffix begins inside a label
		return nil, false
	}
	for at = 0; at < end; {
		n := int(wire[at])
		labels = append(labels, string(wire[at+1:at+1+n]))
		at += 1 + n
	}
	return labels, true
}
