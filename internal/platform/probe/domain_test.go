package probe

import (
	"context"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

// A domain names a peer by a TXT record, or by a file at the domain itself. Nothing else is a proof.
func TestDomainNamesItsPeer(t *testing.T) {
	var file string
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path != "/.well-known/blackhole" || file == "":
			http.NotFound(w, r)
		case file == "elsewhere":
			http.Redirect(w, r, "https://other.net/.well-known/blackhole", http.StatusFound)
		default:
			_, _ = fmt.Fprint(w, file)
		}
	}))
	t.Cleanup(server.Close)
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	absent := &net.DNSError{Err: "no such host", IsNotFound: true}
	flaky := &net.DNSError{Err: "server misbehaving", IsTemporary: true}
	here := []netip.Addr{netip.MustParseAddr("127.0.0.1")}
	for name, c := range map[string]struct {
		texts   []string
		noTexts error
		file    string
		addrs   []netip.Addr
		strange bool // nobody vouches for the certificate
		want    State
	}{
		"TXT":                      {texts: []string{"v=1", " peer=12D3a "}, want: Answers},
		"one of several in DNS":    {texts: []string{"peer=12D3b", "peer=12D3a"}, want: Answers},
		"file":                     {noTexts: absent, addrs: here, file: "# ours\npeer=12D3b\r\npeer=12D3a\r\n", want: Answers},
		"file in spite of DNS":     {noTexts: flaky, addrs: here, file: "peer=12D3a", want: Answers},
		"another peer":             {texts: []string{"peer=12D3b"}, addrs: here, file: "peer=12D3ab\npeer=12D3", want: Refuses},
		"no record and no file":    {noTexts: absent, addrs: here, want: Refuses},
		"no record and no address": {noTexts: absent, want: Refuses},
		"redirect":                 {noTexts: absent, addrs: here, file: "elsewhere", want: Refuses},
		"certificate":              {noTexts: absent, addrs: here, file: "peer=12D3a", strange: true, want: Certificate},
		"DNS is down":              {noTexts: flaky, addrs: here},
		"private address":          {noTexts: absent, addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}},
	} {
		t.Run(name, func(t *testing.T) {
			file = c.file
			p := New(Config{
				Loopback: true, Roots: roots,
				Texts: func(_ context.Context, name string) ([]string, error) {
					require.Equal(t, "_blackhole.shop.example.com.", name)
					return c.texts, c.noTexts
				},
				Resolve: func(context.Context, string) ([]netip.Addr, error) {
					if c.addrs == nil {
						return nil, absent
					}
					return c.addrs, nil
				},
				Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
					require.Equal(t, "127.0.0.1:443", address)
					return new(net.Dialer).DialContext(ctx, network, server.Listener.Addr().String())
				},
			})
			if c.strange {
				p.Roots = x509.NewCertPool()
			}
			target, ok := Domain("shop.nowhere.net", "12D3a")
			require.True(t, ok)
			target.Host = "shop.example.com" // of which the server has a certificate
			o, measured := p.Probe(t.Context(), target)
			require.Equal(t, c.want != "", measured)
			require.Equal(t, c.want, o.State, o.Detail)
		})
	}
	for _, name := range []string{"co.uk", "github.io", "net", "shop.example.com", "a.test", "1.2.3.4", "2a01::1", "localhost"} {
		_, ok := Domain(name, "12D3a")
		require.False(t, ok, name)
	}
}
