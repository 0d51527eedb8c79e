package dnsapi

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// TestForm checks the response codes of malformed messages.
func TestForm(t *testing.T) {
	b := newFixture(t)
	b.catalog.set(shop()...)
	second := dns.Question{Name: "b.consul.", Qtype: dns.TypeA, Qclass: dns.ClassINET}
	for what, c := range map[string]struct {
		change func(*dns.Msg)
		rcode  int
	}{
		"update":             {func(m *dns.Msg) { m.Opcode = dns.OpcodeUpdate }, dns.RcodeNotImplemented},
		"notify":             {func(m *dns.Msg) { m.Opcode = dns.OpcodeNotify }, dns.RcodeNotImplemented},
		"unassigned opcode":  {func(m *dns.Msg) { m.Opcode = 15 }, dns.RcodeNotImplemented},
		"chaos":              {func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassCHAOS }, dns.RcodeRefused},
		"any class":          {func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassANY }, dns.RcodeRefused},
		"no question":        {func(m *dns.Msg) { m.Question = nil }, dns.RcodeFormatError},
		"two questions":      {func(m *dns.Msg) { m.Question = append(m.Question, second) }, dns.RcodeFormatError},
		"an answer":          {func(m *dns.Msg) { m.Answer = []dns.RR{record0(t)} }, dns.RcodeFormatError},
		"an authority":       {func(m *dns.Msg) { m.Ns = []dns.RR{record0(t)} }, dns.RcodeFormatError},
		"transfer":           {func(m *dns.Msg) { m.Question[0].Qtype = dns.TypeAXFR }, dns.RcodeRefused},
		"later transfer":     {func(m *dns.Msg) { m.SetIxfr("consul.", 1, "ns.consul.", "a.consul.") }, dns.RcodeRefused},
		"signature":          {func(m *dns.Msg) { m.Question[0].Qtype = dns.TypeTSIG }, dns.RcodeNotImplemented},
		"mail":               {func(m *dns.Msg) { m.Question[0].Qtype = dns.TypeMAILB }, dns.RcodeNotImplemented},
		"EDNS version":       {func(m *dns.Msg) { m.SetEdns0(512, false); m.IsEdns0().SetVersion(1) }, dns.RcodeBadVers},
		"EDNS twice":         {func(m *dns.Msg) { m.SetEdns0(512, false); m.Extra = append(m.Extra, m.Extra[0]) }, dns.RcodeFormatError},
		"unknown additional": {func(m *dns.Msg) { m.Extra = []dns.RR{record0(t)} }, dns.RcodeSuccess},
	} {
		t.Run(what, func(t *testing.T) {
			m := question("web.service.consul.", dns.TypeA, 0)
			c.change(m)
			raw, err := m.Pack()
			require.NoError(t, err)
			out := b.r.respond(nil, raw, loopback(), true)
			a := new(dns.Msg)
			require.NoError(t, a.Unpack(out))
			require.Equal(t, dns.RcodeToString[c.rcode], dns.RcodeToString[a.Rcode])
			require.Equal(t, m.Id, a.Id)
			require.Equal(t, m.Opcode, a.Opcode)
			if c.rcode != dns.RcodeSuccess {
				require.LessOrEqual(t, len(out), len(raw), "an error amplifies nothing")
			}
		})
	}
}

func record0(t *testing.T) dns.RR {
	rr, err := dns.NewRR("a.example. 1 IN A 192.0.2.1")
	require.NoError(t, err)
	return rr
}

// TestSilence: such messages get no answer, because two servers could answer each other forever.
func TestSilence(t *testing.T) {
	b := newFixture(t)
	answer := question("web.service.consul.", dns.TypeA, 0)
	answer.Response = true
	require.Nil(t, b.udp(answer))
	require.Empty(t, b.r.respond(nil, []byte("short"), loopback(), true))
	require.Empty(t, b.r.respond(nil, nil, loopback(), false))
}

func TestEcho(t *testing.T) {
	b := newFixture(t)
	b.catalog.set(shop()...)
	for range 2 { // packed, then from the cache
		m := question("wEb.SerVice.CONsul.", dns.TypeA, 1232) // as with 0x20 bits
		m.CheckingDisabled = true
		m.IsEdns0().SetDo()
		a := b.udp(m)
		require.Equal(t, "wEb.SerVice.CONsul.", a.Question[0].Name)
		require.Equal(t, "wEb.SerVice.CONsul.", a.Answer[0].Header().Name)
		require.True(t, a.CheckingDisabled)
		require.True(t, a.IsEdns0().Do())
		require.False(t, a.AuthenticatedData)
		require.EqualValues(t, maxUDP, a.IsEdns0().UDPSize())
	}
	soa := b.udp(question("nobody.service.CONsul.", dns.TypeA, 0)).Ns[0]
	require.Equal(t, "CONsul.", soa.Header().Name, "compressed into the question")
}

// crowd is n instances at addresses of their own.
func crowd(n int) []*instance.Instance {
	var list []*instance.Instance
	for k := range n {
		list = append(list, at("web", fmt.Sprintf("web-%d", k), fmt.Sprintf("10.1.%d.%d", k/250, k%250+1), 8080))
	}
	return list
}

func TestTruncation(t *testing.T) {
	b := newFixture(t)
	b.catalog.set(crowd(300)...)
	for _, c := range []struct {
		qtype, edns uint16
		some        int
	}{
		{dns.TypeA, 0, 28}, {dns.TypeA, 100, 28}, {dns.TypeA, 600, 33}, {dns.TypeA, 1232, 72}, {dns.TypeA, 65535, 72},
		{dns.TypeSRV, 0, 10}, {dns.TypeSRV, 1232, 27}, {dns.TypeTXT, 0, 21},
	} {
		m := question("web.service.consul.", c.qtype, c.edns)
		a := b.udp(m)
		require.True(t, a.Truncated)
		require.GreaterOrEqual(t, len(a.Answer), c.some, "%s with %d", dns.TypeToString[c.qtype], c.edns)
		require.Empty(t, withoutOPT(a.Extra), "additional records only beside a whole answer")
		a = b.tcp(m)
		require.False(t, a.Truncated)
		require.Len(t, a.Answer, 300)
		if c.qtype == dns.TypeSRV {
			require.Len(t, withoutOPT(a.Extra), 300)
		}
	}
}

// TestRoomForAdditional: additional records without room are left out one by one, without the
// truncation bit.
func TestRoomForAdditional(t *testing.T) {
	b := newFixture(t)
	b.catalog.set(crowd(10)...)
	a := b.udp(question("web.service.consul.", dns.TypeSRV, 0))
	require.False(t, a.Truncated)
	require.Len(t, a.Answer, 10)
	extra := withoutOPT(a.Extra)
	require.NotEmpty(t, extra)
	require.Less(t, len(extra), 10)
	whole := b.udp(question("web.service.consul.", dns.TypeSRV, 1232))
	require.Len(t, withoutOPT(whole.Extra), 10)
	targets := make(map[string]bool)
	for _, rr := range whole.Answer {
		targets[rr.(*dns.SRV).Target] = true
	}
	for _, rr := range whole.Extra[:10] {
		require.True(t, targets[rr.Header().Name])
	}
}

// TestTCPSizes: 64 KiB is the most, and names beyond the reach of pointers are written out.
func TestTCPSizes(t *testing.T) {
	b := newFixture(t)
	b.catalog.set(crowd(1000)...)
	a := b.tcp(question("web.service.consul.", dns.TypeSRV, 1232))
	require.False(t, a.Truncated)
	require.Len(t, a.Answer, 1000)
	require.Len(t, withoutOPT(a.Extra), 1000-bigShortfall(t, a))
	b.catalog.set(crowd(10_000)...)
	a = b.tcp(question("web.service.consul.", dns.TypeSRV, 1232))
	require.True(t, a.Truncated)
	require.Greater(t, len(a.Answer), 1400)
	a = b.tcp(question("web.service.consul.", dns.TypeA, 1232))
	require.True(t, a.Truncated)
	require.Greater(t, len(a.Answer), 4000)
}

// bigShortfall is how many additional records 64 KiB had no room for; all have right owners.
func bigShortfall(t *testing.T, a *dns.Msg) int {
	for _, rr := range withoutOPT(a.Extra) {
		addr, ok := parseAddress(strings.TrimSuffix(rr.Header().Name, ".addr.consul."))
		require.True(t, ok)
		require.Equal(t, addr.String(), rr.(*dns.A).A.String())
	}
	return 1000 - len(withoutOPT(a.Extra))
}

// TestLongNames: the SOA of an absence has room or is left for TCP.
func TestLongNames(t *testing.T) {
	domain := strings.Repeat(strings.Repeat("d", 39)+".", 3)
	b := newFixture(t, func(c *Config) { c.Domains = []string{domain} })
	b.catalog.contact = instance.Contact{Stale: true, Reason: strings.Repeat("r", 100)}
	name := strings.Repeat("a.", 60) + "s.service." + domain
	require.Len(t, name, 250)
	for _, edns := range []uint16{0, 512, 1232} {
		a := b.udp(question(name, dns.TypeA, edns))
		require.Equal(t, dns.RcodeNameError, a.Rcode)
		require.Equal(t, edns != 1232, a.Truncated)
		require.Equal(t, edns == 1232, len(a.Ns) == 1)
	}
	require.Len(t, b.tcp(question(name, dns.TypeA, 0)).Ns, 1)
}

func TestTTL(t *testing.T) {
	ttl := func(b *fixture) uint32 {
		return b.udp(question("web.service.consul.", dns.TypeA, 0)).Answer[0].Header().Ttl
	}
	b := newFixture(t)
	b.catalog.set(crowd(3)...)
	require.EqualValues(t, 30, ttl(b))
	b.catalog.expires = b.now.Add(7900 * time.Millisecond)
	require.EqualValues(t, 30, ttl(b), "an expiry is believed for a second")
	b.now = b.now.Add(expiryFor)
	require.EqualValues(t, 6, ttl(b))
	b.now = b.now.Add(500 * time.Millisecond)
	require.EqualValues(t, 6, ttl(b))
	b.now = b.now.Add(450 * time.Millisecond)
	require.EqualValues(t, 5, ttl(b), "counts down without being asked for")
	require.Equal(t, 2, b.catalog.asked)
	b.now = b.now.Add(time.Minute)
	require.EqualValues(t, 0, ttl(b), "over already")
	require.EqualValues(t, 0, ttl(newBenchOf(t, func(c *Config) { c.TTL = 0 }, crowd(1))))
	require.EqualValues(t, 90, ttl(newBenchOf(t, func(c *Config) { c.TTL = 90 * time.Second }, crowd(1))))
}

func newBenchOf(t *testing.T, change func(*Config), list []*instance.Instance) *fixture {
	b := newFixture(t, change)
	b.catalog.set(list...)
	return b
}

// TestStale: without contact the last known answer is sent and marked (RFC 8914).
func TestStale(t *testing.T) {
	b := newFixture(t)
	b.catalog.set(shop()...)
	require.Nil(t, b.ede("web.service.consul."))
	b.catalog.contact = instance.Contact{Stale: true, Reason: strings.Repeat("no quorum ", 20), Age: time.Minute}
	a := b.udp(question("web.service.consul.", dns.TypeA, 1232))
	require.Len(t, a.Answer, 2)
	e := b.ede("web.service.consul.")
	require.Equal(t, dns.ExtendedErrorCodeStaleAnswer, e.InfoCode)
	require.Len(t, e.ExtraText, maxErrorText)
	require.Equal(t, dns.ExtendedErrorCodeStaleNXDOMAINAnswer, b.ede("nobody.service.consul.").InfoCode)
	require.Equal(t, dns.ExtendedErrorCodeStaleAnswer, b.ede("idle.service.consul.").InfoCode)
	require.Len(t, b.udp(question("web.service.consul.", dns.TypeA, 0)).Answer, 2, "without EDNS without a mark")
	b.catalog.contact = instance.Contact{}
	require.Nil(t, b.ede("web.service.consul."))
}

// ede is the extended error of the answer.
func (b *fixture) ede(name string) *dns.EDNS0_EDE {
	for _, o := range b.udp(question(name, dns.TypeA, 1232)).IsEdns0().Option {
		if e, ok := o.(*dns.EDNS0_EDE); ok {
			return e
		}
	}
	return nil
}

func TestFailures(t *testing.T) {
	for kind, rcode := range map[fault.Kind]int{
		fault.Invalid: dns.RcodeNameError, fault.NotFound: dns.RcodeNameError, fault.Unavailable: dns.RcodeServerFailure,
		fault.Timeout: dns.RcodeServerFailure, fault.Internal: dns.RcodeServerFailure, fault.LimitReached: dns.RcodeServerFailure,
	} {
		b := newFixture(t)
		b.catalog.set(shop()...)
		b.catalog.err = fault.New("catalog.Discover", kind, "secret")
		for _, name := range []string{"web.service.consul.", "nobody.service.consul.", "us-east-1a.consul."} {
			require.Equal(t, rcode, b.udp(question(name, dns.TypeA, 0)).Rcode, "%v %s", kind, name)
		}
	}
	b := newFixture(t)
	b.catalog.err = errors.New("plain")
	require.Equal(t, dns.RcodeServerFailure, b.udp(question("web.service.consul.", dns.TypeA, 0)).Rcode)
}

// TestAddressRule: nobody's registration makes a name lead into the network of who asks.
func TestAddressRule(t *testing.T) {
	private := []string{
		"0.1.2.3", "10.0.0.1", "100.64.0.1", "127.0.0.1", "127.255.255.254", "169.254.169.254", "172.16.0.1", "172.31.255.255",
		"192.0.0.1", "192.0.2.1", "192.88.99.1", "192.168.1.1", "198.18.0.1", "198.51.100.1", "203.0.113.1", "240.0.0.1",
		"::1", "::7f00:1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "64:ff9b:1::1", "100::1", "2001::1", "2001:db8::1", "2002:7f00:1::",
		"3fff::1", "5f00::1", "fc00::1", "fd00:ec2::254", "fe80::1", "fec0::1",
	}
	never := []string{"0.0.0.0", "255.255.255.255", "224.0.0.1", "239.255.255.255", "::", "ff02::1", "fe80::1%eth0"}
	public := []string{"1.1.1.1", "9.9.9.9", "172.32.0.1", "192.167.255.255", "2606:4700::1111", "2a00:1450::1"}
	told := func(b *fixture, host, peer string) bool {
		b.catalog.set(at("web", "w", host, 80, ofPeer(peer)))
		addr, err := netip.ParseAddr(host)
		require.NoError(t, err)
		found := len(b.udp(question("web.service.consul.", addressType(addr.Unmap()), 0)).Answer)
		srv := b.udp(question("web.service.consul.", dns.TypeSRV, 0))
		require.Len(t, srv.Answer, found)
		require.Len(t, srv.Extra, found)
		return found == 1
	}
	b := newFixture(t)
	lan := newFixture(t, func(c *Config) {
		c.Allow = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fc00::/7")}
	})
	for _, host := range private {
		require.False(t, told(b, host, "k51other"), host)
		require.True(t, told(b, host, self), host)
		require.True(t, told(b, host, ""), host)
	}
	for _, host := range public {
		require.True(t, told(b, host, "k51other"), host)
	}
	for _, host := range never {
		require.False(t, told(b, host, self), host)
	}
	require.True(t, told(lan, "10.0.0.1", "k51other"))
	require.True(t, told(lan, "fd00::1", "k51other"))
	require.False(t, told(lan, "192.168.0.1", "k51other"))
	require.False(t, told(lan, "127.0.0.1", "k51other"))
	require.False(t, told(lan, "fd00:ec2::254", "k51other"), "an allowed range has no metadata service")

	b.catalog.set(at("web", "w", "127.0.0.1", 80, ofPeer("k51other")), at("web", "v", "8.8.8.8", 80, ofPeer("k51other")))
	require.Len(t, b.udp(question("web.service.consul.", dns.TypeA, 0)).Answer, 1)
	require.Equal(t, dns.ExtendedErrorCodeBlocked, b.ede("web.service.consul.").InfoCode)
	b.catalog.set(at("web", "w", "app.localhost", 80, ofPeer("k51other")))
	require.Empty(t, b.udp(question("web.service.consul.", dns.TypeA, 0)).Answer)
	require.Empty(t, b.udp(question("web.service.consul.", dns.TypeSRV, 0)).Answer)
}

func TestClients(t *testing.T) {
	b := newFixture(t)
	b.catalog.set(shop()...)
	for client, rcode := range map[string]int{
		"192.168.7.9": dns.RcodeSuccess, "127.0.0.9": dns.RcodeSuccess, "::1": dns.RcodeSuccess, "10.1.2.3": dns.RcodeSuccess,
		"fd00::7": dns.RcodeSuccess, "fe80::1": dns.RcodeSuccess, "8.8.8.8": dns.RcodeRefused, "2001:db8::1": dns.RcodeRefused,
	} {
		for range 2 {
			a := b.exchange(question("web.service.consul.", dns.TypeA, 0), netip.MustParseAddr(client), true)
			require.Equal(t, rcode, a.Rcode, client)
		}
	}
}

func TestRate(t *testing.T) {
	b := newFixture(t, func(c *Config) { c.Rate = 10 })
	b.catalog.set(shop()...)
	ask := func(client string) (whole, overTCP, nothing int) {
		for range 30 {
			switch a := b.exchange(question("web.service.consul.", dns.TypeA, 0), netip.MustParseAddr(client), true); {
			case a == nil:
				nothing++
			case a.Truncated:
				require.Empty(t, a.Answer)
				overTCP++
			default:
				whole++
			}
		}
		return whole, overTCP, nothing
	}
	expect := func(client string, want ...int) {
		t.Helper()
		whole, overTCP, nothing := ask(client)
		require.Equal(t, want, []int{whole, overTCP, nothing})
	}
	expect("192.168.1.1", 10, 10, 10)
	expect("192.168.1.200", 0, 15, 15) // the same network
	expect("192.168.2.1", 10, 10, 10)
	expect("127.0.0.1", 30, 0, 0)
	b.now = b.now.Add(500 * time.Millisecond)
	expect("192.168.1.1", 5, 13, 12)
	b.now = b.now.Add(time.Hour)
	expect("192.168.1.1", 10, 10, 10)
	require.Positive(t, b.r.counts.limited.Load())
	a := b.exchange(question("web.service.consul.", dns.TypeA, 0), netip.MustParseAddr("192.168.1.1"), false)
	require.Len(t, a.Answer, 2, "over TCP nobody is limited")
}
