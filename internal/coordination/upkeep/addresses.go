package upkeep

import (
	"bytes"
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/peerstore"
	"github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"

	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/internal/coordination/replica"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

const (
	maxAddresses = 8               // of one member
	readdressing = 5 * time.Second // between two records of changed addresses
)

// The state of the group says where its members can be dialled, so that a majority finds itself again after a crash
// of all, whatever each of them still knows of the network.

// recordAddresses writes changed addresses of the members into the state. A member whose addresses are unknown here
// keeps those that the state has.
func (c *Membership) recordAddresses(ctx context.Context, s replica.Status, now time.Duration) {
	if len(s.Members) < 2 || now < c.readdress {
		return
	}
	before, known := c.recorded()
	var next [][]byte
	for _, m := range s.Members {
		id, err := peer.Decode(m.Peer)
		if err != nil {
			continue
		}
		at := AddressesOf(c.Host, id)
		if len(at) == 0 {
			at = known[id]
		}
		full, _ := peer.AddrInfoToP2pAddrs(&peer.AddrInfo{ID: id, Addrs: at}) // it fails for no peer id
		for _, a := range full {
			next = append(next, a.Bytes())
		}
	}
	if slices.EqualFunc(next, before, bytes.Equal) {
		return
	}
	c.readdress = now + readdressing
	set := &coordv1.Command{Request: &coordv1.Command_SetAddresses{SetAddresses: &coordv1.SetAddresses{Multiaddrs: next}}}
	if err := c.apply(ctx, set); err != nil {
		c.Logger.Debug("the addresses of the members were not recorded", "error", err) // a later look tries again
	}
}

// recorded returns the addresses in the state, as they are and by peer.
func (c *Membership) recorded() (all [][]byte, by map[peer.ID][]multiaddr.Multiaddr) {
	c.Member.View(func(m *machine.Machine) { all = m.Addresses() })
	by = map[peer.ID][]multiaddr.Multiaddr{}
	for _, b := range all {
		a, err := multiaddr.NewMultiaddrBytes(b)
		if err != nil {
			continue // of a later version
		}
		if at, id := peer.SplitAddr(a); id != "" {
			by[id] = append(by[id], at)
		}
	}
	return all, by
}

// Introduce tells the host where the state says that the absent members are. Raft dials them, and paces the dials.
func (c *Membership) Introduce() {
	_, known := c.recorded()
	for id, at := range known {
		if id != c.Host.ID() && c.Host.Network().Connectedness(id) != network.Connected {
			c.Host.Peerstore().AddAddrs(id, at, peerstore.TempAddrTTL)
		}
	}
}

// AddressesOf returns where a peer says that it can be dialled directly: first at the host that it is connected from,
// then public addresses, then others, a few in all.
func AddressesOf(h host.Host, id peer.ID) []multiaddr.Multiaddr {
	named := h.Peerstore().Addrs(id)
	if id == h.ID() {
		named = h.Addrs()
	}
	rank := func(a multiaddr.Multiaddr) int {
		at, _ := multiaddr.SplitFirst(a)
		for _, c := range h.Network().ConnsToPeer(id) {
			if from, _ := multiaddr.SplitFirst(c.RemoteMultiaddr()); from.Equal(at) {
				return 0
			}
		}
		if manet.IsPublicAddr(a) {
			return 1
		}
		return 2
	}
	direct := multiaddr.FilterAddrs(named, func(a multiaddr.Multiaddr) bool {
		_, err := a.ValueForProtocol(multiaddr.P_CIRCUIT)
		return err != nil
	})
	slices.SortFunc(direct, func(a, b multiaddr.Multiaddr) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), bytes.Compare(a.Bytes(), b.Bytes()))
	})
	return direct[:min(len(direct), maxAddresses)]
}
