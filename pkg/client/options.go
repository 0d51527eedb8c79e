package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"os"
	"time"

	"github.com/blackhole/blackhole/internal/link"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Option is an option of New.
type Option func(*link.Settings)

// WithToken sends a bearer token with each call. New refuses a token without TLS unless the address is a loopback
// address or a unix socket.
func WithToken(token string) Option { return func(s *link.Settings) { s.Token = &token } }

// WithTLS uses TLS. See TLSFiles.
func WithTLS(config *tls.Config) Option { return func(s *link.Settings) { s.TLS = config } }

// WithClock replaces the clock for the lifetime of leases: the time since a fixed moment, which must continue while
// the machine sleeps. The default is CLOCK_BOOTTIME on Linux, and Go's monotonic clock elsewhere.
func WithClock(now func() time.Duration) Option { return func(s *link.Settings) { s.Clock = now } }

// WithTrace makes traces of calls: the peer and those that work for it add their spans to the trace of a call.
// begin begins the span of a call of a gRPC method. It returns the W3C traceparent that the call carries, or "" for
// none, and a function for the outcome, or nil.
//
// An interceptor of OpenTelemetry does not see all calls: those of the coordination plane share one stream.
func WithTrace(begin func(ctx context.Context, method string) (traceparent string, end func(error))) Option {
	return func(s *link.Settings) { s.Begin = begin }
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
