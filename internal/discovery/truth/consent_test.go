package truth

import (
	"context"
	"crypto/rand"
	"iter"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/ask"
	"github.com/blackhole/blackhole/internal/discovery/protocol"
	"github.com/blackhole/blackhole/internal/platform/probe"
	"github.com/blackhole/blackhole/pkg/records"
)

// hosts is a network of hosts, some of which name the provider's peer.
type hosts struct {
	mu    sync.Mutex
	names map[string]bool
	paths []string // asked for
	asked int      // checks of a domain
}

func (h *hosts) Probe(_ context.Context, t probe.Target) (probe.Outcome, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t.Kind != "domain" {
		h.paths = append(h.paths, t.Path)
		return probe.Outcome{State: probe.Answers, RoundTrip: time.Millisecond}, true
	}
	h.asked++
	return probe.Outcome{State: map[bool]probe.State{true: probe.Answers, false: probe.Refuses}[h.names[t.Host]]}, true
}

// Checks ask for the whole endpoint only while its host names the provider's peer, in the eyes of who checks. The
// word of others is none.
func TestHostsConsent(t *testing.T) {
	key, _, err := crypto.GenerateEd25519Key(rand.Reader)
	require.NoError(t, err)
	for name, c := range map[string]struct {
		endpoint, domain string
		protocols        []string
		names            string // a host that names the peer
		bare, whole      string
		warning          string
	}{
		"host":            {endpoint: "https://api.shop.net/pay?to=me", names: "api.shop.net", bare: "", whole: "/pay?to=me", warning: "without its path until its host names this peer: publish a TXT record of _blackhole.api.shop.net"},
		"protocol":        {endpoint: "https://api.shop.net/mcp?key=1", protocols: []string{"mcp"}, names: "api.shop.net", bare: "/mcp", whole: "/mcp?key=1", warning: "without its query"},
		"domain of it":    {endpoint: "https://api.shop.net/pay", domain: "shop.net", names: "shop.net", bare: "", whole: "/pay", warning: "without its path"},
		"other domain":    {endpoint: "https://api.shop.net/pay", domain: "other.net", names: "other.net", bare: "", whole: "", warning: "without its path"},
		"not its domain":  {endpoint: "https://api.myshop.net/pay", domain: "shop.net", names: "shop.net", bare: "", whole: "", warning: "without its path"},
		"address":         {endpoint: "http://11.2.3.4/pay", names: "11.2.3.4", bare: "", whole: "", warning: "only a host with a name of its own and TLS"},
		"no TLS":          {endpoint: "http://api.shop.net/pay", names: "api.shop.net", bare: "", whole: "", warning: "only a host with a name of its own and TLS"},
		"public suffix":   {endpoint: "http://github.io/pay", names: "github.io", bare: "", whole: "", warning: "only a host with a name of its own and TLS"},
		"nothing to hide": {endpoint: "https://api.shop.net/", names: "api.shop.net", bare: "/", whole: "/"},
		"a bare protocol": {endpoint: "https://api.shop.net/mcp", protocols: []string{"mcp"}, bare: "/mcp", whole: "/mcp"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, err := records.Sign("test", key, records.Offer{ID: "a", Metadata: records.Metadata{Type: "relay", Endpoints: []string{c.endpoint}, Domain: c.domain, Protocols: c.protocols}},
					records.Stamp{Sequence: 1, Issued: time.Now(), Expires: time.Now().Add(24 * time.Hour)})
				require.NoError(t, err)
				h := &hosts{names: map[string]bool{}}
				x := New(Config{Prober: h, Now: time.Now, Own: func(*records.Record) bool { return false }, Changed: func(*records.Record) {}, Sharing: &Sharing{
					Network: "test", Key: key, Witness: func(context.Context, peer.ID, []string, []byte) []ask.Delivered { return nil },
					Tell: func(context.Context, []peer.ID, []byte) {}, Hand: func(context.Context, peer.ID, records.Name) {},
					Records: func() iter.Seq[*records.Record] { return slices.Values([]*records.Record(nil)) }, OwnWitnesses: func(peer.ID) []peer.ID { return nil },
				}})
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan struct{})
				go func() { defer close(done); x.Run(ctx) }()
				defer func() { cancel(); <-done }()
				see := func() []string {
					h.mu.Lock()
					h.paths = nil
					h.mu.Unlock()
					for range 15 * 12 {
						x.Want([]*records.Record{r})
						time.Sleep(5 * time.Second)
					}
					h.mu.Lock()
					defer h.mu.Unlock()
					return slices.Compact(slices.Clone(h.paths))
				}
				set := func(names bool) {
					h.mu.Lock()
					defer h.mu.Unlock()
					h.names[c.names] = names
				}
				require.Equal(t, []string{c.bare}, see())
				for by := range quorum { // others' word, for whatever domain
					for _, d := range []string{"api.shop.net", "shop.net"} {
						f := protocol.Finding{Provider: r.Name().Provider, Record: domainID + d, State: records.Answers, CheckedAt: time.Now()}
						x.Hear(protocol.Statement{By: peer.ID(rune('a' + by)), Findings: []protocol.Finding{f}}, netip.PrefixFrom(netip.AddrFrom4([4]byte{11, byte(by)}), 24))
					}
				}
				require.Equal(t, []string{c.bare}, see())
				require.Contains(t, x.Partial(r), c.warning)
				require.Equal(t, c.warning == "", x.Partial(r) == "")
				set(true)
				see()
				require.Equal(t, []string{c.whole}, see())
				require.Equal(t, c.whole != c.bare || c.warning == "", x.Partial(r) == "")
				set(false)
				see()
				require.Equal(t, []string{c.bare}, see())
				if c.whole != c.bare && c.domain == "" {
					require.LessOrEqual(t, h.asked, int(6*15*time.Minute/proofAgain)+2, "its host is asked seldom")
				}
			})
		})
	}
}
