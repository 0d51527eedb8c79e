// Package directory has the keys and the entries of the directory of instances, and summaries of them.
package directory

import (
	"crypto/sha256"
	"encoding/binary"
	"strings"

	"github.com/blackhole/blackhole/internal/contract/coord"
)

// Prefix is the prefix of the keys written by directory commands alone, followed by namespace/service/id.
const Prefix = "directory/"

// Outside stands in the place of the peer of an instance that no peer answers for: it is what its registrar wrote last. Its entry is a key without
// a lease under OutsidePrefix, with the rest as under Prefix, and an id that begins with OutsideID, as no other does.
const (
	Outside       = "outside"
	OutsideID     = Outside + ":"
	OutsidePrefix = "directory-" + Outside + "/"

	// BothPrefix begins the keys of both kinds of entries, and others.
	BothPrefix = "directory"
)

// Bounds of one batch of changes, part of the log format.
const (
	MaxBatch      = 1000      // puts and deletes
	MaxBatchBytes = 512 << 10 // keys and values
	MaxEntry      = 16 << 10  // value of an entry
)

// Entry is an instance in the directory.
type Entry struct {
	Key   string // Key
	Value []byte // blackhole.agent.v1.Instance with the same names, checked where a peer's call arrives; kept, so read-only for the caller
	// Adopt marks a new registration: take the entry over from another owner.
	Adopt bool
	// Since is the revision of the registration's first commit, from the result
	// of a batch with Adopt; 0 if unknown. Ignored with Adopt.
	Since coord.Revision
	// Principal is the NamedOwner of the authenticated caller that registered the instance; empty for a caller without
	// a name, whose entry every other owner may adopt.
	Principal string
}

// Key returns the key of an instance's entry.
func Key(namespace, service, id string) string {
	return Prefix + namespace + "/" + service + "/" + id
}

// Inside returns the key under Prefix that stands for an entry of either kind; false for other keys, and for an id of the other kind.
func Inside(key string) (inside string, ok bool) {
	id := strings.HasPrefix(key[strings.LastIndexByte(key, '/')+1:], OutsideID)
	if rest, outside := strings.CutPrefix(key, OutsidePrefix); outside {
		return Prefix + rest, id
	}
	return key, !id && strings.HasPrefix(key, Prefix)
}

// Span returns the span of a service, without a service of a namespace,
// and without both of the directory.
func Span(namespace, service string) coord.Span {
	switch {
	case namespace == "":
		return coord.Under(Prefix)
	case service == "":
		return coord.Under(Prefix + namespace + "/")
	}
	return coord.Under(Prefix + namespace + "/" + service + "/")
}

// Names parses the key of an entry. It returns false for other keys.
func Names(key string) (namespace, service, id string, ok bool) {
	rest, ok := strings.CutPrefix(key, Prefix)
	namespace, rest, some := strings.Cut(rest, "/")
	service, id, more := strings.Cut(rest, "/")
	ok = ok && some && more && label(namespace) && len(service) <= 64 && IsID(service) && IsID(id)
	return namespace, service, id, ok
}

// Digest summarises a set of entries in any order. Equal sets have equal
// digests; different sets differ with overwhelming probability. It is the
// additive multiset hash of Clarke, Devadas, van Dijk, Gassend and Suh,
// "Incremental Multiset Hash Functions and Their Application to Memory
// Integrity Checking" (ASIACRYPT 2003), with 128 bits: strong against
// accidents, not against an owner that attacks itself. The zero Digest is the
// empty set.
type Digest struct {
	Count     int
	High, Low uint64
}

// Add adds an entry to the set.
func (d *Digest) Add(key string, value []byte) {
	high, low := digestOf(key, value)
	d.Count, d.High, d.Low = d.Count+1, d.High+high, d.Low+low
}

// Remove removes an entry of the set.
func (d *Digest) Remove(key string, value []byte) {
	high, low := digestOf(key, value)
	d.Count, d.High, d.Low = d.Count-1, d.High-high, d.Low-low
}

func digestOf(key string, value []byte) (high, low uint64) {
	var room [2048]byte
	b := binary.BigEndian.AppendUint32(room[:0], uint32(len(key)))
	sum := sha256.Sum256(append(append(b, key...), value...))
	return binary.BigEndian.Uint64(sum[:]), binary.BigEndian.Uint64(sum[8:])
}

// Publication describes the entries of an owner.
type Publication struct {
	Generation uint64 // latest one
	Digest            // of its entries under all leases
}

// label reports whether text is a valid name of a namespace.
func label(text string) bool {
	for i := range len(text) {
		if c := text[i]; c != '-' && (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return text != "" && len(text) <= 63
}

// IsID reports whether text is a valid instance id or requirement name; a service has the same characters.
func IsID(text string) bool {
	for i := range len(text) {
		c := text[i]
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !letter && !strings.ContainsRune("._:-", rune(c)) {
			return false
		}
	}
	return text != "" && len(text) <= 128
}
