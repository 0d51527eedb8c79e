package probe

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"

	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/proto"
)

// grpcKind asks the standard health service of a gRPC server. A server without that service answers too.
func grpcKind() kind {
	return kind{name: "grpc", schemes: []string{"grpc", "grpcs"}, protocols: []string{"grpc"}, over: append(web(), ""), secure: []string{"grpcs", "https"}, speak: speakGRPC}
}

func speakGRPC(ctx context.Context, s *session) (Outcome, error) {
	var protocols http.Protocols
	scheme := "http"
	protocols.SetUnencryptedHTTP2(!s.target.Secure)
	if protocols.SetHTTP2(s.target.Secure); s.target.Secure {
		scheme = "https"
	}
	transport := &http.Transport{
		Protocols: &protocols, TLSClientConfig: s.tls(), DisableCompression: true, MaxResponseHeaderBytes: maxAnswer,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return s.dial(ctx, "tcp") },
	}
	defer transport.CloseIdleConnections()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, scheme+"://"+s.target.authority()+grpc_health_v1.Health_Check_FullMethodName,
		bytes.NewReader(make([]byte, 5))) // an empty message
	if err != nil {
		return Outcome{}, err
	}
	r.Header = http.Header{"Content-Type": {"application/grpc"}, "Te": {"trailers"}, "User-Agent": {userAgent}}
	resp, err := transport.RoundTrip(r)
	if err != nil {
		return Outcome{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return Outcome{}, err
	}
	status := resp.Trailer.Get("Grpc-Status")
	if status == "" {
		status = resp.Header.Get("Grpc-Status") // an answer of trailers only
	}
	if status == "" || !strings.HasPrefix(resp.Header.Get("Content-Type"), "application/grpc") {
		return Outcome{State: WrongProtocol, Detail: fmt.Sprintf("answered %d and no gRPC", resp.StatusCode)}, nil
	}
	var health grpc_health_v1.HealthCheckResponse
	const head = 5 // a compression byte and a length
	if status != "0" || len(body) < head || int(binary.BigEndian.Uint32(body[1:])) != len(body)-head || proto.Unmarshal(body[head:], &health) != nil {
		return s.answered("answered status " + status[:min(len(status), 8)]), nil
	}
	if health.Status == grpc_health_v1.HealthCheckResponse_NOT_SERVING {
		return Outcome{State: Refuses, Detail: "is NOT_SERVING"}, nil
	}
	return s.answered("is " + health.Status.String()), nil
}
