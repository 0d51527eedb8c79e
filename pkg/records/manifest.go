package records

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"strings"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/network"
	pb "github.com/blackhole/blackhole/proto/blackhole/discovery/v1"
)

// A manifest is the record by which a provider lists its offers, so that whoever keeps them cannot leave one out unnoticed. It lies in
// the provider's cell, and in that of the provider for whom it offers, so that its delegates are found there. Its critical feature makes it a record like any other to store and to compare, and no offer: no version
// of the program finds it.

// ManifestID is the id of manifests. No offer has it.
const ManifestID = "_manifest"

// manifest is the type of manifests, and their critical feature.
const manifest = "manifest"

// Sizes in a manifest, in bytes: of the id of an offer, and with the sequence of its version at that time or of an earlier one.
const (
	listedID = 16
	listed   = listedID + 8
)

// Listed returns the id of a name in a manifest.
func (n Name) Listed() [listedID]byte {
	sum := sha256.Sum256([]byte(n.String()))
	return [listedID]byte(sum[:])
}

// SignManifest makes the manifest of live offers of one provider, at most MaxPerProvider, and of its delegates. It expires with the first
// of the offers, or at st.Expires.
func SignManifest(n network.Name, key crypto.PrivKey, offers []*Record, delegates []peer.ID, st Stamp) (*Record, error) {
	list := make([][]byte, len(offers))
	for i, r := range offers {
		id := r.name.Listed()
		list[i] = binary.BigEndian.AppendUint64(id[:], r.sequence)
		if r.expires.Before(st.Expires) {
			st.Expires = r.expires
		}
	}
	slices.SortFunc(list, bytes.Compare)
	var keys []byte
	for _, id := range slices.Sorted(slices.Values(delegates)) {
		key, ok := strings.CutPrefix(string(id), ed25519ID)
		if !ok {
			return nil, fault.Wrap("records.SignManifest", fault.Invalidf("delegates", id.String(), "must be the peer id of an Ed25519 key"))
		}
		keys = append(keys, key...)
	}
	r, err := stamp(n, key, &pb.ServiceRecord{
		Id: ManifestID, Metadata: &pb.ServiceMetadata{Type: manifest}, Critical: []string{manifest},
		Manifest: &pb.Manifest{Offers: bytes.Join(list, nil), Delegates: keys},
	}, st)
	return r, fault.Wrap("records.SignManifest", err)
}

// Manifest returns the key of the manifest in the cell of a provider.
func (c CellKey) Manifest() Key {
	return Key{Type: manifest, Cell: geo.Global, Name: Name{Provider: c.Provider, ID: ManifestID}}
}

// IsManifest reports whether this is the name of a manifest.
func (n Name) IsManifest() bool { return n.ID == ManifestID }

// Manifest returns the offers that a manifest lists: their ids and sequences. It returns nil for another record, and for a manifest
// with more features than this version knows.
func (r *Record) Manifest() map[[listedID]byte]uint64 {
	if r.needs != manifest || !r.name.IsManifest() {
		return nil
	}
	list := make(map[[listedID]byte]uint64)
	for offer := range slices.Chunk(inner(inner(r.Payload(), 16), 1), listed) {
		list[[listedID]byte(offer)] = binary.BigEndian.Uint64(offer[listedID:])
	}
	return list
}

// ascending reports whether the items of a list are in the order of their keys, each once.
func ascending(list []byte, size, key int) bool {
	var last []byte
	for item := range slices.Chunk(list, size) {
		if last != nil && bytes.Compare(last, item[:key]) >= 0 {
			return false
		}
		last = item[:key]
	}
	return true
}

// validateManifest requires a manifest of the record with its id, and of no other. Beside its list it has identity and times alone.
func validateManifest(s *pb.ServiceRecord) error {
	m := s.Manifest
	switch {
	case m == nil && s.Id == ManifestID:
		return fault.Invalidf("id", s.Id, "is reserved for the list of a provider's offers: choose another one")
	case m == nil:
		return nil
	case s.Id != ManifestID:
		return fault.Invalidf("manifest", nil, "belongs to the record with the id %s", ManifestID)
	case s.Metadata.GetType() != manifest || !slices.Contains(s.Critical, manifest):
		return fault.Invalidf("manifest", nil, "needs the type and the critical feature %q", manifest)
	case len(m.Offers)%listed != 0 || len(m.Offers) > MaxPerProvider*listed:
		return fault.Invalidf("manifest", len(m.Offers), "must have %d bytes for each of at most %d offers", listed, MaxPerProvider)
	}
	if !ascending(m.Offers, listed, listedID) {
		return fault.Invalidf("manifest", nil, "must list each offer once, in order")
	}
	switch {
	case len(m.Delegates)%keySize != 0 || len(m.Delegates) > MaxDelegates*keySize:
		return fault.Invalidf("delegates", len(m.Delegates), "must have %d bytes for each of at most %d delegates", keySize, MaxDelegates)
	case !ascending(m.Delegates, keySize, keySize):
		return fault.Invalidf("delegates", nil, "must list each delegate once, in order")
	case len(m.Delegates) > 0 && s.OfferedFor != nil:
		return fault.Invalidf("delegates", nil, "must be empty: a delegate has none")
	}
	known := withoutUnknown(s)
	rest := bare(known)
	rest.Manifest, rest.OfferedFor, rest.Location, rest.Metadata.Subtype = known.Manifest, known.OfferedFor, nil, ""
	if !proto.Equal(known, rest) {
		return fault.Invalidf("manifest", nil, "may have identity, times and sequence beside it, and nothing else")
	}
	return nil
}
