package dnsapi

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/fault"
)

// patience bounds every wait for the network; it decides nothing when things work.
const patience = time.Minute

// served is a bench that listens on loopback.
func served(t *testing.T, address string, change ...func(*Config)) *fixture {
	b := newFixture(t, append(change, func(c *Config) { c.Logger = nil })...)
	b.catalog.set(crowd(100)...)
	require.NoError(t, b.server.Listen(address))
	var running sync.WaitGroup
	running.Go(func() { _ = b.server.Serve() })
	t.Cleanup(func() {
		b.server.Close()
		running.Wait()
	})
	return b
}

func TestServe(t *testing.T) {
	addresses := []string{"127.0.0.1:0"}
	if runtime.GOOS == "linux" { // which has all of 127.0.0.0/8
		addresses = append(addresses, "0.0.0.0:0")
	}
	if l, err := net.Listen("tcp6", "[::1]:0"); err == nil {
		require.NoError(t, l.Close())
		addresses = append(addresses, "[::1]:0", "[::]:0")
	}
	for _, address := range addresses {
		b := served(t, address)
		at := b.server.Addr()
		if at.Addr().IsUnspecified() { // the answer must come from the address that was asked
			host := netip.MustParseAddr("127.0.0.77")
			if at.Addr().Is6() {
				host = netip.IPv6Loopback()
			}
			at = netip.AddrPortFrom(host, at.Port())
		}
		for _, network := range []string{"udp", "tcp"} {
			client := &dns.Client{Net: network, Timeout: patience}
			for range 10 {
				a, _, err := client.Exchange(question("web.service.consul.", dns.TypeA, 1232), at.String())
				require.NoError(t, err, "%s %s", network, at)
				require.Equal(t, network == "udp", a.Truncated)
			}
		}
	}
}

// TestChanges: clients of all sockets see the list change, and only whole lists.
func TestChanges(t *testing.T) {
	b := served(t, "127.0.0.1:0")
	b.catalog.set(crowd(50)...) // never more from here on: a question may come before the first change
	stop := make(chan struct{})
	var changing, asking sync.WaitGroup
	changing.Go(func() {
		pace := time.NewTicker(100 * time.Microsecond) // who only changes leaves a single processor to nobody
		defer pace.Stop()
		for n := 1; ; n = n%50 + 1 {
			b.catalog.set(crowd(n)...)
			select {
			case <-stop:
				return
			case <-pace.C:
			}
		}
	})
	for k := range 8 {
		asking.Go(func() {
			client := &dns.Client{Net: []string{"udp", "tcp"}[k%2], Timeout: patience}
			for range 50 {
				for _, name := range []string{"web.service.consul.", "eu-1.consul.", "nobody.service.consul."} {
					a, _, err := client.Exchange(question(name, dns.TypeA, 1232), b.server.Addr().String())
					if assert.NoError(t, err) && name == "web.service.consul." {
						assert.NotEmpty(t, a.Answer)
						assert.LessOrEqual(t, len(a.Answer), 50)
					}
				}
			}
		})
	}
	asking.Wait()
	close(stop)
	changing.Wait()
}

// TestResolver: Go's resolver finds addresses, all of them over TCP, and services.
func TestResolver(t *testing.T) {
	b := served(t, "127.0.0.1:0")
	dial := func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, b.server.Addr().String())
	}
	resolver := &net.Resolver{PreferGo: true, Dial: dial}
	addrs, err := resolver.LookupNetIP(t.Context(), "ip4", "web.service.consul.")
	require.NoError(t, err)
	require.Len(t, addrs, 100)
	_, records, err := resolver.LookupSRV(t.Context(), "web", "tcp", "service.consul.")
	require.NoError(t, err)
	require.Len(t, records, 100)
	_, err = resolver.LookupNetIP(t.Context(), "ip", "nobody.service.consul.")
	var notFound *net.DNSError
	require.ErrorAs(t, err, &notFound)
	require.True(t, notFound.IsNotFound)
}

func TestPipelining(t *testing.T) {
	b := served(t, "127.0.0.1:0")
	conn, err := net.Dial("tcp", b.server.Addr().String())
	require.NoError(t, err)
	defer conn.Close()
	for id := range 20 {
		m := question("web.service.consul.", dns.TypeA, 0)
		m.Id = uint16(id)
		raw, err := m.Pack()
		require.NoError(t, err)
		_, err = conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(raw))), raw...))
		require.NoError(t, err)
	}
	client := dns.Conn{Conn: conn}
	for id := range 20 {
		a, err := client.ReadMsg()
		require.NoError(t, err)
		require.EqualValues(t, id, a.Id)
		require.Len(t, a.Answer, 100)
	}
}

// TestBadConnections: bad connections are closed without effect on others.
func TestBadConnections(t *testing.T) {
	b := served(t, "127.0.0.1:0")
	b.server.conns.mu.Lock()
	b.server.conns.maxPerClient = 2
	b.server.conns.mu.Unlock()
	for _, sent := range [][]byte{{0xFF, 0xFF, 1}, {0, 0}, {0, 2, 1, 1}} {
		conn, err := net.Dial("tcp", b.server.Addr().String())
		require.NoError(t, err)
		_, err = conn.Write(sent)
		require.NoError(t, err)
		requireEnd(t, conn)
	}
	var held []net.Conn
	client := &dns.Client{Net: "tcp", Timeout: patience}
	for range 2 {
		conn, err := client.Dial(b.server.Addr().String())
		require.NoError(t, err)
		_, _, err = client.ExchangeWithConn(question("web.service.consul.", dns.TypeA, 0), conn)
		require.NoError(t, err)
		held = append(held, conn)
	}
	third, err := net.Dial("tcp", b.server.Addr().String())
	require.NoError(t, err)
	requireEnd(t, third)
	require.Positive(t, b.server.Stats().Refused)
	b.server.Close()
	for _, conn := range held {
		requireEnd(t, conn)
	}
}

func requireEnd(t *testing.T, conn net.Conn) {
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(patience)))
	_, err := conn.Read(make([]byte, 1))
	require.Error(t, err)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "still open")
	_ = conn.Close()
}

func TestListen(t *testing.T) {
	b := newFixture(t)
	for _, bad := range []string{"", ":8600", "localhost:8600", "127.0.0.1", "127.0.0.1:99999"} {
		require.ErrorIs(t, b.server.Listen(bad), &fault.Error{Kind: fault.Invalid, Field: "dns"}, bad)
	}
	require.Zero(t, b.server.Addr())
	require.NoError(t, b.server.Listen("127.0.0.1:0"))
	other := newFixture(t)
	require.ErrorIs(t, other.server.Listen(b.server.Addr().String()), fault.Unavailable, "two servers do not share a port")
	b.server.Close()
	b.server.Close()
	require.ErrorIs(t, b.server.Listen("127.0.0.1:0"), fault.Unavailable)
	require.NoError(t, b.server.Serve(), "closed already")
}

func TestDomainsIgnoreCase(t *testing.T) {
	s, err := New(Config{Catalog: &fakeCatalog{}, Domains: []string{"SD.Example"}})
	require.NoError(t, err)
	require.Equal(t, []string{"sd.example."}, s.config.Domains)
}

// TestNestedDomains: a name belongs to the longest domain that it is below.
func TestNestedDomains(t *testing.T) {
	b := newFixture(t, func(c *Config) { c.Domains = []string{"example.", "sd.example."} })
	b.catalog.set(shop()...)
	require.Len(t, b.udp(question("web.service.sd.example.", dns.TypeA, 0)).Answer, 2)
	require.Len(t, b.udp(question("web.service.example.", dns.TypeA, 0)).Answer, 2)
	require.Equal(t, "sd.example.", b.udp(question("nobody.service.sd.example.", dns.TypeA, 0)).Ns[0].Header().Name)
}

func TestStats(t *testing.T) {
	b := newFixture(t)
	b.server.Close()
	b.catalog.set(shop()...)
	b.udp(question("web.service.consul.", dns.TypeA, 0))
	b.tcp(question("nobody.service.consul.", dns.TypeA, 0))
	s := b.server.Stats()
	require.EqualValues(t, 2, s.Queries)
	require.EqualValues(t, 1, s.TCP)
	require.Equal(t, map[int]uint64{dns.RcodeSuccess: 1, dns.RcodeNameError: 1}, s.Answers)
}
