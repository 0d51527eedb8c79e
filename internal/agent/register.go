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
		got, err := s.put(r)
		got.Committed = err == nil // this peer is all there is
		return got, err
	}
	if r.ID != "" { // nobody else knows one that is yet to be made up
		free, err := s.turns.take(ctx, r.Key)
		if err != nil {
			return instance.Registered{}, err
		}
		defer free()
	}
	last, had := s.registry.Get(r.Key)
	if s.elsewhere(r.Key) != nil {
		if r.Strict {
			return instance.Registered{}, &fault.Error{Kind: fault.Exists, Field: "id", Value: r.ID, Err: errElsewhere}
		}
		if had { // and lost, but nobody said so yet: it has to come back as new to be taken back
			s.drop(r.Key)
			s.former.add(last.Lease, r.Key)
		}
	}
	got, err := s.publicize(ctx, r)
	if got.Instance == nil || err == nil {
		return got, err
	}
	switch fault.KindOf(err) {
	case fault.Unavailable, fault.Timeout, fault.Canceled:
		if !r.RequireCommit {
			return got, nil
		}
		err = &fault.Error{Kind: fault.Unavailable, Err: fmt.Errorf("%w: %w", errUncommitted, err)}
	}
	s.undo(last, got.Instance)
	return instance.Registered{}, err
}

// publicize registers an instance and waits for the directory. When another peer has got hold of the key
// that was this one's, it registers once more: the word of the application that speaks now is the newest. It
// gives no instance when none is registered, and with an error one that is registered here alone.
func (s *Service) publicize(ctx context.Context, r instance.Registration) (instance.Registered, error) {
	for again := true; ; again = false {
		got, err := s.put(r)
		if err != nil {
			return instance.Registered{}, err
		}
		r.ID, r.Strict = got.ID, false
		revision, err := s.commit(ctx, r.Key, s.CommitWait)
		switch {
		case err == nil:
			shown := *got.Instance
			shown.Revision = revision
			got.Instance, got.Committed = &shown, true
			return got, nil
		case fault.KindOf(err) != fault.Conflict:
			return got, err
		}
		s.drop(r.Key)
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
	case !last.Spec.Equal(now.Spec) || last.Status != now.Status:
		r := instance.Registration{Key: last.Key, Spec: last.Spec}
		if last.Override == instance.StatusUnknown && last.Status == instance.StatusStarting {
			r.Status = last.Status
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
	if err := s.fits(r); err != nil {
		return err
	}
	if s.Validate {
		return s.depends(ctx, r)
	}
	return nil
}

// fits refuses an instance that this peer cannot check or announce.
func (s *Service) fits(r instance.Registration) error {
	if r.Check != nil {
		if err := s.checker.Validate(s.target(r.Key, r.Spec)); err != nil {
			return err
		}
	}
	if s.offers != nil {
		return s.offers.check(r.Key, r.Offer)
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
func (s *Service) Deregister(ctx context.Context, k instance.Key) (gone instance.Deregistered, err error) {
	k = k.WithDefaults()
	err = s.anywhere(ctx, k, true, func() (err error) {
		gone, err = s.remove(ctx, k, s.CommitWait)
		return err
	}, func(ctx context.Context, there instance.Registrar) (err error) {
		gone, err = there.Deregister(ctx, k)
		return err
	})
	return gone, fault.Wrap("agent.Deregister", err)
}

// remove deregisters an instance of this peer.
func (s *Service) remove(ctx context.Context, k instance.Key, wait time.Duration) (instance.Deregistered, error) {
	free, err := s.turns.take(ctx, k)
	if err != nil {
		return instance.Deregistered{}, err
	}
	defer free()
	gone, err := s.registry.Deregister(k, s.Now())
	s.Recorder.Stored("delete", err)
	if err == nil {
		s.settle(ctx, k, wait)
	}
	return gone, err
}

// Heartbeat is instance.Registrar's.
func (s *Service) Heartbeat(ctx context.Context, refs []instance.Ref) ([]instance.Beat, error) {
	beats, err := s.beat(refs)
	if err != nil {
		return nil, fault.Wrap("agent.Heartbeat", err)
	}
	failed := failures(beats)
	if failed > 0 && s.Directory != nil {
		s.forward(ctx, refs, beats)
		failed = failures(beats)
	}
	s.Recorder.Beaten(len(beats)-failed, failed)
	return beats, nil
}

func failures(beats []instance.Beat) (failed int) {
	for n := range beats {
		if beats[n].Err != nil {
			failed++
		}
	}
	return failed
}

// SetStatus is instance.Registrar's.
func (s *Service) SetStatus(ctx context.Context, k instance.Key, status instance.Status) (i *instance.Instance, err error) {
	k = k.WithDefaults()
	err = s.anywhere(ctx, k, false, func() (err error) {
		i, err = s.override(ctx, k, status, s.CommitWait)
		return err
	}, func(ctx context.Context, there instance.Registrar) (err error) {
		i, err = there.SetStatus(ctx, k, status)
		return err
	})
	return i, fault.Wrap("agent.SetStatus", err)
}

// override sets the status of an instance of this peer.
func (s *Service) override(ctx context.Context, k instance.Key, status instance.Status, wait time.Duration) (*instance.Instance, error) {
	i, err := s.registry.SetStatus(k, status, s.Now())
	if err != nil {
		return nil, err
	}
	if revision := s.settle(ctx, k, wait); revision > 0 {
		shown := *i
		shown.Revision = revision
		i = &shown
	}
	return i, nil
}

// elsewhere gives the instance of a key that another peer answers for, as far as is known here; nil: none does.
func (s *Service) elsewhere(k instance.Key) *instance.Instance {
	found, err := s.Catalog.Discover(s.ctx, instance.Query{Name: k.Name(), Selector: instance.Selector{ID: k.ID, AnyStatus: true}})
	if err != nil || k.ID == "" || len(found.Instances) == 0 || !s.foreign(found.Instances[0]) {
		return nil
	}
	return found.Instances[0]
}

// LastBeat is instance.Catalog's.
func (s *Service) LastBeat(k instance.Key) (time.Time, bool) { return s.registry.LastBeat(k) }

// Expires is instance.Catalog's.
func (s *Service) Expires(list []*instance.Instance) time.Time { return s.registry.Expires(list) }
