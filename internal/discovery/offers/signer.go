package offers

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/network"
	"github.com/blackhole/blackhole/pkg/records"
)

// maxTombstones bounds the tombstones of one service for places that it has left. Beyond it, the oldest is
// dropped, which keepers have received for the longest time.
const maxTombstones = 8

// service is the registry's state of one id. It is immutable: each change creates a new one.
type service struct {
	offer   []byte    // original offer in JSON, before coarsening; nil for a withdrawn service
	caller  Caller    // that registered it
	created time.Time // of the first version since its registration
	until   time.Time // latest expiry of all signed versions; no tombstone may lapse earlier
	current *records.Record

	// tombstones end older versions at keys and cells that the service has left, oldest first. Without them,
	// keepers of those cells would offer the old version until its expiry.
	tombstones []*records.Record
}

// versions returns all versions to announce.
func (s *service) versions() []*records.Record {
	if s == nil {
		return nil
	}
	return append(slices.Clip(s.tombstones), s.current)
}

// version returns the version with that sequence, or nil.
func (s *service) version(sequence uint64) *records.Record {
	for _, r := range s.versions() {
		if r.Sequence() == sequence {
			return r
		}
	}
	return nil
}

// live reports whether the service is registered. It is false for nil.
func (s *service) live() bool { return s != nil && !s.current.Withdrawn() }

// without returns the service after the version with that sequence has lapsed, nil if that was the service's
// own tombstone.
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
	network   network.Name
	key       crypto.PrivKey
	ttl       time.Duration
	precision int // default geohash length of keys; 0: the schema's default
	publish   int // geohash length of coarsened places; 0 publishes exact places
}

// pause returns the pause of a live service that a next version keeps: one by the provider that has not ended. A peer that signs is
// not stopped.
func (s *service) pause(now time.Time) *records.Pause {
	if !s.live() {
		return nil
	}
	if p := s.current.Paused(); p != nil && !p.Stopped && (p.Until.IsZero() || now.Before(p.Until)) {
		return p
	}
	return nil
}

// nextVersion signs the next version of last from an offer; last is nil for an unknown service. Its sequence is
// above floor. Unless last is live, it is a new registration with its own created_at.
func (i *signer) nextVersion(last *service, floor uint64, o records.Offer, pause *records.Pause, now time.Time) (*service, error) {
	s := &service{created: now}
	if last.live() {
		s.created, s.caller = last.created, last.caller
	}
	if last != nil {
		floor = max(floor, last.current.Sequence())
		s.until = last.until
		s.tombstones = last.tombstones
	}
	var err error
	if s.current, err = i.sign(o, pause, s.created, floor, now); err != nil {
		return nil, err
	}
	if last != nil && moved(last.current, s.current) {
		if s, err = i.leaveTombstone(s, last, floor, o, now); err != nil {
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

// leaveTombstone adds a tombstone for the old place of last. Because a later tombstone would also end the new
// version in shared cells, the new version is signed again with a higher sequence.
func (i *signer) leaveTombstone(s, last *service, floor uint64, o records.Offer, now time.Time) (*service, error) {
	ended := last.current
	if last.live() {
		var err error
		if ended, err = i.tombstone(last, floor, now); err != nil {
			return nil, err
		}
		if s.current, err = i.sign(o, s.current.Paused(), s.created, ended.Sequence(), now); err != nil {
			return nil, err
		}
	}
	s.until = later(s.until, ended.Expires())
	s.tombstones = append(slices.Clone(s.tombstones), ended)
	if n := len(s.tombstones); n > maxTombstones {
		s.tombstones = s.tombstones[n-maxTombstones:]
	}
	return s, nil
}

// withdraw ends a live service, by a version above floor.
func (i *signer) withdraw(last *service, floor uint64, now time.Time) (*service, error) {
	tombstone, err := i.tombstone(last, floor, now)
	if err != nil {
		return nil, err
	}
	return &service{
		caller:     last.caller,
		created:    last.created,
		until:      later(last.until, tombstone.Expires()),
		current:    tombstone,
		tombstones: last.tombstones,
	}, nil
}

func (i *signer) sign(o records.Offer, pause *records.Pause, created time.Time, previous uint64, now time.Time) (*records.Record, error) {
	sequence, err := next(previous, now)
	if err != nil {
		return nil, err
	}
	if l := o.Location; l != nil && l.Latitude != nil && l.Precision == 0 {
		located := *l
		located.Precision = uint32(i.precision)
		o.Location = &located
	}
	return records.Sign(i.network, i.key, o.Coarsen(i.publish), records.Stamp{
		Sequence: sequence,
		Created:  created,
		Issued:   now,
		Expires:  now.Add(i.ttl),
		Paused:   pause,
	})
}

// tombstone signs the tombstone of the current version, with a sequence above floor.
//
// A fast clock that is set back leaves versions that expire later than a record issued now may. The tombstone
// is then issued in the future, but never later than such a version itself (until <= its issue + MaxTTL): a
// peer that accepted the version accepts its tombstone.
func (i *signer) tombstone(last *service, floor uint64, now time.Time) (*records.Record, error) {
	sequence, err := next(max(floor, last.current.Sequence()), now)
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

// next is the sequence after previous. It fails at the end of the number range.
func next(previous uint64, now time.Time) (uint64, error) {
	n := records.NextSequence(previous, now)
	if n <= previous {
		return 0, fault.New("", fault.LimitReached, "the sequence numbers end at %d: register the service under a new id", previous)
	}
	return n, nil
}

// moved reports whether keepers of old would miss its successor, because it left one of old's cells or has
// another key.
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
