package probe

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/platform/clean"
)

// grpcKind asks the standard health service of a gRPC server. A server without that service answers too.
func grpcKind() kind {
	return kind{name: "grpc", schemes: []string{"grpc", "grpcs"}, protocols: []string{"grpc"}, over: append(web(), ""), secure: []string{"grpcs", "https"}, speak: speakGRPC}
}

func speakGRPC(ctx context.Context, s *session) (Outcome, error) {
	a, err := s.Health(ctx, "grpc-go/"+grpc.Version, "")
	switch {
	case err != nil:
		return Outcome{}, err
	case a.Status == "":
		return Outcome{State: WrongProtocol, Detail: fmt.Sprintf("answered %d and no gRPC", a.HTTP)}, nil
	case a.Health == nil:
		return s.answered("answered status " + clean.Text(a.Status, 8)), nil
	case a.Health.GetStatus() == grpc_health_v1.HealthCheckResponse_NOT_SERVING:
		return Outcome{State: Refuses, Detail: "is NOT_SERVING"}, nil
	}
	return s.answered("is " + a.Health.GetStatus().String()), nil
}

// HealthAnswer is what a server answered to a question for its health.
type HealthAnswer struct {
	HTTP   int                                 // status of HTTP
	Status string                              // of gRPC; empty: it speaks something else
	Health *grpc_health_v1.HealthCheckResponse // nil: the answer has none, or another one than the protocol wants
}

// Health asks a gRPC server for the health of a service, of the server with "": "GRPC Health Checking Protocol",
// grpc.health.v1. It speaks "gRPC over HTTP2" itself, because a client of the library would start a dozen goroutines.
func (l *Line) Health(ctx context.Context, agent, service string) (a HealthAnswer, err error) {
	message, err := proto.Marshal(&grpc_health_v1.HealthCheckRequest{Service: service})
	if err != nil {
		return a, err
	}
	scheme := map[bool]string{true: "https", false: "http"}[l.target.Secure]
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, scheme+"://"+l.target.authority()+grpc_health_v1.Health_Check_FullMethodName,
		bytes.NewReader(append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...)))
	if err != nil {
		return a, err
	}
	r.Header = http.Header{"Content-Type": {"application/grpc"}, "Te": {"trailers"}, "User-Agent": {agent}}
	if end, ok := ctx.Deadline(); ok {
		r.Header.Set("Grpc-Timeout", strconv.FormatInt(max(1, time.Until(end).Milliseconds()), 10)+"m")
	}
	conn, err := l.dial(ctx, "tcp")
	if err != nil {
		return a, err
	}
	defer func() { _ = conn.Close() }()
	link, err := l.http2(conn).NewClientConn(ctx, scheme, l.target.authority())
	if err != nil {
		return a, err
	}
	defer func() { _ = link.Close() }()
	resp, err := link.RoundTrip(r)
	if err != nil {
		return a, err
	}
	defer func() { _ = resp.Body.Close() }()
	return healthOf(resp)
}

// http2 speaks HTTP/2 over one connection with minimal windows, without TLS with prior knowledge.
func (l *Line) http2(conn net.Conn) *http.Transport {
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(!l.target.Secure)
	protocols.SetHTTP2(l.target.Secure)
	return &http.Transport{
		Protocols: &protocols, TLSClientConfig: l.tls(), DisableCompression: true, MaxResponseHeaderBytes: maxAnswer,
		DialContext: func(context.Context, string, string) (net.Conn, error) { return conn, nil },
		HTTP2:       &http.HTTP2Config{MaxReadFrameSize: 16 << 10, MaxReceiveBufferPerConnection: 64 << 10, MaxReceiveBufferPerStream: 64 << 10},
	}
}

// healthOf reads an answer.
func healthOf(resp *http.Response) (a HealthAnswer, err error) {
	a.HTTP = resp.StatusCode
	if resp.StatusCode != http.StatusOK || !strings.HasPrefix(resp.Header.Get("Content-Type"), "application/grpc") {
		return a, nil
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return a, err
	}
	if a.Status = resp.Trailer.Get("Grpc-Status"); a.Status == "" {
		a.Status = resp.Header.Get("Grpc-Status") // an answer of trailers only
	}
	const head = 5 // a byte of the compression, 0, and four of the length
	health := &grpc_health_v1.HealthCheckResponse{}
	if a.Status == "0" && len(body) >= head && body[0] == 0 && int(binary.BigEndian.Uint32(body[1:])) == len(body)-head && proto.Unmarshal(body[head:], health) == nil {
		a.Health = health
	}
	return a, nil
}
