package dnsapi

import (
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/miekg/dns"

	"github.com/blackhole/blackhole/pkg/instance"
)

// picks tells whether a name asks for an instance. Tags are compared as package instance does it, a
// tag, key:value of the metadata, or a key that is "true", but without case, which names do not keep.
func (n name) picks(i *instance.Instance) bool {
	return n.inZone(i) && (n.tag == "" || hasTag(i, func(tag string) bool { return strings.EqualFold(tag, n.tag) }))
}

// inZone tells whether an instance is in the zone that is asked for.
func (n name) inZone(i *instance.Instance) bool {
	return n.zone == "" || strings.EqualFold(zoneOf(i), n.zone)
}

// above tells whether an instance has a name that ends in this one: that of a longer tag.
func (n name) above(i *instance.Instance) bool {
	return n.inZone(i) && hasTag(i, func(tag string) bool {
		front := len(tag) - len(n.tag) - 1
		return front > 0 && tag[front] == '.' && strings.EqualFold(tag[front+1:], n.tag)
	})
}

func zoneOf(i *instance.Instance) string {
	if i.Zone != "" {
		return i.Zone
	}
	return i.Metadata[labelZone]
}

// hasTag tells whether any of what counts as a tag of an instance is one that is wanted.
func hasTag(i *instance.Instance, wanted func(string) bool) bool {
	if slices.ContainsFunc(i.Tags, wanted) {
		return true
	}
	for k, v := range i.Metadata {
		if v == "true" && wanted(k) || wanted(k+":"+v) {
			return true
		}
	}
	return false
}

// service builds the answer about instances to a question of a type.
type service struct {
	rule    *addressRule
	zone    *zone
	answer  *answer
	seen    map[string]int // what records say, to their index
	extras  map[netip.Addr]int
	withIPs bool // some host is an address, be it one to be told or not
}

// newService packs the records of a type. Two that say the same are one, with the weight of both in the
// draw: a set of records has no doubles (RFC 2181, section 5).
func newService(rule *addressRule, z *zone, list []*instance.Instance, qtype uint16) *answer {
	s := &service{
		rule: rule, zone: z, answer: &answer{zone: z},
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
	addr, err := netip.ParseAddr(i.Host)
	addr = addr.Unmap()
	s.withIPs = s.withIPs || err == nil
	switch {
	case qtype == dns.TypeTXT:
		s.put(textRecord(texts(i)))
	case qtype == dns.TypeSRV && i.Port > 0:
		s.addService(i, addr)
	case err != nil || qtype != addressType(addr):
	case !s.rule.mayBe(i, addr):
		s.withhold()
	default:
		s.put(addressRecord(addr, weight(i)))
	}
}

// addService adds an SRV record. Its target is the host where that is a name, and else a name that has
// the address in it and so no other, with the address beside it.
func (s *service) addService(i *instance.Instance, addr netip.Addr) {
	if !addr.IsValid() {
		if target, ok := s.alias(i); ok {
			s.put(serviceRecord(weight(i), i.Port, target))
		}
		return
	}
	if !s.rule.mayBe(i, addr) {
		s.withhold()
		return
	}
	r := serviceRecord(weight(i), i.Port, addressName(addr, s.zone))
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

// alias packs the host of an instance where that is a name.
func (s *service) alias(i *instance.Instance) ([]byte, bool) {
	if i.Host == "" || strings.ContainsAny(i.Host, `\ `) {
		return nil, false
	}
	if !s.rule.mayBeNamed(i, i.Host) {
		s.withhold()
		return nil, false
	}
	wire, err := packName(dns.Fqdn(i.Host))
	return wire, err == nil
}

// withhold notes that an instance is there that is not told of.
func (s *service) withhold() {
	s.answer.note = extendedError{code: dns.ExtendedErrorCodeBlocked, text: "address of another peer is not public", set: true}
}

func (s *service) put(r record) {
	// The weight of an SRV record is in its data, so that only equal ones are doubles.
	if at, ok := s.seen[string(r.wire)]; ok {
		s.answer.records[at].weight += r.weight
		return
	}
	s.seen[string(r.wire)] = len(s.answer.records)
	s.answer.records = append(s.answer.records, r)
}

func weight(i *instance.Instance) int { return max(i.Weight, instance.DefaultWeight) }

// addressName is the name of an address, in the wire format.
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

// texts describe an instance, key=value (RFC 6763, section 6): what the other records do not say, and
// then the metadata.
func texts(i *instance.Instance) []string {
	list := []string{"id=" + i.ID}
	for _, t := range [][2]string{
		{"version", i.Version}, {"environment", i.Environment}, {"region", i.Region}, {labelZone, i.Zone},
		{"tags", strings.Join(i.Tags, ",")},
	} {
		if t[1] != "" {
			list = append(list, t[0]+"="+t[1])
		}
	}
	for _, k := range slices.Sorted(maps.Keys(i.Interfaces)) {
		list = append(list, "interfaces."+k+"="+i.Interfaces[k])
	}
	for _, k := range slices.Sorted(maps.Keys(i.Metadata)) {
		list = append(list, k+"="+i.Metadata[k])
	}
	return list
}
