package agent

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/blackhole/blackhole/internal/contract/coord/directory"
	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// Register implements instance.Registrar.
func (s *Service) Register(ctx context.Context, r instance.Registration) (instances.Registered, error) {
	const op = "agent.Register"
	r.Strict, r.Principal = r.Strict || s.config.Strict, s.principal(ctx)
	r.Client = cmp.Or(r.Principal, s.config.Client(ctx))
	if err := r.Normalize(); err != nil {
		return instances.Registered{}, fault.Wrap(op, err)
	}
	if strings.HasPrefix(r.ID, directory.OutsideID) {
		return instances.Registered{}, fault.Wrap(op, fault.Invalidf("id", r.ID, "begins with %s, which is for instances that no peer answers for: choose another one", directory.OutsideID))
	}
	if err := s.admit(ctx, r); err != nil {
		return instances.Registered{}, fault.Wrap(op, err)
	}
	got, err := s.enter(ctx, r)
	if err == nil {
		got.Warnings = append(got.Warnings, s.Problems(got.Key)...)
		got.Warnings = append(got.Warnings, s.named(ctx, got.Instance)...)
	}
	return got, fault.Wrap(op, err)
}

// longestType is the most bytes of the name of a service in DNS-SD (RFC 6335, section 5.1).
const longestType = 15

// named says, for people, what DNS makes of the names of an instance.
func (s *Service) named(ctx context.Context, i *instance.Instance) (list []string) {
	if text := i.Unaskable(i.Spec.Tags); text != "" {
		list = append(list, text)
	}
	if s.config.Multicast && i.Namespace == instance.DefaultNamespace && len(i.Service) > longestType {
		const text = "some programs do not find %s by multicast DNS: the name has %d bytes, DNS-SD allows %d"
		list = append(list, fmt.Sprintf(text, i.Service, len(i.Service), longestType))
	}
	for _, other := range s.Spellings(i.Name()) {
		found, err := s.Catalog.Discover(ctx, instance.Query{Name: other, Selector: instance.Selector{AnyStatus: true}})
		if err == nil && len(found.Instances) > 0 {
			const text = "DNS answers for the services %s and %s as one: they differ by letter case alone"
			list = append(list, fmt.Sprintf(text, i.Service, other.Service))
		}
	}
	return list
}

// Problems says, for people, what is wrong with an instance of this peer: why the group does not have it, and why its offer
// is not announced.
func (s *Service) Problems(k instance.Key) (list []string) {
	if s.own != nil {
		if err := s.own.Uncommitted(k); err != nil {
			list = append(list, "this peer alone lists it: "+fault.Message(err))
		}
	}
	if s.offers != nil {
		if err := s.offers.problem(k); err != nil {
			list = append(list, "its offer is not announced: "+fault.Message(err))
		}
	}
	return list
}

// enter registers an instance here, and in the directory if possible.
func (s *Service) enter(ctx context.Context, r instance.Registration) (instances.Registered, error) {
	if s.directory == nil {
		got, err := s.put(r)
		got.Committed = err == nil // no other peer exists
		return got, err
	}
	if r.ID != "" { // a generated id has no other users
		unlock, err := s.locks.lock(ctx, r.Key)
		if err != nil {
			return instances.Registered{}, err
		}
		defer unlock()
	}
	last, had := s.registry.Get(r.Key)
	if i, _ := s.elsewhere(r.Key); i != nil {
		if r.Strict {
			return instances.Registered{}, &fault.Error{Kind: fault.Exists, Field: "id", Value: r.ID, Err: errElsewhere}
		}
		if had { // lost without a report yet: only a new registration takes the key back
			s.drop(r.Key)
			s.aliases.Add(last.Lease, r.Key)
		}
	}
	got, err := s.publicize(ctx, r)
	if got.Instance == nil || err == nil {
		return got, err
	}
	switch fault.KindOf(err) {
	case fault.Unavailable, fault.Timeout, fault.Canceled, fault.PoolExhausted:
		if !r.RequireCommit {
			return got, nil
		}
		err = &fault.Error{Kind: fault.Unavailable, Err: fmt.Errorf("%w: %w", errUncommitted, err)}
	}
	s.undo(last, got.Instance)
	return instances.Registered{}, err
}

// publicize registers an instance and waits for its commit. After a takeover of
// the key by another peer it registers once more, because the present
// registration is the newest. An error with an instance means a registration
// without a commit; an error without one means no registration.
func (s *Service) publicize(ctx context.Context, r instance.Registration) (instances.Registered, error) {
	if s.own != nil {
		defer s.own.Traced(ctx, r.Key)()
	}
	for again := true; ; again = false {
		got, err := s.put(r)
		if err != nil {
			return instances.Registered{}, err
		}
		r.ID, r.Strict = got.ID, false
		revision, err := s.commit(ctx, r.Key, commitWait)
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
			return instances.Registered{}, err
		}
	}
}

// admit rejects a registration for reasons outside the registry.
func (s *Service) admit(ctx context.Context, r instance.Registration) error {
	if onThisHost(r.Spec.Host) && !r.Local {
		return fault.Invalidf("host", r.Spec.Host, "is a loopback address: register it from the same host")
	}
	if err := s.fits(r); err != nil {
		return err
	}
	if s.config.Validate {
		return s.depends(ctx, r)
	}
	return nil
}

// depends rejects an instance with unregistered dependencies, its own service
// aside.
func (s *Service) depends(ctx context.Context, r instance.Registration) error {
	var missing []string
	for _, name := range r.Spec.Dependencies {
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

// Deregister implements instance.Registrar.
func (s *Service) Deregister(ctx context.Context, k instance.Key) (gone instances.Removal, err error) {
	k = k.WithDefaults()
	err = s.forwarder.anywhere(ctx, k, true, func() (err error) {
		gone, err = s.remove(ctx, k, commitWait)
		return err
	}, func(ctx context.Context, there instances.Registrar) (err error) {
		i, _ := s.reader.elsewhere(k)
		gone, err = there.Deregister(ctx, k)
		if err == nil && i != nil {
			s.registry.Deregistered(i, s.config.Now())
			s.config.Logger.Info("deregistered an instance of another peer", "audit", "foreign_deregistration", "instance", k.String(), "peer", i.Peer, "caller", s.config.Caller(ctx))
		}
		return err
	})
	return gone, fault.Wrap("agent.Deregister", err)
}

// Heartbeat implements instance.Registrar. A lease of another caller's instance, without a right to its service, is Forbidden.
func (s *Service) Heartbeat(ctx context.Context, refs []instances.Ref) ([]instances.Beat, error) {
	refs, refused := s.permitted(ctx, refs)
	beats, err := s.beats(ctx, refs)
	if err != nil {
		return nil, fault.Wrap("agent.Heartbeat", err)
	}
	for n, err := range refused {
		beats[n].Err = err
	}
	return beats, nil
}

// permitted refuses leases, whose ids say nothing of the right to use them: an instance belongs to the caller who registered
// it, and to callers with a right to its service. References by key are checked where the call arrives. What is refused, by
// position, names no instance any more.
func (s *Service) permitted(ctx context.Context, refs []instances.Ref) ([]instances.Ref, map[int]error) {
	if s.config.May == nil || len(refs) > instances.MaxBeats {
		return refs, nil
	}
	var refused map[int]error
	for n, ref := range refs {
		if ref.Lease == "" {
			continue
		}
		i, ok := s.registered(ref)
		if !ok {
			i, _ = s.forwarder.locate(ref)
		}
		if i == nil || i.Principal != "" && i.Principal == s.principal(ctx) {
			continue
		}
		if err := s.config.May(ctx, i.Namespace+"/"+i.Service); err != nil {
			if refused == nil {
				refused, refs = make(map[int]error), slices.Clone(refs)
			}
			refused[n], refs[n] = fault.In("lease_id", err), instances.Ref{}
		}
	}
	return refs, refused
}

// beats renews leases here, and those of other peers' instances there.
func (s *Service) beats(ctx context.Context, refs []instances.Ref) ([]instances.Beat, error) {
	beats, err := s.beat(refs)
	if err != nil {
		return nil, err
	}
	renewed, refused, unknown := outcomes(beats)
	if refused+unknown > 0 && s.directory != nil {
		s.forwarder.heartbeats(ctx, refs, beats)
		renewed, refused, _ = outcomes(beats)
	}
	s.config.Metrics.Beaten(renewed, refused)
	return beats, nil
}

// outcomes counts beats. A beat of an unknown instance, such as a typing error,
// says nothing about the health of the registry.
func outcomes(beats []instances.Beat) (renewed, refused, unknown int) {
	for n := range beats {
		switch err := beats[n].Err; {
		case err == nil:
			renewed++
		case fault.KindOf(err) == fault.NotFound:
			unknown++
		default:
			refused++
		}
	}
	return renewed, refused, unknown
}

// SetStatus implements instance.Registrar.
func (s *Service) SetStatus(ctx context.Context, k instance.Key, status instance.Status) (i *instance.Instance, err error) {
	k = k.WithDefaults()
	err = s.forwarder.anywhere(ctx, k, false, func() (err error) {
		i, err = s.override(ctx, k, status, commitWait)
		return err
	}, func(ctx context.Context, there instances.Registrar) (err error) {
		i, err = there.SetStatus(ctx, k, status)
		return err
	})
	return i, fault.Wrap("agent.SetStatus", err)
}
