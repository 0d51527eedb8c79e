package keeper

import (
	"context"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/discovery/witness"
	"github.com/blackhole/blackhole/internal/platform/rpc"
	"github.com/blackhole/blackhole/pkg/fault"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

// server answers the requests of other peers, a bounded number at a time.
type server struct {
	k      *Keeper
	turns  *turns // of the requests that need the processor
	bulk   *turns // of the comparisons, whose answers can have a megabyte: one at a time, at bulkRate
	quotas *quotas
	rpc    *rpc.Server
	ring   *changeRing // changes for watchers

	keptOut   *keptOut  // records that a limit refused
	comparing peerLimit // SYNC requests, also those that wait
	watches   peerLimit // streams served
	forwards  peerLimit // FORWARD requests

	witnesses *witness.Pool // measurements of other peers
}

func newServer(k *Keeper) *server {
	return &server{
		k:      k,
		turns:  newTurns(k.Limits.Working, k.sync.knows),
		bulk:   newTurns(1, k.sync.knows),
		quotas: newQuotas(k.Limits),

		keptOut:   newKeptOut(),
		comparing: peerLimit{perPeer: peerComparisons},
		watches:   peerLimit{total: maxServedWatches, perPeer: maxPeerWatches},
		forwards:  peerLimit{total: maxForwards, perPeer: peerForwards},
		witnesses: witness.NewPool(),
	}
}

// listen starts to answer requests.
func (s *server) listen() {
	s.ring = newRing(s.k.Index, uint64(s.k.Now().UnixNano()))
	s.rpc = rpc.NewServer(rpc.ServerConfig{
		Host: s.k.Host, Protocol: Protocol(s.k.Network), Service: service,
		Request: new(pb.Request), Format: rpc.Format{MaxSize: MaxRequest, Check: requestBounds().check}, Handler: s.handle,
		Streams: s.k.Limits.Streams, StreamsPerPeer: s.k.Limits.StreamsPerPeer,
		IdleTimeout: streamIdle, FrameTimeout: frameTime,
		Refused: func() { s.k.Recorder.Refused("busy") }, Logger: s.k.Logger,
	})
}

// handle answers one request of a stream. A watch keeps the stream until its end.
func (s *server) handle(st *rpc.Stream, m proto.Message, malformed error) (proto.Message, error) {
	req := m.(*pb.Request)
	if w := req.GetWatch(); w != nil && malformed == nil {
		return nil, s.watch(st, w)
	}
	resp := s.respond(s.k.Limits.sourceOf(st.Conn()), req, malformed)
	resp.TimeMs = uint64(max(s.k.Now().UnixMilli(), 0))
	return resp, nil
}

// respond processes one request. Malformed is the error of a request that was not decoded.
func (s *server) respond(from source, req *pb.Request, refused error) *pb.Response {
	if refused != nil {
		reason := "malformed"
		if fault.KindOf(refused) == fault.Unsupported { // of a later version
			reason = fault.Unsupported.String()
		}
		s.k.Recorder.Refused(reason)
		return &pb.Response{Refusal: rpc.Refuse(refused)}
	}
	s.k.sync.know.heard(from.peer, s.k.sync.clock())
	allowed := serveDefault
	if req.TimeoutMs > 0 {
		allowed = min(time.Duration(req.TimeoutMs)*time.Millisecond, serveMax)
	}
	ctx, end, err := s.k.begin(s.k.ctx, operationOf(req), allowed)
	if err != nil {
		return &pb.Response{Refusal: rpc.Refuse(err)}
	}
	ctx, span := serving(ctx, s.k.Signals.Tracer, from, req)
	resp, err := s.work(ctx, from, req)
	span.End(err)
	end(err)
	if err != nil {
		s.k.Recorder.Refused(fault.KindOf(err).String())
		return &pb.Response{Refusal: rpc.Refuse(err)}
	}
	return resp
}

func operationOf(req *pb.Request) string {
	switch req.Op.(type) {
	case *pb.Request_Store:
		return "serve_store"
	case *pb.Request_Query:
		return "serve_query"
	case *pb.Request_Sync:
		return "serve_sync"
	case *pb.Request_Pull:
		return "serve_pull"
	case *pb.Request_Summary:
		return "serve_summary"
	case *pb.Request_Resolve:
		return "serve_resolve"
	case *pb.Request_Findings:
		return "serve_findings"
	case *pb.Request_Forward:
		return "serve_forward"
	default:
		return "serve_unknown"
	}
}

// work waits for the turn of a request and processes it. A FORWARD waits for another peer most of its time, and takes its turn
// itself.
func (s *server) work(ctx context.Context, from source, req *pb.Request) (*pb.Response, error) {
	if op, ok := req.Op.(*pb.Request_Forward); ok {
		resp, err := s.forward(ctx, from, op.Forward)
		return &pb.Response{Op: &pb.Response_Forward{Forward: resp}}, err
	}
	if req.GetSync() != nil {
		if !s.comparing.enter(from.peer) {
			return nil, fault.New("", fault.LimitReached, "%d comparisons of this peer are under way: try again later", peerComparisons)
		}
		defer s.comparing.leave(from.peer)
	}
	if req.GetSync() != nil || req.GetPull() != nil {
		return s.workInBulk(ctx, from, req)
	}
	if s.turns.enter(ctx, from) != nil {
		if req.GetStore() != nil {
			s.k.sync.know.lacks(s.k.sync.clock())
		}
		return nil, errBusy()
	}
	defer s.turns.leave()
	return s.perform(ctx, from, req)
}

// workInBulk processes a step of a comparison. The next one begins when its answer has left at bulkRate.
func (s *server) workInBulk(ctx context.Context, from source, req *pb.Request) (resp *pb.Response, err error) {
	if s.bulk.enter(ctx, from) != nil {
		return nil, errBusy()
	}
	defer func() { s.bulk.leaveAfter(time.Duration(proto.Size(resp)) * time.Second / bulkRate) }()
	return s.perform(ctx, from, req)
}

// errBusy refuses a request whose turn did not come in time.
func errBusy() error {
	return fault.New("", fault.Unavailable, "this peer is busy: ask another keeper")
}

// perform processes a request.
func (s *server) perform(ctx context.Context, from source, req *pb.Request) (*pb.Response, error) {
	switch op := req.Op.(type) {
	case *pb.Request_Store:
		resp, err := s.store(ctx, from, op.Store)
		return &pb.Response{Op: &pb.Response_Store{Store: resp}}, err
	case *pb.Request_Query:
		resp, err := s.query(ctx, op.Query)
		return &pb.Response{Op: &pb.Response_Query{Query: resp}}, err
	case *pb.Request_Sync:
		resp, err := s.sync(ctx, from.peer, op.Sync)
		return &pb.Response{Op: &pb.Response_Sync{Sync: resp}}, err
	case *pb.Request_Pull:
		resp, err := s.pull(ctx, op.Pull)
		return &pb.Response{Op: &pb.Response_Pull{Pull: resp}}, err
	case *pb.Request_Summary:
		resp, err := s.summary(ctx, op.Summary)
		return &pb.Response{Op: &pb.Response_Summary{Summary: resp}}, err
	case *pb.Request_Resolve:
		resp, err := s.resolve(op.Resolve)
		return &pb.Response{Op: &pb.Response_Resolve{Resolve: resp}}, err
	case *pb.Request_Findings:
		resp, err := s.findings(from, op.Findings)
		return &pb.Response{Op: &pb.Response_Findings{Findings: resp}}, err
	default:
		return nil, fault.New("", fault.Unsupported, "this version does not support the operation")
	}
}
