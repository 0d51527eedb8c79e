package keeper

import (
	"context"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/discovery/ask"
	"github.com/blackhole/blackhole/internal/discovery/keep"
	"github.com/blackhole/blackhole/internal/discovery/protocol"
	"github.com/blackhole/blackhole/internal/platform/rpc"
	"github.com/blackhole/blackhole/pkg/fault"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
	"github.com/libp2p/go-libp2p/core/network"
)

const (
	serveDefault = 5 * time.Second // maximum work on a request without a timeout
	bulkRate     = 8 << 20         // bytes a second of the answers to comparisons; a joining peer asks many keepers at once

	// SYNC requests of one peer. It needs one for its round, one for its own records, and one to meet this peer; one more may come
	// twice: a request is repeated on a new stream while the keeper still works on the copy from a stream that died.
	peerComparisons = 4
)

// server answers the requests of other peers, a bounded number at a time.
type server struct {
	*protocol.Life
	source    func(network.Conn) protocol.Source
	asker     *ask.Asker
	authority *keep.Authority
	store     *keep.Store
	sync      *keep.Syncer
	findings  *ask.Findings

	rpc       *rpc.Server
	turns     *turns             // of the requests that need the processor
	bulk      *turns             // of the comparisons, whose answers can have a megabyte: one at a time, at bulkRate
	comparing protocol.PeerLimit // SYNC requests, also those that wait
}

// handle answers one request of a stream.
func (s *server) handle(st *rpc.Stream, m proto.Message, malformed error) (proto.Message, error) {
	req := m.(*pb.Request)
	resp := s.respond(s.source(st.Conn()), req, malformed)
	resp.TimeMs = uint64(max(s.Now().UnixMilli(), 0))
	return resp, nil
}

// respond processes one request. Malformed is the error of a request that was not decoded.
func (s *server) respond(from protocol.Source, req *pb.Request, refused error) *pb.Response {
	if refused != nil {
		reason := "malformed"
		if fault.KindOf(refused) == fault.Unsupported { // of a later version
			reason = fault.Unsupported.String()
		}
		s.Refused(reason)
		return &pb.Response{Refusal: rpc.Refuse(refused)}
	}
	s.authority.Know.Heard(from.Peer, s.sync.Clock())
	allowed := serveDefault
	if req.TimeoutMs > 0 {
		allowed = min(time.Duration(req.TimeoutMs)*time.Millisecond, protocol.ServeMax)
	}
	ctx, end, err := s.Begin(s.Context(), "serve_"+protocol.OperationOf(req), allowed)
	if err != nil {
		return &pb.Response{Refusal: rpc.Refuse(err)}
	}
	ctx, span := s.Serving(ctx, from, req)
	resp, err := s.work(ctx, from, req)
	span.End(err)
	end(err)
	if err != nil {
		s.Refused(fault.KindOf(err).String())
		return &pb.Response{Refusal: rpc.Refuse(err)}
	}
	return resp
}

// work waits for the turn of a request and processes it.
func (s *server) work(ctx context.Context, from protocol.Source, req *pb.Request) (*pb.Response, error) {
	if req.GetSync() != nil {
		if !s.comparing.Enter(from.Peer) {
			return nil, fault.New("", fault.LimitReached, "%d comparisons of this peer are under way: try again later", peerComparisons)
		}
		defer s.comparing.Leave(from.Peer)
	}
	switch {
	case req.GetForward() != nil: // waits for another peer most of its time
		return s.perform(ctx, from, req)
	case req.GetSync() != nil || req.GetPull() != nil:
		return s.workInBulk(ctx, from, req)
	}
	if s.turns.enter(ctx, from) != nil {
		if req.GetStore() != nil {
			s.authority.FallBehind()
		}
		return nil, errBusy()
	}
	defer s.turns.leave()
	return s.perform(ctx, from, req)
}

// workInBulk processes a step of a comparison. The next one begins when its answer has left at bulkRate.
func (s *server) workInBulk(ctx context.Context, from protocol.Source, req *pb.Request) (resp *pb.Response, err error) {
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
func (s *server) perform(ctx context.Context, from protocol.Source, req *pb.Request) (*pb.Response, error) {
	switch op := req.Op.(type) {
	case *pb.Request_Store:
		resp, err := s.store.ServeStore(ctx, from, op.Store)
		return &pb.Response{Op: &pb.Response_Store{Store: resp}}, err
	case *pb.Request_Query:
		resp, err := s.asker.ServeQuery(ctx, op.Query)
		return &pb.Response{Op: &pb.Response_Query{Query: resp}}, err
	case *pb.Request_Sync:
		resp, err := s.sync.ServeSync(ctx, from.Peer, op.Sync)
		return &pb.Response{Op: &pb.Response_Sync{Sync: resp}}, err
	case *pb.Request_Pull:
		resp, err := s.sync.ServePull(ctx, op.Pull)
		return &pb.Response{Op: &pb.Response_Pull{Pull: resp}}, err
	case *pb.Request_Resolve:
		resp, err := s.asker.ServeResolve(op.Resolve)
		return &pb.Response{Op: &pb.Response_Resolve{Resolve: resp}}, err
	case *pb.Request_Findings:
		resp, err := s.findings.Serve(from, op.Findings)
		return &pb.Response{Op: &pb.Response_Findings{Findings: resp}}, err
	case *pb.Request_Forward:
		resp, err := s.store.ServeForward(ctx, from, op.Forward, func(check func() error) error {
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
