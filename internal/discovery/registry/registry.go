// Package registry is what this peer is responsible for: the services that it offers
// under its own key, on disk, and when each is to be announced.
//
// It is the source of truth for announcing. Every version of a record is durable before
// anybody sees it, so that a sequence number is used once and never goes back: not after a
// crash at any point, nor when the clock was set back. A refresh signs the same offer anew
// and keeps its created_at; a withdrawal is a signed tombstone that is announced until
// nothing is left for it to end. A service that moves leaves such a tombstone behind for
// the cells that its new versions do not belong to.
//
// The registry announces nothing itself. It hands versions out, new ones to whoever
// registers, updates or withdraws, the others by Due; the caller announces them and tells
// the outcome with Announced. Until then, or for the time of a lease, nobody else gets
// them. Neither leases nor outcomes are kept on disk: after a restart everything is
// announced once, which is what a network wants whose keepers hold records in memory, this
// peer among them.
//
// Time is an argument of every call.
package registry

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

// namesPerService bounds the ids in memory and on disk, withdrawn ones included, as a
// multiple of the services allowed: withdrawn ones are remembered until their records
// have lapsed, and without a bound any number of them could be made.
const namesPerService = 10

// Registry holds a peer's own services. It is safe for concurrent use; reading never
// waits for the disk or a signature.
type Registry struct {
	self   peer.ID
	max    int
	signer signer
	log    *slog.Logger

	// writing serialises changes, from reading the state that they start from until they
	// are on disk and visible. It is taken before mu.
	writing sync.Mutex
	store   *store.Store // guarded by writing; its floor: no new version of any service gets this sequence or a lower one
	closed  bool         // guarded by writing

	// mu is held for steps in memory only.
	mu        sync.RWMutex
	services  map[string]*service // written with writing and mu held, read with either; by id, withdrawn ones included
	live      int                 // guarded as services: how many of them are not withdrawn
	scheduler *scheduler          // guarded by mu
}

// Open opens the registry in c.Dir, or makes it. Everything in it is due now; what has
// lapsed meanwhile is signed anew by Due. Errors are
//
//   - Invalid: a field of the configuration, which the error names;
//   - Conflict: the database is of another identity;
//   - Unsupported: it was written by a later version of this program;
//   - Unavailable: it does not open, for example because another process has it open;
//   - Internal: a value cannot be used. The error names its key, and nothing is deleted.
func Open(c Config, now time.Time) (*Registry, error) {
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
		self:      self,
		max:       c.MaxServices,
		signer:    signer{key: c.Key, ttl: c.TTL, precision: c.Precision, publish: c.PublishPrecision},
		log:       c.Logger,
		store:     kept,
		services:  make(map[string]*service),
		scheduler: newScheduler(c.Refresh, c.Jitter),
	}
	if err := r.load(wall(now)); err != nil {
		return nil, fault.Wrap(op, errors.Join(err, kept.Close()))
	}
	return r, nil
}

func (r *Registry) load(now time.Time) error {
	return r.store.All(func(id string, value []byte) error {
		s, err := decodeService(records.Name{Provider: r.self, ID: id}, value)
		if err == nil {
			r.replace(id, s, now)
		}
		return err
	})
}

// Close releases the database; what was registered stays. Reading goes on to work, every
// later change fails. Closing again does nothing.
func (r *Registry) Close() error {
	r.writing.Lock()
	defer r.writing.Unlock()
	if r.closed {
		return nil
	}
	r.closed = true
	return fault.Wrap("registry.Close", r.store.Close())
}

// Self is the provider whose registry this is.
func (r *Registry) Self() peer.ID { return r.self }

// Get gives the newest version of a service that is registered and not withdrawn. After a
// long time down it may have lapsed, until Due has signed it anew.
func (r *Registry) Get(id string) (*records.Record, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	s := r.services[id]
	if !s.live() {
		return nil, false
	}
	return s.current, true
}

// Offer gives the offer of a service as it was given: with its exact place, which Get's
// record may not have. The caller owns it.
func (r *Registry) Offer(id string) (records.Offer, bool) {
	r.mu.RLock()
	s := r.services[id]
	r.mu.RUnlock()
	if !s.live() {
		return records.Offer{}, false
	}
	o, err := s.decodeOffer()
	return o, err == nil // it was encoded here, or decoded by Open
}

// List gives the newest versions of all services that are not withdrawn, by id.
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

// Len counts the services that are not withdrawn.
func (r *Registry) Len() int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.live
}

// replace makes s, or nothing, the state of id. The caller holds what services asks for.
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

// wall drops the monotonic reading: what is compared with it comes from disk.
func wall(t time.Time) time.Time { return t.Round(0).UTC() }
