package coord

import (
	"crypto/sha256"
	"encoding/binary"
	"strings"
)

// Prefixes of the keys written by directory commands alone.
const (
	DirectoryPrefix    = "directory/"    // followed by namespace/service/id
	RequirementsPrefix = "requirements/" // followed by the name
)

// Bounds of one RegisterBatch, part of the log format.
const (
	MaxBatch      = 1000      // puts and deletes
	MaxBatchBytes = 512 << 10 // keys and values
	MaxEntry      = 16 << 10  // value of an entry
)

// RegisterBatch changes the entries of an owner, a peer, at one revision. Each
// entry is bound to the lease and ends with it. A put of an equal value under
// the same lease makes no event.
//
// An owner publishes under one lease and in generations. The first batch of a
// generation binds it to the lease. Until the end of that lease the group
// rejects batches of older generations: a late command of an earlier process,
// or from before a resync, changes nothing. Entries of older generations stay
// until a put, a delete, a replaced span or the end of their lease.
//
// An entry belongs to the owner of its lease. An application may register with
// several owners in turn, and owners may leave and return in any order: the
// latest registration counts. A put with Adopt is a new registration. It moves
// the entry of another owner to the batch's lease in one event, which informs
// the former owner. A put without Adopt repeats a registration first committed
// at revision Since. It is skipped, and its key listed in Result.Foreign, after
// a later decision about the key:
//
//   - another owner has the entry from an equal or later registration; an earlier one gives way;
//   - another owner has the entry, with a Principal that is not the put's. This holds with Adopt too: the entry of an
//     authenticated caller stays with its owner until the owner removes it or its lease ends;
//   - another owner removed the entry at a later revision, as long as the group remembers it.
//
// A Since above the present revision belongs to a lost history and counts as 0.
// The Since of an entry only rises during its life, and no two owners share
// one, so owners never take an entry from each other repeatedly. Deletes of
// foreign and of unknown entries are skipped too. A moved entry therefore never
// blocks a peer's other entries.
//
// Errors: Conflict, field "generation" for an older one, field "lease" for a
// generation bound to another lease; NotFound, Forbidden for the lease;
// Invalid, TooLarge, LimitReached.
type RegisterBatch struct {
	Lease      LeaseID
	Generation uint64 // above 0
	Puts       []Entry
	Deletes    []string // keys
	// Replace, if not nil, declares the puts to be all entries of the owner in
	// the span: its other entries there end. Consecutive spans correct a
	// directory of any size batch by batch, without a gap for correct entries.
	Replace *Span
}

// Entry is an instance in the directory.
type Entry struct {
	Key   string // DirectoryKey
	Value []byte // blackhole.agent.v1.Instance with the same names, checked where a peer's call arrives; kept, so read-only for the caller
	// Adopt marks a new registration: take the entry over from another owner.
	Adopt bool
	// Since is the revision of the registration's first commit, from the result
	// of a batch with Adopt; 0 if unknown. Ignored with Adopt.
	Since Revision
	// Principal is the NamedOwner of the authenticated caller that registered the instance; empty for a caller without
	// a name, whose entry every other owner may adopt.
	Principal string
}

// DirectoryKey returns the key of an instance's entry.
func DirectoryKey(namespace, service, id string) string {
	return DirectoryPrefix + namespace + "/" + service + "/" + id
}

// ServiceSpan returns the span of a service, without a service of a namespace,
// and without both of the directory.
func ServiceSpan(namespace, service string) Span {
	switch {
	case namespace == "":
		return Under(DirectoryPrefix)
	case service == "":
		return Under(DirectoryPrefix + namespace + "/")
	}
	return Under(DirectoryPrefix + namespace + "/" + service + "/")
}

// EntryNames parses the key of an entry. It returns false for other keys.
func EntryNames(key string) (namespace, service, id string, ok bool) {
	rest, ok := strings.CutPrefix(key, DirectoryPrefix)
	namespace, rest, some := strings.Cut(rest, "/")
	service, id, more := strings.Cut(rest, "/")
	return namespace, service, id, ok && some && more && label(namespace, 63) && label(service, 64) && identifier(id)
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

// label reports whether text is a valid name of a namespace or of a service.
func label(text string, most int) bool {
	for i := range len(text) {
		if c := text[i]; c != '-' && (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return text != "" && len(text) <= most
}

// identifier reports whether text is a valid instance id or requirement name.
func identifier(text string) bool {
	for i := range len(text) {
		c := text[i]
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !letter && !strings.ContainsRune("._:-", rune(c)) {
			return false
		}
	}
	return text != "" && len(text) <= 128
}
