// Package grpcapi serves the discovery plane to applications over gRPC: RecordService and
// PeerService, with the standard health and reflection services beside them.
//
// It translates and nothing else. Every error passes through one table, toStatus.
package grpcapi

import (
	"context"
	"log/slog"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/blackhole/blackhole/pkg/discovery"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// Bounds of the server. gRPC's own defaults leave streams unlimited and handshakes two
// minutes.
const (
	maxMessage   = 64 << 20 // a batch of discovery.MaxBatch records, or an answer of query.MaxLimit
	maxStreams   = 256      // calls at a time on one connection, watches among them
	handshake    = 5 * time.Second
	pingAtLeast  = 10 * time.Second // clients that ping more often are cut off
	stopGraceful = 3 * time.Second
)

// Config are the parts of a Server; all are required but Logger.
type Config struct {
	Registrar discovery.Registrar
	Finder    discovery.Finder
	Node      discovery.Node
	Logger    *slog.Logger
}

// Server is the gRPC front end.
type Server struct {
	api.UnimplementedRecordServiceServer
	api.UnimplementedPeerServiceServer
	Config
	grpc   *grpc.Server
	health *health.Server

	closing context.Context // done when Close begins: watches end
	close   context.CancelFunc
}

// New makes a server that Serve starts.
func New(c Config) *Server {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Server{Config: c, health: health.NewServer()}
	s.closing, s.close = context.WithCancel(context.Background())
	s.grpc = grpc.NewServer(
		grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage),
		grpc.MaxConcurrentStreams(maxStreams), grpc.ConnectionTimeout(handshake),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingAtLeast, PermitWithoutStream: true}),
		grpc.UnaryInterceptor(s.unary), grpc.StreamInterceptor(s.stream),
	)
	api.RegisterRecordServiceServer(s.grpc, s)
	api.RegisterPeerServiceServer(s.grpc, s)
	healthpb.RegisterHealthServer(s.grpc, s.health)
	reflection.Register(s.grpc)
	return s
}

// Serve answers on l until Close; it takes l over.
func (s *Server) Serve(l net.Listener) error {
	return fault.As("grpcapi.Serve", fault.Internal, s.grpc.Serve(l))
}

// Close lets calls under way finish for a moment, then ends them. Watches end at once.
func (s *Server) Close() {
	s.close()
	s.health.Shutdown()
	stop := time.AfterFunc(stopGraceful, s.grpc.Stop)
	defer stop.Stop()
	s.grpc.GracefulStop()
}

// unary turns errors into statuses and a panic into an error: one bad call must not end
// the daemon.
func (s *Server) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, call grpc.UnaryHandler) (resp any, err error) {
	defer s.recovered(info.FullMethod, &err)
	resp, err = call(ctx, req)
	return resp, toStatus(err)
}

func (s *Server) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, call grpc.StreamHandler) (err error) {
	defer s.recovered(info.FullMethod, &err)
	return toStatus(call(srv, ss))
}

func (s *Server) recovered(method string, err *error) {
	if p := recover(); p != nil {
		s.Logger.Error("panic in a call", "method", method, "panic", p)
		*err = status.Error(codes.Internal, "internal error")
	}
}

// Register implements api.RecordServiceServer.
func (s *Server) Register(ctx context.Context, req *api.RegisterRequest) (*api.RegisterResponse, error) {
	offer, err := toOffer("service", req.GetService())
	if err != nil {
		return nil, err
	}
	r, err := s.Registrar.Register(ctx, offer)
	return &api.RegisterResponse{Receipt: fromReceipt(r)}, err
}

// RegisterBatch implements api.RecordServiceServer.
func (s *Server) RegisterBatch(ctx context.Context, req *api.RegisterBatchRequest) (*api.RegisterBatchResponse, error) {
	offers := make([]records.Offer, len(req.GetServices()))
	outcomes := make([]discovery.Outcome, len(offers))
	var good []records.Offer
	var at []int // good[i] is offers[at[i]]
	for i, service := range req.GetServices() {
		if offers[i], outcomes[i].Err = toOffer("service", service); outcomes[i].Err == nil {
			good, at = append(good, offers[i]), append(at, i)
		}
	}
	if len(good) > 0 || len(offers) == 0 {
		done, err := s.Registrar.RegisterBatch(ctx, good)
		if err != nil {
			return nil, err
		}
		for i, o := range done {
			outcomes[at[i]] = o
		}
	}
	return &api.RegisterBatchResponse{Results: fromOutcomes(outcomes)}, nil
}

// Update implements api.RecordServiceServer.
func (s *Server) Update(ctx context.Context, req *api.UpdateRequest) (*api.UpdateResponse, error) {
	offer, err := toOffer("service", req.GetService())
	if err != nil {
		return nil, err
	}
	r, err := s.Registrar.Update(ctx, offer)
	return &api.UpdateResponse{Receipt: fromReceipt(r)}, err
}

// Withdraw implements api.RecordServiceServer.
func (s *Server) Withdraw(ctx context.Context, req *api.WithdrawRequest) (*api.WithdrawResponse, error) {
	r, err := s.Registrar.Withdraw(ctx, req.GetId())
	return &api.WithdrawResponse{Receipt: fromReceipt(r)}, err
}

// Get implements api.RecordServiceServer.
func (s *Server) Get(_ context.Context, req *api.GetRequest) (*api.GetResponse, error) {
	r, err := s.Registrar.Own(req.GetId())
	if err != nil {
		return nil, err
	}
	return &api.GetResponse{Record: fromRecord(r, nil)}, nil
}

// List implements api.RecordServiceServer.
func (s *Server) List(context.Context, *api.ListRequest) (*api.ListResponse, error) {
	own := s.Registrar.OwnAll()
	resp := &api.ListResponse{Records: make([]*api.Record, len(own))}
	for i, r := range own {
		resp.Records[i] = fromRecord(r, nil)
	}
	return resp, nil
}

// Resolve implements api.RecordServiceServer.
func (s *Server) Resolve(ctx context.Context, req *api.ResolveRequest) (*api.ResolveResponse, error) {
	r, err := s.Finder.Resolve(ctx, req.GetKey())
	if err != nil {
		return nil, err
	}
	return &api.ResolveResponse{Record: fromRecord(r, nil)}, nil
}

// Query implements api.RecordServiceServer.
func (s *Server) Query(ctx context.Context, req *api.QueryRequest) (*api.QueryResponse, error) {
	q, err := query.FromProto(req.GetQuery())
	if err != nil {
		return nil, fault.Wrap("grpcapi.Query", err)
	}
	a, err := s.Finder.Query(ctx, q)
	if err != nil {
		return nil, err
	}
	return fromAnswer(a), nil
}

// Watch implements api.RecordServiceServer.
func (s *Server) Watch(req *api.WatchRequest, out grpc.ServerStreamingServer[api.WatchResponse]) error {
	q, err := query.FromProto(req.GetQuery())
	if err != nil {
		return fault.Wrap("grpcapi.Watch", err)
	}
	ctx, cancel := context.WithCancel(out.Context())
	defer cancel()
	defer context.AfterFunc(s.closing, cancel)()
	w, err := s.Finder.Watch(ctx, q, req.GetAfter())
	if err != nil {
		return err
	}
	defer w.Close()
	for {
		ev, err := w.Next(ctx)
		if err != nil {
			return err
		}
		if err := out.Send(fromEvent(ev)); err != nil {
			return err
		}
	}
}

// Status implements api.PeerServiceServer.
func (s *Server) Status(context.Context, *api.StatusRequest) (*api.StatusResponse, error) {
	st := s.Node.Status()
	return &api.StatusResponse{
		PeerId: st.PeerID, Profile: st.Profile, Listen: st.Listen, Version: st.Version, Ready: st.Ready,
		Uptime: durationpb.New(time.Duration(st.UptimeSeconds * float64(time.Second))),
		Peers:  uint32(st.Peers), RoutingTable: uint32(st.RoutingTable),
		RecordsKept: uint64(st.RecordsKept), RecordsOwn: uint64(st.RecordsOwn),
	}, nil
}

// ListPeers implements api.PeerServiceServer.
func (s *Server) ListPeers(context.Context, *api.ListPeersRequest) (*api.ListPeersResponse, error) {
	resp := &api.ListPeersResponse{}
	for _, p := range s.Node.Peers() {
		resp.Peers = append(resp.Peers, &api.Peer{
			Id: p.ID, Addrs: p.Addrs, Agent: p.Agent,
			Latency: durationpb.New(time.Duration(p.LatencyMs * float64(time.Millisecond))),
		})
	}
	return resp, nil
}
