package health

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

	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/pkg/fault"
)

// grpcHead is the prefix of a message: a compression byte, 0, and four bytes of
// length.
const grpcHead = 5

// probeGRPC passes if the plan's service, or the server for an empty one, is
// SERVING: "GRPC Health Checking Protocol", grpc.health.v1. It speaks "gRPC
// over HTTP2" itself, without TLS, because a client of the library would start
// a dozen goroutines.
func (c *Checker) probeGRPC(ctx context.Context, p *plan) error {
	const op = "health.grpc"
	conn, err := c.network.open(ctx, p)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	link, err := plainHTTP2(conn).NewClientConn(ctx, "http", hostPort(p.host, p.port))
	if err != nil {
		return failed(op, err)
	}
	defer func() { _ = link.Close() }()
	request, err := healthRequest(ctx, p)
	if err != nil {
		return fault.As(op, fault.Invalid, err)
	}
	answer, err := link.RoundTrip(request)
	if err != nil {
		return failed(op, err)
	}
	defer func() { _ = answer.Body.Close() }()
	return serving(answer)
}

// plainHTTP2 speaks HTTP/2 with prior knowledge over one connection with
// minimal windows.
func plainHTTP2(conn net.Conn) *http.Transport {
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	return &http.Transport{
		Protocols: &protocols,
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			return conn, nil
		},
		DisableCompression:     true,
		MaxResponseHeaderBytes: maxAnswer,
		HTTP2: &http.HTTP2Config{
			MaxReadFrameSize:              16 << 10,
			MaxReceiveBufferPerConnection: 64 << 10,
			MaxReceiveBufferPerStream:     64 << 10,
		},
	}
}

func healthRequest(ctx context.Context, p *plan) (*http.Request, error) {
	message, err := proto.Marshal(&grpc_health_v1.HealthCheckRequest{Service: p.resource})
	if err != nil {
		return nil, err
	}
	framed := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message)))
	framed = append(framed, message...)
	target := url.URL{Scheme: "http", Host: hostPort(p.host, p.port), Path: grpc_health_v1.Health_Check_FullMethodName}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, target.String(), bytes.NewReader(framed))
	if err != nil {
		return nil, err
	}
	request.Header = http.Header{
		"Content-Type": {"application/grpc"},
		"Te":           {"trailers"},
		"User-Agent":   {userAgent},
		"Grpc-Timeout": {strconv.FormatInt(max(1, int64(p.target.Check.Timeout/time.Millisecond)), 10) + "m"},
	}
	return request, nil
}

// serving evaluates the answer.
func serving(answer *http.Response) error {
	const op = "health.grpc"
	if kind := answer.Header.Get("Content-Type"); answer.StatusCode != http.StatusOK || !strings.HasPrefix(kind, "application/grpc") {
		return fault.New(op, fault.Unavailable, "answered %d and no gRPC", answer.StatusCode)
	}
	body, err := io.ReadAll(io.LimitReader(answer.Body, maxBody+1))
	if err != nil {
		return failed(op, err)
	}
	if len(body) > maxBody {
		return fault.New(op, fault.TooLarge, "answered more than %d bytes", maxBody)
	}
	status := answer.Trailer.Get("Grpc-Status")
	if status == "" {
		status = answer.Header.Get("Grpc-Status") // an answer of trailers only
	}
	if status != "0" {
		return refused(op, "answered status %.8q", status)
	}
	var health grpc_health_v1.HealthCheckResponse
	if len(body) < grpcHead || body[0] != 0 || int(binary.BigEndian.Uint32(body[1:])) != len(body)-grpcHead {
		return fault.New(op, fault.Unavailable, "answered no message")
	}
	if err := proto.Unmarshal(body[grpcHead:], &health); err != nil {
		return fault.As(op, fault.Unavailable, err)
	}
	if health.Status != grpc_health_v1.HealthCheckResponse_SERVING {
		return refused(op, "is %s", health.Status)
	}
	return nil
}
