package records

import (
	"cmp"
	"crypto/ed25519"
	"strings"

	"github.com/ipfs/go-cid"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/multiformats/go-multihash"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/geo"
)

// Namespace is the prefix of the keys of records, and of cells by type and place.
const Namespace = "/blackhole/services"

// providerNamespace is the prefix of the keys of providers' cells.
const providerNamespace = "/blackhole/providers"

// AnySubtype means "no subtype" in a record's key and "any subtype" in a cell's key.
const AnySubtype = "_"

// Key names one record: /blackhole/services/{type}/{subtype|_}/{geohash|global}/{provider_id}/{service_id}.
// The keepers of the provider's cell resolve it.
type Key struct {
	Type    string
	Subtype string // "" is written "_"
	Cell    geo.Cell
	Name    Name
}

// CellKey names one cell of the index: /blackhole/services/{type}/{subtype|_}/{geohash prefix of
// 1 to 8 | global}, or /blackhole/providers/{provider_id} for all records of one provider. Records
// belong to the cells of lengths 1 to 6, to global, and to the cell of their provider; cells of
// lengths 7 and 8 split an overfull cell.
type CellKey struct {
	Type     string
	Subtype  string // AnySubtype for records of any subtype
	Cell     geo.Cell
	Provider peer.ID // not "": the cell of a provider; then Type and Subtype are "", and Cell is geo.Global
}

// ProviderCell returns the cell of all records of a provider, whatever their type and place. Quotas
// bound it to MaxPerProvider records.
func ProviderCell(id peer.ID) CellKey { return CellKey{Cell: geo.Global, Provider: id} }

// OfProvider reports whether this is the cell of a provider. Such a cell is never split.
func (c CellKey) OfProvider() bool { return c.Provider != "" }

// String returns the canonical form of the key.
func (c CellKey) String() string {
	if c.OfProvider() {
		return providerNamespace + "/" + c.Provider.String()
	}
	return Namespace + "/" + c.Type + "/" + c.Subtype + "/" + string(c.Cell)
}

// CID returns the cell's id in the DHT: the CIDv1 (raw, sha2-256) of its key.
func (c CellKey) CID() cid.Cid { return cid.NewCidV1(cid.Raw, c.Multihash()) }

// Multihash is the multihash of the CID. The DHT asks for it, and hashes it to a position.
func (c CellKey) Multihash() multihash.Multihash {
	sum, err := multihash.Sum([]byte(c.String()), multihash.SHA2_256, -1)
	if err != nil {
		panic("records: sha2-256 is no multihash: " + err.Error()) // impossible: the library registers it
	}
	return sum
}

// MaxPerProvider is the number of live records that keepers accept from one provider: a constant of
// the network.
const MaxPerProvider = 10_000

// MaxKey limits the length of both kinds of keys, in bytes.
const MaxKey = 256

// String returns the canonical form of the key.
func (k Key) String() string {
	subtype := k.Subtype
	subtype = cmp.Or(subtype, AnySubtype)
	return Namespace + "/" + k.Type + "/" + subtype + "/" + string(k.Cell) + "/" + k.Name.String()
}

// ParseKey parses the canonical form of a record's key. Other input is an Invalid error naming
// "key".
func ParseKey(s string) (Key, error) {
	steps, err := steps(s, 5)
	if err != nil {
		return Key{}, err
	}
	k := Key{Type: steps[0], Subtype: steps[1], Cell: geo.Cell(steps[2]), Name: Name{ID: steps[4]}}
	if k.Subtype == AnySubtype {
		k.Subtype = ""
	}
	if k.Name.Provider, err = peer.Decode(steps[3]); err != nil {
		return Key{}, fault.Invalidf("key", s, "has no peer id: %w", err)
	}
	switch {
	case !isEd25519(k.Name.Provider):
		return Key{}, fault.Invalidf("key", s, "names a provider without an Ed25519 key")
	case !inRange(k.Cell, MinPrecision, MaxPrecision):
		return Key{}, fault.Invalidf("key", s, "must have a geohash of %d to %d characters, or %q", MinPrecision, MaxPrecision, geo.Global)
	}
	if err := cmp.Or(checkKind(s, steps[0], steps[1]), CheckID("id", k.Name.ID)); err != nil {
		return Key{}, keyFault(s, err)
	}
	if k.String() != s { // another spelling of the peer id
		return Key{}, fault.Invalidf("key", s, "differs from the canonical form %s", k)
	}
	return k, nil
}

// Matches checks whether k is a key of r: type, subtype and name are equal, and its cell
// contains r's place, or is Global for r without a place. Otherwise it returns an Invalid error
// naming "key".
func (k Key) Matches(r *Record) error {
	p, placed := r.facts.Place()
	switch {
	case k.Type != r.kind || k.Subtype != r.subtype:
		return fault.Invalidf("key", k.String(), "differs from the record in type or subtype")
	case k.Name != r.name:
		return fault.Invalidf("key", k.String(), "differs from the record in provider or id")
	case placed != (k.Cell != geo.Global), placed && !k.Cell.Contains(p):
		return fault.Invalidf("key", k.String(), "does not match the record's place")
	}
	return nil
}

// ParseCellKey parses the canonical form of a cell's key. Other input is an Invalid error naming
// "key".
func ParseCellKey(s string) (CellKey, error) {
	if text, ok := strings.CutPrefix(s, providerNamespace+"/"); ok {
		return parseProviderCell(s, text)
	}
	steps, err := steps(s, 3)
	if err != nil {
		return CellKey{}, err
	}
	c := CellKey{Type: steps[0], Subtype: steps[1], Cell: geo.Cell(steps[2])}
	if !inRange(c.Cell, 1, geo.DeepLen) {
		return CellKey{}, fault.Invalidf("key", s, "must have a geohash of 1 to %d characters, or %q", geo.DeepLen, geo.Global)
	}
	if err := checkKind(s, c.Type, c.Subtype); err != nil {
		return CellKey{}, err
	}
	return c, nil
}

// parseProviderCell parses the peer id in a key s.
func parseProviderCell(s, id string) (CellKey, error) {
	if len(s) > MaxKey {
		return CellKey{}, fault.Invalidf("key", nil, "must be at most %d bytes, not %d", MaxKey, len(s))
	}
	provider, err := peer.Decode(id)
	switch {
	case err != nil:
		return CellKey{}, fault.Invalidf("key", s, "has no peer id: %w", err)
	case provider.String() != id: // another spelling of the peer id
		return CellKey{}, fault.Invalidf("key", s, "differs from the canonical form %s", ProviderCell(provider))
	}
	return ProviderCell(provider), nil
}

// steps splits the part after the namespace into the given number of segments.
func steps(s string, count int) ([]string, error) {
	if len(s) > MaxKey {
		return nil, fault.Invalidf("key", nil, "must be at most %d bytes, not %d", MaxKey, len(s))
	}
	path, ok := strings.CutPrefix(s, Namespace+"/")
	if !ok {
		return nil, fault.Invalidf("key", s, "must begin with %s/", Namespace)
	}
	parts := strings.Split(path, "/")
	if len(parts) != count {
		return nil, fault.Invalidf("key", s, "must have %d parts after %s, not %d", count, Namespace, len(parts))
	}
	return parts, nil
}

// checkKind checks the type and subtype segments of key s.
func checkKind(s, kind, subtype string) error {
	err := CheckType("type", kind)
	if err == nil && subtype != AnySubtype {
		err = CheckType("subtype", subtype)
	}
	if err != nil {
		return keyFault(s, err)
	}
	return nil
}

// keyFault converts the error of a segment to an error of the key.
func keyFault(s string, err error) error {
	return fault.Invalidf("key", s, "%s %s", fault.FieldOf(err), fault.Message(err))
}

// inRange reports whether c is Global or a geohash with a length in the range.
func inRange(c geo.Cell, low, high int) bool {
	if _, err := geo.ParseCell(string(c)); err != nil {
		return false
	}
	return c == geo.Global || (c.Len() >= low && c.Len() <= high)
}

// isEd25519 reports whether the id contains an Ed25519 key (libp2p peer ids: the identity
// multihash of the key's message, for messages of at most 42 bytes).
func isEd25519(id peer.ID) bool {
	return len(id) == len(ed25519ID)+ed25519.PublicKeySize && strings.HasPrefix(string(id), ed25519ID)
}

// ed25519ID is the beginning of the ids of Ed25519 keys. The 32 bytes of the key follow.
const ed25519ID = "\x00\x24" + ed25519Prefix
