package rpc

import (
	"slices"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"

	"github.com/blackhole/blackhole/pkg/network"
)

// maxVersions bounds the versions of one protocol that a peer may offer.
const maxVersions = 8

// Compatible returns a predicate for multistream: whether a peer that speaks id also speaks another protocol. See
// network.Compatible.
func Compatible(id protocol.ID) func(protocol.ID) bool {
	return func(other protocol.ID) bool { return network.Compatible(string(id), string(other)) }
}

// Offered returns the versions of a protocol that a peer announced, with the given one first. It is empty for a
// peer that announced none.
func Offered(h host.Host, to peer.ID, id protocol.ID) []protocol.ID {
	all, err := h.Peerstore().GetProtocols(to)
	if err != nil {
		return nil
	}
	same := Compatible(id)
	offered := slices.DeleteFunc(all, func(other protocol.ID) bool { return !same(other) })
	if i := slices.Index(offered, id); i > 0 {
		offered[0], offered[i] = offered[i], offered[0]
	}
	return offered[:min(len(offered), maxVersions)]
}

// Proposals returns the versions of a protocol to propose to a peer, the preferred one first.
func Proposals(h host.Host, to peer.ID, id protocol.ID) []protocol.ID {
	list := Offered(h, to, id)
	if !slices.Contains(list, id) {
		list = append(list, id)
	}
	return list
}
