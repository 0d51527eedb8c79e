package dnsapi

import (
	"encoding/binary"
	"net/netip"

	"github.com/miekg/dns"
)

// Offsets in a record whose owner is a pointer.
const (
	ttlAt  = 6
	dataAt = 12
)

// record is a packed record of an answer. Its owner is a pointer to the question.
type record struct {
	wire   []byte
	weight int // in the draw of the order

	target int // where in wire the target of an SRV record starts; 0: it is none
	extra  int // 1 + the index of the additional record that goes with it; 0: none
}

// start begins a record of a type.
func start(buf []byte, qtype uint16) []byte {
	buf = append(buf, questionPointer()...)
	buf = binary.BigEndian.AppendUint16(buf, qtype)
	buf = binary.BigEndian.AppendUint16(buf, dns.ClassINET)
	return append(buf, 0, 0, 0, 0, 0, 0) // TTL and length
}

// finish writes the length of the data of a record that begins buf.
func finish(buf []byte) []byte {
	binary.BigEndian.PutUint16(buf[dataAt-2:], uint16(len(buf)-dataAt))
	return buf
}

// addressType is that of the records that hold an address.
func addressType(a netip.Addr) uint16 {
	if a.Is4() {
		return dns.TypeA
	}
	return dns.TypeAAAA
}

func addressRecord(a netip.Addr, weight int) record {
	return record{wire: finish(append(start(nil, addressType(a)), a.AsSlice()...)), weight: weight}
}

// serviceRecord is an SRV record (RFC 2782), whose target must not be compressed.
func serviceRecord(weight, port int, target []byte) record {
	b := start(nil, dns.TypeSRV)
	b = binary.BigEndian.AppendUint16(b, 1) // all have the same priority
	b = binary.BigEndian.AppendUint16(b, uint16(weight))
	b = binary.BigEndian.AppendUint16(b, uint16(port))
	at := len(b)
	return record{wire: finish(append(b, target...)), weight: weight, target: at}
}

func aliasRecord(target []byte, weight int) record {
	return record{wire: finish(append(start(nil, dns.TypeCNAME), target...)), weight: weight}
}

// textRecord has those of texts that fit: each a string, which has at most 255 bytes, all together
// maxText. One that is empty is written when there are none, for there must be one.
func textRecord(texts []string) record {
	b := start(nil, dns.TypeTXT)
	for _, t := range texts {
		if len(t) > 255 || len(b)-dataAt+1+len(t) > maxText {
			continue
		}
		b = append(append(b, byte(len(t))), t...)
	}
	if len(b) == dataAt {
		b = append(b, 0)
	}
	return record{wire: finish(b), weight: 1}
}

// maxText bounds the data of a TXT record (RFC 6763, section 6.2: 1300 fits into a packet).
const maxText = 1024
