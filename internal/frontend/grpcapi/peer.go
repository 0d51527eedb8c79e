package grpcapi

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/blackhole/blackhole/internal/contract/discovery"
	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// peerService tells of the local peer and those it is connected to.
type peerService struct {
	api.UnimplementedPeerServiceServer
	node discovery.Node
	page func(ctx context.Context) (discovery.PageLink, error) // nil: no page
}

// Status implements api.PeerServiceServer.
func (s *peerService) Status(context.Context, *api.StatusRequest) (*api.StatusResponse, error) {
	st := s.node.Status()
	conditions := make([]*api.Condition, len(st.Conditions))
	for i, c := range st.Conditions {
		conditions[i] = &api.Condition{
			Name: c.Name, Message: c.Message, Since: timestamppb.New(c.Since),
			What: c.What, Effect: c.Effect, Remedy: c.Remedy, State: string(c.State),
		}
	}
	return &api.StatusResponse{
		PeerId: st.PeerID, IdentityNew: st.IdentityNew, Network: st.Network, NetworkClosed: st.NetworkClosed, Profile: st.Profile, Mode: st.Mode, Listen: st.Listen, Version: st.Version, Ready: st.Ready,
		Uptime: durationpb.New(time.Duration(st.UptimeSeconds * float64(time.Second))),
		Peers:  uint32(st.Peers), RoutingTable: uint32(st.RoutingTable),
		RecordsKept: uint64(st.RecordsKept), RecordsOwn: uint64(st.RecordsOwn),
		RecordsUnstored: st.RecordsUnstored, RecordsAnnouncing: uint64(st.RecordsAnnouncing), Conditions: conditions, ClockOffsetSeconds: st.ClockOffset,
		Reach: reachOf(st.Reach), Name: st.Name, Group: standingOf(st.Group),
	}, nil
}

func standingOf(g *discovery.Group) *api.GroupStanding {
	if g == nil {
		return nil
	}
	return &api.GroupStanding{
		GroupId: g.ID, Role: g.Role, Term: g.Term, Leader: g.Leader, LeaderName: g.LeaderName,
		FailuresSurvived: uint32(g.Survives), Tolerance: g.Tolerance, Missing: g.Missing,
	}
}

func reachOf(r discovery.Reach) *api.Reach {
	return &api.Reach{
		State: r.State, Text: r.Text, Since: timestamppb.New(r.Since), Relays: r.Relays,
		Direct: uint32(r.Direct), Relayed: uint32(r.Relayed), Punched: uint32(r.Punched), Unpunched: uint32(r.Unpunched),
	}
}

// ListPeers implements api.PeerServiceServer.
func (s *peerService) ListPeers(context.Context, *api.ListPeersRequest) (*api.ListPeersResponse, error) {
	resp := &api.ListPeersResponse{}
	for _, p := range s.node.Peers() {
		resp.Peers = append(resp.Peers, &api.Peer{
			Id: p.ID, Addrs: p.Addrs, Agent: p.Agent, Name: p.Name,
			Latency: durationpb.New(time.Duration(p.LatencyMs * float64(time.Millisecond))),
		})
	}
	return resp, nil
}

// OpenPage implements api.PeerServiceServer.
func (s *peerService) OpenPage(ctx context.Context, _ *api.OpenPageRequest) (*api.OpenPageResponse, error) {
	if s.page == nil {
		return nil, fault.New("grpcapi.OpenPage", fault.Unsupported, "this peer serves no page")
	}
	link, err := s.page(ctx)
	if err != nil {
		return nil, err
	}
	resp := &api.OpenPageResponse{Url: link.URL}
	if !link.Expires.IsZero() {
		resp.ExpiresAt = timestamppb.New(link.Expires)
	}
	return resp, nil
}

// Operator lets the operator examine and adjust this peer.
type Operator interface {
	// Debug passes the files for a report of a fault to send, without secrets.
	Debug(ctx context.Context, send func(name string, content []byte) error) error
	// SetLogLevel changes the level of the log. Errors: Invalid for an unknown level.
	SetLogLevel(level string) (previous string, err error)
	// LastChecks returns the ends of the last checks that this peer made of an instance, newest first. Errors: Unsupported
	// without the agent plane.
	LastChecks(k instance.Key) ([]instances.LastCheck, error)
}

// maxDebugFile bounds a file of Debug. The end of a longer one is cut off.
const maxDebugFile = 1 << 20

type operatorService struct {
	api.UnimplementedOperatorServiceServer
	operator Operator
}

// Debug implements api.OperatorServiceServer.
func (s *operatorService) Debug(_ *api.DebugRequest, out grpc.ServerStreamingServer[api.DebugResponse]) error {
	return s.operator.Debug(out.Context(), func(name string, content []byte) error {
		return out.Send(&api.DebugResponse{Name: name, Content: content[:min(len(content), maxDebugFile)]})
	})
}

// SetLogLevel implements api.OperatorServiceServer.
func (s *operatorService) SetLogLevel(_ context.Context, r *api.SetLogLevelRequest) (*api.SetLogLevelResponse, error) {
	previous, err := s.operator.SetLogLevel(r.GetLevel())
	return &api.SetLogLevelResponse{Previous: previous}, err
}

// ListChecks implements api.OperatorServiceServer.
func (s *operatorService) ListChecks(_ context.Context, r *api.ListChecksRequest) (*api.ListChecksResponse, error) {
	ends, err := s.operator.LastChecks(toKey(r))
	return &api.ListChecksResponse{Checks: convert(ends, func(c instances.LastCheck) *api.Check {
		return &api.Check{
			At: timestamppb.New(c.At), Took: durationpb.New(time.Duration(c.TookMs * float64(time.Millisecond))),
			Passing: c.Passing, State: c.State, Status: instance.Status(c.Status).Proto(), Cause: c.Cause,
		}
	})}, err
}

// eventService passes the stream of all events on.
type eventService struct {
	api.UnimplementedEventServiceServer
	server *Server
}

// Follow implements api.EventServiceServer.
func (e *eventService) Follow(r *api.FollowRequest, out grpc.ServerStreamingServer[api.FollowResponse]) error {
	ctx, cancel := untilClosing(out.Context(), e.server.closing)
	defer cancel()
	return orClosing(e.server.closing, "grpcapi.Watch", e.server.Web.Events(ctx, r, out.Send))
}
