package keeper

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/pkg/fault"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

// server answers the streams of other peers: a bounded number of them, of each peer too,
// and a bounded number of requests at once. A stream's requests are answered in turn.
type server struct {
	k       *Keeper
	clock   func() time.Time // of the streams' deadlines: the runtime's, whatever time the records live in
	working chan struct{}    // one for each request worked on
	quotas  *quotas

	comparing comparing // peers that SYNC with this one
	watches   watches   // of others

	mu      sync.Mutex // guards what follows
	streams map[network.Stream]peer.ID
	ofPeer  map[peer.ID]int
}

func newServer(k *Keeper) *server {
	return &server{
		k:       k,
		clock:   time.Now,
		working: make(chan struct{}, k.Limits.Working),
		quotas:  newQuotas(k.Limits),
		streams: make(map[network.Stream]peer.ID),
		ofPeer:  make(map[peer.ID]int),
	}
}

// handle serves one stream until its peer closes it, is silent for streamIdle, or breaks the protocol.
func (s *server) handle(st network.Stream) {
	if !s.k.gate.enter() {
		_ = st.Reset()
		return
	}
	defer s.k.gate.leave()
	if !s.admit(st) {
		s.k.Recorder.Refused("busy")
		_ = st.Reset()
		return
	}
	defer s.dismiss(st)
	if err := s.serve(st); err != nil {
		s.k.Logger.Debug("stream ended", "peer", st.Conn().RemotePeer(), "error", err)
		_ = st.Reset()
		return
	}
	_ = st.Close()
}

// admit counts a stream in, unless there are too many.
func (s *server) admit(st network.Stream) bool {
	id := st.Conn().RemotePeer()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.streams) >= s.k.Limits.Streams || s.ofPeer[id] >= s.k.Limits.StreamsPerPeer || s.k.ctx.Err() != nil {
		return false
	}
	s.streams[st] = id
	s.ofPeer[id]++
	return true
}

func (s *server) dismiss(st network.Stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := s.streams[st]
	delete(s.streams, st)
	if s.ofPeer[id]--; s.ofPeer[id] == 0 {
		delete(s.ofPeer, id)
	}
}

// reset ends all streams; the keeper's context is done, so that none is admitted any more.
func (s *server) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for st := range s.streams {
		_ = st.Reset()
	}
}

// serve answers requests until the stream ends. It returns nil when the peer closed it
// between two requests, or was told what is wrong with one.
func (s *server) serve(st network.Stream) error {
	if err := st.Scope().SetService(service); err != nil {
		return err
	}
	from := originOf(st.Conn())
	f := newFrames(st, st.Scope())
	for {
		_ = st.SetReadDeadline(s.deadline(streamIdle))
		if err := f.wait(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		_ = st.SetReadDeadline(s.deadline(frameTime))
		req := new(pb.Request)
		refused := f.read(req, MaxRequest, requestBounds())
		if refused != nil && !isFault(refused) {
			return refused
		}
		if req.GetWatch() != nil && refused == nil {
			return s.watch(st, f, req.GetWatch())
		}
		resp := s.respond(from, req, refused)
		_ = st.SetWriteDeadline(s.deadline(frameTime))
		if err := f.write(resp); err != nil {
			return err
		}
		if refused != nil {
			return nil // what follows on the stream may not begin a message; closed, so that the refusal arrives
		}
	}
}

// deadline is the time d from now.
func (s *server) deadline(d time.Duration) time.Time { return s.clock().Add(d) }

func isFault(err error) bool {
	var f *fault.Error
	return errors.As(err, &f)
}

// respond works on one request, or says why it was not even read.
func (s *server) respond(from origin, req *pb.Request, refused error) *pb.Response {
	if refused != nil {
		s.k.Recorder.Refused("malformed")
		return &pb.Response{Refusal: refusalOf(refused)}
	}
	allowed := serveUsual
	if req.TimeoutMs > 0 {
		allowed = min(time.Duration(req.TimeoutMs)*time.Millisecond, serveMost)
	}
	ctx, end, err := s.k.begin(s.k.ctx, operationOf(req), allowed)
	if err != nil {
		return &pb.Response{Refusal: refusalOf(err)}
	}
	resp, err := s.work(ctx, from, req)
	end(err)
	if err != nil {
		s.k.Recorder.Refused(fault.KindOf(err).String())
		return &pb.Response{Refusal: refusalOf(err)}
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
	default:
		return "serve_unknown"
	}
}

// work waits for its turn and does what is asked.
func (s *server) work(ctx context.Context, from origin, req *pb.Request) (*pb.Response, error) {
	select {
	case s.working <- struct{}{}:
		defer func() { <-s.working }()
	case <-ctx.Done():
		return nil, fault.New("", fault.Unavailable, "this peer is busy")
	}
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
	default:
		return nil, fault.New("", fault.Unsupported, "this version does not know the operation")
	}
}
