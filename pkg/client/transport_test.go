package client

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	grpcpeer "google.golang.org/grpc/peer"

	"github.com/blackhole/blackhole/internal/agent/agenttest"
	"github.com/blackhole/blackhole/pkg/fault"
	agentv1 "github.com/blackhole/blackhole/proto/blackhole/agent/v1"
)

// authority signs certificates for tests.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	a := &authority{t: t, dir: t.TempDir()}
	a.issue("ca")
	return a
}

// issue writes name.pem and name.key.
func (a *authority) issue(name string) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(a.t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"localhost"}, IsCA: name == "ca", BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	require.NoError(a.t, err)
	if a.cert == nil {
		a.key = key
		a.cert, err = x509.ParseCertificate(der)
		require.NoError(a.t, err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(a.t, err)
	a.write(name+".pem", "CERTIFICATE", der)
	a.write(name+".key", "PRIVATE KEY", secret)
}

func (a *authority) path(name string) string { return filepath.Join(a.dir, name) }

func (a *authority) write(name, kind string, der []byte) {
	require.NoError(a.t, os.WriteFile(a.path(name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
}

// asked is a call as seen by the peer.
type asked struct {
	token, name string
}

// listen serves an agent on l and reports each call.
func listen(t *testing.T, l net.Listener, opts ...grpc.ServerOption) <-chan asked {
	calls := make(chan asked, 16)
	s := grpc.NewServer(opts...)
	agentv1.RegisterDiscoveryServiceServer(s, &agenttest.Server{Agent: agenttest.New(), Before: func(ctx context.Context, _ string) error {
		md, _ := metadata.FromIncomingContext(ctx)
		from, _ := grpcpeer.FromContext(ctx)
		seen := asked{token: append(md.Get("authorization"), "")[0]}
		if info, ok := from.AuthInfo.(credentials.TLSInfo); ok && len(info.State.PeerCertificates) > 0 {
			seen.name = info.State.PeerCertificates[0].Subject.CommonName
		}
		calls <- seen
		return nil
	}})
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	t.Cleanup(func() { s.Stop(); <-done })
	return calls
}

func call(t *testing.T, address string, opts ...Option) error {
	t.Helper()
	c, err := New(address, opts...)
	require.NoError(t, err)
	_, err = c.link.Agent.Services(t.Context(), "")
	require.NoError(t, c.Close())
	return err
}

func TestMutualTLS(t *testing.T) {
	a := newAuthority(t)
	a.issue("server")
	a.issue("alice")
	pair, err := tls.LoadX509KeyPair(a.path("server.pem"), a.path("server.key"))
	require.NoError(t, err)
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	calls := listen(t, l, grpc.Creds(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{pair}, ClientCAs: pool, ClientAuth: tls.VerifyClientCertIfGiven, MinVersion: tls.VersionTLS12,
	})))
	config, err := TLSFiles(a.path("ca.pem"), a.path("alice.pem"), a.path("alice.key"))
	require.NoError(t, err)
	require.NoError(t, call(t, l.Addr().String(), WithTLS(config), WithToken("secret")))
	require.Equal(t, asked{"Bearer secret", "alice"}, <-calls)
	a.issue("bob")
	for _, kind := range []string{".pem", ".key"} {
		require.NoError(t, os.Rename(a.path("bob"+kind), a.path("alice"+kind)))
	}
	require.NoError(t, call(t, l.Addr().String(), WithTLS(config)))
	require.Equal(t, asked{"", "bob"}, <-calls, "what was replaced is read again")

	require.ErrorIs(t, call(t, l.Addr().String()), fault.Unavailable, "without TLS")
	strangers, err := TLSFiles("", "", "")
	require.NoError(t, err)
	require.ErrorIs(t, call(t, l.Addr().String(), WithTLS(strangers)), fault.Unavailable, "an authority that nobody knows")
}

func TestTLSFilesRefuses(t *testing.T) {
	a := newAuthority(t)
	require.NoError(t, os.WriteFile(a.path("empty"), nil, 0o600))
	for _, c := range []struct{ ca, cert, key, field string }{
		{a.path("nobody"), "", "", "ca"},
		{a.path("empty"), "", "", "ca"},
		{"", a.path("ca.pem"), "", "key"},
		{"", "", a.path("ca.key"), "cert"},
		{"", a.path("empty"), a.path("ca.key"), "cert"},
	} {
		_, err := TLSFiles(c.ca, c.cert, c.key)
		require.ErrorIs(t, err, &fault.Error{Kind: fault.Invalid, Field: c.field})
	}
}

func TestUnixSocketsAndTokens(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	calls := listen(t, l)
	require.NoError(t, call(t, "unix://"+path, WithToken("secret")))
	require.Equal(t, asked{token: "Bearer secret"}, <-calls)

	for address, ok := range map[string]bool{
		"127.0.0.1:1": true, "localhost:1": true, "[::1]:1": true, "unix:x": true, "unix-abstract:x": true, "dns:///localhost:1": true,
		"10.0.0.1:1": false, "example.org:1": false, "passthrough:///peer": false, "[2001:db8::1]:1": false,
		"localhost.example.org:1": false, "127.0.0.1.example.org:1": false,
	} {
		c, err := New(address, WithToken("secret"))
		if !ok {
			require.ErrorIs(t, err, fault.Invalid, address)
			continue
		}
		require.NoError(t, err, address)
		require.NoError(t, c.Close())
	}
	for _, bad := range []string{"", "a b", "a\nb", "é"} {
		_, err := New("", WithToken(bad))
		require.Equal(t, "token", fault.FieldOf(err))
		require.NotContains(t, err.Error(), bad+"x")
	}
}
