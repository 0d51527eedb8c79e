package grpcapi

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"

	"google.golang.org/grpc"

	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
	agentv1 "github.com/blackhole/blackhole/proto/blackhole/agent/v1"
)

// maxRemembered bounds the registrations that a stream remembers. It registers further instances
// each time, at a higher cost and with the same result.
const maxRemembered = 4096

// RegisterStream implements agentv1.DiscoveryServiceServer. It handles one request after the other:
// flow control slows down a client that sends faster than the registry writes.
func (a *agent) RegisterStream(stream grpc.BidiStreamingServer[agentv1.Instance, agentv1.Event]) error {
	ctx, cancel := untilClosing(stream.Context(), a.closing)
	defer cancel()
	in := receive(ctx, 0, stream.Recv, func(*agentv1.Instance) error { return nil }) // an unchecked instance may have any size
	s := registering{agent: a, known: make(map[identity]registered)}
	for {
		event, err := s.next(ctx, in)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return orClosing(a.closing, "grpcapi.RegisterStream", err)
		}
		if err := stream.Send(event); err != nil {
			return err
		}
	}
}

// registering holds the registrations of one stream.
type registering struct {
	*agent
	known map[identity]registered
}

// identity distinguishes the instances of a stream: by key or, without an id, by content.
type identity struct {
	instance.Key
	digest [sha256.Size]byte // of the content; zero with an id
}

// registered is the content and the lease of a registered instance.
type registered struct {
	digest [sha256.Size]byte
	lease  string
}

// next answers the next request. A refused instance gets an answer; an error ends the call.
func (s *registering) next(ctx context.Context, in *inbox[agentv1.Instance]) (*agentv1.Event, error) {
	var req *agentv1.Instance
	select {
	case next, ok := <-in.C:
		switch {
		case !ok && in.err == nil:
			return nil, io.EOF
		case !ok:
			return nil, in.err
		}
		req = next
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	event, err := s.take(ctx, req)
	switch {
	case err == nil:
		return event, nil
	case ctx.Err() != nil:
		return nil, ctx.Err()
	}
	return &agentv1.Event{Instance: req, Error: fault.Message(err), Field: fault.FieldOf(err)}, nil
}

// take renews an unchanged instance that this stream has registered, and registers all others.
func (s *registering) take(ctx context.Context, req *agentv1.Instance) (*agentv1.Event, error) {
	r, err := toRegistration(ctx, req)
	if err != nil {
		return nil, err
	}
	if err := r.Normalize(); err != nil {
		return nil, err
	}
	digest := sha256.Sum256((&instance.Instance{Key: r.Key, Spec: r.Spec, Status: r.Status}).Marshal())
	id := identity{Key: r.Key}
	if r.ID == "" {
		id.digest = digest
	}
	if before, ok := s.known[id]; ok && before.digest == digest {
		if event, err := s.renew(ctx, before); err != nil || event != nil {
			return event, err
		}
	}
	done, err := s.register(ctx, r)
	if err != nil {
		return nil, err
	}
	if _, known := s.known[id]; known || len(s.known) < maxRemembered {
		s.known[id] = registered{digest: digest, lease: done.Lease}
	}
	event := &agentv1.Event{
		Type: agentv1.EventType_EVENT_TYPE_MODIFIED, Instance: s.agent.known(done.Instance), Revision: done.Revision,
		LeaseId: done.Lease, LeaseTtl: seconds(done.TTL),
	}
	if done.Created {
		event.Type = agentv1.EventType_EVENT_TYPE_ADDED
	}
	return event, nil
}

// renew returns nil if the lease is gone.
func (s *registering) renew(ctx context.Context, before registered) (*agentv1.Event, error) {
	beats, err := s.Registrar.Heartbeat(ctx, []instances.Ref{{Lease: before.lease}})
	if err != nil || beats[0].Err != nil {
		return nil, err
	}
	b := beats[0]
	return &agentv1.Event{
		Type:    agentv1.EventType_EVENT_TYPE_PROGRESS,
		LeaseId: before.lease, LeaseTtl: seconds(b.TTL),
		Instance: &agentv1.Instance{
			Namespace: b.Key.Namespace, ServiceName: b.Key.Service, Id: b.Key.ID, Health: b.Status.Proto(), LeaseId: before.lease,
		},
	}, nil
}
