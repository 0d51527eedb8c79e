package agent

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// Register is instance.Registrar's.
func (s *Service) Register(ctx context.Context, r instance.Registration) (instance.Registered, error) {
	const op = "agent.Register"
	if err := r.Normalize(); err != nil {
		return instance.Registered{}, fault.Wrap(op, err)
	}
	if err := s.admit(ctx, r); err != nil {
		return instance.Registered{}, fault.Wrap(op, err)
	}
	r.Strict = r.Strict || s.Strict
	got, err := s.enter(ctx, r)
	return got, fault.Wrap(op, err)
}

// enter registers an instance here, and then in the directory as far as it can be had.
func (s *Service) enter(ctx context.Context, r instance.Registration) (instance.Registered, error) {
	if s.Directory == nil {
		return s.put(r)
	}
	if r.ID != "" { // nobody else knows one that is yet to be made up
		free, err := s.turns.take(ctx, r.Key)
		if err != nil {
			return instance.Registered{}, err
		}
		defer free()
	}
	if i := s.elsewhere(r.Key); i != nil && r.Strict {
		return instance.Registered{}, &fault.Error{Kind: fault.Exists, Field: "id", Value: r.ID, Err: errElsewhere}
	}
	last, _ := s.registry.Get(r.Key)
	got, err := s.publicize(ctx, r)
	if got.Instance == nil {
		return got, err
	}
	switch fault.KindOf(err) {
	case fault.Unavailable, fault.Timeout, fault.Canceled:
		if !r.RequireCommit {
			return got, nil
		}
		err = &fault.Error{Kind: fault.Unavailable, Err: fmt.Errorf("%w: %w", errUncommitted, err)}
	case fault.Conflict:
		return instance.Registered{}, err // nothing is left of it
	default:
		if err == nil {
			return got, nil
		}
	}
	s.undo(last, got.Instance)
	return instance.Registered{}, err
}

// publicize registers an instance and waits for the directory. When another peer got hold of the key
// meanwhile, it registers once more: the word of the application that speaks now is the newest. It gives
// no instance when none is registered, and with an error one that is registered here alone.
func (s *Service) publicize(ctx context.Context, r instance.Registration) (instance.Registered, error) {
	for again := true; ; again = false {
		got, err := s.put(r)
		if err != nil {
			return instance.Registered{}, err
		}
		r.ID, r.Strict = got.ID, false
		revision, err := s.commit(ctx, r.Key)
		i, stands := s.registry.Get(r.Key)
		stands = stands && i.Lease == got.Lease
		if err == nil && !stands {
			err = &fault.Error{Kind: fault.Conflict, Field: "id", Value: r.ID, Err: errElsewhere}
		}
		switch {
		case err == nil:
			shown := *got.Instance
			shown.Revision = revision
			got.Instance, got.Committed = &shown, true
			return got, nil
		case fault.KindOf(err) != fault.Conflict:
			return got, err
		}
		s.Lost([]instance.Key{r.Key})
		if !again {
			return instance.Registered{}, err
		}
	}
}

func (s *Service) put(r instance.Registration) (instance.Registered, error) {
	got, err := s.registry.Register(r, s.Now())
	s.Recorder.Stored("put", err)
	return got, err
}

// undo makes of an instance what it was; nil: it was not there.
func (s *Service) undo(last, now *instance.Instance) {
	var err error
	switch {
	case last == nil:
		_, err = s.registry.Deregister(now.Key, s.Now())
	case !last.Spec.Equal(now.Spec):
		r := instance.Registration{Key: last.Key, Spec: last.Spec}
		if last.Status == instance.StatusStarting {
			r.Status = instance.StatusStarting
		}
		_, err = s.registry.Register(r, s.Now())
	}
	if err != nil && fault.KindOf(err) != fault.NotFound {
		s.Recorder.Failed("agent.undo", err)
	}
}

// admit refuses what the registry alone cannot judge.
func (s *Service) admit(ctx context.Context, r instance.Registration) error {
	if onThisHost(r.Host) && !r.Local {
		return fault.Invalidf("host", r.Host, "is a loopback address, and was not registered from this host")
	}
	if r.Check != nil {
		if err := s.checker.Validate(s.target(r.Key, r.Spec)); err != nil {
			return err
		}
	}
	if s.offers != nil {
		if err := s.offers.check(r.Key, r.Offer); err != nil {
			return err
		}
	}
	if s.Validate {
		return s.depends(ctx, r)
	}
	return nil
}

// depends refuses an instance whose dependencies are not registered. It may depend on its own service.
func (s *Service) depends(ctx context.Context, r instance.Registration) error {
	var missing []string
	for _, name := range r.Dependencies {
		found, err := s.Discover(ctx, instance.Query{
			Name: instance.Name{Namespace: r.Namespace, Service: name}, Selector: instance.Selector{AnyStatus: true},
		})
		if err != nil {
			return err
		}
		if len(found.Instances) == 0 && name != r.Service {
			missing = append(missing, name)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	slices.Sort(missing)
	return &fault.Error{Kind: fault.Unprocessable, Field: "metadata.dependencies", Value: missing, Err: errMissing}
}

// Deregister is instance.Registrar's.
func (s *Service) Deregister(ctx context.Context, k instance.Key) (instance.Deregistered, error) {
	gone, err := s.remove(ctx, k.WithDefaults())
	return gone, fault.Wrap("agent.Deregister", err)
}

// remove deregisters an instance of this peer.
func (s *Service) remove(ctx context.Context, k instance.Key) (instance.Deregistered, error) {
	free, err := s.turns.take(ctx, k)
	if err != nil {
		return instance.Deregistered{}, err
	}
	defer free()
	gone, err := s.registry.Deregister(k, s.Now())
	s.Recorder.Stored("delete", err)
	if err == nil {
		s.settle(ctx, k)
	}
	return gone, err
}

// Heartbeat is instance.Registrar's.
func (s *Service) Heartbeat(_ context.Context, refs []instance.Ref) ([]instance.Beat, error) {
	if len(refs) > instance.MaxBeats {
		return nil, fault.Wrap("agent.Heartbeat", fault.Invalidf("lease_ids", len(refs), "must be at most %d", instance.MaxBeats))
	}
	beats := s.registry.Heartbeat(refs, s.Now())
	failed := 0
	for i := range beats {
		if beats[i].Err != nil {
			failed++
		}
	}
	s.Recorder.Beaten(len(beats)-failed, failed)
	return beats, nil
}

// SetStatus is instance.Registrar's.
func (s *Service) SetStatus(ctx context.Context, k instance.Key, status instance.Status) (*instance.Instance, error) {
	i, err := s.override(ctx, k.WithDefaults(), status)
	return i, fault.Wrap("agent.SetStatus", err)
}

// override sets the status of an instance of this peer.
func (s *Service) override(ctx context.Context, k instance.Key, status instance.Status) (*instance.Instance, error) {
	i, err := s.registry.SetStatus(k, status, s.Now())
	if err != nil {
		return nil, err
	}
	if revision := s.settle(ctx, k); revision > 0 {
		shown := *i
		shown.Revision = revision
		i = &shown
	}
	return i, nil
}

// elsewhere gives the instance of a key that another peer answers for, as far as is known here; nil: none does.
func (s *Service) elsewhere(k instance.Key) *instance.Instance {
	found, err := s.Catalog.Discover(s.ctx, instance.Query{Name: k.Name(), Selector: instance.Selector{ID: k.ID, AnyStatus: true}})
	if err != nil || k.ID == "" || len(found.Instances) == 0 || found.Instances[0].Peer == s.Registry.Self {
		return nil
	}
	return found.Instances[0]
}

// LastBeat is instance.Catalog's.
func (s *Service) LastBeat(k instance.Key) (time.Time, bool) { return s.registry.LastBeat(k) }

// Expires is instance.Catalog's.
func (s *Service) Expires(list []*instance.Instance) time.Time { return s.registry.Expires(list) }
