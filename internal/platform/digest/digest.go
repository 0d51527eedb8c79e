// Package digest finds the differences between two sets of versions without a transfer of the
// sets: first the roots, then the sums of 256 buckets, then the entries of the different buckets.
//
// A sum is a hash over the sorted entries. A XOR of hashes would be cheaper, but an attacker who
// chooses names could make different sets look equal.
//
// The package is pure: equal entries have equal sums on every peer, in any order of arrival.
package digest

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"sort"

	"github.com/blackhole/blackhole/pkg/fault"
)

// Sizes on the wire, in bytes.
const (
	Buckets   = 256
	IDSize    = 16
	SumSize   = 16
	EntrySize = IDSize + 16
	SumsSize  = Buckets * SumSize
)

// ID identifies an entry: the first bytes of the SHA-256 of its name. To find two names with one
// id takes 2^64 hashes, and would hide only one of the two records.
type ID [IDSize]byte

// IDOf returns the id of a name.
func IDOf(name string) ID {
	sum := sha256.Sum256([]byte(name))
	return ID(sum[:IDSize])
}

// Bucket returns the bucket of the id's entry.
func (id ID) Bucket() int { return int(id[0]) }

// Compare orders ids bytewise.
func (id ID) Compare(other ID) int { return bytes.Compare(id[:], other[:]) }

// Version orders the entries with one id. Versions compare bytewise.
type Version [16]byte

// VersionOf returns the version for a sequence and a hash. The first bytes of the hash distinguish
// equal sequences.
func VersionOf(sequence uint64, hash [sha256.Size]byte) Version {
	var v Version
	binary.BigEndian.PutUint64(v[:8], sequence)
	copy(v[8:], hash[:])
	return v
}

// Newer reports whether v is above w.
func (v Version) Newer(w Version) bool { return bytes.Compare(v[:], w[:]) > 0 }

// Entry is one member of a set.
type Entry struct {
	ID      ID
	Version Version
}

func (e Entry) compare(f Entry) int {
	return cmp.Or(e.ID.Compare(f.ID), bytes.Compare(e.Version[:], f.Version[:]))
}

// Sum is the hash of a bucket or, as the root, of a set. The zero sum is the sum of no entries.
type Sum [SumSize]byte

// Sums are the sums of a set's buckets.
type Sums [Buckets]Sum

// Root returns the hash of the sums; zero for zero sums.
func (s *Sums) Root() Sum {
	if *s == (Sums{}) {
		return Sum{}
	}
	h := sha256.Sum256(s.Bytes())
	return Sum(h[:SumSize])
}

// Bytes returns the wire form.
func (s *Sums) Bytes() []byte {
	b := make([]byte, 0, SumsSize)
	for i := range s {
		b = append(b, s[i][:]...)
	}
	return b
}

// ParseSums parses the wire form. It returns Invalid naming "sums" for a wrong length.
func ParseSums(b []byte) (*Sums, error) {
	if len(b) != SumsSize {
		return nil, fault.Invalidf("sums", len(b), "must be %d bytes", SumsSize)
	}
	s := new(Sums)
	for i := range s {
		copy(s[i][:], b[i*SumSize:])
	}
	return s, nil
}

// Set is an immutable set of entries.
type Set struct {
	entries []Entry // sorted, without duplicates
	root    Sum
	sums    *Sums // of a large set; the sums of a small set are computed for each call
}

// small is the size up to which the computation of sums costs less than their memory.
const small = 512

// New takes ownership of some entries, sorts them, and returns their set.
func New(entries []Entry) *Set {
	slices.SortFunc(entries, Entry.compare)
	s := &Set{entries: slices.Compact(entries)}
	sums := s.summed()
	s.root = sums.Root()
	if len(s.entries) > small {
		s.sums = sums
	}
	return s
}

func (s *Set) summed() *Sums {
	sums := new(Sums)
	for rest := s.entries; len(rest) > 0; {
		bucket := rest[0].ID.Bucket()
		n := 1
		for n < len(rest) && rest[n].ID.Bucket() == bucket {
			n++
		}
		sums[bucket] = sumOf(rest[:n])
		rest = rest[n:]
	}
	return sums
}

func sumOf(entries []Entry) Sum {
	h := sha256.New()
	for i := range entries {
		_, _ = h.Write(entries[i].ID[:]) // a hash does not fail
		_, _ = h.Write(entries[i].Version[:])
	}
	var sum [sha256.Size]byte
	return Sum(h.Sum(sum[:0])[:SumSize])
}

// Len returns the number of entries.
func (s *Set) Len() int { return len(s.entries) }

// Root returns the root of the set.
func (s *Set) Root() Sum { return s.root }

// Sums returns the sums of the buckets. The caller must not change them.
func (s *Set) Sums() *Sums {
	if s.sums != nil {
		return s.sums
	}
	return s.summed()
}

// Entries returns the entries by id. The caller must not change them.
func (s *Set) Entries() []Entry { return s.entries }

// In returns the entries of a bucket. The caller must not change them.
func (s *Set) In(bucket int) []Entry {
	from := s.start(bucket)
	return s.entries[from : from+s.starting(from, bucket)]
}

func (s *Set) start(bucket int) int {
	return sort.Search(len(s.entries), func(i int) bool { return s.entries[i].ID.Bucket() >= bucket })
}

func (s *Set) starting(from, bucket int) int {
	rest := s.entries[from:]
	return sort.Search(len(rest), func(i int) bool { return rest[i].ID.Bucket() > bucket })
}

// List returns, in wire form, the entries of the buckets with sums different from theirs (of all
// buckets if theirs is nil), from a bucket on, in complete buckets, up to room bytes. Next is the
// first bucket not examined; Buckets at the end. A bucket above most bytes is cut there, so that
// every call with room for most bytes makes progress.
func (s *Set) List(theirs *Sums, from, room, most int) (wire []byte, next int) {
	var listed [][]Entry
	size := 0
	mine := s.Sums()
	for next = max(from, 0); next < Buckets; next++ {
		if theirs != nil && theirs[next] == mine[next] {
			continue
		}
		entries := s.In(next)
		entries = entries[:min(len(entries), most/EntrySize)]
		if size+len(entries)*EntrySize > room {
			break
		}
		listed = append(listed, entries)
		size += len(entries) * EntrySize
	}
	wire = make([]byte, 0, size) // a list of a megabyte that grows step by step leaves several behind
	for _, entries := range listed {
		wire = Append(wire, entries...)
	}
	return wire, next
}

// Append appends the wire form of entries.
func Append(b []byte, entries ...Entry) []byte {
	for i := range entries {
		b = append(b, entries[i].ID[:]...)
		b = append(b, entries[i].Version[:]...)
	}
	return b
}

// Parse parses the wire form of entries. It returns Invalid naming "entries" for a wrong length.
func Parse(b []byte) ([]Entry, error) {
	if len(b)%EntrySize != 0 {
		return nil, fault.Invalidf("entries", len(b), "must be a multiple of %d bytes", EntrySize)
	}
	entries := make([]Entry, len(b)/EntrySize)
	for i := range entries {
		copy(entries[i].ID[:], b[i*EntrySize:])
		copy(entries[i].Version[:], b[i*EntrySize+IDSize:])
	}
	return entries, nil
}

// ParseIDs parses a sequence of ids. It returns Invalid naming "ids" for a wrong length, and for
// more than most ids.
func ParseIDs(b []byte, most int) ([]ID, error) {
	if len(b)%IDSize != 0 || len(b)/IDSize > most {
		return nil, fault.Invalidf("ids", len(b), "must hold up to %d ids, %d bytes each", most, IDSize)
	}
	ids := make([]ID, len(b)/IDSize)
	for i := range ids {
		copy(ids[i][:], b[i*IDSize:])
	}
	return ids, nil
}
