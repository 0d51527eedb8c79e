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

	"github.com/blackhole/blackhole/pkg/fault"
)

// reconnect is how often a lost connection is tried again: peers are on the same host or near, so
// that gRPC's two minutes between attempts would outlast what is registered.
func reconnect() grpc.ConnectParams {
	return grpc.ConnectParams{
		Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second},
		MinConnectTimeout: 5 * time.Second,
	}
}

// WithToken is an option of New: a bearer token that is sent with each call. It goes over TLS, to a
// loopback address or to a unix socket, and nowhere else: New refuses other addresses.
func WithToken(token string) grpc.DialOption { return tokenOption{token: token} }

// tokenOption passes through gRPC, which takes no notice of it.
type tokenOption struct {
	grpc.EmptyDialOption
	token string
}

// WithTLS is an option of New: connections with TLS. See TLSFiles.
func WithTLS(config *tls.Config) grpc.DialOption {
	return grpc.WithTransportCredentials(credentials.NewTLS(config))
}

// TLSFiles makes a configuration for WithTLS out of PEM files: the authorities that peers are
// trusted by, "" for those of the system, and the client's own certificate and key, both or
// neither. The latter are read again at each handshake, so that they can be replaced while the program
// runs. Errors: Invalid, field "ca", "cert" or "key".
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

// bearer is a token on its way.
type bearer struct {
	token string
	plain bool // whether it may go without TLS
}

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + b.token}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials.
func (b bearer) RequireTransportSecurity() bool { return !b.plain }

// tokenOptions are the options that make gRPC send the token among some options.
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

// isLocal reports whether what is sent to an address stays on this host.
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
