package access

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/blackhole/blackhole/pkg/fault"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start is when the tests' clocks begin.
func start() time.Time { return time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC) }

// clock is one that tests move.
type clock struct{ past atomic.Int64 }

func (c *clock) now() time.Time           { return start().Add(time.Duration(c.past.Load())) }
func (c *clock) advance(by time.Duration) { c.past.Add(int64(by)) }

// journal is a log that tests read.
type journal struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(p)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.String()
}

func (j *journal) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(j, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// write makes or replaces a file that only the owner can read, as editors do: at once.
func write(t testing.TB, path string, text []byte) string {
	t.Helper()
	require.NoError(t, os.WriteFile(path+".new", text, 0o600))
	require.NoError(t, os.Rename(path+".new", path))
	return path
}

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority(t testing.TB, name string) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name},
		NotBefore: start().AddDate(-20, 0, 0), NotAfter: start().AddDate(50, 0, 0), // the client's clock is the machine's
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return &authority{cert: cert, key: key, pem: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}

// issue gives a certificate and its key in PEM.
func (a *authority) issue(t testing.TB, subject string, names ...string) (cert, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: subject}, DNSNames: names,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore:   start().AddDate(-20, 0, 0), NotAfter: start().AddDate(40, 0, 0),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, private.Public(), a.key)
	require.NoError(t, err)
	text, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: text})
}

// pair gives a certificate of the authority's, as a client has it.
func (a *authority) pair(t testing.TB, subject string, names ...string) tls.Certificate {
	t.Helper()
	cert, key := a.issue(t, subject, names...)
	pair, err := tls.X509KeyPair(cert, key)
	require.NoError(t, err)
	return pair
}

// trust is what a client believes.
func (a *authority) trust(certs ...tls.Certificate) *tls.Config {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return &tls.Config{RootCAs: pool, Certificates: certs, ServerName: "127.0.0.1", MinVersion: tls.VersionTLS13}
}

// files are the certificates of a server in a directory.
type files struct{ dir string }

func (f files) path(name string) string { return filepath.Join(f.dir, name) }

// serverFiles writes the files of a server with method mtls.
func serverFiles(t testing.TB, server, clients *authority) (files, Config) {
	t.Helper()
	f := files{dir: t.TempDir()}
	cert, key := server.issue(t, "server")
	c := Config{
		Enabled: true, Method: MethodMTLS,
		ServerCert: write(t, f.path("server.crt"), cert), ServerKey: write(t, f.path("server.key"), key),
		CACert: write(t, f.path("ca.crt"), clients.pem),
	}
	return f, c
}

// refuse writes an error like a front end.
func refuse(w http.ResponseWriter, err error) {
	code := http.StatusForbidden
	if fault.KindOf(err) == fault.Unauthentic {
		code = http.StatusUnauthorized
	}
	http.Error(w, err.Error(), code)
}

// needs returns the role of a request by its method.
func needs(r *http.Request) Need {
	switch {
	case r.URL.Path == "/livez":
		return Need{}
	case r.Method == http.MethodGet:
		return Need{Role: RoleReadOnly}
	case r.Method == http.MethodDelete:
		return Need{Role: RoleAdmin}
	default:
		return Need{Role: RoleService, Service: r.URL.Query().Get("service")}
	}
}

// whoami answers with the name and the role of the caller.
func whoami(w http.ResponseWriter, r *http.Request) {
	p := From(r.Context())
	_, _ = w.Write([]byte(p.Name + " " + p.Role.String() + " " + Client(r.Context())))
}

// serve answers requests on l until the test ends.
func serve(t testing.TB, l net.Listener, g *Guard, tlsConfig *tls.Config) {
	t.Helper()
	s := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			g.HTTP(needs(r), http.HandlerFunc(whoami), refuse).ServeHTTP(w, r)
		}),
		ConnContext: ConnContext, TLSConfig: tlsConfig,
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug), ReadHeaderTimeout: time.Minute,
	}
	done := make(chan error, 1)
	go func() {
		if tlsConfig != nil {
			done <- s.ServeTLS(l, "", "")
		} else {
			done <- s.Serve(l)
		}
	}()
	t.Cleanup(func() {
		require.NoError(t, s.Close())
		require.ErrorIs(t, <-done, http.ErrServerClosed)
	})
}

func loopback(t testing.TB) net.Listener {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	return l
}

// client is one whose connections end with the test.
func client(t testing.TB, tlsConfig *tls.Config) *http.Client {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: tlsConfig, ForceAttemptHTTP2: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: time.Minute}
}
