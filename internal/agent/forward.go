package agent

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// passing bounds a call to another peer. That peer waits no longer than half of it for the directory.
const passing = 2 * time.Second

// anywhere carries a call out here, at this peer, or there, at the peer whose the instance is as far as is known
// here. When that one is dead this peer adopts the instance first. A call that ends the instance must have that committed
// before: the directory remembers that an instance was removed by who has it, and the dead peer, which has it on its
// disk and may come back, would bring it along.
func (s *Service) anywhere(ctx context.Context, k instance.Key, ends bool, here func() error, there func(context.Context, instance.Registrar) error) error {
	err := here()
	if s.Directory == nil || fault.KindOf(err) != fault.NotFound {
		return err
	}
	i := s.elsewhere(k)
	if i == nil {
		return err
	}
	err = s.call(ctx, i.Peer, there)
	if !dead(ctx, err) {
		return err
	}
	if err := s.adopt(ctx, i, err); err != nil {
		return err
	}
	if s.settle(ctx, k, s.CommitWait) == 0 && ends {
		s.drop(k)
		return fault.New("agent.adopt", fault.Unavailable, "its peer %s does not answer, and the directory cannot be changed", i.Peer)
	}
	return here()
}

// call calls another peer's agent.
func (s *Service) call(ctx context.Context, peer string, do func(context.Context, instance.Registrar) error) error {
	if s.Peers == nil {
		return fault.New("agent.call", fault.Unavailable, "no other peer can be reached")
	}
	to, err := s.Peers.At(peer)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, passing)
	defer cancel()
	return do(ctx, to)
}

// dead reports whether a call failed because a peer does not answer, and not because the caller left.
func dead(ctx context.Context, err error) bool {
	kind := fault.KindOf(err)
	return ctx.Err() == nil && err != nil && (kind == fault.Unavailable || kind == fault.Timeout)
}

// adopt makes an instance, as it was last known, one of this peer, because its own did not answer. It has a new
// lease; the old one goes on to be understood here. Errors: those of registering, and why.
func (s *Service) adopt(ctx context.Context, i *instance.Instance, why error) error {
	free, err := s.turns.take(ctx, i.Key)
	if err != nil {
		return err
	}
	defer free()
	if _, ok := s.registry.Get(i.Key); ok {
		return nil
	}
	r := instance.Registration{Key: i.Key, Spec: i.Spec}
	if i.Override == instance.StatusUnknown && i.Status == instance.StatusStarting {
		r.Status = i.Status
	}
	err = s.fits(r)
	if err == nil {
		_, err = s.put(r)
	}
	if err == nil && i.Override != instance.StatusUnknown {
		_, err = s.registry.SetStatus(i.Key, i.Override, s.Now())
	}
	if err != nil {
		return fault.Wrap("agent.adopt", fmt.Errorf("%w (adopted because its peer %s does not answer: %v)", err, i.Peer, why))
	}
	s.former.add(i.Lease, i.Key)
	s.Logger.Info("adopted an instance", "instance", i.Key.String(), "peer", i.Peer, "because", why)
	return nil
}

// beat renews leases of instances of this peer.
func (s *Service) beat(refs []instance.Ref) ([]instance.Beat, error) {
	if len(refs) > instance.MaxBeats {
		return nil, fault.Invalidf("lease_ids", len(refs), "must be at most %d", instance.MaxBeats)
	}
	beats := s.registry.Heartbeat(refs, s.Now())
	for n := range beats {
		if beats[n].Err == nil {
			continue
		}
		if k, ok := s.former.find(refs[n].Lease); ok {
			beats[n] = s.beatOne(k)
		}
	}
	return beats, nil
}

func (s *Service) beatOne(k instance.Key) instance.Beat {
	return s.registry.Heartbeat([]instance.Ref{{Key: k}}, s.Now())[0]
}

// forward has those leases renewed by their peers that this one has not got, all peers at once.
func (s *Service) forward(ctx context.Context, refs []instance.Ref, beats []instance.Beat) {
	of := make(map[string]*errand)
	for n := range beats {
		if beats[n].Err == nil {
			continue
		}
		i, ref := s.named(refs[n])
		if i == nil {
			continue
		}
		e := of[i.Peer]
		if e == nil {
			e = new(errand)
			of[i.Peer] = e
		}
		e.refs, e.places, e.known = append(e.refs, ref), append(e.places, n), append(e.known, i)
	}
	peers := slices.Sorted(maps.Keys(of))
	each(len(peers), func(n int) {
		e := of[peers[n]]
		for at, beat := range s.run(ctx, peers[n], e) {
			beats[e.places[at]] = beat
		}
	})
}

// errand is heartbeats for instances of one other peer.
type errand struct {
	refs   []instance.Ref
	places []int // in the question
	known  []*instance.Instance
}

// named gives the instance of another peer that ref names, and how that peer understands it; nil: none is known.
func (s *Service) named(ref instance.Ref) (*instance.Instance, instance.Ref) {
	if ref.Lease == "" {
		return s.elsewhere(ref.Key.WithDefaults()), ref
	}
	if i, ok := s.ByLease(ref.Lease); ok && s.foreign(i) {
		return i, ref
	}
	if k, ok := s.former.find(ref.Lease); ok {
		return s.elsewhere(k), instance.Ref{Key: k}
	}
	return nil, ref
}

// run gives the beats of an errand: the peer's, or if it is dead those of this one, which adopts.
func (s *Service) run(ctx context.Context, peer string, e *errand) []instance.Beat {
	var beats []instance.Beat
	err := s.call(ctx, peer, func(ctx context.Context, to instance.Registrar) (err error) {
		beats, err = to.Heartbeat(ctx, e.refs)
		if err == nil && len(beats) != len(e.refs) {
			err = fault.New("agent.Heartbeat", fault.Internal, "peer %s answered %d heartbeats of %d", peer, len(beats), len(e.refs))
		}
		return err
	})
	if err == nil {
		return beats
	}
	dies := dead(ctx, err)
	beats = make([]instance.Beat, len(e.refs))
	each(len(beats), func(n int) {
		failed := err
		if dies {
			failed = s.adopt(ctx, e.known[n], err)
		}
		if failed == nil {
			beats[n] = s.beatOne(e.known[n].Key)
			return
		}
		beats[n] = instance.Beat{Key: e.known[n].Key, Lease: e.known[n].Lease, At: s.Now().Round(0).UTC(), Err: failed}
	})
	return beats
}

// maxFormer bounds the former leases that are remembered; who names one of the others has to register again.
const maxFormer = 10_000

// former remembers the leases that adopted instances had. The zero value is empty.
type former struct {
	mu    sync.RWMutex // guards what follows
	keys  map[string]instance.Key
	queue []string // oldest first
}

func (f *former) add(lease string, k instance.Key) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.keys == nil {
		f.keys = make(map[string]instance.Key)
	}
	if _, ok := f.keys[lease]; !ok && lease != "" {
		f.queue = append(f.queue, lease)
		f.keys[lease] = k
	}
	if len(f.queue) > maxFormer {
		delete(f.keys, f.queue[0])
		f.queue = f.queue[1:]
	}
}

func (f *former) find(lease string) (k instance.Key, ok bool) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	k, ok = f.keys[lease]
	return k, ok
}

// Direct is the Registrar for calls that come from other peers: instances of this peer alone, NotFound
// for any other, and nothing is passed on. Registering is Unsupported: applications do so where they are.
func (s *Service) Direct() instance.Registrar { return direct{s} }

type direct struct{ s *Service }

func (d direct) Register(context.Context, instance.Registration) (instance.Registered, error) {
	return instance.Registered{}, fault.New("agent.Register", fault.Unsupported, "peers register nothing with each other")
}

func (d direct) Deregister(ctx context.Context, k instance.Key) (instance.Deregistered, error) {
	gone, err := d.s.remove(ctx, k.WithDefaults(), passing/2)
	return gone, fault.Wrap("agent.Deregister", err)
}

func (d direct) Heartbeat(_ context.Context, refs []instance.Ref) ([]instance.Beat, error) {
	beats, err := d.s.beat(refs)
	return beats, fault.Wrap("agent.Heartbeat", err)
}

func (d direct) SetStatus(ctx context.Context, k instance.Key, status instance.Status) (*instance.Instance, error) {
	i, err := d.s.override(ctx, k.WithDefaults(), status, passing/2)
	return i, fault.Wrap("agent.SetStatus", err)
}
