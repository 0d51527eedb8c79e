// Package offers stores the services that this peer offers under its own key, and schedules their
// announcements.
//
// It is the source of truth for announcements. Each version of a record is durable before it is visible, so
// sequence numbers never repeat or decrease: not after a crash, not with a clock set back. A refresh signs the
// same offer again and keeps its created_at. A pause is a version that says so; a stop is a pause of all services. A withdrawal is a signed tombstone, announced until all versions
// of the service have lapsed. A service that moves leaves such a tombstone in the cells that its new versions
// do not belong to.
//
// The registry sends nothing. It hands versions out: new ones to the caller of Register, Update or Withdraw,
// others by Due. The caller announces them and reports the outcome to Announced. Until then, or for the ack
// timeout, no other caller receives them. Ack timeouts and outcomes are not durable: after a restart, each
// version is announced once. That suits keepers, this peer included, because they hold records in memory.
//
// Time is an argument of each call.
package offers

import (
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/platform/store"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
)

const (
	// NamesPerService bounds the ids in memory and on disk, as a multiple of the allowed services. Withdrawn
	// services stay until their records lapse; without a bound, their number would be unlimited.
	NamesPerService = 10
	// reserve is the part of the ids that is for operators: one in so many.
	reserve = 4
)

// Registry holds a peer's own services. It is safe for concurrent use. Reads never wait for the disk or a
// signature.
type Registry struct {
	self   peer.ID
	max    int
	signer signer
	log    *slog.Logger

	// writing serialises changes, from reading the old state to the visible new one. Lock it before mu.
	writing sync.Mutex
	store   *store.Store // guarded by writing; its floor: all new versions have higher sequences
	closed  bool         // guarded by writing
	stopped bool         // guarded by writing; see Stop

	// held for computation only
	mu        sync.RWMutex
	services  map[string]*service // by id, withdrawn ones included; written with writing and mu held, read with either
	live      int                 // live services; guarded like services
	scheduler *scheduler          // guarded by mu
	evidence  *Evidence           // guarded like services; nil: not suspended
	reclaimed uint64              // see Reclaim; constant after Open

	opened time.Time
}

// Open opens or creates the registry in c.Dir. All its versions are due now; Due signs lapsed ones again.
// Errors:
//
//   - Invalid: a field of the configuration, named by the error;
//   - Conflict: the database belongs to another identity;
//   - Unsupported: a later version of this program wrote the database, or it belongs to another network;
//   - Unavailable: the database does not open, for example while another process uses it;
//   - Internal: a value is damaged. The error names its key; nothing is deleted.
func Open(c Config, now time.Time) (*Registry, error) {
	if err := c.Network.Validate(); err != nil {
		return nil, fault.Wrap("registry.Open", fault.In("network", err))
	}
	return openAny(c, now)
}

// openAny is Open. Without a network it takes records of any.
func openAny(c Config, now time.Time) (*Registry, error) {
	const op = "registry.Open"
	if err := c.Validate(); err != nil {
		return nil, fault.Wrap(op, err)
	}
	c = c.withDefaults()
	self, err := peer.IDFromPrivateKey(c.Key)
	if err != nil {
		return nil, fault.As(op, fault.Internal, err)
	}
	kept, err := store.Open(c.storeConfig(self))
	if err != nil {
		return nil, fault.Wrap(op, err)
	}
	r := &Registry{
		self: self,
		max:  c.MaxServices,
		signer: signer{
			network: c.Network, key: c.Key, ttl: c.TTL, precision: c.Precision, publish: c.PublishPrecision,
		},
		log:       c.Logger,
		store:     kept,
		services:  make(map[string]*service),
		scheduler: newScheduler(c.Refresh, c.Jitter),
		opened:    wall(now),
	}
	if err := r.load(wall(now)); err != nil {
		return nil, fault.Wrap(op, errors.Join(err, kept.Close()))
	}
	return r, nil
}

func (r *Registry) load(now time.Time) error {
	return r.store.All(func(id string, value []byte) error {
		if id == evidenceName {
			return r.loadEvidence(value)
		}
		s, err := decodeService(r.signer.network, records.Name{Provider: r.self, ID: id}, value)
		if err == nil {
			r.replace(id, s, now)
			p := s.current.Paused()
			if s.current.Sequence() <= r.reclaimed || p != nil && p.Stopped {
				r.scheduler.renewNow(versionOf(s.current), now)
			}
		}
		return err
	})
}

// Examine reads the registry of a provider as Open does, and changes nothing. Errors: as Open.
func Examine(dir string, self peer.ID) error {
	r, c := &Registry{self: self}, Config{Dir: dir}.withDefaults()
	return store.Examine(c.storeConfig(self), func(id string, value []byte) error {
		if id == evidenceName {
			return r.loadEvidence(value)
		}
		_, err := decodeService(c.Network, records.Name{Provider: self, ID: id}, value)
		return err
	})
}

// Close releases the database and keeps the services on disk. Reads still work, later changes fail. A second
// Close does nothing.
func (r *Registry) Close() error {
	r.writing.Lock()
	defer r.writing.Unlock()
	if r.closed {
		return nil
	}
	r.closed = true
	return fault.Wrap("registry.Close", r.store.Close())
}

// Self is the provider of the services.
func (r *Registry) Self() peer.ID { return r.self }

// floor is the number above which all new versions have their sequences. The caller holds writing.
func (r *Registry) floor() uint64 { return r.store.Floor() }

// Get returns the newest version of a live service. After a long downtime the version may have lapsed, until
// Due signs it again.
func (r *Registry) Get(id string) (*records.Record, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	s := r.services[id]
	if !s.live() {
		return nil, false
	}
	return s.current, true
}

// List returns the newest versions of all live services, by id.
func (r *Registry) List() []*records.Record {
	r.mu.RLock()
	list := make([]*records.Record, 0, r.live)
	for _, s := range r.services {
		if s.live() {
			list = append(list, s.current)
		}
	}
	r.mu.RUnlock()
	slices.SortFunc(list, func(a, b *records.Record) int { return strings.Compare(a.Name().ID, b.Name().ID) })
	return list
}

// Len counts the live services.
func (r *Registry) Len() int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.live
}

// replace sets the state of id; nil deletes it. The caller holds the locks of services.
func (r *Registry) replace(id string, s *service, now time.Time) {
	last := r.services[id]
	for _, v := range last.versions() {
		if s.version(v.Sequence()) == nil {
			r.scheduler.drop(versionOf(v))
		}
	}
	for _, v := range s.versions() {
		r.scheduler.add(v, now)
	}
	if last.live() {
		r.live--
	}
	if s.live() {
		r.live++
	}
	if s == nil {
		delete(r.services, id)
		return
	}
	r.services[id] = s
}

// wall removes the monotonic clock reading, for comparison with times from disk.
func wall(t time.Time) time.Time { return t.Round(0).UTC() }
