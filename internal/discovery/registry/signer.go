package registry

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
)

// maxTombstones bounds the places that one service is remembered to have left. When it has
// moved more often within the life of a record, the oldest farewell is dropped: it has been
// told for the longest.
const maxTombstones = 8

// service is everything that the registry keeps of one id. It is immutable: every change
// makes another one.
type service struct {
	offer   []byte    // as given, before coarsening, in JSON; nil of a withdrawn service
	created time.Time // of the first version since it was registered
	until   time.Time // the latest expiry of any version signed: no tombstone may lapse before
	current *records.Record

	// tombstones are tombstones for keys and cells that the service has left, oldest first.
	// Without them, a keeper whose cells the newer versions do not belong to would go on
	// offering the old version until it expires.
	tombstones []*records.Record
}

// versions are all that must be announced.
func (s *service) versions() []*records.Record {
	if s == nil {
		return nil
	}
	return append(slices.Clip(s.tombstones), s.current)
}

// version finds one by its sequence, or nil.
func (s *service) version(sequence uint64) *records.Record {
	for _, r := range s.versions() {
		if r.Sequence() == sequence {
			return r
		}
	}
	return nil
}

// live reports whether the service is registered. It is false for none.
func (s *service) live() bool { return s != nil && !s.current.Withdrawn() }

// without is the service once the version of that sequence has lapsed: nil when it was
// the tombstone of the service itself.
func (s *service) without(sequence uint64) *service {
	if s == nil || s.current.Sequence() == sequence {
		return nil
	}
	left := *s
	left.tombstones = slices.DeleteFunc(slices.Clone(s.tombstones), func(r *records.Record) bool {
		return r.Sequence() == sequence
	})
	return &left
}

// signer signs the versions of services. It is immutable.
type signer struct {
	key       crypto.PrivKey
	ttl       time.Duration
	precision int // of the key's geohash where the offer gives none; 0 leaves it
	publish   int // length of the geohash that a place is coarsened to; 0 publishes it exactly
}

// nextVersion makes the next version of last, which is nil for a service that is not known, out
// of an offer. No version has a sequence of floor or below. The registration is new, with
// its own created_at, unless last is live.
func (i *signer) nextVersion(last *service, floor uint64, o records.Offer, now time.Time) (*service, error) {
	s := &service{created: now}
	if last.live() {
		s.created = last.created
	}
	if last != nil {
		floor = max(floor, last.current.Sequence())
		s.until = last.until
		s.tombstones = last.tombstones
	}
	var err error
	if s.current, err = i.sign(o, s.created, floor, now); err != nil {
		return nil, err
	}
	if last != nil && moved(last.current, s.current) {
		if s, err = i.leaveTombstone(s, last, o, now); err != nil {
			return nil, err
		}
	}
	if s.offer, err = json.Marshal(o); err != nil {
		return nil, fault.As("", fault.Internal, err)
	}
	s.until = later(s.until, s.current.Expires())
	s.tombstones = slices.DeleteFunc(slices.Clone(s.tombstones), func(f *records.Record) bool {
		return !moved(f, s.current) // it came back
	})
	return s, nil
}

// leaveTombstone adds the tombstone that ends last where it was. A tombstone that superseded the
// new version would end it in the cells that both share, so the new version is signed once
// more, after the tombstone.
func (i *signer) leaveTombstone(s, last *service, o records.Offer, now time.Time) (*service, error) {
	farewell := last.current
	if last.live() {
		var err error
		if farewell, err = i.tombstone(last, now); err != nil {
			return nil, err
		}
		if s.current, err = i.sign(o, s.created, farewell.Sequence(), now); err != nil {
			return nil, err
		}
	}
	s.until = later(s.until, farewell.Expires())
	s.tombstones = append(slices.Clone(s.tombstones), farewell)
	if n := len(s.tombstones); n > maxTombstones {
		s.tombstones = s.tombstones[n-maxTombstones:]
	}
	return s, nil
}

// withdraw ends a live service.
func (i *signer) withdraw(last *service, now time.Time) (*service, error) {
	tombstone, err := i.tombstone(last, now)
	if err != nil {
		return nil, err
	}
	return &service{
		created:    last.created,
		until:      later(last.until, tombstone.Expires()),
		current:    tombstone,
		tombstones: last.tombstones,
	}, nil
}

func (i *signer) sign(o records.Offer, created time.Time, previous uint64, now time.Time) (*records.Record, error) {
	sequence, err := next(previous, now)
	if err != nil {
		return nil, err
	}
	if l := o.Location; l != nil && l.Latitude != nil && l.Precision == 0 {
		located := *l
		located.Precision = uint32(i.precision)
		o.Location = &located
	}
	return records.Sign(i.key, records.Coarsen(o, i.publish), records.Stamp{
		Sequence: sequence,
		Created:  created,
		Issued:   now,
		Expires:  now.Add(i.ttl),
	})
}

// tombstone makes the tombstone of the current version.
//
// A clock that was ahead and is set back leaves versions that expire later than a record
// issued now may. The tombstone is then dated forward, but never after such a version
// itself (until <= its issue + MaxTTL): whoever believed the version believes its end.
func (i *signer) tombstone(last *service, now time.Time) (*records.Record, error) {
	sequence, err := next(last.current.Sequence(), now)
	if err != nil {
		return nil, err
	}
	expires := later(now.Add(i.ttl), last.until)
	return records.Tombstone(i.key, last.current, records.Stamp{
		Sequence: sequence,
		Created:  last.created,
		Issued:   later(now, expires.Add(-records.MaxTTL)),
		Expires:  expires,
	})
}

// next is the sequence after previous. It fails rather than to use one twice.
func next(previous uint64, now time.Time) (uint64, error) {
	n := records.NextSequence(previous, now)
	if n <= previous {
		return 0, fault.New("", fault.LimitReached, "the sequence numbers are used up at %d", previous)
	}
	return n, nil
}

// moved reports whether keepers of old would not hear of its successor: it does not
// belong to one of old's cells, or has another key.
func moved(old, successor *records.Record) bool {
	return old.Key() != successor.Key() || slices.ContainsFunc(old.Cells(), func(c records.CellKey) bool {
		return !successor.In(c)
	})
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
