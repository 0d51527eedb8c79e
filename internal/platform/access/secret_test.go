package access

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/blackhole/blackhole/internal/platform/secret"
	"github.com/blackhole/blackhole/pkg/fault"
)

const canary = "canary-5f2e91c07ab34d68-tweets"

// forms returns the texts in which printers would show the canary.
func forms(text string) []string {
	return []string{text, hex.EncodeToString([]byte(text)), strings.ToUpper(hex.EncodeToString([]byte(text))),
		fmt.Sprint([]byte(text)), strings.Trim(fmt.Sprint([]byte(text)), "[]")}
}

func requireHidden(t *testing.T, text, printed string) {
	t.Helper()
	for _, form := range forms(text) {
		require.NotContains(t, printed, form)
	}
}

// printed is a value in all the ways in which one gets into logs and answers.
func printed(t *testing.T, v any) string {
	t.Helper()
	var b bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "% x", "%d", "%10v", "%T"} {
		fmt.Fprintf(&b, verb+"\n", v)
	}
	fmt.Fprintln(&b, v, []any{v}, map[string]any{"k": v}, struct{ hidden any }{v})
	for _, h := range []slog.Handler{slog.NewTextHandler(&b, nil), slog.NewJSONHandler(&b, nil)} {
		slog.New(h).Info("m", "v", v, slog.Group("g", "v", v))
	}
	if text, err := json.Marshal(v); err == nil {
		b.Write(text)
	}
	func() {
		defer func() { _ = recover() }() // yaml panics for types without a form
		if text, err := yaml.Marshal(v); err == nil {
			b.Write(text)
		}
	}()
	return b.String()
}

func TestSecretNeverPrints(t *testing.T) {
	type holder struct {
		Open   secret.Value
		hidden secret.Value
		deep   struct{ list []secret.Value }
	}
	s := secret.New(canary)
	h := holder{Open: s, hidden: s, deep: struct{ list []secret.Value }{[]secret.Value{s}}}
	config := Config{
		Enabled: true, Token: s, Tokens: []Token{{Token: secret.New(canary + "2"), Role: RoleAdmin}},
		JWT: JWT{Key: s},
	}
	for _, v := range []any{s, &s, h, &h, config, &config, struct{ c Config }{config}} {
		requireHidden(t, canary, printed(t, v))
	}
	require.Equal(t, canary, s.Text())
	require.Contains(t, fmt.Sprint(s), secret.Redacted)

	text, err := json.Marshal(s)
	require.NoError(t, err)
	require.Equal(t, `"[redacted]"`, string(text))
	text, err = yaml.Marshal(map[string]secret.Value{"token": s, "none": nil})
	require.NoError(t, err)
	require.Equal(t, "none: null\ntoken: '[redacted]'\n", string(text))
	require.Nil(t, secret.New(""))
	require.Empty(t, fmt.Sprint(secret.Value(nil)))
	require.Empty(t, secret.Value(nil).Text())
}

// TestGuardsNeverPrint is about everything that is made of a secret, the errors included.
func TestGuardsNeverPrint(t *testing.T) {
	digest := sha256.Sum256([]byte(canary))
	var log journal
	o := Options{Logger: log.logger()}
	path := write(t, filepath.Join(t.TempDir(), "token"), []byte(canary+"\n"))
	for _, c := range []Config{
		{Enabled: true, Token: secret.New(canary)},
		{Enabled: true, TokenFile: path},
		{Enabled: true, Method: MethodJWT, JWT: JWT{Algorithms: []string{"HS256"}, Key: secret.New(canary + canary), Audience: "a"}},
		{Enabled: true, Method: MethodJWT, JWT: JWT{Algorithms: []string{"HS256"}, KeyFile: write(t, path+"2", []byte(canary+canary)), Audience: "a"}},
	} {
		g, err := New(c, o)
		require.NoError(t, err)
		_, err = g.identify(callCredentials{authorization: []string{"Bearer " + canary + "x"}, address: "127.0.0.1:1"})
		require.ErrorIs(t, err, fault.Unauthentic)
		text := printed(t, g) + printed(t, *g.rules.Load()) + printed(t, g.rules.Load().bearers.get()) + printed(t, err) // the last: behind a pointer
		for _, form := range forms(canary)[:3] {
			require.NotContains(t, text, form)
		}
		require.NotContains(t, text, hex.EncodeToString(digest[:]))
	}
	for _, c := range []Config{
		{Enabled: true, Token: secret.New(canary), Tokens: []Token{{Token: secret.New(canary), Role: RoleAdmin}}},
		{Enabled: true, Token: secret.New(canary + " ")},
		{Enabled: true, Token: secret.New(canary), TokenFile: path},
		{Enabled: true, Token: secret.New(canary), Method: MethodJWT},
		{Enabled: true, Tokens: []Token{{Token: secret.New(canary + "\x7f"), Role: RoleAdmin}}},
		{Enabled: true, Method: MethodJWT, JWT: JWT{Algorithms: []string{"HS256"}, Key: secret.New(canary), Audience: "a"}},
		{Enabled: true, Method: MethodJWT, JWT: JWT{Algorithms: []string{"ES256"}, Key: secret.New(canary), Audience: "a"}},
		{Enabled: true, Method: MethodJWT, JWT: JWT{Algorithms: []string{"ES256"}, KeyFile: path, Audience: "a"}},
	} {
		_, err := New(c, o)
		require.ErrorIs(t, err, fault.Invalid)
		requireHidden(t, canary, printed(t, err)+fmt.Sprint(fault.ValueOf(err)))
	}
	require.Contains(t, log.String(), "refused a caller")
	requireHidden(t, canary, log.String())
}

func TestFilesOfSecrets(t *testing.T) {
	dir := t.TempDir()
	path := write(t, filepath.Join(dir, "token"), []byte("secret\n"))
	for _, mode := range []os.FileMode{0o640, 0o604, 0o620, 0o644, 0o601} {
		require.NoError(t, os.Chmod(path, mode))
		_, err := New(Config{Enabled: true, TokenFile: path}, Options{})
		require.ErrorIs(t, err, fault.Invalid, mode)
		require.Equal(t, "token_file", fault.FieldOf(err))
		require.ErrorContains(t, err, "chmod 600")
	}
	for name, text := range map[string]string{"empty": "", "blank": "\n", "large": strings.Repeat("x", maxFile+1), "two": "a\nb\n"} {
		_, err := New(Config{Enabled: true, TokenFile: write(t, filepath.Join(dir, name), []byte(text))}, Options{})
		require.ErrorIs(t, err, fault.Invalid, name)
		require.Equal(t, "token_file", fault.FieldOf(err))
	}
	_, err := New(Config{Enabled: true, Tokens: []Token{{TokenFile: filepath.Join(dir, "none"), Role: RoleAdmin}}}, Options{})
	require.ErrorIs(t, err, os.ErrNotExist)
	require.Equal(t, "tokens[0].token_file", fault.FieldOf(err))
}
