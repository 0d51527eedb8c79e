package grpcapi

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/blackhole/blackhole/pkg/discovery"
	"github.com/blackhole/blackhole/pkg/fault"
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
		conditions[i] = &api.Condition{Name: c.Name, Message: c.Message, Since: timestamppb.New(c.Since)}
	}
	return &api.StatusResponse{
		PeerId: st.PeerID, Network: st.Network, NetworkClosed: st.NetworkClosed, Profile: st.Profile, Mode: st.Mode, Listen: st.Listen, Version: st.Version, Ready: st.Ready,
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
			Id: p.ID, Addrs: p.Addrs, Agent: p.Agent,
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
