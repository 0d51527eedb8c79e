package app

import (
	"net"
	"sync/atomic"

	"github.com/miekg/dns"

	"github.com/blackhole/blackhole/pkg/fault"
)

// Names is a DNS server on loopback. Callers must call Die.
type Names struct {
	Address string // host:port

	asked  atomic.Bool
	server *dns.Server
	done   chan struct{}
}

// ServeNames starts a server that knows some TXT records by name, and says of all other names that they do not exist.
func ServeNames(texts map[string]string) (*Names, error) {
	const op = "app.ServeNames"
	socket, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		return nil, fault.As(op, fault.Unavailable, err)
	}
	n := &Names{Address: socket.LocalAddr().String(), done: make(chan struct{})}
	answer := func(w dns.ResponseWriter, asked *dns.Msg) {
		n.asked.Store(true)
		reply := new(dns.Msg).SetReply(asked)
		q := asked.Question[0]
		text, known := texts[dns.CanonicalName(q.Name)]
		switch {
		case !known:
			reply.Rcode = dns.RcodeNameError
		case q.Qtype == dns.TypeTXT:
			reply.Answer = []dns.RR{&dns.TXT{Hdr: dns.RR_Header{Name: q.Name, Rrtype: dns.TypeTXT, Class: dns.ClassINET}, Txt: []string{text}}}
		}
		_ = w.WriteMsg(reply) // who misses it asks again
	}
	n.server = &dns.Server{PacketConn: socket, Handler: dns.HandlerFunc(answer)}
	go func() {
		defer close(n.done)
		_ = n.server.ActivateAndServe() // until Die
	}()
	return n, nil
}

// Asked reports whether anybody has asked.
func (n *Names) Asked() bool { return n.asked.Load() }

// Die ends the server.
func (n *Names) Die() {
	_ = n.server.PacketConn.Close()
	<-n.done
}
