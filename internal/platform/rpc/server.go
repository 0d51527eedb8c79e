package rpc

import (
	"cmp"
	"errors"
	"io"
	"log/slog"
	"time"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/pkg/fault"
)

// Handler answers one request of a stream. Malformed is nil, or the *fault.Error of a request
// that breaks the protocol: then req is empty and the stream ends after the response. After an Unsupported
// request, which has a whole frame, the stream goes on. An error resets the stream.
type Handler func(s *Stream, req proto.Message, malformed error) (proto.Message, error)

// ServerConfig configures a Server. Only Known, Refused and Logger may be zero.
type ServerConfig struct {
	Host     host.Host   // not closed by the Server
	Protocol protocol.ID // all versions of its major number are served; see Compatible
	Service  string      // name for the resource manager

	Request proto.Message // prototype of the requests; never written
	Format  Format        // of the requests; always Strict
	Handler Handler

	Streams        int                // active streams of all peers
	StreamsPerPeer int                // active streams of one peer
	Known          func(peer.ID) bool // peers for which a quarter of the streams is kept; nil: none. See NewLimiter
	Resting        int                // active streams above which one ends after its response; 0: it always waits for the next request
	IdleTimeout    time.Duration      // maximum wait for the next request of a stream
	FrameTimeout   time.Duration      // maximum time to receive or to send one message

	Refused func()       // called for each stream above a limit
	Logger  *slog.Logger // nil logs nothing
}

// Server answers requests of other peers. The requests of one stream are answered in order.
type Server struct {
	ServerConfig
	limiter *Limiter
}

// NewServer returns a Server that answers requests until Close.
func NewServer(c ServerConfig) *Server {
	if c.Refused == nil {
		c.Refused = func() {}
	}
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	c.Format.Strict = true
	s := &Server{ServerConfig: c, limiter: NewLimiter(c.Streams, c.StreamsPerPeer, c.Known)}
	c.Host.SetStreamHandlerMatch(c.Protocol, Compatible(c.Protocol), s.Serve)
	return s
}

// Close accepts no more streams, resets the active ones and waits for their handlers.
func (s *Server) Close() {
	s.Host.RemoveStreamHandler(s.Protocol)
	s.limiter.Close()
}

// Serve answers the requests of one stream until the stream ends. NewServer installs it as
// the handler of the protocol.
func (s *Server) Serve(stream network.Stream) {
	if !s.limiter.Enter(stream) {
		s.Refused()
		_ = stream.Reset()
		return
	}
	defer s.limiter.Leave(stream)
	if err := s.serve(stream); err != nil {
		s.Logger.Debug("stream of a remote peer failed", "protocol", s.Protocol, "peer", stream.Conn().RemotePeer(), "error", err)
		_ = stream.Reset()
		return
	}
	_ = stream.Close()
}

func (s *Server) serve(stream network.Stream) error {
	st, err := newStream(stream, s.Service, s.Format)
	if err != nil {
		return err
	}
	for {
		_ = st.SetReadDeadline(time.Now().Add(s.IdleTimeout))
		if err := st.WaitMessage(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		_ = st.SetReadDeadline(time.Now().Add(s.FrameTimeout))
		req := s.Request.ProtoReflect().New().Interface()
		malformed := st.ReadMessage(req)
		if malformed != nil && !IsFault(malformed) {
			return malformed
		}
		if malformed != nil {
			proto.Reset(req)
		}
		resp, err := s.Handler(st, req, malformed)
		if err != nil {
			return err
		}
		_ = st.SetWriteDeadline(time.Now().Add(s.FrameTimeout))
		if err := st.WriteMessage(resp); err != nil {
			return err
		}
		if malformed != nil && fault.KindOf(malformed) != fault.Unsupported {
			// The next byte may not begin a frame. A close lets the response arrive; a reset would not.
			return nil
		}
		if s.Resting > 0 && s.limiter.Above(s.Resting) { // a client sends its next request on a new stream
			return nil
		}
	}
}
