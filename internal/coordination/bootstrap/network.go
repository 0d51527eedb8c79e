package bootstrap

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"slices"
	"strings"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/network"
)

// MaxFounders bounds a list of founders.
const MaxFounders = 9

// NetworkID identifies a Network.
type NetworkID [sha256.Size]byte

// String returns the id in hex.
func (id NetworkID) String() string { return hex.EncodeToString(id[:]) }

// Network defines who founds the group of a network. Peers with equal lists found one group, and only a list rules out two
// groups: without one the first peer founds alone. A founded group accepts peers with other lists: see Recognize.
type Network struct {
	Name network.Name // of the network of peers

	// Founders are the initial voters, in any order: at most MaxFounders. None: the first peer of the network founds alone.
	Founders []peer.ID
}

// Listed reports whether the network has a list of founders.
func (n Network) Listed() bool { return len(n.Founders) > 0 }

// Validate returns an Invalid error with the first wrong field.
func (n Network) Validate() error {
	if err := n.Name.Validate(); err != nil {
		return fault.In("name", err)
	}
	if len(n.Founders) > MaxFounders {
		return fault.Invalidf("founders", len(n.Founders), "must name at most %d peers", MaxFounders)
	}
	seen := make(map[peer.ID]bool, len(n.Founders))
	for _, p := range n.Founders {
		if _, ok := publicKey(p); !ok {
			return fault.Invalidf("founders", p.String(), "not the id of an Ed25519 key")
		}
		if seen[p] {
			return fault.Invalidf("founders", p.String(), "named twice")
		}
		seen[p] = true
	}
	return nil
}

// ID returns the hash of all fields. The order of the list does not count.
func (n Network) ID() NetworkID {
	domain := n.Name.Domain("group-network")
	b := append(binary.BigEndian.AppendUint32(nil, uint32(len(domain))), domain...)
	var alone byte
	if !n.Listed() {
		alone = 1
	}
	b = append(b, alone)
	for _, p := range n.founders() {
		b = binary.BigEndian.AppendUint32(b, uint32(len(p)))
		b = append(b, p...)
	}
	return sha256.Sum256(b)
}

// founders returns the list in ascending order.
func (n Network) founders() []peer.ID { return slices.Sorted(slices.Values(n.Founders)) }

// Quorum returns the majority of the founders. Without a list one peer founds.
func (n Network) Quorum() int { return len(n.Founders)/2 + 1 }

// Eligible reports whether p may found the group.
func (n Network) Eligible(p peer.ID) bool {
	if !n.Listed() {
		_, ok := publicKey(p)
		return ok
	}
	return slices.Contains(n.Founders, p)
}

// ed25519ID is the prefix of the peer id of an Ed25519 key, which contains the whole key: identity multihash
// of 36 bytes, libp2p PublicKey message of type Ed25519 (libp2p specification, "Peer Ids and Keys").
const ed25519ID = "\x00\x24\x08\x01\x12\x20"

const peerIDBytes = len(ed25519ID) + ed25519.PublicKeySize

// publicKey extracts the key from the id of an Ed25519 peer, the only supported kind.
func publicKey(p peer.ID) (ed25519.PublicKey, bool) {
	if len(p) != peerIDBytes || !strings.HasPrefix(string(p), ed25519ID) {
		return nil, false
	}
	return ed25519.PublicKey(p[len(ed25519ID):]), true
}
