package coord

import (
	"crypto/sha256"
	"encoding/binary"
	"strings"

	"github.com/blackhole/blackhole/pkg/instance"
)

// Prefixes of the keys that only the directory's commands write.
const (
	DirectoryPrefix    = "directory/"    // then namespace, service and id, parted by slashes
	RequirementsPrefix = "requirements/" // then the name
)

// Bounds of one RegisterBatch. They are part of the format of the log.
const (
	MaxBatch      = 1000      // puts and deletes
	MaxBatchBytes = 512 << 10 // keys and values
)

// RegisterBatch changes what an owner, a peer, has in the directory: all of it at one revision. Every
// entry is bound to the lease, and goes with it. A put that finds the same value under the same
// lease makes no event.
//
// An owner publishes under one lease and in generations. The first batch of a generation binds it to
// its lease; from then on until that lease ends batches of older ones are refused, so that a command
// sent by a process that is no more, or before the owner began anew, changes nothing however late it
// comes. What the older ones put stays until it is put again, deleted, replaced, or its lease ends.
//
// An entry belongs to the owner of its lease. An application may register with one owner and later with another,
// owners may be away and come back in any order, and the registration made last counts. So a put with Adopt,
// which is a new registration, moves an entry that another owner has to the batch's lease in one event, by which
// its former owner learns of it. One without repeats an earlier registration, first committed at the revision Since,
// and is passed over and its key listed in the result, Foreign, when there is a later word on the key:
//
//   - another owner has the entry, of a registration as late or later. One that is earlier gives way;
//   - another owner took it out of the directory at a later revision: see MaxDepartures.
//
// A Since above the present revision is of a history that the group has lost, and counts as 0. As an entry's Since only
// rises while it is there, and no two owners have the same, owners never take an entry from each other in
// turns. Deletes of another's entries, and of none, are passed over too. So one entry that moved does not keep a peer's
// others from being registered.
//
// Errors: Conflict, field "generation" for an older one, field "lease" when the generation is bound
// to another; NotFound, Forbidden for the lease; Invalid, TooLarge, LimitReached.
type RegisterBatch struct {
	Lease      LeaseID
	Generation uint64 // above 0
	Puts       []Entry
	Deletes    []string // keys
	// Replace, if not nil, says that the puts are all that the owner has in the span: its other
	// entries there go. Spans that follow each other so bring a directory of any size to what it
	// should be, batch by batch, and no entry that stays is ever missing.
	Replace *Span
}

// Entry is an instance in the directory.
type Entry struct {
	Key   string // DirectoryKey
	Value []byte // blackhole.agent.v1.Instance of the same names; kept: the caller must not change it
	// Adopt says that its application registered here now: take it over if it is another owner's.
	Adopt bool
	// Since is the revision at which that registration was first committed, by the result of a batch
	// with Adopt; 0 when it is not known. Without effect with Adopt.
	Since Revision
}

// DirectoryKey is the key of an instance's entry.
func DirectoryKey(k instance.Key) string { return DirectoryPrefix + k.String() }

// ServiceSpan is the span of a service's entries; without a service, of a namespace's; without either, of all.
func ServiceSpan(n instance.Name) Span {
	switch {
	case n.Namespace == "":
		return Under(DirectoryPrefix)
	case n.Service == "":
		return Under(DirectoryPrefix + n.Namespace + "/")
	}
	return Under(DirectoryPrefix + n.Namespace + "/" + n.Service + "/")
}

// InstanceKey takes the key of an entry apart; false if it is none.
func InstanceKey(key string) (instance.Key, bool) {
	rest, ok := strings.CutPrefix(key, DirectoryPrefix)
	namespace, rest, some := strings.Cut(rest, "/")
	service, id, more := strings.Cut(rest, "/")
	k := instance.Key{Namespace: namespace, Service: service, ID: id}
	return k, ok && some && more && label(namespace, 63) && label(service, 64) && identifier(id)
}

// Digest sums up entries, in whatever order they came: equal sets have equal digests, and different
// ones do but for bad luck. It is the additive multiset hash of Clarke, Devadas, van Dijk, Gassend and Suh,
// "Incremental Multiset Hash Functions and Their Application to Memory Integrity Checking"
// (ASIACRYPT 2003), of 128 bits: enough against accidents, not against an owner who wants to
// deceive itself. The zero Digest is that of no entries.
type Digest struct {
	Count     int
	High, Low uint64
}

// Add counts an entry in.
func (d *Digest) Add(key string, value []byte) {
	high, low := digestOf(key, value)
	d.Count, d.High, d.Low = d.Count+1, d.High+high, d.Low+low
}

// Remove counts out an entry that was counted in.
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

// Publication is what an owner has in the directory.
type Publication struct {
	Generation uint64 // the present one
	Digest            // of its entries, under whatever lease
}

// label reports whether text is the name of a namespace or of a service.
func label(text string, most int) bool {
	for i := range len(text) {
		if c := text[i]; c != '-' && (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return text != "" && len(text) <= most
}

// identifier reports whether text is the id of an instance, or the name of a requirement.
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
