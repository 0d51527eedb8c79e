// Package budget bounds the bytes that a server of gRPC holds: of requests while they arrive, of those at work, and of
// answers that clients have not taken yet.
package budget

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/platform/access"
)

// takenWithin bounds the time in which a client takes an answer, or the next one of a stream. Its connection then
// closes.
const takenWithin = 30 * time.Second

// growWithin is how long a call waits for room that it needs before it reads on.
const growWithin = 5 * time.Second

// Budget charges the calls of a server, as its innermost interceptors, which know the caller. The server needs Codec
// and Arriving.
type Budget struct {
	Answers  *access.Pool                 // bytes; nil: without a bound
	Requests *access.Pool                 // bytes of requests of calls until they have an answer; nil: without a bound
	AtOnce   *access.Pool                 // calls at a time
	Op       string                       // in errors
	Changes  func(fullMethod string) bool // whether a method changes something: its answer must not look refused
}

// Charged is an answer whose bytes are in the budget until they are written: a method has ended long before, if its
// client does not read.
type Charged struct {
	proto.Message
	Release func() // once or more; nil: it costs nothing
}

// Written ends the charge of an answer, if it has one. The codec calls it for what the transport of gRPC has written.
func Written(answer any) {
	if c, ok := answer.(*Charged); ok && c.Release != nil {
		c.Release()
	}
}

type growingKey struct{}

// growing is the context of a call with what it occupies.
type growing struct {
	context.Context
	room access.Growing
}

// Value implements context.Context.
func (g *growing) Value(key any) any {
	if _, own := key.(growingKey); own {
		return &g.room
	}
	return g.Context.Value(key)
}

// Grow takes room for n bytes of the answer of a call, before they are read. It waits for a while. Errors:
// PoolExhausted.
func Grow(ctx context.Context, n int) error {
	g, ok := ctx.Value(growingKey{}).(*access.Growing)
	if !ok || n <= g.Occupied() {
		return nil
	}
	return g.To(ctx, n, growWithin)
}

// Growing returns the context of a call, in which Grow takes room in a pool, and what the call occupies of it. Whoever
// has it from here gives it back.
func Growing(ctx context.Context, pool *access.Pool, op string) (context.Context, *access.Growing) {
	g := &growing{ctx, *pool.Growing(op)}
	return g, &g.room
}

// charge puts an answer into the budget until it is written; nil: it costs nothing. grow is a method of room, which
// afterwards belongs to the answer.
func charge(
	ctx context.Context, m proto.Message, room *access.Growing, grow func(bytes int) error,
) (*Charged, error) {
	none := func() { _ = room.To(ctx, 0, 0) }
	if err := grow(proto.Size(m)); err != nil {
		none()
		return nil, err
	}
	if room.Occupied() == 0 {
		return nil, nil
	}
	release := sync.OnceFunc(none)
	late := time.AfterFunc(takenWithin, func() {
		access.Cut(ctx)
		release()
	})
	stop := access.OnClose(ctx, release) // the transport forgets what it holds then
	return &Charged{m, func() { release(); late.Stop(); stop() }}, nil
}

// Unary gives a call a place, and charges its request and answer. Probes of health need no place. It is a
// grpc.UnaryServerInterceptor.
func (b Budget) Unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, call grpc.UnaryHandler) (any, error) {
	if info.FullMethod != healthpb.Health_Check_FullMethodName {
		release, err := b.AtOnce.Take(ctx, b.Op)
		if err != nil {
			return nil, err
		}
		defer release()
	}
	arrived(ctx)
	if m, ok := req.(proto.Message); ok && b.Requests != nil {
		release, err := b.Requests.TakeBytes(ctx, b.Op, proto.Size(m), 0)
		if err != nil {
			return nil, err
		}
		if release != nil {
			defer release()
		}
	}
	growing, room := Growing(ctx, b.Answers, b.Op)
	resp, err := call(growing, req)
	m, ok := resp.(proto.Message)
	if err != nil || !ok {
		_ = room.To(ctx, 0, 0)
		return resp, err
	}
	c, err := charge(ctx, m, room, func(n int) error {
		if b.Changes(info.FullMethod) {
			return room.ToForChange(ctx, n)
		}
		return room.To(ctx, n, 0)
	})
	if err != nil || c != nil {
		return c, err
	}
	return resp, nil
}

// Stream gives a stream a place, and charges its answers. It is a grpc.StreamServerInterceptor.
func (b Budget) Stream(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, call grpc.StreamHandler) error {
	release, err := b.AtOnce.Take(ss.Context(), b.Op)
	if err != nil {
		access.Placed(ss.Context(), false)
		return err
	}
	defer release()
	late := time.AfterFunc(takenWithin, func() { access.Cut(ss.Context()) })
	late.Stop()
	ctx, room := Growing(ss.Context(), b.Answers, b.Op)
	defer func() { _ = room.To(ctx, 0, 0) }()
	return call(srv, stream{ss, ctx, room, late, sync.OnceFunc(func() { arrived(ctx) })})
}

type stream struct {
	grpc.ServerStream
	ctx   context.Context
	room  *access.Growing // of the next answer
	late  *time.Timer     // runs while an answer is being sent: a stream sends one at a time
	first func()          // at each request
}

// Context returns a context in which Grow takes room for the next answer, in the goroutine that sends it.
func (s stream) Context() context.Context { return s.ctx }

// RecvMsg receives a request.
func (s stream) RecvMsg(m any) error {
	err := s.ServerStream.RecvMsg(m)
	if err == nil {
		s.first()
	}
	return err
}

// SendMsg sends an answer when the budget has room. It holds the stream back meanwhile, and ends it with the refusal
// after takenWithin.
func (s stream) SendMsg(m any) error {
	s.late.Reset(takenWithin)
	defer s.late.Stop()
	message, ok := m.(proto.Message)
	if _, charged := m.(*Charged); charged || !ok {
		return s.ServerStream.SendMsg(m)
	}
	room := s.room.Split()
	c, err := charge(s.ctx, message, room, func(n int) error { return room.To(s.ctx, n, takenWithin/2) })
	switch {
	case err != nil:
		return err
	case c == nil:
		return s.ServerStream.SendMsg(m)
	}
	if err = s.ServerStream.SendMsg(c); err != nil {
		c.Release() // perhaps the transport never had it
	}
	return err
}

// codec encodes messages as the codec of gRPC does, and learns when the transport has written charged ones.
type codec struct{ encoding.CodecV2 }

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	one, ok := v.(*Charged)
	switch {
	case !ok:
		return c.CodecV2.Marshal(v)
	case one.Release == nil:
		return c.CodecV2.Marshal(one.Message)
	}
	text, err := proto.Marshal(one.Message)
	if err != nil {
		one.Release()
		return nil, err
	}
	return mem.BufferSlice{mem.NewBuffer(&text, written{one})}, nil
}

// written is a pool of the buffer of one answer.
type written struct{ *Charged }

// Get implements mem.BufferPool.
func (written) Get(n int) *[]byte { return mem.DefaultBufferPool().Get(n) }

// Put implements mem.BufferPool.
func (w written) Put(*[]byte) { Written(w.Charged) }
