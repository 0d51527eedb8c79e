package grpcapi

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	encodingproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/platform/access"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// takenWithin bounds the time in which a client takes an answer, or the next one of a stream. Its connection then closes.
const takenWithin = 30 * time.Second

// charged is an answer whose bytes are in the budget until the transport has written them: a method has ended long before, if
// its client does not read.
type charged struct {
	proto.Message
	release func() // once or more
}

// charge puts an answer into the budget until the transport has written it; nil: it costs nothing. take is a method of the pool.
func (s *Server) charge(ctx context.Context, m proto.Message, take func(bytes int) (release func(), err error)) (*charged, error) {
	release, err := take(proto.Size(m))
	if err != nil || release == nil {
		return nil, err
	}
	release = sync.OnceFunc(release)
	late := time.AfterFunc(takenWithin, func() {
		access.Cut(ctx)
		release()
	})
	stop := access.OnClose(ctx, release) // the transport forgets what it holds then
	return &charged{m, func() { release(); late.Stop(); stop() }}, nil
}

// answers charges the answer of a call. It is the innermost interceptor, which knows the caller.
func (s *Server) answers(ctx context.Context, req any, info *grpc.UnaryServerInfo, call grpc.UnaryHandler) (any, error) {
	resp, err := call(ctx, req)
	m, ok := resp.(proto.Message)
	if err != nil || !ok {
		return resp, err
	}
	c, err := s.charge(ctx, m, func(n int) (func(), error) {
		if Need(info.FullMethod) > access.RoleReadOnly {
			return s.Answers.TakeForChange(ctx, "grpcapi", n)
		}
		return s.Answers.TakeBytes(ctx, "grpcapi", n, 0)
	})
	if err != nil || c != nil {
		return c, err
	}
	return resp, nil
}

// streamed charges the answers of a stream, as its innermost interceptor.
func (s *Server) streamed(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, call grpc.StreamHandler) error {
	late := time.AfterFunc(takenWithin, func() { access.Cut(ss.Context()) })
	late.Stop()
	return call(srv, budgeted{ss, s, late})
}

type budgeted struct {
	grpc.ServerStream
	server *Server
	late   *time.Timer // runs while an answer is being sent: a stream sends one at a time
}

// SendMsg sends an answer when the budget has room. It holds the stream back meanwhile, and ends it with the refusal after takenWithin.
func (b budgeted) SendMsg(m any) error {
	b.late.Reset(takenWithin)
	defer b.late.Stop()
	switch m.(type) {
	case *charged, *coordv1.CallsResponse: // its replies are charged one by one
		return b.ServerStream.SendMsg(m)
	}
	message, ok := m.(proto.Message)
	if !ok {
		return b.ServerStream.SendMsg(m)
	}
	c, err := b.server.charge(b.Context(), message, func(n int) (func(), error) {
		return b.server.Answers.TakeBytes(b.Context(), "grpcapi", n, takenWithin/2)
	})
	switch {
	case err != nil:
		return err
	case c == nil:
		return b.ServerStream.SendMsg(m)
	}
	if err = b.ServerStream.SendMsg(c); err != nil {
		c.release() // perhaps the transport never had it
	}
	return err
}

// codec encodes messages as the codec of gRPC does, and learns when the transport has written charged ones.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2(encodingproto.Name)} }

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	one, ok := v.(*charged)
	if !ok {
		return c.CodecV2.Marshal(v)
	}
	text, err := proto.Marshal(one.Message)
	if err != nil {
		one.release()
		return nil, err
	}
	return mem.BufferSlice{mem.NewBuffer(&text, written{one})}, nil
}

// written is a pool of the buffer of one answer.
type written struct{ *charged }

// Get implements mem.BufferPool.
func (written) Get(n int) *[]byte { return mem.DefaultBufferPool().Get(n) }

// Put implements mem.BufferPool.
func (w written) Put(*[]byte) { w.release() }
