// Package grpcapi serves the planes over gRPC: the discovery plane as RecordService and PeerService,
// the agent plane as DiscoveryService, and the coordination plane as LockService and
// CoordinationService, with the standard health and reflection services. Other peers use the
// services of the coordination plane too, to forward requests of their applications.
//
// The package only translates. All errors pass through one table, toStatus.
package grpcapi

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math"
	"net"
	"runtime/debug"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/contract/coord/calls"
	"github.com/blackhole/blackhole/internal/contract/discovery"
	"github.com/blackhole/blackhole/internal/frontend/budget"
	"github.com/blackhole/blackhole/internal/frontend/xdsapi"
	"github.com/blackhole/blackhole/internal/platform/access"
	"github.com/blackhole/blackhole/internal/platform/strictproto"
	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
	agentv1 "github.com/blackhole/blackhole/proto/blackhole/agent/v1"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// Bounds of the server. The defaults of gRPC leave streams unbounded.
const (
	maxRequest   = 32 << 20         // a batch of discovery.MaxBatch records of 3 KiB
	maxAnswer    = 64 << 20         // a list of the same number
	maxBegun     = 4096             // calls without a place of AtOnce, most because their request has not arrived
	maxStreams   = 8192             // concurrent calls per connection, including watches and waits for locks
	pingAtLeast  = 10 * time.Second // clients that ping more often are disconnected
	stopGraceful = 3 * time.Second
)

// Operations of package discovery. Errors found before its methods run carry them too, so that
// clients match both alike.
const (
	opRegister = "discovery.Register"
	opUpdate   = "discovery.Update"
	opQuery    = "discovery.Query"
)

// Config holds the parts of a Server. Three parts are optional, and nil disables their services:
// Registrar (with Finder and Node), Agent, and Coordination.
type Config struct {
	Registrar    discovery.Registrar
	Finder       discovery.Finder
	Node         discovery.Node
	Agent        *Agent
	Coordination *Coordination
	Trade        api.TradeServiceServer // nil disables TradeService
	Logger       *slog.Logger           // nil disables logging
	Places       Places
	// Answers bounds the bytes of answers that clients have not taken yet. Nil: they have no bound.
	Answers *access.Pool
	// Requests bounds the bytes of requests at work, and as many that arrive. Nil: they have no bound.
	Requests *access.Pool
	// AtOnce bounds the calls at a time, also those on streams. Nil: a pool of 32,768.
	AtOnce *access.Pool

	// Credentials of the connections. Nil means plain text.
	Credentials credentials.TransportCredentials

	// Unary and Stream wrap each call, also on a stream of calls, with the first outermost. Their errors
	// pass through the table of errors.
	Unary  []grpc.UnaryServerInterceptor
	Stream []grpc.StreamServerInterceptor
	// Name returns the context of a call with the name of its caller, whom nobody has admitted yet, for its share of the calls that begin. Nil:
	// the shares are of addresses.
	Name func(context.Context) context.Context

	// Limit runs before a registration of an instance, never before a heartbeat, a read or a watch.
	// Nil means no limit.
	Limit func(ctx context.Context) error
	// May checks that the caller may change the instances of a service. Nil allows everybody.
	May func(ctx context.Context, service string) error
	// Web is what the HTTP front end has for this one.
	Web Web
	// Operator examines and adjusts this peer. Nil disables OperatorService.
	Operator Operator
}

// Places bounds concurrent calls.
type Places struct {
	MaxWatches int // open at a time per plane; zero means 1024
	MaxWaits   int // calls waiting for locks at a time; zero means 8192
	// Refused hears of each place of a pool that a caller did not get, and must not block. Nil ignores them.
	Refused func(access.Refusal)
	// Known reports whether a quarter of the places of the coordination plane is kept for a caller. Nil keeps none.
	Known func(context.Context) bool
}

// Web is what the HTTP front end has for this one.
type Web struct {
	// Page returns a link to the page of this peer. Nil means that it serves none.
	Page func(ctx context.Context) (discovery.PageLink, error)
	// Events sends all events of this peer until ctx ends or send fails. Nil disables EventService.
	Events func(ctx context.Context, r *api.FollowRequest, send func(*api.FollowResponse) error) error
}

// Server is the gRPC front end.
type Server struct {
	api.UnimplementedRecordServiceServer
	Config
	grpc    *grpc.Server
	health  *health.Server
	watches *access.Pool
	calls   *coordination // nil without the coordination plane

	closing context.Context // done when Close begins; ends watches
	close   context.CancelFunc
}

// New makes a server. Serve starts it.
func New(c Config) *Server {
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	c.Places.MaxWatches, c.Places.MaxWaits = cmp.Or(c.Places.MaxWatches, 1024), cmp.Or(c.Places.MaxWaits, 8192)
	if c.AtOnce == nil {
		c.AtOnce = access.NewPool("calls", maxAtOnce, c.Places.Refused).Keep(c.Places.Known)
	}
	s := &Server{Config: c, health: health.NewServer(), watches: access.NewPool("watches", c.Places.MaxWatches, c.Places.Refused)}
	s.closing, s.close = context.WithCancel(context.Background())
	begun := budget.NewBegun("grpcapi", maxBegun, c.AtOnce, c.Name, c.Places.Refused)
	s.grpc = grpc.NewServer(append(budget.Options(cmp.Or(c.Credentials, insecure.NewCredentials()), c.Requests, func(ctx context.Context, info *tap.Info) (context.Context, error) {
		ctx, err := begun.Begin(ctx, info.FullMethodName)
		return ctx, toStatus(err)
	}),
		grpc.MaxConcurrentStreams(maxStreams), grpc.MaxRecvMsgSize(c.maxRequest()), grpc.MaxSendMsgSize(maxAnswer),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingAtLeast, PermitWithoutStream: true}),
		grpc.UnaryInterceptor(s.intercept()), grpc.ChainStreamInterceptor(slices.Concat([]grpc.StreamServerInterceptor{s.stream}, c.Stream, []grpc.StreamServerInterceptor{s.budget().Stream})...),
	)...)
	s.register()
	for service := range s.grpc.GetServiceInfo() {
		s.health.SetServingStatus(service, healthpb.HealthCheckResponse_SERVING) // the service "" has this status from the start
	}
	healthpb.RegisterHealthServer(s.grpc, s.health)
	s.reflect()
	return s
}

// maxRequest is the largest request. Without the discovery plane it is smaller.
func (c *Config) maxRequest() int {
	if c.Registrar == nil {
		return maxTxn + maxTxn/8 // room for a write above its bound, which gets an error of this API
	}
	return maxRequest
}

// register adds the services of the configured parts.
func (s *Server) register() {
	if s.Registrar != nil {
		api.RegisterRecordServiceServer(s.grpc, s)
		api.RegisterPeerServiceServer(s.grpc, &peerService{node: s.Node, page: s.Web.Page})
	}
	if s.Trade != nil {
		api.RegisterTradeServiceServer(s.grpc, s.Trade)
	}
	if s.Operator != nil {
		api.RegisterOperatorServiceServer(s.grpc, &operatorService{operator: s.Operator})
	}
	if s.Web.Events != nil {
		api.RegisterEventServiceServer(s.grpc, &eventService{server: s})
	}
	if s.Agent != nil {
		agent := s.agent()
		agentv1.RegisterDiscoveryServiceServer(s.grpc, agent)
		if s.Registrar != nil { // not for peers
			s.grpc.RegisterService(renamed(agentv1.DiscoveryService_ServiceDesc, discoveryAlone), agent)
			s.grpc.RegisterService(xdsapi.Desc(), &xdsapi.Server{Catalog: agent.Catalog, Watches: agent.watches, Closing: s.closing, Logger: s.Logger})
		}
	}
	if s.Coordination != nil {
		c := &coordination{
			Coordination: *s.Coordination, closing: s.closing,
			waits:   access.NewPool("waits", s.Places.MaxWaits, s.Places.Refused).Keep(s.Places.Known),
			watches: access.NewPool("watches", s.Places.MaxWatches, s.Places.Refused).Keep(s.Places.Known), refusals: budget.NewRefusals(),
		}
		c.intercept, c.methods = s.intercept(), calls.NewMethods()
		for _, service := range c.Services() {
			s.grpc.RegisterService(service, c)
			if s.Registrar != nil && service.ServiceName == api.LockService_ServiceDesc.ServiceName {
				s.grpc.RegisterService(renamed(*service, lockAlone), c)
			}
		}
		coordv1.RegisterCallServiceServer(s.grpc, c)
		s.calls = c
	}
}

func (s *Server) agent() *agent {
	a := &agent{Agent: *s.Agent, limit: s.Limit, may: s.May, watches: access.NewPool("watches", s.Places.MaxWatches, s.Places.Refused), closing: s.closing}
	if a.limit == nil {
		a.limit = func(context.Context) error { return nil }
	}
	if a.may == nil {
		a.may = func(context.Context, string) error { return nil }
	}
	return a
}

// Calls are the services of the coordination plane, and what they are made of.
type Calls interface {
	Services() []*grpc.ServiceDesc // which Calls implements
	Execute(ctx context.Context, cmd *coordv1.Command) (*coordv1.Result, error)
	Group(ctx context.Context, req *api.GroupRequest) (*api.GroupResponse, error)
}

// Calls returns the services of the coordination plane for calls in this process, with the owners and pools of calls over
// gRPC, and without the interceptors: the caller of a method checks the role. A server without the plane has none.
func (s *Server) Calls() Calls { return s.calls }

// Serve answers on l until Close and takes ownership of l.
func (s *Server) Serve(l net.Listener) error {
	err := s.grpc.Serve(l)
	if errors.Is(err, grpc.ErrServerStopped) { // Close came first
		return nil
	}
	return fault.As("grpcapi.Serve", fault.Internal, err)
}

// Close ends watches at once and other calls after a short grace period.
func (s *Server) Close() {
	s.close()
	s.health.Shutdown()
	stop := time.AfterFunc(stopGraceful, s.grpc.Stop)
	defer stop.Stop()
	s.grpc.GracefulStop()
}

// intercept chains unary and the interceptors of the configuration, in their order.
func (s *Server) intercept() grpc.UnaryServerInterceptor {
	all := slices.Concat([]grpc.UnaryServerInterceptor{s.unary}, s.Unary, []grpc.UnaryServerInterceptor{s.budget().Unary})
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, call grpc.UnaryHandler) (any, error) {
		for _, one := range slices.Backward(all) {
			next := call
			call = func(ctx context.Context, req any) (any, error) { return one(ctx, req, info, next) }
		}
		return call(ctx, req)
	}
}

// budget charges the answers of the methods.
func (s *Server) budget() budget.Budget {
	return budget.Budget{Answers: s.Answers, Requests: s.Requests, AtOnce: s.AtOnce, Op: "grpcapi", Changes: func(method string) bool { return Need(method) > access.RoleReadOnly }}
}

// unary turns errors into statuses and a panic into an error: one bad call must not end the
// daemon. It refuses a request of a later version with a field that this version does not know: without
// it the call would do something else than asked. A connection without a place serves the check of health alone.
func (s *Server) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, call grpc.UnaryHandler) (resp any, err error) {
	defer s.recovered(info.FullMethod, &err)
	defer access.Serving(ctx)()
	if refused := access.OnlyProbes(ctx); refused != nil && info.FullMethod != healthpb.Health_Check_FullMethodName {
		return nil, toStatus(refused)
	}
	if err := understood(req); err != nil {
		return nil, toStatus(err)
	}
	resp, err = call(ctx, req)
	return resp, toStatus(err)
}

func (s *Server) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, call grpc.StreamHandler) (err error) {
	defer s.recovered(info.FullMethod, &err)
	defer access.Serving(ss.Context())()
	if refused := access.OnlyProbes(ss.Context()); refused != nil {
		return toStatus(refused)
	}
	if info.FullMethod != coordv1.CallService_Calls_FullMethodName && info.FullMethod != xdsapi.Method { // the first refuses a call alone
		ss = strictStream{ss}
	}
	return toStatus(call(srv, ss))
}

// strictStream refuses requests like Server.unary.
type strictStream struct{ grpc.ServerStream }

// RecvMsg receives the next request.
func (s strictStream) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	return understood(m)
}

// understood returns Unsupported for a request with fields that this version does not know. The methods
// themselves refuse unknown values of enums as Invalid.
func understood(req any) error {
	if m, ok := req.(proto.Message); ok {
		return strictproto.CheckFields(m)
	}
	return nil
}

func (s *Server) recovered(method string, err *error) {
	if p := recover(); p != nil {
		s.Logger.Error("a call caused a panic", "method", method, "panic", p, "stack", string(debug.Stack()))
		*err = status.Error(codes.Internal, "internal error: see the log of the peer")
	}
}

// Register implements api.RecordServiceServer.
func (s *Server) Register(ctx context.Context, req *api.RegisterRequest) (*api.RegisterResponse, error) {
	offer, err := toOffer(req.GetService())
	if err != nil {
		return nil, fault.Wrap(opRegister, err)
	}
	r, err := s.Registrar.Register(ctx, offer)
	if err != nil {
		return nil, err
	}
	return &api.RegisterResponse{Receipt: fromReceipt(r)}, nil
}

// RegisterBatch implements api.RecordServiceServer.
func (s *Server) RegisterBatch(ctx context.Context, req *api.RegisterBatchRequest) (*api.RegisterBatchResponse, error) {
	n := len(req.GetServices())
	if n == 0 || n > discovery.MaxBatch {
		return nil, fault.Wrap(opRegister, fault.Invalidf("records", n, "must have from 1 to %d records", discovery.MaxBatch))
	}
	offers, errs := make([]records.Offer, n), make([]error, n)
	for i, service := range req.GetServices() {
		offer, err := toOffer(service)
		offers[i], errs[i] = offer, fault.Wrap(opRegister, err)
	}
	outcomes, err := discovery.RegisterAccepted(ctx, s.Registrar, offers, errs)
	if err != nil {
		return nil, err
	}
	return &api.RegisterBatchResponse{Results: fromOutcomes(outcomes)}, nil
}

// Update implements api.RecordServiceServer.
func (s *Server) Update(ctx context.Context, req *api.UpdateRequest) (*api.UpdateResponse, error) {
	offer, err := toOffer(req.GetService())
	if err != nil {
		return nil, fault.Wrap(opUpdate, err)
	}
	r, err := s.Registrar.Update(ctx, offer)
	if err != nil {
		return nil, err
	}
	return &api.UpdateResponse{Receipt: fromReceipt(r)}, nil
}

// Withdraw implements api.RecordServiceServer.
func (s *Server) Withdraw(ctx context.Context, req *api.WithdrawRequest) (*api.WithdrawResponse, error) {
	r, err := s.Registrar.Withdraw(ctx, req.GetId())
	if err != nil {
		return nil, err
	}
	return &api.WithdrawResponse{Receipt: fromReceipt(r)}, nil
}

// Pause implements api.RecordServiceServer.
func (s *Server) Pause(ctx context.Context, req *api.PauseRequest) (*api.PauseResponse, error) {
	r, err := s.Registrar.Pause(ctx, req.GetId(), time.Duration(min(req.GetForMs(), uint64(math.MaxInt64/time.Millisecond)))*time.Millisecond)
	if err != nil {
		return nil, err
	}
	return &api.PauseResponse{Receipt: fromReceipt(r)}, nil
}

// Resume implements api.RecordServiceServer.
func (s *Server) Resume(ctx context.Context, req *api.ResumeRequest) (*api.ResumeResponse, error) {
	r, err := s.Registrar.Resume(ctx, req.GetId())
	if err != nil {
		return nil, err
	}
	return &api.ResumeResponse{Receipt: fromReceipt(r)}, nil
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
func (s *Server) List(ctx context.Context, _ *api.ListRequest) (*api.ListResponse, error) {
	own := s.Registrar.OwnAll()
	if err := growFor(ctx, own, recordBytes); err != nil {
		return nil, err
	}
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
	q, err := queries.FromProto(req.GetQuery())
	if err != nil {
		return nil, fault.Wrap(opQuery, err)
	}
	a, err := s.Finder.Query(ctx, q)
	if err != nil {
		return nil, err
	}
	if err := growFor(ctx, a.Results, func(r query.Result) int { return recordBytes(r.Record) }); err != nil {
		return nil, err
	}
	return fromAnswer(a), nil
}

// Watch implements api.RecordServiceServer. It sends the header as soon as the watch is open, so
// that the client learns about it before the first event.
func (s *Server) Watch(req *api.WatchRequest, out grpc.ServerStreamingServer[api.WatchResponse]) error {
	q, err := queries.FromProto(req.GetQuery())
	if err != nil {
		return fault.Wrap(opQuery, err)
	}
	release, err := s.watches.Take(out.Context(), "grpcapi.Watch")
	if err != nil {
		return err
	}
	defer release()
	ctx, cancel := untilClosing(out.Context(), s.closing)
	defer cancel()
	w, err := s.Finder.Watch(ctx, q, req.GetAfter())
	if err != nil {
		return orClosing(s.closing, "grpcapi.Watch", err)
	}
	defer w.Close()
	if err := out.SendHeader(metadata.MD{}); err != nil {
		return err
	}
	for {
		ev, err := w.Next(ctx)
		if err != nil {
			return orClosing(s.closing, "grpcapi.Watch", err)
		}
		if err := out.Send(fromEvent(ev)); err != nil {
			return err
		}
	}
}

// orClosing replaces the error of a call that ended because the server closes.
func orClosing(closing context.Context, op string, err error) error {
	if err != nil && closing.Err() != nil {
		return fault.New(op, fault.Unavailable, "the peer is shutting down: retry at another peer")
	}
	return err
}
