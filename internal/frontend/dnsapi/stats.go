package dnsapi

import "sync/atomic"

// Stats holds the counts since the start of the server.
type Stats struct {
	Queries   uint64         // packets and messages received
	TCP       uint64         // queries over TCP
	Truncated uint64         // answers without room for all records
	Limited   uint64         // questions above Config.Rate
	Dropped   uint64         // packets without a question
	Refused   uint64         // connections above the bounds or of public clients
	Answers   map[int]uint64 // by response code; codes above 23 count as 23
}

const maxRcode = 24

// counts holds the counts of one responder.
type counts struct {
	udp, tcp, truncated, limited, dropped atomic.Uint64
	answers                               [maxRcode]atomic.Uint64
}

func (c *counts) query(udp bool) {
	if udp {
		c.udp.Add(1)
	} else {
		c.tcp.Add(1)
	}
}

func (c *counts) answer(rcode int, truncated bool) {
	c.answers[min(rcode, maxRcode-1)].Add(1)
	if truncated {
		c.truncated.Add(1)
	}
}

func (c *counts) addTo(s *Stats) {
	s.TCP += c.tcp.Load()
	s.Queries += c.udp.Load() + c.tcp.Load()
	s.Truncated += c.truncated.Load()
	s.Limited += c.limited.Load()
	s.Dropped += c.dropped.Load()
	for rcode := range c.answers {
		if n := c.answers[rcode].Load(); n > 0 {
			s.Answers[rcode] += n
		}
	}
}
