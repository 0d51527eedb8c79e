package dnsapi

import (
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// maxNetworks bounds the remembered networks, in each half of the cache. A flood of forged senders
// from more networks refills their buckets, but hits no network for long.
const maxNetworks = 4096

// rateDecision is the decision about a question over UDP.
type rateDecision uint8

const (
	rateAllow      rateDecision = iota
	rateAskOverTCP              // where senders cannot be forged
	rateDrop
)

// limiter bounds the answers over UDP to each network, as in "Response Rate Limiting in the Domain
// Name System" (Vixie and Schryver), but without regard to the content of an answer.
type limiter struct {
	rate int // answers per second and burst; zero means no bound
	now  func() time.Time

	mu      sync.Mutex // guards buckets
	buckets *recent[*bucket]
}

// bucket is the token bucket of a network.
type bucket struct {
	tokens  *rate.Limiter
	overTCP bool // the last excess question got "ask over TCP"
}

func newLimiter(perSecond int, now func() time.Time) *limiter {
	return &limiter{rate: max(perSecond, 0), now: now, buckets: newRecent[*bucket](maxNetworks)}
}

// decide counts a question of a client. Clients on this host have no limit: an answer to loopback never leaves the
// host, and under one limit for all of them one could silence the others.
func (l *limiter) decide(client netip.Addr) rateDecision {
	if l.rate == 0 || client.IsLoopback() {
		return rateAllow
	}
	key := network(client)
	l.mu.Lock()
	defer l.mu.Unlock()
	b, ok := l.buckets.get(key[:])
	if !ok {
		b = &bucket{tokens: rate.NewLimiter(rate.Limit(l.rate), l.rate)}
		l.buckets.put(key[:], b)
	}
	if b.tokens.AllowN(l.now(), 1) {
		return rateAllow
	}
	if b.overTCP = !b.overTCP; b.overTCP {
		return rateAskOverTCP
	}
	return rateDrop
}

// network returns the /24 or the /56 of an address, as an IPv6 address.
func network(a netip.Addr) [16]byte {
	key := a.As16()
	keep := 7
	if a.Is4() || a.Is4In6() {
		keep = 15
	}
	clear(key[keep:])
	return key
}
