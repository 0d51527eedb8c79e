package dnsapi

import (
	"net/netip"
	"sync"
	"time"
)

// maxNetworks bounds what is kept of networks, in each half. A flood of forged senders from more of them
// makes their buckets full again, and hits none of them for long.
const maxNetworks = 4096

// rateDecision is what becomes of a question over UDP.
type rateDecision uint8

const (
	rateAllow      rateDecision = iota
	rateAskOverTCP              // there the sender is not forged
	rateDrop
)

// limiter bounds the answers over UDP to each network (as Vixie and Schryver, "Response rate limiting in
// the Domain Name System", but whatever the answer is).
type limiter struct {
	rate float64 // a second, and at once; 0: no bound
	now  func() time.Time

	mu      sync.Mutex // guards buckets
	buckets *recent[*bucket]
}

// bucket has the answers that a network may still get.
type bucket struct {
	tokens float64
	at     time.Time
	over   uint64 // questions above the rate
}

func newLimiter(rate int, now func() time.Time) *limiter {
	return &limiter{rate: float64(max(rate, 0)), now: now, buckets: newRecent[*bucket](maxNetworks)}
}

// decide counts a question of a client. This host is never limited.
func (l *limiter) decide(client netip.Addr) rateDecision {
	if l.rate == 0 || client.IsLoopback() {
		return rateAllow
	}
	key := network(client)
	now := l.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	b, ok := l.buckets.get(key[:])
	if !ok {
		b = &bucket{tokens: l.rate, at: now}
		l.buckets.put(key[:], b)
	}
	if since := now.Sub(b.at).Seconds(); since > 0 {
		b.tokens = min(l.rate, b.tokens+since*l.rate)
	}
	b.at = now
	if b.tokens >= 1 {
		b.tokens--
		return rateAllow
	}
	b.over++
	if b.over%2 == 1 {
		return rateAskOverTCP
	}
	return rateDrop
}

// network is the /24 or the /56 of an address, within IPv6.
func network(a netip.Addr) [16]byte {
	key := a.As16()
	keep := 7
	if a.Is4() || a.Is4In6() {
		keep = 15
	}
	clear(key[keep:])
	return key
}
