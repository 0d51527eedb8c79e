package access

import (
	"context"
	"crypto/tls"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/fault"
)

// get asks a server over the network.
func get(t testing.TB, c *http.Client, method, url string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(context.Background(), method, url, nil)
	require.NoError(t, err)
	resp, err := c.Do(r)
	require.NoError(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(text)
}

func secured(t testing.TB, c Config, o Options) (url string) {
	t.Helper()
	secure, err := NewTLS(c, o)
	require.NoError(t, err)
	l := loopback(t)
	serve(t, l, newGuard(t, c, o), secure.Server("h2", "http/1.1"))
	return "https://" + l.Addr().String() + "/"
}

func TestMutualTLS(t *testing.T) {
	servers, clients, strangers := newAuthority(t, "servers"), newAuthority(t, "clients"), newAuthority(t, "clients")
	_, c := serverFiles(t, servers, clients)
	c.Certificates = []Certificate{
		{Name: "ops", Role: RoleAdmin}, {Name: "monitor.example.org", Role: RoleReadOnly},
		{Name: "deployer", Role: RoleService, Services: []string{"web-*"}},
	}
	var at clock
	url := secured(t, c, Options{Now: at.now})
	for _, one := range []struct {
		cert          tls.Certificate
		method, query string
		status        int
		body          string
	}{
		{clients.pair(t, "ops"), "DELETE", "", 200, "ops admin ops"},
		{clients.pair(t, "", "x", "monitor.example.org"), "GET", "", 200, "monitor.example.org read-only monitor.example.org"},
		{clients.pair(t, "", "monitor.example.org"), "POST", "", 403, ""},
		{clients.pair(t, "deployer"), "POST", "?service=web-1", 200, "deployer service deployer"},
		{clients.pair(t, "deployer"), "POST", "?service=deployer", 403, ""},
		{clients.pair(t, "web", "api"), "POST", "?service=api", 200, "web service web"},
		{clients.pair(t, "web"), "POST", "?service=web", 200, "web service web"},
		{clients.pair(t, "web"), "POST", "?service=api", 403, ""},
		{clients.pair(t, "*", "ops/web"), "GET", "", 401, ""},
		{clients.pair(t, ""), "GET", "", 401, ""},
	} {
		status, body := get(t, client(t, servers.trust(one.cert)), one.method, url+one.query)
		require.Equal(t, one.status, status, "%+v", one.body)
		if status == 200 {
			require.Equal(t, one.body, body)
		}
	}
	for name, certs := range map[string][]tls.Certificate{"none": nil, "of others": {strangers.pair(t, "ops")}, "of the server's": {servers.pair(t, "ops")}} {
		_, err := client(t, servers.trust(certs...)).Get(url)
		require.Error(t, err, name)
	}
	old := servers.trust(clients.pair(t, "ops"))
	old.MinVersion, old.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	_, err := client(t, old).Get(url)
	require.ErrorContains(t, err, "protocol version")
}

func TestMutualTLSForWritesOnly(t *testing.T) {
	servers, clients := newAuthority(t, "servers"), newAuthority(t, "clients")
	_, c := serverFiles(t, servers, clients)
	c.Anonymous = "read-only"
	url := secured(t, c, Options{})
	status, body := get(t, client(t, servers.trust()), "GET", url)
	require.Equal(t, 200, status)
	require.Equal(t, " read-only loopback", body)
	status, _ = get(t, client(t, servers.trust()), "POST", url)
	require.Equal(t, 401, status)
	strangers := newAuthority(t, "clients") // of the same name, so that the client sends its certificate
	_, err := client(t, servers.trust(strangers.pair(t, "web"))).Get(url)
	require.Error(t, err, "a certificate that is brought must verify")
}

// TestCertificateExpiresOnAnOpenConnection: TLS looks at it only when the connection opens.
func TestCertificateExpiresOnAnOpenConnection(t *testing.T) {
	servers, clients := newAuthority(t, "servers"), newAuthority(t, "clients")
	_, c := serverFiles(t, servers, clients)
	var at clock
	url := secured(t, c, Options{Now: at.now})
	hc := client(t, servers.trust(clients.pair(t, "web")))
	status, _ := get(t, hc, "GET", url)
	require.Equal(t, 200, status)
	at.advance(41 * 365 * 24 * time.Hour)
	status, _ = get(t, hc, "GET", url)
	require.Equal(t, 401, status)
}

// presented is the certificate that a server shows now.
func presented(t testing.TB, address string, trust *tls.Config) (string, error) {
	t.Helper()
	d := tls.Dialer{Config: trust}
	conn, err := d.DialContext(context.Background(), "tcp", address)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	return conn.(*tls.Conn).ConnectionState().PeerCertificates[0].Subject.CommonName, nil
}

// awaitLook waits until a connection has read the files after the clock moved. Concurrent
// connections use the old content.
func awaitLook(t testing.TB, secure *TLS, at *clock) {
	t.Helper()
	require.Eventually(t, func() bool {
		files := secure.files.Load()
		files.mu.Lock()
		defer files.mu.Unlock()
		return files.looked.Equal(at.now())
	}, time.Minute, time.Millisecond)
}

// TestCertificatesReload replaces the server's certificate piece by piece while clients call
// on open and on new connections: none of them notices, but for the new certificate.
func TestCertificatesReload(t *testing.T) {
	servers, clients := newAuthority(t, "servers"), newAuthority(t, "clients")
	f, c := serverFiles(t, servers, clients)
	var at clock
	var log journal
	o := Options{Now: at.now, Logger: log.logger()}
	secure, err := NewTLS(c, o)
	require.NoError(t, err)
	l := loopback(t)
	serve(t, l, newGuard(t, c, o), secure.Server("h2", "http/1.1"))
	trust := servers.trust(clients.pair(t, "web"))

	stop := make(chan struct{})
	var calls sync.WaitGroup
	failed := make(chan error, 4)
	for i := range 4 {
		transport := &http.Transport{TLSClientConfig: trust.Clone(), DisableKeepAlives: i%2 == 0}
		hc := &http.Client{Transport: transport, Timeout: time.Minute}
		calls.Go(func() {
			defer transport.CloseIdleConnections()
			for {
				select {
				case <-stop:
					return
				default:
				}
				resp, err := hc.Get("https://" + l.Addr().String() + "/")
				if err != nil {
					failed <- err
					return
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
		})
	}
	shows := func() string {
		name, err := presented(t, l.Addr().String(), trust)
		require.NoError(t, err)
		return name
	}
	require.Equal(t, "server", shows())
	cert, key := servers.issue(t, "renewed")
	write(t, f.path("server.crt"), cert)
	at.advance(pollEvery)
	awaitLook(t, secure, &at)
	require.Equal(t, "server", shows(), "the key is not there yet")
	at.advance(pollEvery)
	awaitLook(t, secure, &at)
	require.Equal(t, "server", shows())
	require.Equal(t, 1, strings.Count(log.String(), "level=WARN"), "said once: %s", log.String())
	write(t, f.path("server.key"), key)
	require.Equal(t, "server", shows(), "looked at less than a second ago")
	at.advance(pollEvery)
	awaitLook(t, secure, &at)
	require.Equal(t, "renewed", shows())

	require.NoError(t, os.Remove(f.path("server.key")))
	at.advance(pollEvery)
	require.Equal(t, "renewed", shows(), "gone files change nothing")

	close(stop)
	calls.Wait()
	close(failed)
	for err := range failed {
		require.NoError(t, err)
	}
}

// TestAuthorityReloads: after its authority is replaced, an old client gets in no more, a
// resumed session included.
func TestAuthorityReloads(t *testing.T) {
	servers, before, after := newAuthority(t, "servers"), newAuthority(t, "clients"), newAuthority(t, "clients")
	f, c := serverFiles(t, servers, before)
	var at clock
	url := secured(t, c, Options{Now: at.now})
	trust := servers.trust(before.pair(t, "web"))
	trust.ClientSessionCache = tls.NewLRUClientSessionCache(8)
	hc := client(t, trust)
	for range 2 {
		resp, err := hc.Get(url)
		require.NoError(t, err)
		resp.Body.Close()
		require.Equal(t, 200, resp.StatusCode)
		require.False(t, resp.TLS.DidResume, "every connection is verified anew")
		hc.CloseIdleConnections()
	}
	write(t, f.path("ca.crt"), after.pem)
	at.advance(pollEvery)
	_, err := hc.Get(url)
	require.Error(t, err)
	status, _ := get(t, client(t, servers.trust(after.pair(t, "web"))), "GET", url)
	require.Equal(t, 200, status)
}

// TestReloadFromManyConnections is for the race detector.
func TestReloadFromManyConnections(t *testing.T) {
	servers, clients := newAuthority(t, "servers"), newAuthority(t, "clients")
	f, c := serverFiles(t, servers, clients)
	var at clock
	secure, err := NewTLS(c, Options{Now: at.now})
	require.NoError(t, err)
	config := secure.Server("h2")
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 200 {
				at.advance(pollEvery / 4)
				got, err := config.GetConfigForClient(nil)
				if err != nil || len(got.Certificates) != 1 {
					t.Error("no certificate")
				}
			}
		})
	}
	for range 10 {
		cert, key := servers.issue(t, "renewed")
		write(t, f.path("server.crt"), cert)
		write(t, f.path("server.key"), key)
	}
	all.Wait()
}

func TestTLSAlone(t *testing.T) {
	servers := newAuthority(t, "servers")
	_, c := serverFiles(t, servers, servers)
	c = Config{ServerCert: c.ServerCert, ServerKey: c.ServerKey}
	url := secured(t, c, Options{})
	_, body := get(t, client(t, servers.trust()), "DELETE", url)
	require.Equal(t, "local admin loopback", body)

	none, err := NewTLS(Config{}, Options{})
	require.NoError(t, err)
	require.Nil(t, none)
}

func TestTLSFiles(t *testing.T) {
	servers := newAuthority(t, "servers")
	f, c := serverFiles(t, servers, servers)
	_, otherKey := servers.issue(t, "other")
	for _, one := range []struct {
		spoil func(*Config)
		field string
	}{
		{func(c *Config) { c.ServerCert = f.path("none") }, "server_cert"},
		{func(c *Config) { c.ServerKey = f.path("none") }, "server_key"},
		{func(c *Config) { c.CACert = f.path("none") }, "ca_cert"},
		{func(c *Config) { c.ServerKey = write(t, f.path("other.key"), otherKey) }, "server_cert"},
		{func(c *Config) { c.CACert = write(t, f.path("empty.crt"), []byte("nothing")) }, "ca_cert"},
		{func(c *Config) { c.ServerKey = f.dir }, "server_key"},
		{func(c *Config) {
			c.ServerKey = filepath.Join(t.TempDir(), "open.key")
			require.NoError(t, os.WriteFile(c.ServerKey, otherKey, 0o644))
			require.NoError(t, os.Chmod(c.ServerKey, 0o644))
		}, "server_key"},
	} {
		spoilt := c
		one.spoil(&spoilt)
		_, err := NewTLS(spoilt, Options{})
		require.ErrorIs(t, err, &fault.Error{Kind: fault.Invalid, Op: "access.NewTLS", Field: one.field})
	}
}
