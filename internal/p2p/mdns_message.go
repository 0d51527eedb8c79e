package p2p

import (
	"slices"
	"strings"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/miekg/dns"
	"github.com/multiformats/go-multiaddr"

	"github.com/blackhole/blackhole/pkg/fault"
)

const (
	mdnsService  = "_blackhole._udp.local."
	mdnsPrefix   = "dnsaddr="
	mdnsMaxBytes = 9000 // RFC 6762 section 17
	mdnsMaxAddrs = 16   // told by us, and believed of one message
	mdnsLifetime = 120  // of a record, seconds: RFC 6762 section 10
)

// mdnsQuestion asks for all peers of the service.
func mdnsQuestion() ([]byte, error) {
	m := new(dns.Msg)
	m.Question = []dns.Question{{Name: mdnsService, Qtype: dns.TypePTR, Qclass: dns.ClassINET}}
	return m.Pack()
}

// mdnsAnswer tells of one peer: a pointer to its name, and its addresses as texts.
func mdnsAnswer(id peer.ID, addrs []multiaddr.Multiaddr) ([]byte, error) {
	name := id.String() + "." + mdnsService // an Ed25519 id has 52 characters, a label 63
	m := new(dns.Msg)
	m.Response, m.Authoritative = true, true
	m.Answer = []dns.RR{&dns.PTR{
		Hdr: dns.RR_Header{Name: mdnsService, Rrtype: dns.TypePTR, Class: dns.ClassINET, Ttl: mdnsLifetime},
		Ptr: name,
	}}
	text := &dns.TXT{Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeTXT, Class: dns.ClassINET, Ttl: mdnsLifetime}}
	for _, a := range addrs {
		entry := mdnsPrefix + a.String() + "/p2p/" + id.String()
		if !dialable(a) || len(entry) > 255 || len(text.Txt) == mdnsMaxAddrs {
			continue
		}
		text.Txt = append(text.Txt, entry)
	}
	if len(text.Txt) == 0 {
		return nil, fault.New("p2p.mdnsAnswer", fault.Unavailable, "no address to tell")
	}
	m.Extra = []dns.RR{text}
	return m.Pack()
}

// mdnsParse reads any message of the local network: whether it asks for our service, and
// the peers that it tells of. What it cannot read it ignores, as RFC 6762 asks.
func mdnsParse(data []byte) (asked bool, found []peer.AddrInfo) {
	var m dns.Msg
	if len(data) > mdnsMaxBytes || m.Unpack(data) != nil {
		return false, nil
	}
	if !m.Response {
		return slices.ContainsFunc(m.Question, func(q dns.Question) bool {
			return strings.EqualFold(q.Name, mdnsService) && (q.Qtype == dns.TypePTR || q.Qtype == dns.TypeANY)
		}), nil
	}
	taken := 0
	for _, rr := range slices.Concat(m.Answer, m.Extra) {
		text, ok := rr.(*dns.TXT)
		if !ok || !strings.HasSuffix(strings.ToLower(text.Hdr.Name), "."+mdnsService) {
			continue
		}
		for _, entry := range text.Txt {
			if p, ok := mdnsAddr(entry); ok && taken < mdnsMaxAddrs {
				found = addInfo(found, p)
				taken++
			}
		}
	}
	return false, found
}

func mdnsAddr(entry string) (peer.AddrInfo, bool) {
	s, ok := strings.CutPrefix(entry, mdnsPrefix)
	if !ok {
		return peer.AddrInfo{}, false
	}
	a, err := multiaddr.NewMultiaddr(s)
	if err != nil || !dialable(a) {
		return peer.AddrInfo{}, false
	}
	p, err := peer.AddrInfoFromP2pAddr(a)
	if err != nil || len(p.Addrs) == 0 {
		return peer.AddrInfo{}, false
	}
	return *p, true
}

// dialable wants plain IP addresses: a neighbour must not make this peer resolve names or
// go through relays.
func dialable(a multiaddr.Multiaddr) bool {
	if len(a) == 0 {
		return false
	}
	first := a[0].Protocol().Code
	_, err := a.ValueForProtocol(multiaddr.P_CIRCUIT)
	return (first == multiaddr.P_IP4 || first == multiaddr.P_IP6) && err != nil
}

// addInfo adds a peer's addresses to its entry in list.
func addInfo(list []peer.AddrInfo, p peer.AddrInfo) []peer.AddrInfo {
	at := slices.IndexFunc(list, func(q peer.AddrInfo) bool { return q.ID == p.ID })
	if at < 0 {
		return append(list, peer.AddrInfo{ID: p.ID, Addrs: slices.Clone(p.Addrs)})
	}
	list[at].Addrs = append(list[at].Addrs, p.Addrs...)
	return list
}
