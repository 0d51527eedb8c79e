package etcdapi

import (
	"context"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// conn is a connection with the server in its own process, for calls over JSON. They pass the same interceptors as calls over gRPC.
type conn struct {
	s       *Server
	methods map[string]grpc.MethodDesc
	streams map[string]grpc.StreamDesc
}

func newConn(s *Server) *conn {
	c := &conn{s: s, methods: map[string]grpc.MethodDesc{}, streams: map[string]grpc.StreamDesc{}}
	for _, d := range services() {
		for _, m := range d.Methods {
			c.methods["/"+d.ServiceName+"/"+m.MethodName] = m
		}
		for _, m := range d.Streams {
			c.streams["/"+d.ServiceName+"/"+m.StreamName] = m
		}
	}
	return c
}

// arrived returns the context of a call at the server.
func arrived(ctx context.Context) context.Context {
	md, _ := metadata.FromOutgoingContext(ctx)
	return metadata.NewIncomingContext(ctx, md)
}

// fill copies a message into another one of its type.
func fill(to, from any) error {
	t, ok := to.(proto.Message)
	f, also := from.(proto.Message)
	if !ok || !also {
		return status.Error(codes.Internal, "etcdserver: no message")
	}
	proto.Reset(t)
	proto.Merge(t, f)
	return nil
}

// Invoke implements grpc.ClientConnInterface.
func (c *conn) Invoke(ctx context.Context, method string, args, reply any, _ ...grpc.CallOption) error {
	m, ok := c.methods[method]
	if !ok {
		return status.Error(codes.Unimplemented, "etcdserver: unknown method "+method)
	}
	resp, err := m.Handler(c.s, arrived(ctx), func(req any) error { return fill(req, args) }, c.s.intercept)
	if err != nil {
		return err
	}
	return fill(reply, resp)
}

// NewStream implements grpc.ClientConnInterface. The stream ends with its request at the latest.
func (c *conn) NewStream(ctx context.Context, _ *grpc.StreamDesc, method string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
	m, ok := c.streams[method]
	one, inRequest := ctx.Value(requestKey{}).(*request)
	if !ok || !inRequest {
		return nil, status.Error(codes.Unimplemented, "etcdserver: unknown method "+method)
	}
	ctx, cancel := context.WithCancel(ctx)
	p := &pipe{ctx: ctx, there: make(chan any), back: make(chan any), done: make(chan struct{})}
	one.over = func() { cancel(); <-p.done }
	info := &grpc.StreamServerInfo{FullMethod: method, IsServerStream: m.ServerStreams, IsClientStream: m.ClientStreams}
	go func() {
		defer close(p.done)
		p.err = c.s.interceptStream(c.s, served{p, arrived(ctx)}, info, m.Handler)
	}()
	return p, nil
}

// pipe is the client's end of a stream.
type pipe struct {
	ctx         context.Context
	there, back chan any
	done        chan struct{} // closed when the server has ended the call
	err         error         // of the call; read it after done
}

// Header implements grpc.ClientStream.
func (p *pipe) Header() (metadata.MD, error) { return metadata.MD{}, nil }

// Trailer implements grpc.ClientStream.
func (p *pipe) Trailer() metadata.MD { return nil }

// Context implements grpc.ClientStream.
func (p *pipe) Context() context.Context { return p.ctx }

// CloseSend implements grpc.ClientStream.
func (p *pipe) CloseSend() error {
	close(p.there)
	return nil
}

// SendMsg implements grpc.ClientStream.
func (p *pipe) SendMsg(m any) error {
	select {
	case p.there <- m:
		return nil
	case <-p.done:
		return io.EOF
	case <-p.ctx.Done():
		return p.ctx.Err()
	}
}

// RecvMsg implements grpc.ClientStream.
func (p *pipe) RecvMsg(m any) error {
	select {
	case one := <-p.back:
		return fill(m, one)
	case <-p.done:
		if p.err != nil {
			return p.err
		}
		return io.EOF
	}
}

// served is the server's end of a stream.
type served struct {
	*pipe
	ctx context.Context
}

// Context implements grpc.ServerStream.
func (s served) Context() context.Context { return s.ctx }

// SetHeader implements grpc.ServerStream.
func (served) SetHeader(metadata.MD) error { return nil }

// SendHeader implements grpc.ServerStream.
func (served) SendHeader(metadata.MD) error { return nil }

// SetTrailer implements grpc.ServerStream.
func (served) SetTrailer(metadata.MD) {}

// SendMsg implements grpc.ServerStream.
func (s served) SendMsg(m any) error {
	select {
	case s.back <- m:
		return nil
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
}

// RecvMsg implements grpc.ServerStream.
func (s served) RecvMsg(m any) error {
	select {
	case one, ok := <-s.there:
		if !ok {
			return io.EOF
		}
		return fill(m, one)
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
}
