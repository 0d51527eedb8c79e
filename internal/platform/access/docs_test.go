package access

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/config"
)

// examples returns the settings files and the key-making commands of the operators' page.
func examples(t *testing.T) (settings, commands []string) {
	t.Helper()
	text, err := os.ReadFile("../../../docs/security.md")
	require.NoError(t, err)
	for _, m := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllSubmatch(text, -1) {
		settings = append(settings, string(m[1]))
	}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "    openssl ") {
			commands = append(commands, strings.TrimSpace(line))
		}
	}
	require.Len(t, settings, 5)
	require.Len(t, commands, 5)
	return settings, commands
}

// fromSettings is how a daemon fills a Config.
func fromSettings(t *testing.T, a config.Auth) Config {
	t.Helper()
	c := Config{
		Enabled: a.On(), Method: a.Method, Token: a.Token, TokenFile: a.TokenFile,
		CACert: a.CACert, ServerCert: a.ServerCert, ServerKey: a.ServerKey,
		JWT: JWT{Algorithms: a.JWT.Algorithms, Key: a.JWT.Key, KeyFile: a.JWT.KeyFile, Audience: a.JWT.Audience, Issuer: a.JWT.Issuer},
	}
	if a.Anonymous != "auto" {
		c.Anonymous = a.Anonymous
	}
	for _, one := range a.Tokens {
		role, err := ParseRole(one.Role)
		require.NoError(t, err)
		c.Tokens = append(c.Tokens, Token{Token: one.Token, TokenFile: one.TokenFile, Name: one.Name, Role: role, Services: one.Services})
	}
	for _, one := range a.Certificates {
		role, err := ParseRole(one.Role)
		require.NoError(t, err)
		c.Certificates = append(c.Certificates, Certificate{Name: one.Name, Role: role, Services: one.Services})
	}
	return c
}

// TestOperatorsPage: its settings work as printed, with the keys that its commands make.
func TestOperatorsPage(t *testing.T) {
	settings, commands := examples(t)
	if _, err := exec.LookPath("openssl"); err != nil {
		t.Skip("no openssl")
	}
	t.Chdir(t.TempDir())
	for _, command := range commands {
		out, err := exec.CommandContext(t.Context(), "sh", "-c", command).CombinedOutput()
		require.NoError(t, err, "%s\n%s", command, out)
	}
	write(t, "admin.token", []byte("abc123\n"))
	for _, text := range settings {
		path := write(t, filepath.Join(t.TempDir(), "c.yaml"), []byte(text))
		environ := []string{"WEB_TOKEN=b", "PROMETHEUS_TOKEN=c"}
		if strings.Contains(text, "MANIFEST_AUTH_TOKEN") {
			environ = append(environ, "MANIFEST_AUTH_TOKEN=a")
		}
		c, _, err := config.Load(config.Source{File: path, Environ: environ})
		require.NoError(t, err, text)
		auth := fromSettings(t, c.Auth)
		g, err := New(auth, Options{})
		require.NoError(t, err, text)
		require.Equal(t, !strings.HasPrefix(text, "unix:"), g != nil, text)
		secure, err := NewTLS(auth, Options{})
		require.NoError(t, err, text)
		if secure == nil {
			continue
		}
		l := loopback(t)
		serve(t, l, g, secure.Server("h2", "http/1.1"))
		requireWebOnly(t, "https://"+l.Addr().String()+"/")
	}
}

// requireWebOnly checks the statements of the page about web.crt.
func requireWebOnly(t *testing.T, url string) {
	t.Helper()
	pair, err := tls.LoadX509KeyPair("web.crt", "web.key")
	require.NoError(t, err)
	ca, err := os.ReadFile("ca.crt")
	require.NoError(t, err)
	pool := x509.NewCertPool()
	require.True(t, pool.AppendCertsFromPEM(ca))
	trust := &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS13}
	hc := client(t, trust)
	status, body := get(t, hc, "POST", url+"?service=web")
	require.Equal(t, 200, status)
	require.Equal(t, "web service web", body)
	status, _ = get(t, hc, "POST", url+"?service=api")
	require.Equal(t, 403, status)
}
