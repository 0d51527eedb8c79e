package dnsapi

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/miekg/dns"

	"github.com/blackhole/blackhole/pkg/instance"
)

// picks reports whether an instance matches a name. A tag is a tag of the instance, key:value of its
// metadata, or a key with the value "true", as in package instance, but without regard to case.
func (n name) picks(i *instance.Instance) bool {
	return n.inZone(i) && (n.id == "" || strings.EqualFold(i.ID, n.id)) && (n.tag == "" || hasTag(i, func(tag string) bool { return strings.EqualFold(tag, n.tag) }))
}

// inZone reports whether an instance matches the zone of a name.
func (n name) inZone(i *instance.Instance) bool {
	return n.zone == "" || strings.EqualFold(i.Zone(), n.zone)
}

// above reports whether an instance has a longer name below this one: the name with a longer tag.
func (n name) above(i *instance.Instance) bool {
	return n.id == "" && n.inZone(i) && hasTag(i, func(tag string) bool {
		front := len(tag) - len(n.tag) - 1
		return front > 0 && tag[front] == '.' && strings.EqualFold(tag[front+1:], n.tag)
	})
}

// hasTag reports whether an instance has a wanted tag.
func hasTag(i *instance.Instance, wanted func(string) bool) bool {
	if slices.ContainsFunc(i.Spec.Tags, wanted) {
		return true
	}
	for k, v := range i.Spec.Metadata {
		if v == "true" && wanted(k) || wanted(k+":"+v) {
			return true
		}
	}
	return false
}

// service builds the answer about instances to a question of one type.
type service struct {
	rule    *addressRule
	zone    *zone
	answer  *answer
	seen    map[string]int // index of each record by its bytes
	extras  map[netip.Addr]int
	withIPs bool // some host is an address, withheld or not
	browsed bool // the question may be for the names of instances
}

// newService packs the records of a type. Equal records become one, with the sum of their weights in
// the draw, because a set of records has no duplicates (RFC 2181, section 5).
func newService(rule *addressRule, z *zone, n name, list []*instance.Instance, qtype uint16) *answer {
	s := &service{
		rule: rule, zone: z, browsed: n.browsed, answer: &answer{zone: z},
		seen: make(map[string]int), extras: make(map[netip.Addr]int),
	}
	if qtype == dns.TypeANY {
		s.put(z.minimal)
	}
	for _, i := range list {
		s.add(i, qtype)
	}
	isHost := qtype == dns.TypeA || qtype == dns.TypeAAAA || qtype == dns.TypeCNAME
	if isHost && !s.withIPs {
		for _, i := range list {
			s.addAlias(i)
		}
		s.answer.one = true
	}
	a := s.answer
	a.uniform = !slices.ContainsFunc(a.records, func(r record) bool { return r.weight != a.records[0].weight })
	if len(a.records) == 0 {
		a.soa = true
	}
	return a
}

func (s *service) add(i *instance.Instance, qtype uint16) {
	addr, err := netip.ParseAddr(i.Spec.Host)
	addr = addr.Unmap()
	s.withIPs = s.withIPs || err == nil
	switch {
	case qtype == dns.TypeTXT:
		s.put(textRecord(i.Texts()))
	case qtype == dns.TypePTR:
		if s.browsed && len(i.ID) <= maxLabel {
			s.put(instanceRecord(i.ID))
		}
	case qtype == dns.TypeSRV && i.Spec.Port > 0:
		s.addService(i, addr)
	case err != nil || qtype != addressType(addr):
	case !s.rule.mayBe(i, addr):
		s.withhold()
	default:
		s.put(addressRecord(addr, weight(i)))
	}
}

// addService adds an SRV record. Its target is the host, if that is a name, or otherwise the name that
// spells the address, with the address as an additional record.
func (s *service) addService(i *instance.Instance, addr netip.Addr) {
	if !addr.IsValid() {
		if target, ok := s.alias(i); ok {
			s.put(serviceRecord(weight(i), i.Spec.Port, target))
		}
		return
	}
	if !s.rule.mayBe(i, addr) {
		s.withhold()
		return
	}
	r := serviceRecord(weight(i), i.Spec.Port, addressName(addr, s.zone))
	extra, ok := s.extras[addr]
	if !ok {
		s.answer.extras = append(s.answer.extras, addressRecord(addr, 0).wire[2:])
		extra = len(s.answer.extras)
		s.extras[addr] = extra
	}
	r.extra = extra
	s.put(r)
}

func (s *service) addAlias(i *instance.Instance) {
	if target, ok := s.alias(i); ok {
		s.put(aliasRecord(target, weight(i)))
	}
}

// alias packs the host of an instance if it is a name.
func (s *service) alias(i *instance.Instance) ([]byte, bool) {
	if i.Spec.Host == "" || strings.ContainsAny(i.Spec.Host, `\ `) {
		return nil, false
	}
	if !s.rule.mayBeNamed(i, i.Spec.Host) {
		s.withhold()
		return nil, false
	}
	wire, err := packName(dns.Fqdn(i.Spec.Host))
	return wire, err == nil
}

// withhold marks the answer as incomplete: an instance exists, but its host is not public.
func (s *service) withhold() {
	s.answer.extended = extendedError{code: dns.ExtendedErrorCodeBlocked, text: "address of another peer is not public", set: true}
}

func (s *service) put(r record) {
	// SRV records contain their weight, so equal records have equal weights.
	if at, ok := s.seen[string(r.wire)]; ok {
		s.answer.records[at].weight += r.weight
		return
	}
	s.seen[string(r.wire)] = len(s.answer.records)
	s.answer.records = append(s.answer.records, r)
}

func weight(i *instance.Instance) int { return max(i.Spec.Weight, instance.DefaultWeight) }

// addressName returns the name of an address, HEX.addr.D, in wire format.
func addressName(a netip.Addr, z *zone) []byte {
	const digits = "0123456789abcdef"
	raw := a.AsSlice()
	b := []byte{byte(2 * len(raw))}
	for _, c := range raw {
		b = append(b, digits[c>>4], digits[c&0xF])
	}
	b = append(append(b, byte(len(labelAddr))), labelAddr...)
	return append(b, z.wire...)
}

// parseAddress reads the first label of the name of an address.
func parseAddress(label string) (netip.Addr, bool) {
	if len(label) != 8 && len(label) != 32 {
		return netip.Addr{}, false
	}
	raw := make([]byte, 0, 16)
	for at := 0; at < len(label); at += 2 {
		b, err := strconv.ParseUint(label[at:at+2], 16, 8)
		if err != nil {
			return netip.Addr{}, false
		}
		raw = append(raw, byte(b))
	}
	a, ok := netip.AddrFromSlice(raw)
	return a, ok && !a.Is4In6() && connectable(a)
}
