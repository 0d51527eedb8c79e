package httpapi

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestNamesInTheQuery: each operation on an object whose name may have a slash gives the same answer for the name in the path and in the
// query, and refuses it in both.
func TestNamesInTheQuery(t *testing.T) {
	p := newCoordFixture(t)
	ask := func(method, path, body string) (int, string) {
		req, err := http.NewRequestWithContext(t.Context(), method, strings.TrimSuffix(p.base, "/coordination")+path, strings.NewReader(body))
		require.NoError(t, err)
		if strings.Contains(path, "/key") {
			req.Header.Set("Content-Type", "application/octet-stream")
		} else if body != "" {
			req.Header.Set("Content-Type", "application/json")
		}
		resp, err := p.client.Do(req)
		require.NoError(t, err)
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		// Revisions, tokens and times go on.
		return resp.StatusCode, regexp.MustCompile(`"(\w*revision|fencing_token|version|age_ms|lease_id|count)":("?-?\d+"?)|LOCK/[^"]*`).ReplaceAllString(string(text), "$1")
	}
	_, lease := func() (int, string) {
		resp, err := p.client.Post(p.base+"/leases", "application/json", strings.NewReader(`{"ttl":"60"}`))
		require.NoError(t, err)
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return resp.StatusCode, regexp.MustCompile(`"id":"(\d+)"`).FindStringSubmatch(string(text))[1]
	}()
	for _, step := range []struct{ method, path, instead, more, body string }{
		{"GET", "/coordination/keys/a%2Fb", "/coordination/key?key=a/b", "", ""}, // absent
		{"PUT", "/coordination/keys/a%2Fb", "/coordination/key?key=a/b", "", "value"},
		{"GET", "/coordination/keys/a%2Fb", "/coordination/key?key=a%2Fb", "", ""},
		{"GET", "/coordination/keys/a%2Fb", "/coordination/key?key=a/b", "revision=1", ""},
		{"PUT", "/coordination/keys/a%2Fb", "/coordination/key?key=a/b", "if_revision=0", "value"},
		{"DELETE", "/coordination/keys/a%2Fb", "/coordination/key?key=a/b", "if_revision=99", ""},
		{"DELETE", "/coordination/keys/none%2F", "/coordination/key?key=none/", "prefix=true", ""},
		{"POST", "/coordination/locks/l%2Fm", "/coordination/lock?name=l/m", "", `{"lease_id":"` + lease + `"}`},
		{"GET", "/coordination/locks/l%2Fm", "/coordination/lock?name=l/m", "", ""},
		{"DELETE", "/coordination/locks/none%2Fm", "/coordination/lock?name=none/m", "lease_id=" + lease, ""},
		{"PUT", "/coordination/requirements/r%2Fs", "/coordination/requirement?id=r/s", "", `{"service":"web","min":1}`},
		{"GET", "/coordination/requirements/r%2Fs", "/coordination/requirement?id=r/s", "wait=1ms", ""},
		{"DELETE", "/coordination/requirements/none%2Fs", "/coordination/requirement?id=none/s", "", ""},
		{"GET", "/discovery/records/x%2Fy", "/discovery/record?id=x/y", "", ""},
		{"DELETE", "/discovery/records/x%2Fy", "/discovery/record?id=x/y", "", ""},
		{"POST", "/discovery/records/x%2Fy/pause", "/discovery/record/pause?id=x/y", "", ""},
	} {
		inPath, inQuery := step.path, step.instead
		if step.more != "" {
			inPath, inQuery = inPath+"?"+step.more, inQuery+"&"+step.more
		}
		code, text := ask(step.method, inPath, step.body)
		again, same := ask(step.method, inQuery, step.body)
		require.Equal(t, code, again, "%s %s: %s", step.method, inQuery, same)
		require.Equal(t, text, same, "%s %s", step.method, inQuery)
		_, parameter, _ := strings.Cut(step.instead, "?")
		code, text = ask(step.method, step.path+"?"+parameter, step.body)
		require.Equal(t, 400, code, "%s %s: %s", step.method, step.path, text)
	}
	resp, err := p.client.Post(p.base+"/lock?name=n/o", "application/json", strings.NewReader(`{"lease_id":"`+lease+`"}`))
	require.NoError(t, err)
	taken, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	token := regexp.MustCompile(`"fencing_token":"(\d+)"`).FindStringSubmatch(string(taken))[1]
	code, text := ask("DELETE", "/coordination/lock?name=n/o&lease_id="+lease+"&fencing_token="+token, "")
	require.Equal(t, 200, code, text)
	code, text = ask("DELETE", "/coordination/key?key=a/b", "")
	require.Equal(t, 200, code, text)
	for path, field := range map[string]string{"/coordination/key": "key", "/coordination/lock?name=": "name", "/coordination/key?key=a&key=b": "key"} {
		code, text := ask("GET", path, "")
		require.Equal(t, 400, code, path)
		require.Contains(t, text, `"field":"`+field+`"`, path)
	}
	code, text = ask("POST", "/coordination/lock?name=l/m", `{"name":"l/m"}`)
	require.Equal(t, 400, code, text)
}

// TestBehindNginx runs the configuration of the how-to: events come at once, and names with a slash reach their objects.
func TestBehindNginx(t *testing.T) {
	nginx, err := exec.LookPath("nginx")
	if err != nil {
		t.Skip("nginx is not installed")
	}
	page, err := os.ReadFile("../../../docs/howto/reverse-proxy.md")
	require.NoError(t, err)
	text := string(regexp.MustCompile("(?s)```nginx\n(.*?)```").FindSubmatch(page)[1])
	p := newCoordFixture(t, func(c *coordConfig) { c.Hosts, c.Guard = []string{"directory.example.com"}, nil })
	dir := t.TempDir()
	roots := certify(t, dir)
	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := free.Addr().String()
	require.NoError(t, free.Close())
	peer := strings.TrimSuffix(strings.TrimPrefix(p.base, "http://"), "/v1/coordination")
	text = strings.NewReplacer("127.0.0.1:8500", peer, "listen 443 ssl", "listen "+address+" ssl", "/etc/nginx/tls", dir).Replace(text)
	text = fmt.Sprintf("daemon off; worker_processes 1; pid %[1]s/pid; error_log stderr; events {}\nhttp { access_log off; client_body_temp_path %[1]s/a; proxy_temp_path %[1]s/b; fastcgi_temp_path %[1]s/c; uwsgi_temp_path %[1]s/d; scgi_temp_path %[1]s/e;\n%[2]s}", dir, text)
	file := filepath.Join(dir, "nginx.conf")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	require.NoError(t, os.Chmod(filepath.Dir(dir), 0o755))
	cmd := exec.CommandContext(t.Context(), nginx, "-c", file, "-p", dir)
	var said bytes.Buffer
	cmd.Stderr = &said
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Wait() })
	client := &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots},
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", address)
		},
	}}
	t.Cleanup(client.CloseIdleConnections)
	const host = "https://directory.example.com"
	ask := func(method, path, body string) (int, string) {
		req, err := http.NewRequestWithContext(t.Context(), method, host+path, strings.NewReader(body))
		require.NoError(t, err)
		resp, err := client.Do(req)
		require.NoError(t, err)
		defer resp.Body.Close()
		all, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return resp.StatusCode, string(all)
	}
	require.Eventually(t, func() bool {
		resp, err := client.Get(host + "/readyz")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode < 500 || resp.StatusCode == 503
	}, time.Minute, 10*time.Millisecond, "nginx did not start: %s", &said)

	code, answer := ask("PUT", "/v1/coordination/keys/a%2Fb", "value")
	require.Equal(t, 200, code, answer)
	code, _ = ask("GET", "/directory/v1/coordination/keys/a%2Fb", "")
	require.Equal(t, 404, code, "nginx has decoded the name: the how-to says so")
	_, want := ask("GET", "/v1/coordination/keys/a%2Fb", "")
	for _, path := range []string{"/v1/coordination/key?key=a/b", "/directory/v1/coordination/key?key=a/b", "/directory/v1/coordination/key?key=a%2Fb"} {
		code, got := ask("GET", path, "")
		require.Equal(t, 200, code, path)
		require.Equal(t, want, got, path)
	}
	for _, prefix := range []string{"", "/directory"} {
		req, err := http.NewRequestWithContext(t.Context(), "GET", host+prefix+"/v1/coordination/watch?key=a/b", nil)
		require.NoError(t, err)
		resp, err := client.Do(req)
		require.NoError(t, err)
		first, err := bufio.NewReader(resp.Body).ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, "event: created\n", first, "it comes before the end of the stream")
		require.NoError(t, resp.Body.Close())
	}
}

// certify writes a certificate of the how-to's host, and returns what trusts it.
func certify(t *testing.T, dir string) *x509.CertPool {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	cert := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"directory.example.com"}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, &key.PublicKey, key)
	require.NoError(t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	require.NoError(t, os.WriteFile(filepath.Join(dir, "server.crt"), text, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "server.key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), 0o600))
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(text)
	return roots
}
