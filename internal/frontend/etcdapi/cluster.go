package etcdapi

import (
	"cmp"
	"context"
	"hash/fnv"
	"slices"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"

	pb "github.com/blackhole/blackhole/internal/frontend/etcdapi/etcdserverpb"
	"github.com/blackhole/blackhole/internal/frontend/etcdapi/v3electionpb"
	"github.com/blackhole/blackhole/internal/frontend/etcdapi/v3lockpb"
	"github.com/blackhole/blackhole/internal/platform/access"
)

// Need returns the role that a method, given by its full name, needs: RoleAdmin for unknown methods.
func Need(fullMethod string) access.Role {
	switch fullMethod {
	case pb.Auth_Authenticate_FullMethodName, pb.Auth_AuthStatus_FullMethodName,
		healthpb.Health_Check_FullMethodName, healthpb.Health_Watch_FullMethodName:
		return access.RoleNone
	case pb.KV_Range_FullMethodName, pb.KV_RangeStream_FullMethodName, pb.Watch_Watch_FullMethodName, pb.Lease_LeaseTimeToLive_FullMethodName, pb.Lease_LeaseLeases_FullMethodName,
		pb.Cluster_MemberList_FullMethodName, pb.Maintenance_Status_FullMethodName, pb.Maintenance_Alarm_FullMethodName,
		v3electionpb.Election_Leader_FullMethodName, v3electionpb.Election_Observe_FullMethodName:
		return access.RoleReadOnly
	case pb.KV_Put_FullMethodName, pb.KV_DeleteRange_FullMethodName, pb.KV_Txn_FullMethodName, pb.KV_Compact_FullMethodName, pb.Lease_LeaseGrant_FullMethodName,
		pb.Lease_LeaseRevoke_FullMethodName, pb.Lease_LeaseKeepAlive_FullMethodName, pb.Maintenance_Defragment_FullMethodName,
		v3lockpb.Lock_Lock_FullMethodName, v3lockpb.Lock_Unlock_FullMethodName, v3electionpb.Election_Campaign_FullMethodName,
		v3electionpb.Election_Proclaim_FullMethodName, v3electionpb.Election_Resign_FullMethodName:
		return access.RoleService
	}
	return access.RoleAdmin
}

// MemberList implements etcdserverpb.ClusterServer. A member that answers clients on its own host alone has no address
// elsewhere.
func (s *Server) MemberList(ctx context.Context, _ *pb.MemberListRequest) (*pb.MemberListResponse, error) {
	now, err := s.readable(ctx, 0)
	if err != nil {
		return nil, err
	}
	g, err := s.Group(ctx)
	if err != nil {
		return nil, err
	}
	out, self := &pb.MemberListResponse{Header: now}, false
	for i, m := range slices.Concat(g.Voters, g.Learners) {
		one := &pb.Member{ID: m.ID, Name: cmp.Or(m.Name, m.Peer), IsLearner: i >= len(g.Voters)}
		switch {
		case m.Peer == s.Peer:
			one.ClientURLs, self = []string{s.url}, true
		case m.Etcd != "":
			one.ClientURLs = []string{m.Etcd}
		}
		out.Members = append(out.Members, one)
	}
	if !self { // a client of the group serves too
		out.Members = append(out.Members, &pb.Member{ID: s.clientID(), Name: s.Peer, ClientURLs: []string{s.url}})
	}
	return out, nil
}

// clientID stands for the id of a member, of a peer that is none.
func (s *Server) clientID() uint64 {
	id := fnv.New64a()
	id.Write([]byte(s.Peer))
	return id.Sum64()
}

// Status implements etcdserverpb.MaintenanceServer. The database of a peer is what its part in the group takes on
// disk. Nothing of it can be defragmented. Clients divide by the sizes, so they are above 0.
func (s *Server) Status(ctx context.Context, _ *pb.StatusRequest) (*pb.StatusResponse, error) {
	now, err := s.readable(ctx, 0)
	if err != nil {
		return nil, err
	}
	g, err := s.Group(ctx)
	if err != nil {
		return nil, err
	}
	size := max(s.DiskBytes(), 1)
	out := &pb.StatusResponse{
		Header: now, Version: Version, StorageVersion: Version, RaftTerm: now.GetRaftTerm(),
		DbSize: size, DbSizeInUse: size, DbSizeQuota: s.KeyBytes,
	}
	now.MemberId, out.IsLearner = s.clientID(), true // the answer to present came from another peer
	for i, m := range slices.Concat(g.Voters, g.Learners) {
		if m.Peer == g.Leader {
			out.Leader = m.ID
		}
		if m.Peer == s.Peer {
			out.RaftIndex, out.RaftAppliedIndex = m.Applied, m.Applied
			now.MemberId, out.IsLearner = m.ID, i >= len(g.Voters)
		}
	}
	if g.Missing != "" {
		out.Errors = []string{g.Missing}
	}
	return out, nil
}

// Alarm implements etcdserverpb.MaintenanceServer. The group has no alarms, and no client can raise one.
func (s *Server) Alarm(ctx context.Context, req *pb.AlarmRequest) (*pb.AlarmResponse, error) {
	if req.GetAction() == pb.AlarmRequest_ACTIVATE {
		return s.UnimplementedMaintenanceServer.Alarm(ctx, req)
	}
	now, err := s.readable(ctx, 0)
	return &pb.AlarmResponse{Header: now}, err
}

// Defragment implements etcdserverpb.MaintenanceServer. The database of the group needs none.
func (s *Server) Defragment(ctx context.Context, _ *pb.DefragmentRequest) (*pb.DefragmentResponse, error) {
	now, err := s.readable(ctx, 0)
	return &pb.DefragmentResponse{Header: now}, err
}

// AuthStatus implements etcdserverpb.AuthServer.
func (s *Server) AuthStatus(ctx context.Context, _ *pb.AuthStatusRequest) (*pb.AuthStatusResponse, error) {
	return &pb.AuthStatusResponse{Header: &pb.ResponseHeader{}, Enabled: s.Authenticated}, nil
}

// Authenticate implements etcdserverpb.AuthServer. The password is a token of this peer, and becomes the token of
// etcd's client. The name of the user is free: the token has its own.
func (s *Server) Authenticate(ctx context.Context, req *pb.AuthenticateRequest) (*pb.AuthenticateResponse, error) {
	if !s.Authenticated {
		return nil, rpctypes.ErrGRPCAuthNotEnabled
	}
	ctx = metadata.NewIncomingContext(ctx, metadata.Pairs("authorization", "Bearer "+req.GetPassword()))
	named := false
	info := &grpc.UnaryServerInfo{Server: s, FullMethod: pb.Auth_AuthStatus_FullMethodName}
	_, err := s.intercept(ctx, req, info, func(ctx context.Context, _ any) (any, error) {
		named = access.From(ctx).Name != ""
		return &pb.AuthStatusResponse{}, nil
	})
	if err != nil || !named {
		return nil, rpctypes.ErrGRPCAuthFailed
	}
	return &pb.AuthenticateResponse{Header: &pb.ResponseHeader{}, Token: req.GetPassword()}, nil
}
