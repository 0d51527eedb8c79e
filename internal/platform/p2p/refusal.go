package p2p

import (
	"errors"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/x/rate"
	"github.com/multiformats/go-multiaddr"

	"github.com/blackhole/blackhole/internal/platform/p2p/address"
)

// Refusal is the reason for the refusal of a connection.
type Refusal string

const (
	// RefusedAddress: as many connections as allowed come from that address.
	RefusedAddress Refusal = "address"
	// RefusedRate: too many new connections came from that address within seconds.
	RefusedRate Refusal = "rate"
	// RefusedFull: this peer has no room for a connection of anybody.
	RefusedFull Refusal = "full"
	// RefusedNetwork: the peer belongs to another network. Outgoing connections count too.
	RefusedNetwork Refusal = "network"
)

// refusalPause is the time between two log lines about refused connections.
const refusalPause = time.Minute

// resources counts the incoming connections that libp2p's resource manager refuses. libp2p neither logs them nor
// counts those of an address at its limit.
type resources struct {
	network.ResourceManager
	rate     *rate.Limiter
	refusals *refusals
}

// OpenConnection implements network.ResourceManager.
func (r *resources) OpenConnection(dir network.Direction, usefd bool, at multiaddr.Multiaddr) (network.ConnManagementScope, error) {
	ip := address.IP(at)
	if ip.IsValid() && dir == network.DirInbound && !r.rate.Allow(ip) {
		r.refusals.add(ip, RefusedRate)
		return nil, network.ErrResourceLimitExceeded
	}
	scope, err := r.ResourceManager.OpenConnection(dir, usefd, at)
	switch {
	case err == nil || dir != network.DirInbound:
	case errors.Is(err, network.ErrResourceLimitExceeded):
		r.refusals.add(ip, RefusedFull)
	default:
		r.refusals.add(ip, RefusedAddress)
	}
	return scope, err
}

// refusals counts refused connections and logs them at most once in refusalPause.
type refusals struct {
	log  *slog.Logger
	tell func(Refusal)
	now  func() time.Time

	mu     sync.Mutex
	logged time.Time              // of the last line; guarded by mu
	count  map[Refusal]int        // since the last line; guarded by mu
	latest map[Refusal]netip.Addr // guarded by mu
}

func newRefusals(log *slog.Logger, tell func(Refusal)) *refusals {
	return &refusals{log: log, tell: tell, now: time.Now, count: make(map[Refusal]int), latest: make(map[Refusal]netip.Addr)}
}

func (r *refusals) add(from netip.Addr, why Refusal) {
	r.tell(why)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count[why]++
	r.latest[why] = from
	now := r.now()
	if now.Sub(r.logged) < refusalPause {
		return
	}
	r.logged = now
	fields := make([]any, 0, 4*len(r.count))
	for why, n := range r.count {
		fields = append(fields, string(why), n, "last_"+string(why), r.latest[why].String())
	}
	r.log.Warn("connections were refused: if honest peers share the address, raise connections.per_address; if this peer is full, raise connections.most", fields...)
	clear(r.count)
	clear(r.latest)
}
