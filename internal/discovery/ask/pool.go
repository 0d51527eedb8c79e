package ask

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/discovery/protocol"
	"github.com/blackhole/blackhole/internal/platform/bounded"
	"github.com/blackhole/blackhole/pkg/records"
)

// Bounds of a Pool.
const (
	maxProviders  = 4096 // providers and offers with statements
	maxOfProvider = 8    // statements about one of them
	maxOfPrefix   = 2    // of them, from measurers in one address prefix
)

// held is a statement that its measurer delivered.
type held struct {
	protocol.Statement
	from netip.Prefix // of the measurer; zero: on this machine, or unknown
}

// Pool holds the statements that measurers delivered to this peer, for other peers. It is safe for concurrent use.
type Pool struct {
	self  peer.ID
	mu    sync.Mutex                           // guards the fields below
	about *simplelru.LRU[records.Name, []held] // by Key
}

// NewPool returns an empty Pool of a peer, whose own statements never make room.
func NewPool(self peer.ID) *Pool {
	return &Pool{self: self, about: bounded.Map[records.Name, []held](maxProviders, nil)}
}

// Put holds a statement that its measurer delivered from an address in from.
func (p *Pool) Put(s protocol.Statement, from netip.Prefix, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range s.Findings {
		key := records.Name{Provider: f.Provider, ID: f.Record}
		list, _ := p.about.Get(key)
		list = slices.DeleteFunc(slices.Clone(list), func(h held) bool { return h.By == s.By || !covers(&h.Statement, key, now) })
		same := 0
		for _, h := range list {
			if from.IsValid() && h.from == from {
				same++
			}
		}
		if same < maxOfPrefix && len(list) == maxOfProvider { // the one held for the longest time makes room
			i := slices.IndexFunc(list, func(h held) bool { return h.By != p.self })
			list = slices.Delete(list, i, i+1)
		}
		if same < maxOfPrefix && len(list) < maxOfProvider {
			list = append(list, held{s, from})
		}
		p.about.Add(key, list)
	}
}

// covers reports whether a statement has a current finding about a provider or an offer.
func covers(s *protocol.Statement, n records.Name, now time.Time) bool {
	return slices.ContainsFunc(s.Findings, func(f protocol.Finding) bool {
		return f.Provider == n.Provider && f.Record == n.ID && f.Current(now)
	})
}

// About returns the statements about some offers, and about the peers of providers, with an empty id, at most
// protocol.MaxTold, without those of one peer.
func (p *Pool) About(keys []records.Name, without peer.ID, now time.Time) [][]byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out [][]byte
	for _, key := range keys {
		list, _ := p.about.Peek(key)
		for _, h := range list {
			if h.By == without || !covers(&h.Statement, key, now) || len(out) == protocol.MaxTold {
				continue
			}
			if !slices.ContainsFunc(out, func(b []byte) bool { return string(b) == string(h.Bytes) }) {
				out = append(out, h.Bytes) // one statement may cover several providers
			}
		}
	}
	return out
}
