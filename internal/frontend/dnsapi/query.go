package dnsapi

import (
	"encoding/binary"

	"github.com/miekg/dns"
)

// Sizes of the wire format (RFC 1035, section 4; RFC 6891).
const (
	headerSize  = 12
	minUDP      = 512  // accepted by every client
	maxUDP      = 1232 // our limit in both directions: no path fragments it
	maxMessage  = 65535
	maxName     = 255
	maxPointer  = 1<<14 - 1
	optSize     = 11
	maxAfter    = 4       // records after the question searched for OPT
	labelPoints = 1 << 14 // a pair of bytes from here on is a pointer
)

// Bits of the second pair of bytes of a header.
const (
	bitQR = 1 << 15
	bitAA = 1 << 10
	bitTC = 1 << 9
	bitRD = 1 << 8
	bitCD = 1 << 4

	opcodeShift = 11
	opcodeMask  = 0xF << opcodeShift
)

// query is a parsed question. Its slices point into the packet and into itself, so they are valid until
// the next parse.
type query struct {
	id       uint16
	bits     uint16
	question []byte // bytes of name, type and class; empty if unreadable
	qtype    uint16
	qclass   uint16

	edns bool
	do   bool
	size int // largest answer over UDP that the client accepts

	key    [maxName + 2]byte // the lower-case name followed by the type
	keyLen int
}

// name returns the name in wire format, in lower case.
func (q *query) name() []byte { return q.key[:q.keyLen-2] }

// cacheKey returns the key of cached answers.
func (q *query) cacheKey() []byte { return q.key[:q.keyLen] }

// parse reads a packet and returns RcodeSuccess for a valid question, or the response code of a
// malformed one. It returns false for packets without an answer: fragments, and answers, because two
// servers would answer each other forever.
func (q *query) parse(msg []byte) (rcode int, ok bool) {
	if len(msg) < headerSize {
		return 0, false
	}
	q.id = binary.BigEndian.Uint16(msg)
	q.bits = binary.BigEndian.Uint16(msg[2:])
	q.question, q.edns, q.do, q.size, q.keyLen = nil, false, false, minUDP, 2
	if q.bits&bitQR != 0 {
		return 0, false
	}
	if q.bits&opcodeMask != dns.OpcodeQuery<<opcodeShift {
		return dns.RcodeNotImplemented, true
	}
	if binary.BigEndian.Uint16(msg[4:]) != 1 {
		return dns.RcodeFormatError, true
	}
	at, ok := q.parseQuestion(msg)
	if !ok {
		return dns.RcodeFormatError, true
	}
	// An incremental transfer has a SOA here. It is refused by its type later.
	before := binary.BigEndian.Uint16(msg[6:]) + binary.BigEndian.Uint16(msg[8:])
	if before != 0 && q.qtype != dns.TypeIXFR {
		return dns.RcodeFormatError, true
	}
	if before != 0 {
		return dns.RcodeSuccess, true
	}
	return q.parseAdditional(msg, at, int(binary.BigEndian.Uint16(msg[10:]))), true
}

// parseQuestion reads the question and returns its end. The name cannot be compressed, because no name
// precedes it.
func (q *query) parseQuestion(msg []byte) (at int, ok bool) {
	at = headerSize
	for {
		if at >= len(msg) {
			return 0, false
		}
		n := int(msg[at])
		end := at + 1 + n
		if n > 63 || end-headerSize > maxName || end > len(msg) {
			return 0, false
		}
		for i := at; i < end; i++ {
			c := msg[i]
			if 'A' <= c && c <= 'Z' && i != at {
				c += 'a' - 'A'
			}
			q.key[i-headerSize] = c
		}
		at = end
		if n == 0 {
			break
		}
	}
	if at+4 > len(msg) {
		return 0, false
	}
	q.qtype = binary.BigEndian.Uint16(msg[at:])
	q.qclass = binary.BigEndian.Uint16(msg[at+2:])
	q.keyLen = at - headerSize + 2
	binary.BigEndian.PutUint16(q.key[q.keyLen-2:], q.qtype)
	at += 4
	q.question = msg[headerSize:at]
	return at, true
}

// parseAdditional looks for the OPT record (RFC 6891, section 6) among count records.
func (q *query) parseAdditional(msg []byte, at, count int) (rcode int) {
	if count > maxAfter {
		return dns.RcodeFormatError
	}
	version := byte(0)
	for range count {
		root := at < len(msg) && msg[at] == 0
		body, ok := skipName(msg, at)
		if !ok || body+10 > len(msg) {
			return dns.RcodeFormatError
		}
		at = body + 10 + int(binary.BigEndian.Uint16(msg[body+8:]))
		if at > len(msg) {
			return dns.RcodeFormatError
		}
		if binary.BigEndian.Uint16(msg[body:]) != dns.TypeOPT {
			continue
		}
		if q.edns || !root {
			return dns.RcodeFormatError
		}
		q.edns = true
		q.size = min(max(int(binary.BigEndian.Uint16(msg[body+2:])), minUDP), maxUDP)
		version = msg[body+5]
		q.do = msg[body+6]&0x80 != 0
	}
	if version != 0 {
		return dns.RcodeBadVers
	}
	return dns.RcodeSuccess
}

// skipName returns the end of a name, without following a pointer at its end.
func skipName(msg []byte, at int) (end int, ok bool) {
	for at < len(msg) {
		switch n := int(msg[at]); {
		case n == 0:
			return at + 1, true
		case n >= 0xC0:
			return at + 2, at+2 <= len(msg)
		case n > 63:
			return 0, false
		default:
			at += 1 + n
		}
	}
	return 0, false
}
