package witness

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"github.com/libp2p/go-libp2p/core/peer"
)

// Bounds of a Pool.
const (
	maxProviders  = 4096 // providers with statements
	maxOfProvider = 8    // statements about one provider
	maxOfPrefix   = 2    // of them, from measurers in one address prefix
	MaxTold       = 32   // statements of one answer
)

// held is a statement that its measurer delivered.
type held struct {
	Statement
	from netip.Prefix // of the measurer; zero: on this machine, or unknown
}

// Pool holds the statements that measurers delivered to this peer, for other peers. It is safe for concurrent use.
type Pool struct {
	mu    sync.Mutex // guards the fields below
	about *simplelru.LRU[peer.ID, []held]
}

// NewPool returns an empty Pool.
func NewPool() *Pool {
	about, err := simplelru.NewLRU[peer.ID, []held](maxProviders, nil)
	if err != nil {
		panic("witness: " + err.Error()) // impossible: the size is a positive constant
	}
	return &Pool{about: about}
}

// Put holds a statement that its measurer delivered from an address in from.
func (p *Pool) Put(s Statement, from netip.Prefix, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range s.Findings {
		list, _ := p.about.Get(f.Provider)
		list = slices.DeleteFunc(slices.Clone(list), func(h held) bool { return h.By == s.By || !h.covers(f.Provider, now) })
		same := 0
		for _, h := range list {
			if from.IsValid() && h.from == from {
				same++
			}
		}
		if len(list) < maxOfProvider && same < maxOfPrefix {
			list = append(list, held{s, from})
		}
		p.about.Add(f.Provider, list)
	}
}

// covers reports whether a statement has a current finding about a provider.
func (s *Statement) covers(id peer.ID, now time.Time) bool {
	return slices.ContainsFunc(s.Findings, func(f Finding) bool { return f.Provider == id && f.current(now) })
}

// About returns the statements about some providers, at most MaxTold, without those of one peer.
func (p *Pool) About(providers []peer.ID, without peer.ID, now time.Time) [][]byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out [][]byte
	for _, id := range providers {
		list, _ := p.about.Peek(id)
		for _, h := range list {
			if h.By == without || !h.covers(id, now) || len(out) == MaxTold {
				continue
			}
			if !slices.ContainsFunc(out, func(b []byte) bool { return string(b) == string(h.Bytes) }) {
				out = append(out, h.Bytes) // one statement may cover several providers
			}
		}
	}
	return out
}
