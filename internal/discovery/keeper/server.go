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

const (
	serveDefault = 5 * time.Second // maximum work on a request without a timeout
	bulkRate     = 8 << 20         // bytes a second of the answers to comparisons; a joining peer asks many keepers at once

	// SYNC requests of one peer. It needs one for its round and one for its own records, and either may come twice: a request is
	// repeated on a new stream while the keeper still works on the copy from a stream that died.
	peerComparisons = 4
)

// server answers the requests of other peers, a bounded number at a time.
type server struct {
	*Env
	asker     *asker
	authority *Authority
	splits    *splits
	store     *store
	sync      *syncer
	watches   *watches

	rpc       *rpc.Server
	turns     *turns        // of the requests that need the processor
	bulk      *turns        // of the comparisons, whose answers can have a megabyte: one at a time, at bulkRate
	comparing peerLimit     // SYNC requests, also those that wait
	witnesses *witness.Pool // measurements of other peers
}

func newServer(k *Keeper) *server {
	return &server{
		Env: k.Env, asker: k.asker, authority: k.authority, splits: k.splits, store: k.store, sync: k.sync,
		watches: newWatches(k.authority, k.splits, k.sync.Snapshot),
		turns:   newTurns(k.Limits.Working, k.authority.knows), bulk: newTurns(1, k.authority.knows),
		comparing: peerLimit{perPeer: peerComparisons}, witnesses: witness.NewPool(),
	}
}

// listen starts to answer requests.
func (s *server) listen() {
	s.rpc = rpc.NewServer(rpc.ServerConfig{
		Host: s.Host, Protocol: Protocol(s.Network), Service: service,
		Request: new(pb.Request), Format: rpc.Format{MaxSize: MaxRequest, Check: requestBounds().check}, Handler: s.handle,
		Streams: s.Limits.Streams, StreamsPerPeer: s.Limits.StreamsPerPeer,
		IdleTimeout: streamIdle, FrameTimeout: frameTime,
		Refused: func() { s.Recorder.Refused("busy") }, Logger: s.Logger,
	})
}

// handle answers one request of a stream. A watch keeps the stream until its end.
func (s *server) handle(st *rpc.Stream, m proto.Message, malformed error) (proto.Message, error) {
	req := m.(*pb.Request)
	if w := req.GetWatch(); w != nil && malformed == nil {
		return nil, s.watches.Serve(st, w)
	}
	resp := s.respond(s.Limits.sourceOf(st.Conn()), req, malformed)
	resp.TimeMs = uint64(max(s.Now().UnixMilli(), 0))
	return resp, nil
}

// respond processes one request. Malformed is the error of a request that was not decoded.
func (s *server) respond(from source, req *pb.Request, refused error) *pb.Response {
	if refused != nil {
		reason := "malformed"
		if fault.KindOf(refused) == fault.Unsupported { // of a later version
			reason = fault.Unsupported.String()
		}
		s.Recorder.Refused(reason)
		return &pb.Response{Refusal: rpc.Refuse(refused)}
	}
	s.authority.know.heard(from.peer, s.sync.clock())
	allowed := serveDefault
	if req.TimeoutMs > 0 {
		allowed = min(time.Duration(req.TimeoutMs)*time.Millisecond, serveMax)
	}
	ctx, end, err := s.Begin(s.Context(), operationOf(req), allowed)
	if err != nil {
		return &pb.Response{Refusal: rpc.Refuse(err)}
	}
	ctx, span := serving(ctx, s.Signals.Tracer, from, req)
	resp, err := s.work(ctx, from, req)
	span.End(err)
	end(err)
	if err != nil {
		s.Recorder.Refused(fault.KindOf(err).String())
		return &pb.Response{Refusal: rpc.Refuse(err)}
	}
	return resp
}

// operationOf names the operation of a request for the metrics.
func operationOf(req *pb.Request) string {
	m := req.ProtoReflect()
	if op := m.WhichOneof(m.Descriptor().Oneofs().ByName("op")); op != nil {
		return "serve_" + string(op.Name())
	}
	return "serve_unknown"
}

// work waits for the turn of a request and processes it.
func (s *server) work(ctx context.Context, from source, req *pb.Request) (*pb.Response, error) {
	if req.GetSync() != nil {
		if !s.comparing.enter(from.peer) {
			return nil, fault.New("", fault.LimitReached, "%d comparisons of this peer are under way: try again later", peerComparisons)
		}
		defer s.comparing.leave(from.peer)
	}
	switch {
	case req.GetForward() != nil: // waits for another peer most of its time
		return s.perform(ctx, from, req)
	case req.GetSync() != nil || req.GetPull() != nil:
		return s.workInBulk(ctx, from, req)
	}
	if s.turns.enter(ctx, from) != nil {
		if req.GetStore() != nil {
			s.authority.fallBehind()
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
		resp, err := s.store.Store(ctx, from, op.Store)
		return &pb.Response{Op: &pb.Response_Store{Store: resp}}, err
	case *pb.Request_Query:
		resp, err := s.asker.ServeQuery(ctx, op.Query)
		return &pb.Response{Op: &pb.Response_Query{Query: resp}}, err
	case *pb.Request_Sync:
		resp, err := s.sync.ServeSync(ctx, from.peer, op.Sync)
		return &pb.Response{Op: &pb.Response_Sync{Sync: resp}}, err
	case *pb.Request_Pull:
		resp, err := s.sync.ServePull(ctx, op.Pull)
		return &pb.Response{Op: &pb.Response_Pull{Pull: resp}}, err
	case *pb.Request_Summary:
		resp, err := s.splits.Summary(ctx, op.Summary)
		return &pb.Response{Op: &pb.Response_Summary{Summary: resp}}, err
	case *pb.Request_Resolve:
		resp, err := s.asker.ServeResolve(op.Resolve)
		return &pb.Response{Op: &pb.Response_Resolve{Resolve: resp}}, err
	case *pb.Request_Findings:
		resp, err := s.findings(from, op.Findings)
		return &pb.Response{Op: &pb.Response_Findings{Findings: resp}}, err
	case *pb.Request_Forward:
		resp, err := s.store.Forward(ctx, from, op.Forward, func(check func() error) error {
			if s.turns.enter(ctx, from) != nil {
				return errBusy()
			}
			defer s.turns.leave()
			return check()
		})
		return &pb.Response{Op: &pb.Response_Forward{Forward: resp}}, err
	default:
		return nil, fault.New("", fault.Unsupported, "this version does not support the operation")
	}
}
