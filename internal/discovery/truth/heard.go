package truth

import (
	"net/netip"
	"slices"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/discovery/protocol"
)

// quorum is the number of measurers, and of their address prefixes, that prove a claim, or hide an offer at one of
// them.
const quorum = 3

// heard is a finding of another peer.
type heard struct {
	protocol.Finding
	By   peer.ID
	From netip.Prefix // of the measurer, if it delivered the finding itself; zero: unknown
}

// renew keeps the newer finding of a measurer in a list, and the network that its own connection showed. It reports
// false, and changes nothing, if the list has none of that measurer.
func renew(list []heard, h heard) bool {
	i := slices.IndexFunc(list, func(x heard) bool { return x.By == h.By })
	if i < 0 {
		return false
	}
	if !h.From.IsValid() {
		h.From = list[i].From
	}
	if !h.CheckedAt.After(list[i].CheckedAt) {
		h.Finding = list[i].Finding
	}
	list[i] = h
	return true
}

// networks counts the known networks of the measurers of a list.
func networks(list []heard) int {
	var room [maxHeard]netip.Prefix
	known := room[:0]
	for _, h := range list {
		if h.From.IsValid() && !slices.Contains(known, h.From) {
			known = append(known, h.From)
		}
	}
	return len(known)
}
