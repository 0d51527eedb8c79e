package dnsapi

import (
	"encoding/binary"

	"github.com/miekg/dns"
)

// answer is the content of an answer, without the parts that differ between clients. Questions share
// cached answers, so an answer never changes.
type answer struct {
	rcode    int
	zone     *zone // nil for names outside the domains
	records  []record
	uniform  bool     // all records have the same weight
	one      bool     // send only one record, drawn by weight
	extras   [][]byte // additional records without their owners, which are targets of records
	ttl      uint32   // seconds
	soa      bool     // no records; the SOA has the TTL of the absence
	extended extendedError
}

// extendedError is an extended DNS error (RFC 8914), for clients with EDNS.
type extendedError struct {
	code uint16
	text string // for people; at most maxErrorText bytes are sent
	set  bool
}

const (
	maxErrorText = 64
	errorSize    = 6 // without text
)

// answerBuilder writes answers for one responder.
type answerBuilder struct {
	order  order
	placed []uint16 // position of the owner of each extra in the message; 0 means none
	owners []int32  // first record of each extra, in order

	truncated bool // the last answer was truncated
}

// build appends the answer to q, of at most limit bytes, to out, which holds only bytes in front of
// the message.
func (c *answerBuilder) build(out []byte, q *query, a *answer, limit int) []byte {
	base := len(out)
	out = appendHeader(out, q, a)
	reserve := 0
	if q.edns {
		reserve = optSize + a.extended.size()
	}
	limit += base - reserve
	c.truncated = false
	answers, authority, additional := 0, 0, 0
	switch {
	case a.soa:
		if c.truncated = len(out)+len(a.zone.soa.wire) > limit; !c.truncated {
			out = appendSOA(out, q, a.zone)
			authority = 1
		}
	case len(a.records) > 0:
		out, answers = c.appendRecords(out, base, a, limit)
		if !c.truncated {
			out, additional = c.appendExtras(out, base, a, limit)
		}
	}
	if q.edns {
		out = appendOPT(out, q, a)
		additional++
	}
	if c.truncated {
		out[base+2] |= bitTC >> 8
	}
	head := out[base:]
	binary.BigEndian.PutUint16(head[6:], uint16(answers))
	binary.BigEndian.PutUint16(head[8:], uint16(authority))
	binary.BigEndian.PutUint16(head[10:], uint16(additional))
	return out
}

// appendHeader appends the header, with zero counts of records, and the question, byte for byte as the
// client sent it: some clients detect forged answers by the case of its letters.
func appendHeader(out []byte, q *query, a *answer) []byte {
	bits := bitQR | q.bits&(opcodeMask|bitRD|bitCD) | uint16(a.rcode&0xF)
	if a.zone != nil {
		bits |= bitAA
	}
	questions := uint16(0)
	if len(q.question) > 0 {
		questions = 1
	}
	out = binary.BigEndian.AppendUint16(out, q.id)
	out = binary.BigEndian.AppendUint16(out, bits)
	out = binary.BigEndian.AppendUint16(out, questions)
	out = append(out, 0, 0, 0, 0, 0, 0)
	return append(out, q.question...)
}

// appendSOA appends the SOA of a zone, whose name is the end of the question.
func appendSOA(out []byte, q *query, z *zone) []byte {
	owner := headerSize + len(q.name()) - len(z.wire)
	out = binary.BigEndian.AppendUint16(out, 0xC000|uint16(owner))
	return append(out, z.soa.wire[2:]...)
}

// appendRecords appends records in a new random order while they fit.
func (c *answerBuilder) appendRecords(out []byte, base int, a *answer, limit int) ([]byte, int) {
	c.placed = zeroed(c.placed, len(a.extras))
	c.owners = c.owners[:0]
	c.order.reset(a.records, a.uniform)
	n := 0
	for i, ok := c.order.next(); ok; i, ok = c.order.next() {
		r := &a.records[i]
		at := len(out)
		if at+len(r.wire) > limit {
			c.truncated = true
			break
		}
		out = append(out, r.wire...)
		binary.BigEndian.PutUint32(out[at+ttlAt:], a.ttl)
		n++
		if a.one {
			break
		}
		if e := r.extra - 1; e >= 0 && c.placed[e] == 0 {
			c.placed[e] = uint16(at - base + r.target)
			c.owners = append(c.owners, i)
		}
	}
	return out, n
}

// zeroed returns n zeros, in s if they fit.
func zeroed(s []uint16, n int) []uint16 {
	if cap(s) < n {
		return make([]uint16, n)
	}
	s = s[:n]
	clear(s)
	return s
}

// appendExtras appends additional records while they fit. A missing one does not truncate the answer
// (RFC 2181, section 9). Their owners are pointers to the targets, if the targets are within reach of a
// pointer.
func (c *answerBuilder) appendExtras(out []byte, base int, a *answer, limit int) ([]byte, int) {
	n := 0
	for _, i := range c.owners {
		r := &a.records[i]
		body, owner := a.extras[r.extra-1], c.placed[r.extra-1]
		if owner <= maxPointer {
			if len(out)+2+len(body) > limit {
				break
			}
			out = binary.BigEndian.AppendUint16(out, 0xC000|owner)
		} else {
			if len(out)+len(r.wire)-r.target+len(body) > limit {
				break
			}
			out = append(out, r.wire[r.target:]...)
		}
		at := len(out)
		out = append(out, body...)
		binary.BigEndian.PutUint32(out[at+ttlAt-2:], a.ttl)
		n++
	}
	return out, n
}

// appendOPT appends the OPT record (RFC 6891).
func appendOPT(out []byte, q *query, a *answer) []byte {
	out = append(out, 0)
	out = binary.BigEndian.AppendUint16(out, dns.TypeOPT)
	out = binary.BigEndian.AppendUint16(out, maxUDP)
	do := byte(0)
	if q.do {
		do = 0x80
	}
	out = append(out, byte(a.rcode>>4), 0, do, 0)
	size := a.extended.size()
	out = binary.BigEndian.AppendUint16(out, uint16(size))
	if size == 0 {
		return out
	}
	out = binary.BigEndian.AppendUint16(out, dns.EDNS0EDE)
	out = binary.BigEndian.AppendUint16(out, uint16(size-4))
	out = binary.BigEndian.AppendUint16(out, a.extended.code)
	return append(out, a.extended.text[:size-errorSize]...)
}

// size is the size of the error in an OPT record.
func (e extendedError) size() int {
	if !e.set {
		return 0
	}
	return errorSize + min(len(e.text), maxErrorText)
}
