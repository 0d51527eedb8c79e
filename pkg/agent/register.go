package agent

import (
	"context"
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
	got, err := s.registry.Register(r, s.Now())
	s.Recorder.Stored("put", err)
	return got, fault.Wrap(op, err)
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
func (s *Service) Deregister(_ context.Context, k instance.Key) (instance.Deregistered, error) {
	gone, err := s.registry.Deregister(k, s.Now())
	s.Recorder.Stored("delete", err)
	return gone, fault.Wrap("agent.Deregister", err)
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
func (s *Service) SetStatus(_ context.Context, k instance.Key, status instance.Status) (*instance.Instance, error) {
	i, err := s.registry.SetStatus(k, status, s.Now())
	return i, fault.Wrap("agent.SetStatus", err)
}

// LastBeat is instance.Catalog's.
func (s *Service) LastBeat(k instance.Key) (time.Time, bool) { return s.registry.LastBeat(k) }

// Expires is instance.Catalog's.
func (s *Service) Expires(list []*instance.Instance) time.Time { return s.registry.Expires(list) }
