package config_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/config"
	"github.com/blackhole/blackhole/pkg/fault"
)

// manifest is the example of SAP-044 Registry, section 8.
const manifest = `
auth:
  enabled: true
  method: token  # or 'jwt'
  token: "${MANIFEST_AUTH_TOKEN}"  # Environment variable
`

const canary = "canary-93b0d1"

func load(t *testing.T, text string, environ ...string) (config.Config, config.Origin) {
	t.Helper()
	c, origin, err := config.Load(config.Source{File: write(t, text), Environ: environ})
	require.NoError(t, err)
	return c, origin
}

func TestSpecifiedAuth(t *testing.T) {
	c, origin := load(t, manifest, "MANIFEST_AUTH_TOKEN="+canary)
	require.True(t, c.Auth.On())
	require.Equal(t, canary, c.Auth.Token())
	require.Equal(t, "environment variable MANIFEST_AUTH_TOKEN", origin["auth.token"])

	c, _ = load(t, "auth: {enabled: true, method: mtls, ca_cert: /path/to/ca.crt, server_cert: /path/to/server.crt, server_key: /path/to/server.key}\nhttp: 0.0.0.0:8500")
	require.True(t, c.Auth.On() && c.Auth.TLS())
	require.Equal(t, "/path/to/ca.crt", c.Auth.CACert)
}

func TestAuthByEnvironment(t *testing.T) {
	for _, one := range []struct {
		environ []string
		token   string
		by      string
	}{
		{[]string{"MANIFEST_AUTH_TOKEN=a"}, "a", "MANIFEST_AUTH_TOKEN"},
		{[]string{"BLACKHOLE_AUTH_TOKEN=b"}, "b", "BLACKHOLE_AUTH_TOKEN"},
		{[]string{"BLACKHOLE_AUTH_TOKEN=b", "MANIFEST_AUTH_TOKEN=a"}, "b", "BLACKHOLE_AUTH_TOKEN"},
		{[]string{"MANIFEST_AUTH_TOKEN=a", "BLACKHOLE_AUTH_TOKEN=b", "MANIFEST_STORAGE_BACKEND=etcd"}, "b", "BLACKHOLE_AUTH_TOKEN"},
	} {
		c, origin, err := config.Load(config.Source{Environ: one.environ})
		require.NoError(t, err)
		require.Equal(t, one.token, c.Auth.Token())
		require.Equal(t, "environment variable "+one.by, origin["auth.token"])
		require.True(t, c.Auth.On(), "a token that is set is asked for")
	}
	c, _, err := config.Load(config.Source{Environ: []string{"MANIFEST_AUTH_TOKEN=a", "MANIFEST_AUTH_ENABLED=false"}})
	require.NoError(t, err)
	require.False(t, c.Auth.On())
	c, _, err = config.Load(config.Source{})
	require.NoError(t, err)
	require.False(t, c.Auth.On())
}

func TestAuthOn(t *testing.T) {
	for text, on := range map[string]bool{
		"{}":                                               false,
		"{server_cert: a, server_key: b}":                  false,
		"{enabled: true}":                                  true,
		"{token: a}":                                       true,
		"{token: a, enabled: false}":                       false,
		"{token_file: a}":                                  true,
		"{tokens: [{token: a, role: admin}]}":              true,
		"{method: jwt, jwt: {key: a}}":                     true,
		"{method: jwt, jwt: {key_file: a}}":                true,
		"{method: mtls, ca_cert: a}":                       true,
		"{method: jwt, jwt: {algorithms: [ES256, ES384]}}": false,
	} {
		c, _ := load(t, "auth: "+text)
		require.Equal(t, on, c.Auth.On(), text)
	}
}

func TestTokens(t *testing.T) {
	c, _ := load(t, `
auth:
  tokens:
    - {token: "${WEB}", name: web, role: service, services: [web, api-*]}
    - {token_file: /run/t, role: read-only}
`, "WEB="+canary)
	require.Len(t, c.Auth.Tokens, 2)
	require.Equal(t, canary, c.Auth.Tokens[0].Token())
	require.Equal(t, []string{"web", "api-*"}, c.Auth.Tokens[0].Services)
	require.Equal(t, config.Token{TokenFile: "/run/t", Role: "read-only"}, c.Auth.Tokens[1])
	require.Equal(t, "[{token: [redacted], name: web, role: service, services: [web, api-*]}, {token_file: /run/t, role: read-only}]",
		c.Value("auth.tokens"))
}

func TestAuthRefuses(t *testing.T) {
	for text, field := range map[string]string{
		"{enabled: perhaps}":                                "auth.enabled",
		"{method: basic}":                                   "auth.method",
		"{anonymous: admin}":                                "auth.anonymous",
		"{server_cert: a}":                                  "auth.server_key",
		"{server_key: a}":                                   "auth.server_cert",
		"{token: 123456}":                                   "auth.token",
		"{token: [" + canary + "]}":                         "auth.token",
		"{token: ''}":                                       "auth.token",
		"{token: '[redacted]'}":                             "auth.token",
		"{token: '${EMPTY}'}":                               "auth.token",
		"{token: '${UNSET}'}":                               "auth.token",
		"{token: '" + canary + "${'}":                       "auth.token",
		"{token: '" + canary + "${a b}'}":                   "auth.token",
		"{tokens: " + canary + "}":                          "auth.tokens",
		"{tokens: [" + canary + "]}":                        "auth.tokens[0]",
		"{tokens: [{token: a, role: root}]}":                "auth.tokens[0].role",
		"{tokens: [{token: a, role: admin}, {token: b}]}":   "auth.tokens[1].role",
		"{tokens: [{token: " + canary + ", rolle: admin}]}": "auth.tokens[0].rolle",
		"{tokens: [{token: [" + canary + "]}]}":             "auth.tokens[0].token",
		"{tokens: [{token: '${UNSET}'}]}":                   "auth.tokens[0].token",
		"{tokens: [{services: {a: b}, role: admin}]}":       "auth.tokens[0].services",
		"{jwt: {key: {a: " + canary + "}}}":                 "auth.jwt.key",
		"{jwt: {algorithms: [HS256]}}":                      "auth.jwt",
		"{method: jwt, token: " + canary + "}":              "auth.token",
		"{ca_cert: a}":                                      "auth.ca_cert",
		"{certificates: [{name: a, role: admin}]}":          "auth.certificates",
		"{method: mtls, certificates: [{name: a}]}":         "auth.certificates[0].role",
	} {
		_, _, err := config.Load(config.Source{File: write(t, "auth: "+text), Environ: []string{"EMPTY="}})
		require.ErrorIs(t, err, fault.Invalid, text)
		require.Equal(t, field, fault.FieldOf(err), "%s: %v", text, err)
		require.NotContains(t, fmt.Sprintf("%+v %v", err, fault.ValueOf(err)), canary)
	}
	for _, name := range []string{"BLACKHOLE_AUTH_TOKEN", "MANIFEST_AUTH_TOKEN"} {
		_, _, err := config.Load(config.Source{Environ: []string{name + "="}})
		require.Equal(t, "auth.token", fault.FieldOf(err))
		require.ErrorContains(t, err, name)
	}
	_, _, err := config.Load(config.Source{Environ: []string{"BLACKHOLE_AUTH_TOKENS=" + canary}})
	require.Equal(t, "auth.tokens", fault.FieldOf(err))
	require.NotContains(t, err.Error(), canary)
}

// TestListenersBeyondLoopback expects public listeners to need TLS and authentication.
func TestListenersBeyondLoopback(t *testing.T) {
	const pair = "server_cert: a, server_key: b"
	for _, key := range []string{"http", "grpc"} {
		for auth, ok := range map[string]bool{
			"{}":                            false,
			"{token: a}":                    false,
			"{" + pair + "}":                false,
			"{" + pair + ", token: a}":      true,
			"{" + pair + ", enabled: true}": true,
			"{" + pair + ", token: a, enabled: false}": false,
		} {
			_, _, err := config.Load(config.Source{File: write(t, key+": 0.0.0.0:8500\nauth: "+auth)})
			if ok {
				require.NoError(t, err, auth)
				continue
			}
			require.Equal(t, key, fault.FieldOf(err), auth)
			require.ErrorContains(t, err, "auth.server_cert")
		}
	}
}

func TestExpansion(t *testing.T) {
	c, _ := load(t, "data: /x/${A}-${B}/$${A}/$A\ndiscovery: {cache: {size: '${N}'}}\nbootstrap: ['${P}']",
		"A=one", "B=", "N=500", "P=/ip4/127.0.0.1/tcp/1")
	require.Equal(t, "/x/one-/${A}/$A", c.Data)
	require.Equal(t, 500, c.Discovery.Cache.Size)
	require.Equal(t, []string{"/ip4/127.0.0.1/tcp/1"}, c.Bootstrap)

	c, _, err := config.Load(config.Source{Environ: []string{"BLACKHOLE_DATA=${A}", "A=one"}})
	require.NoError(t, err)
	require.Equal(t, "${A}", c.Data, "in the file only")
	c, _ = load(t, "data: '${A}'", "A=${B}", "B=x")
	require.Equal(t, "${B}", c.Data, "once")
}

// TestSettingsNeverPrintSecrets sets every secret and prints the settings.
func TestSettingsNeverPrintSecrets(t *testing.T) {
	all := strings.ReplaceAll("auth: {method: METHOD, token: X, tokens: [{token: X2, role: admin}]}", "X", canary)
	c, _ := load(t, strings.ReplaceAll(all, "METHOD", "token"))
	j, _ := load(t, "auth: {method: jwt, jwt: {key: "+canary+"}}")
	type part struct{ config config.Config } // like a component
	var out strings.Builder
	for _, c := range []config.Config{c, j} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x", "%q"} {
			fmt.Fprintf(&out, verb+verb+verb, c, &c, part{c})
		}
		for _, key := range config.Keys() {
			fmt.Fprintln(&out, c.Value(key))
		}
		for _, h := range []slog.Handler{slog.NewTextHandler(&out, nil), slog.NewJSONHandler(&out, nil)} {
			slog.New(h).Info("settings", "auth", c.Auth, "token", c.Auth.Token, "config", c)
		}
		text, err := json.Marshal(c)
		require.NoError(t, err)
		out.Write(text)
	}
	require.NotContains(t, out.String(), canary)
	require.NotContains(t, out.String(), fmt.Sprintf("%x", canary))
	require.Contains(t, out.String(), "[redacted]")
	require.Equal(t, "[redacted]", c.Value("auth.token"))
	text, err := json.Marshal(j.Auth.Token)
	require.NoError(t, err)
	require.Equal(t, "null", string(text))
	require.Empty(t, j.Value("auth.token"))
}

// TestSettingsWithSecret: a settings file with a secret written out belongs to its owner alone.
func TestSettingsWithSecret(t *testing.T) {
	for text, secret := range map[string]string{
		"auth: {token: canary}": "auth.token",
		"auth: {tokens: [{token: \"${T}\", role: admin}, {token: canary, role: admin}]}": "auth.tokens[1].token",
		"auth: {method: jwt, jwt: {key: \"0123456789012345678901234567890123456789\"}}":  "auth.jwt.key",
		"auth: {token: \"${T}\"}": "",
		"profile: dev":            "",
	} {
		path := filepath.Join(t.TempDir(), "settings.yaml")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
		load := func() error {
			_, _, err := config.Load(config.Source{File: path, Environ: []string{"T=token"}})
			return err
		}
		err := load()
		if secret == "" {
			require.NoError(t, err, text)
			continue
		}
		require.Equal(t, secret, fault.FieldOf(err), text)
		require.ErrorContains(t, err, "mode 0644: allow only its owner (chmod 600)")
		require.NotContains(t, err.Error(), "canary")
		require.NoError(t, os.Chmod(path, 0o600))
		if err := load(); err != nil {
			require.NotContains(t, err.Error(), "chmod", text)
		}
	}
}
