package dnsapi

import (
	"net"
	"net/netip"

	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
)

// batch is the number of packets per system call, if the system supports it.
const batch = 32

// receiveBuffer holds questions that arrive while others are answered, in bytes.
const receiveBuffer = 1 << 20

// socket reads and writes packets of one version of IP. ipv4.Message and ipv6.Message are the same type.
type socket interface {
	ReadBatch(ms []ipv4.Message, flags int) (int, error)
	WriteBatch(ms []ipv4.Message, flags int) (int, error)
}

// newSocket prepares a socket. A socket bound to all addresses must answer from the address of the
// question, so it asks the system for that address.
func newSocket(c *net.UDPConn) (s socket, everywhere bool, err error) {
	bound := c.LocalAddr().(*net.UDPAddr).AddrPort().Addr()
	everywhere = bound.IsUnspecified()
	if bound.Unmap().Is4() {
		p := ipv4.NewPacketConn(c)
		if everywhere {
			err = p.SetControlMessage(ipv4.FlagDst|ipv4.FlagInterface, true)
		}
		return p, everywhere, err
	}
	p := ipv6.NewPacketConn(c)
	if everywhere {
		err = p.SetControlMessage(ipv6.FlagDst|ipv6.FlagInterface, true)
	}
	return p, everywhere, err
}

// datagrams holds the buffers of a socket.
type datagrams struct {
	socket     socket
	everywhere bool
	in, out    []ipv4.Message
	buffers    [batch][]byte // of out
}

func newDatagrams(c *net.UDPConn) (*datagrams, error) {
	s, everywhere, err := newSocket(c)
	if err != nil {
		return nil, err
	}
	_ = c.SetReadBuffer(receiveBuffer) // the system may grant less
	d := &datagrams{socket: s, everywhere: everywhere}
	for i := range batch {
		in := ipv4.Message{Buffers: [][]byte{make([]byte, maxQuestion)}}
		if everywhere {
			in.OOB = make([]byte, 128)
		}
		d.in = append(d.in, in)
		d.out = append(d.out, ipv4.Message{Buffers: make([][]byte, 1)})
		d.buffers[i] = make([]byte, 0, maxUDP)
	}
	return d, nil
}

// serveUDP answers the packets of a socket until it closes.
func (s *Server) serveUDP(c *net.UDPConn, r *responder) {
	d, err := newDatagrams(c)
	if err != nil {
		s.config.Logger.Error("a DNS socket cannot be used", "address", c.LocalAddr(), "error", err)
		return
	}
	for {
		n, err := d.socket.ReadBatch(d.in, 0)
		if err != nil {
			if !s.persist(err) {
				return
			}
			continue
		}
		d.write(d.answer(d.in[:n], r))
	}
}

// answer returns the answers to packets. Some packets have none.
func (d *datagrams) answer(in []ipv4.Message, r *responder) []ipv4.Message {
	n := 0
	for i := range in {
		m := &in[i]
		from, ok := m.Addr.(*net.UDPAddr)
		if !ok || from.Port == 0 {
			continue
		}
		client, _ := netip.AddrFromSlice(from.IP)
		answer := r.respond(d.buffers[n][:0], m.Buffers[0][:m.N], client.Unmap(), true)
		if len(answer) == 0 {
			continue
		}
		d.buffers[n] = answer
		out := &d.out[n]
		out.Buffers[0], out.Addr, out.OOB = answer, m.Addr, nil
		if d.everywhere {
			out.OOB = source(m.OOB[:m.NN], client.Is4())
		}
		n++
	}
	return d.out[:n]
}

// write sends answers and skips an answer after a failure: the client asks again.
func (d *datagrams) write(out []ipv4.Message) {
	for len(out) > 0 {
		n, err := d.socket.WriteBatch(out, 0)
		if err != nil {
			n = max(n, 0) + 1
		}
		out = out[min(n, len(out)):]
	}
}

// source converts the destination of a packet to the source of its answer.
func source(came []byte, v4 bool) []byte {
	if v4 {
		var m ipv4.ControlMessage
		if m.Parse(came) != nil || m.Dst == nil {
			return nil
		}
		return (&ipv4.ControlMessage{Src: m.Dst}).Marshal()
	}
	var m ipv6.ControlMessage
	if m.Parse(came) != nil || m.Dst == nil {
		return nil
	}
	out := &ipv6.ControlMessage{Src: m.Dst}
	if m.Dst.IsLinkLocalUnicast() {
		out.IfIndex = m.IfIndex
	}
	return out.Marshal()
}
