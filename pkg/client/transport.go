package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"

	"github.com/blackhole/blackhole/internal/contract/coord/calls"
	"github.com/blackhole/blackhole/pkg/fault"
)

// reconnect sets the times of reconnection. Peers are usually on the same host, and the leases
// of instances would expire during gRPC's default delay of two minutes.
func reconnect() grpc.ConnectParams {
	return grpc.ConnectParams{
		Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second},
		MinConnectTimeout: 5 * time.Second,
	}
}

// WithToken is an option of New: a bearer token for each call. New refuses a token without TLS
// unless the address is a loopback address or a unix socket.
func WithToken(token string) grpc.DialOption { return tokenOption{token: token} }

// tokenOption is an option for New; gRPC ignores it.
type tokenOption struct {
	grpc.EmptyDialOption
	token string
}

// WithTLS is an option of New: use TLS. See TLSFiles.
func WithTLS(config *tls.Config) grpc.DialOption {
	return grpc.WithTransportCredentials(credentials.NewTLS(config))
}

// TLSFiles returns a configuration for WithTLS from PEM files: the certificate authorities of
// peers ("" means the system's), and the client's certificate and key, or "" for both. Each
// handshake reads the certificate and the key again, so that a running program sees
// replacements. Errors: Invalid, field "ca", "cert" or "key".
func TLSFiles(ca, cert, key string) (*tls.Config, error) {
	const op = "client.TLSFiles"
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if ca != "" {
		pem, err := os.ReadFile(ca)
		if err != nil {
			return nil, fault.Wrap(op, fault.Invalidf("ca", ca, "%w", err))
		}
		if config.RootCAs = x509.NewCertPool(); !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fault.Wrap(op, fault.Invalidf("ca", ca, "%s has no certificate", ca))
		}
	}
	switch {
	case cert == "" && key == "":
		return config, nil
	case cert == "":
		return nil, fault.Wrap(op, fault.Invalidf("cert", nil, "is required with a key"))
	case key == "":
		return nil, fault.Wrap(op, fault.Invalidf("key", nil, "is required with a certificate"))
	}
	if _, err := tls.LoadX509KeyPair(cert, key); err != nil {
		return nil, fault.Wrap(op, fault.Invalidf("cert", cert, "%w", err))
	}
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(cert, key)
		return &pair, err
	}
	return config, nil
}

// bearer adds a token to calls.
type bearer struct {
	token string
	plain bool // allowed without TLS
}

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + b.token}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials.
func (b bearer) RequireTransportSecurity() bool { return !b.plain }

// tokenOptions returns the gRPC options for the tokens in opts.
func tokenOptions(address string, opts []grpc.DialOption) ([]grpc.DialOption, error) {
	var out []grpc.DialOption
	for _, o := range opts {
		own, ok := o.(tokenOption)
		if !ok {
			continue
		}
		if own.token == "" || strings.ContainsFunc(own.token, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return nil, &fault.Error{Kind: fault.Invalid, Field: "token", Err: errors.New("must be printable ASCII without spaces")}
		}
		out = []grpc.DialOption{grpc.WithPerRPCCredentials(bearer{own.token, isLocal(address)})}
	}
	return out, nil
}

// isLocal reports whether traffic to an address stays on this host.
func isLocal(address string) bool {
	if strings.HasPrefix(address, "unix:") || strings.HasPrefix(address, "unix-abstract:") {
		return true
	}
	if _, rest, ok := strings.Cut(address, ":///"); ok { // dns:/// or passthrough:///
		address = rest
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

// BeginSpan begins the span of a call of a gRPC method. It returns the W3C traceparent that the call carries, or ""
// for none, and a function for the outcome, or nil.
type BeginSpan = calls.BeginSpan

// WithTrace is an option of New: the traces of calls. The peer and those that work for it add their spans to the trace of
// a call.
//
// An interceptor of OpenTelemetry does not see all calls: those of the coordination plane share one stream.
func WithTrace(begin BeginSpan) grpc.DialOption { return traceOption{begin: begin} }

// traceOption is an option for New; gRPC ignores it.
type traceOption struct {
	grpc.EmptyDialOption
	begin BeginSpan
}

// spans returns the last WithTrace among options, or nil.
func spans(opts []grpc.DialOption) (begin BeginSpan) {
	for _, o := range opts {
		if own, ok := o.(traceOption); ok {
			begin = own.begin
		}
	}
	return begin
}
