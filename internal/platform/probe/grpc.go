package probe

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/proto"
)

// grpcKind asks the standard health service of a gRPC server. A server without that service answers too.
func grpcKind() kind {
	return kind{name: "grpc", schemes: []string{"grpc", "grpcs"}, protocols: []string{"grpc"}, over: append(web(), ""), secure: []string{"grpcs", "https"}, speak: speakGRPC}
}

func speakGRPC(ctx context.Context, s *session) (Outcome, error) {
	a, err := s.Health(ctx, "grpc-go/"+grpc.Version, "")
	if err != nil && (a.HTTP == 0 || ctx.Err() != nil) {
		return Outcome{}, err
	}
	if a.Status == "" {
		o := (&answer{status: a.HTTP, header: a.Header, secure: s.target.Secure}).refusal(false, false)
		if a.HTTP/100 == 2 && !a.grpc() {
			o.State, o.Detail = Wrong, o.Detail+" and no gRPC"
		}
		return o, nil
	}
	if a.Health != nil {
		o := s.answered("is " + a.Health.GetStatus().String())
		if a.Health.GetStatus() == grpc_health_v1.HealthCheckResponse_NOT_SERVING {
			o.State = Refuses
		}
		return o, nil
	}
	o := s.answered("answered a status that gRPC does not know")
	o.Text, _ = url.PathUnescape(a.Header.Get("Grpc-Message"))
	n, err := strconv.ParseUint(a.Status, 10, 8)
	if err == nil && n <= uint64(codes.Unauthenticated) {
		o.Detail = "answered status " + codes.Code(n).String()
	}
	switch codes.Code(n) {
	case codes.OK, codes.Unimplemented, codes.NotFound: // it serves, and does not tell its health
	case codes.Unavailable:
		o.State = Refuses
	default:
		o.State = Closed
	}
	return o, nil
}

// HealthAnswer is what a server answered to a question for its health.
type HealthAnswer struct {
	HTTP   int                                 // status of HTTP
	Header http.Header                         // the one with the status of gRPC
	Status string                              // of gRPC; empty: it speaks something else
	Health *grpc_health_v1.HealthCheckResponse // nil: the answer has none, or another one than the protocol wants
}

func (a *HealthAnswer) grpc() bool {
	return strings.HasPrefix(a.Header.Get("Content-Type"), "application/grpc")
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
	var heard firstBytes
	link, err := l.http2(heard.of(conn)).NewClientConn(ctx, scheme, l.target.authority())
	if err != nil {
		return a, heard.explain(err, l.target.Secure, "gRPC")
	}
	defer func() { _ = link.Close() }()
	resp, err := link.RoundTrip(r)
	if err != nil {
		return a, heard.explain(err, l.target.Secure, "gRPC")
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
	a.HTTP, a.Header = resp.StatusCode, resp.Header
	if resp.StatusCode != http.StatusOK || !a.grpc() {
		return a, nil
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return a, err
	}
	if resp.Trailer.Get("Grpc-Status") != "" { // else an answer of trailers only, or none
		a.Header = resp.Trailer
	}
	a.Status = a.Header.Get("Grpc-Status")
	const head = 5 // a byte of the compression, 0, and four of the length
	health := &grpc_health_v1.HealthCheckResponse{}
	if a.Status == "0" && len(body) >= head && body[0] == 0 && int(binary.BigEndian.Uint32(body[1:])) == len(body)-head && proto.Unmarshal(body[head:], health) == nil {
		a.Health = health
	}
	return a, nil
}
