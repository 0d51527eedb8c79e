// Package etcdapi is the front end for clients of etcd v3: gRPC, and JSON over HTTP/1 at the same address.
//
// It keeps the keys of its clients under a prefix of the group's keyspace, which it adds to requests and takes off
// answers. Revisions are those of the whole group. Compact is logical: the group hides the history of
// the prefix below a revision, and other users of the group keep theirs.
package etcdapi

import (
	"cmp"
	"context"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	pb "github.com/blackhole/blackhole/internal/frontend/etcdapi/etcdserverpb"
	"github.com/blackhole/blackhole/internal/frontend/etcdapi/v3electionpb"
	"github.com/blackhole/blackhole/internal/frontend/etcdapi/v3lockpb"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/frontend/authority"
	"github.com/blackhole/blackhole/internal/frontend/budget"
	"github.com/blackhole/blackhole/internal/platform/access"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Front is the name of this front in owners of leases; see authority.Config.
const Front = "etcd"

// Version is the version of etcd whose API this is. Clients read it.
const Version = "3.7.3"

// Bounds of the server.
const (
	maxRequest   = 5 << 20  // a transaction of 4 MiB with its frame; larger ones get an error of etcd
	maxAnswer    = 64 << 20 // keys and values of one range
	maxBegun     = 4096     // calls without a place of AtOnce, most because their request has not arrived
	maxStreams   = 1024     // calls at once on a connection; clients wait with more
	workers      = 64       // goroutines that serve one call after the other; calls beyond have one each
	readHeader   = 10 * time.Second
	pingAtLeast  = 5 * time.Second // clients that ping more often are disconnected
	idle         = 5 * time.Minute
	stopGraceful = 3 * time.Second
)

// Config holds the parts of a Server.
type Config struct {
	// Service is the coordination plane behind the rights of the callers of this front; required.
	Service coord.Service
	// Group returns what this peer knows of the group; required.
	Group func(context.Context) (coord.GroupState, error)
	// Leading returns the leader of the group, empty while none is known, and a channel that is closed when it
	// changes. Nil: there is one.
	Leading func() (term uint64, leader string, changed <-chan struct{})
	// NoLeader is the time after which a group without a leader has none for clients that require one.
	NoLeader time.Duration
	// DiskBytes returns what the group takes on the disk of this peer. Nil: unknown.
	DiskBytes func() int64
	// KeyBytes is how much keys and values of the group may have; 0: unknown.
	KeyBytes int64
	// Peer is the id of this peer.
	Peer string
	// Prefix of all keys; not empty.
	Prefix string
	Logger *slog.Logger // nil disables logging

	// Authenticated says that callers authenticate: Unary and Stream do it.
	Authenticated bool
	// Unary and Stream wrap each call over gRPC and JSON, with the first outermost.
	Unary  []grpc.UnaryServerInterceptor
	Stream []grpc.StreamServerInterceptor
	// Name returns the context of a call with the name of its caller, whom nobody has admitted yet, for its share of
	// the calls that begin. Nil: the shares are of addresses.
	Name func(context.Context) context.Context
	// Refused hears of each place of a pool that a caller did not get, and must not block. Nil ignores them.
	Refused func(access.Refusal)
	// Answers bounds the bytes of answers that clients have not taken yet, and as many of watches. Nil: they have no
	// bound.
	Answers *access.Pool
	// Requests bounds the bytes of requests at work, and as many that arrive. Nil: they have no bound.
	Requests *access.Pool
	// AtOnce bounds the calls at a time; required.
	AtOnce *access.Pool
}

// Server is the front end for clients of etcd.
type Server struct {
	pb.UnimplementedKVServer
	pb.UnimplementedLeaseServer
	pb.UnimplementedWatchServer
	pb.UnimplementedClusterServer
	pb.UnimplementedMaintenanceServer
	pb.UnimplementedAuthServer
	v3lockpb.UnimplementedLockServer
	v3electionpb.UnimplementedElectionServer
	Config
	keys     keyspace
	unaries  []grpc.UnaryServerInterceptor // all that wraps a call, with the outermost first
	streams  []grpc.StreamServerInterceptor
	url      string // of this front, for clients
	grpc     *grpc.Server
	alive    *health.Server // says that this server serves, as etcd's does
	http     *http.Server
	watches  *access.Pool                      // bytes
	led      atomic.Pointer[led]               // ended: the group has no leader
	shown    atomic.Pointer[pb.ResponseHeader] // by the last answer of a watch; never changed
	refusals *budget.Refusals

	closing context.Context // done when Close begins; ends watches
	close   context.CancelFunc
}

// New makes a server. Serve starts it. Errors: Invalid for a prefix with keys of the group itself.
func New(c Config) (*Server, error) {
	if err := authority.CheckPrefix("etcd.prefix", c.Prefix); err != nil {
		return nil, fault.Wrap("etcdapi.New", err)
	}
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	s := &Server{
		Config: c, keys: keyspace(c.Prefix), watches: c.Answers.Twin("watch_bytes"), refusals: budget.NewRefusals(),
		alive: health.NewServer(),
	}
	charged := budget.Budget{Answers: s.Answers, Requests: s.Requests, AtOnce: s.AtOnce, Op: "etcdapi", Changes: func(method string) bool { return Need(method) > access.RoleReadOnly }}
	s.unaries = slices.Concat([]grpc.UnaryServerInterceptor{s.unary}, s.Unary, []grpc.UnaryServerInterceptor{charged.Unary})
	s.streams = slices.Concat([]grpc.StreamServerInterceptor{s.stream}, s.Stream, []grpc.StreamServerInterceptor{charged.Stream})
	s.led.Store(newLed())
	if c.DiskBytes == nil {
		s.DiskBytes = func() int64 { return 0 }
	}
	if c.Leading == nil {
		s.Leading = func() (uint64, string, <-chan struct{}) { return 0, c.Peer, nil }
	}
	s.closing, s.close = context.WithCancel(context.Background())
	begun := budget.NewBegun("etcdapi", maxBegun, c.AtOnce, c.Name, c.Refused)
	s.grpc = grpc.NewServer(append(budget.Options(newShaken(), c.Requests, func(ctx context.Context, info *tap.Info) (context.Context, error) {
		ctx, err := begun.Begin(bear(ctx), info.FullMethodName)
		return ctx, toStatus(err)
	}),
		grpc.MaxConcurrentStreams(maxStreams), grpc.MaxRecvMsgSize(maxRequest), grpc.MaxSendMsgSize(maxAnswer+maxRequest),
		grpc.NumStreamWorkers(workers), // a goroutine of its own grows its stack in each call
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingAtLeast, PermitWithoutStream: true}),
		grpc.UnaryInterceptor(s.intercept), grpc.StreamInterceptor(s.interceptStream),
	)...)
	for _, d := range services() {
		s.grpc.RegisterService(d, s)
	}
	healthpb.RegisterHealthServer(s.grpc, s.alive)
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	s.http = &http.Server{
		Handler: s.handler(), ConnContext: access.ConnContext, Protocols: protocols,
		ReadHeaderTimeout: readHeader, IdleTimeout: idle, ErrorLog: slog.NewLogLogger(c.Logger.Handler(), slog.LevelDebug),
	}
	return s, nil
}

// Serve answers on l until Close and takes ownership of l. Members and clients learn url as the address of this front.
func (s *Server) Serve(l net.Listener, url string) error {
	s.url = url
	all := newSplit(l)
	var group errgroup.Group
	group.Go(all.serve)
	group.Go(func() error { s.lead(); return nil })
	group.Go(func() error { return s.http.Serve(&all.web) })
	group.Go(func() error { return s.grpc.Serve(&all.rpc) })
	err := group.Wait()
	if s.closing.Err() != nil {
		return nil
	}
	return fault.As("etcdapi.Serve", fault.Internal, err)
}

// Close ends watches at once and other calls after a short grace period.
func (s *Server) Close() {
	s.close()
	s.alive.Shutdown()
	ctx, cancel := context.WithTimeout(context.Background(), stopGraceful)
	defer cancel()
	defer context.AfterFunc(ctx, s.grpc.Stop)()
	var both sync.WaitGroup
	both.Go(s.grpc.GracefulStop)
	both.Go(func() {
		if s.http.Shutdown(ctx) != nil {
			s.http.Close()
		}
	})
	both.Wait()
}

// services are those that the server has.
func services() []*grpc.ServiceDesc {
	return []*grpc.ServiceDesc{&pb.KV_ServiceDesc, &pb.Lease_ServiceDesc, &pb.Watch_ServiceDesc, &pb.Cluster_ServiceDesc, &pb.Maintenance_ServiceDesc, &pb.Auth_ServiceDesc,
		&v3lockpb.Lock_ServiceDesc, &v3electionpb.Election_ServiceDesc}
}

// intercept runs a call within all that wraps it.
func (s *Server) intercept(ctx context.Context, req any, info *grpc.UnaryServerInfo, call grpc.UnaryHandler) (any, error) {
	for i := len(s.unaries) - 1; i >= 0; i-- {
		one, next := s.unaries[i], call
		call = func(ctx context.Context, req any) (any, error) { return one(ctx, req, info, next) }
	}
	return call(ctx, req)
}

// interceptStream is intercept for streams.
func (s *Server) interceptStream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, call grpc.StreamHandler) error {
	for i := len(s.streams) - 1; i >= 0; i-- {
		one, next := s.streams[i], call
		call = func(srv any, ss grpc.ServerStream) error { return one(srv, ss, info, next) }
	}
	return call(srv, ss)
}

// unary turns errors into those of etcd, and a panic into an error.
func (s *Server) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, call grpc.UnaryHandler) (resp any, err error) {
	defer s.recovered(info.FullMethod, &err)
	defer access.Serving(ctx)()
	if err := access.OnlyProbes(ctx); err != nil && info.FullMethod != healthpb.Health_Check_FullMethodName {
		return nil, toStatus(err)
	}
	ctx, end := s.requiring(ctx)
	defer end()
	if resp, err = call(ctx, req); err != nil && context.Cause(ctx) == rpctypes.ErrGRPCNoLeader {
		err = rpctypes.ErrGRPCNoLeader
	}
	return resp, toStatus(err)
}

func (s *Server) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, call grpc.StreamHandler) (err error) {
	defer s.recovered(info.FullMethod, &err)
	defer access.Serving(ss.Context())()
	if err := access.OnlyProbes(ss.Context()); err != nil {
		return toStatus(err)
	}
	ctx, end := s.requiring(ss.Context())
	defer end()
	if err = call(srv, bound{ss, ctx}); err != nil && context.Cause(ctx) == rpctypes.ErrGRPCNoLeader {
		err = rpctypes.ErrGRPCNoLeader
	}
	return toStatus(err)
}

func (s *Server) recovered(method string, err *error) {
	if p := recover(); p != nil {
		s.Logger.Error("a call caused a panic", "method", method, "panic", p, "stack", string(debug.Stack()))
		*err = status.Error(codes.Internal, "etcdserver: internal error: see the log of the peer")
	}
}
