package cell

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"math"
	"net/netip"
	"slices"

	"github.com/blackhole/blackhole/pkg/records"
)

// Member is a record and the network of its publisher.
type Member struct {
	Record *records.Record
	Prefix netip.Prefix // /24 of IPv4 or /48 of IPv6 of the publisher; zero means unknown
}

// Rank orders records in a way that all peers agree on and no provider chooses: the first 8 bytes,
// big-endian, of the SHA-256 of the name's string.
func Rank(n records.Name) uint64 {
	sum := sha256.Sum256([]byte(n.String()))
	return binary.BigEndian.Uint64(sum[:])
}

// sampleShare is the maximum in a sample of one prefix, or of one provider with an unknown prefix.
const sampleShare = SampleSize / 4

// Sample is the SampleSize records of lowest rank (bottom-k sampling: Cohen and Kaplan,
// "Summarizing Data Using Bottom-k Sketches", 2007), at most a quarter of them from one bucket: an
// inventor of names can choose low ranks cheaply. It depends on the offered records, not on their
// order. The zero value is empty.
type Sample struct {
	members []ranked // by rank
	names   map[records.Name]struct{}
	of      map[quotaBucket]int
}

type ranked struct {
	rank   uint64
	name   records.Name
	bucket quotaBucket
}

// quotaBucket is the party that a record counts for: its prefix or, if unknown, its provider.
type quotaBucket struct {
	prefix   netip.Prefix
	provider string
}

func bucketOf(m Member) quotaBucket {
	if m.Prefix.IsValid() {
		return quotaBucket{prefix: m.Prefix}
	}
	return quotaBucket{provider: string(m.Record.Name().Provider)}
}

func (a ranked) compare(b ranked) int {
	return cmp.Or(cmp.Compare(a.rank, b.rank), a.name.Compare(b.name))
}

// Offer adds a record if it belongs to the sample, and reports whether it does. Displaced names
// the records that no longer belong.
func (s *Sample) Offer(m Member) (in bool, displaced []records.Name) {
	if s.Has(m.Record.Name()) {
		return true, nil
	}
	if s.of == nil {
		s.of, s.names = make(map[quotaBucket]int), make(map[records.Name]struct{})
	}
	x := ranked{Rank(m.Record.Name()), m.Record.Name(), bucketOf(m)}
	at, _ := slices.BinarySearchFunc(s.members, x, ranked.compare)
	s.members = slices.Insert(s.members, at, x)
	s.names[x.name] = struct{}{}
	s.of[x.bucket]++
	out := -1
	switch {
	case s.of[x.bucket] > sampleShare:
		out = s.last(x.bucket)
	case len(s.members) > SampleSize:
		out = len(s.members) - 1
	default:
		return true, nil
	}
	gone := s.members[out].name
	s.remove(out)
	if gone == x.name {
		return false, nil
	}
	return true, []records.Name{gone}
}

// last returns the position of the last member of a bucket.
func (s *Sample) last(group quotaBucket) int {
	for i := len(s.members) - 1; ; i-- {
		if s.members[i].bucket == group {
			return i
		}
	}
}

func (s *Sample) remove(at int) {
	group := s.members[at].bucket
	if s.of[group]--; s.of[group] == 0 {
		delete(s.of, group)
	}
	delete(s.names, s.members[at].name)
	s.members = slices.Delete(s.members, at, at+1)
}

// Has reports whether a record is in the sample.
func (s *Sample) Has(n records.Name) bool {
	_, ok := s.names[n]
	return ok
}

// Remove removes a record, if present.
func (s *Sample) Remove(n records.Name) {
	if s.Has(n) {
		at, _ := slices.BinarySearchFunc(s.members, ranked{rank: Rank(n), name: n}, ranked.compare)
		s.remove(at)
	}
}

// Below returns the rank below which records belong to the sample.
func (s *Sample) Below() uint64 {
	if len(s.members) < SampleSize {
		return math.MaxUint64
	}
	return s.members[len(s.members)-1].rank + 1
}

// Names returns the names in the sample, by rank.
func (s *Sample) Names() []records.Name {
	names := make([]records.Name, len(s.members))
	for i, m := range s.members {
		names[i] = m.name
	}
	return names
}
