package dnsapi

import (
	"encoding/binary"
	"net/netip"

	"github.com/miekg/dns"
)

// Offsets in a record with a pointer as its owner.
const (
	ttlAt  = 6
	dataAt = 12
)

// record is a packed record of an answer. Its owner is a pointer to the question.
type record struct {
	wire   []byte
	weight int // in the draw of the order

	target int // offset of the target of an SRV record; 0 for other types
	extra  int // 1 + index of its additional record; 0 means none
}

// start begins a record of a type.
func start(buf []byte, qtype uint16) []byte {
	buf = append(buf, questionPointer()...)
	buf = binary.BigEndian.AppendUint16(buf, qtype)
	buf = binary.BigEndian.AppendUint16(buf, dns.ClassINET)
	return append(buf, 0, 0, 0, 0, 0, 0) // TTL and length
}

// finish sets the length of the data of the record in buf.
func finish(buf []byte) []byte {
	binary.BigEndian.PutUint16(buf[dataAt-2:], uint16(len(buf)-dataAt))
	return buf
}

// addressType returns the type of the records of an address.
func addressType(a netip.Addr) uint16 {
	if a.Is4() {
		return dns.TypeA
	}
	return dns.TypeAAAA
}

func addressRecord(a netip.Addr, weight int) record {
	return record{wire: finish(append(start(nil, addressType(a)), a.AsSlice()...)), weight: weight}
}

// serviceRecord makes an SRV record. Its target must not be compressed (RFC 2782).
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

// maxLabel is the length of the longest label.
const maxLabel = 63

// instanceRecord makes the PTR record of an instance for a question about _SERVICE._tcp: its id before that name. The id keeps its case.
func instanceRecord(id string) record {
	b := append(append(start(nil, dns.TypePTR), byte(len(id))), id...)
	return record{wire: finish(append(b, questionPointer()...)), weight: 1}
}

// serviceTypeRecord makes the PTR record of a service for a question about _services._dns-sd._udp: _SERVICE._tcp before what follows
// these labels.
func serviceTypeRecord(service string) record {
	b := append(append(start(nil, dns.TypePTR), byte(1+len(service)), '_'), service...)
	b = append(append(b, byte(len(labelTCP))), labelTCP...)
	return record{wire: finish(append(b, 0xC0, byte(headerSize+len("._services._dns-sd._udp")))), weight: 1}
}

// textRecord makes a TXT record of the texts that fit: at most 255 bytes each and maxText in all. TXT
// needs at least one string, so without a text it has an empty one.
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

// maxText bounds the data of a TXT record: 1300 bytes fit into a packet (RFC 6763, section 6.2).
const maxText = 1024
