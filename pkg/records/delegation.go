package records

import (
	"slices"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/network"
	"github.com/blackhole/blackhole/pkg/records/delegation"
	pb "github.com/blackhole/blackhole/proto/blackhole/discovery/v1"
)

// MaxDelegates bounds the delegates of a provider that keepers count: a constant of the network.
const MaxDelegates = 32

const keySize = 32 // bytes of a key in the list of a manifest

// checkOfferedFor verifies the delegation of a validated message.
func checkOfferedFor(n network.Name, s *pb.ServiceRecord, signer peer.ID) (by peer.ID, err error) {
	if s.OfferedFor == nil {
		return "", nil
	}
	d, err := delegation.Open(n, s.OfferedFor)
	if err == nil {
		err = d.Valid(signer, s.UpdatedAt.AsTime().Add(ClockSkew), s.ExpiresAt.AsTime())
	}
	if err != nil {
		return "", fault.In("offered_for", err)
	}
	return peer.ID(intern(string(d.Provider))), nil
}

// OfferedFor returns the provider for whom the signer offers the service, by that provider's delegation; "" for an offer of its own.
func (r *Record) OfferedFor() peer.ID { return r.offeredFor }

// Of reports whether a record is an offer of a provider or of one of its delegates.
func (r *Record) Of(provider peer.ID) bool {
	return r.name.Provider == provider || r.offeredFor == provider && provider != ""
}

// Delegates returns the delegates that a manifest names; none for another record.
func (r *Record) Delegates() (ids []peer.ID) {
	if r.needs != manifest || !r.name.IsManifest() {
		return nil
	}
	for key := range slices.Chunk(inner(inner(r.Payload(), 16), 2), keySize) {
		ids = append(ids, peer.ID(ed25519ID+string(key)))
	}
	return ids
}
