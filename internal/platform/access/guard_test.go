package access

import (
	"context"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/secret"
	"github.com/blackhole/blackhole/pkg/fault"
)

func newGuard(t testing.TB, c Config, o Options) *Guard {
	t.Helper()
	g, err := New(c, o)
	require.NoError(t, err)
	return g
}

// threeTokens has one token per role, besides the admin token.
func threeTokens() Config {
	return Config{Enabled: true, Token: secret.New("admin-token"), Tokens: []Token{
		{Token: secret.New("web-token"), Name: "web", Role: RoleService, Services: []string{"web"}},
		{Token: secret.New("read-token"), Role: RoleReadOnly},
	}}
}

// ask answers one request without a network.
func ask(g *Guard, method, path string, authorization ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, nil)
	if len(authorization) > 0 {
		r.Header["Authorization"] = authorization
	}
	w := httptest.NewRecorder()
	g.HTTP(needs(r), http.HandlerFunc(whoami), refuse).ServeHTTP(w, r)
	return w
}

// TestWrongCredentialWhereNoneIsNeeded: who has only an ended token reaches what needs no role, as nobody, and
// nothing else.
func TestWrongCredentialWhereNoneIsNeeded(t *testing.T) {
	g := newGuard(t, threeTokens(), Options{})
	for _, wrong := range []string{"Bearer ended", "Basic eDp5", "ended"} {
		open := ask(g, "GET", "/livez", wrong)
		require.Equal(t, http.StatusOK, open.Code)
		require.Equal(t, " read-only 192.0.2.1", open.Body.String())
		require.Equal(t, http.StatusUnauthorized, ask(g, "GET", "/", wrong).Code)
	}
}

func TestGuardByToken(t *testing.T) {
	g := newGuard(t, threeTokens(), Options{})
	for _, c := range []struct {
		method, path, token string
		status              int
		body                string
	}{
		{"GET", "/livez", "", 200, " read-only 192.0.2.1"},
		{"GET", "/", "", 200, " read-only 192.0.2.1"},
		{"POST", "/", "", 401, ""},
		{"DELETE", "/", "", 401, ""},
		{"GET", "/", "read-token", 200, "token-2 read-only token-2"},
		{"POST", "/", "read-token", 403, ""},
		{"POST", "/?service=web", "web-token", 200, "web service web"},
		{"POST", "/?service=api", "web-token", 403, ""},
		{"DELETE", "/?service=web", "web-token", 403, ""},
		{"DELETE", "/", "admin-token", 200, "token admin token"},
		{"GET", "/", "wrong", 401, ""},
		{"GET", "/livez", "wrong", 200, " read-only 192.0.2.1"},
	} {
		var header []string
		if c.token != "" {
			header = []string{"Bearer " + c.token}
		}
		w := ask(g, c.method, c.path, header...)
		require.Equal(t, c.status, w.Code, "%+v", c)
		challenge := w.Header().Get("WWW-Authenticate")
		switch {
		case c.status == 200:
			require.Equal(t, c.body, w.Body.String(), "%+v", c)
		case c.status != 401:
			require.Empty(t, challenge)
		case c.token == "":
			require.Equal(t, `Bearer realm="blackhole"`, challenge)
		default:
			require.Equal(t, `Bearer realm="blackhole", error="invalid_token"`, challenge)
		}
	}
}

func TestAnonymousNone(t *testing.T) {
	c := threeTokens()
	c.Anonymous = "none"
	g := newGuard(t, c, Options{})
	require.Equal(t, 401, ask(g, "GET", "/").Code)
	require.Equal(t, 200, ask(g, "GET", "/livez").Code)
	require.Equal(t, 200, ask(g, "GET", "/", "Bearer read-token").Code)
}

func TestOpenGuard(t *testing.T) {
	g := newGuard(t, Config{Token: secret.New("x")}, Options{})
	require.Nil(t, g)
	w := ask(g, "DELETE", "/", "Basic whatever")
	require.Equal(t, 200, w.Code)
	require.Equal(t, "local admin 192.0.2.1", w.Body.String())
}

func TestBearer(t *testing.T) {
	for _, c := range []struct {
		values []string
		token  string
		wrong  bool
	}{
		{nil, "", false},
		{[]string{"Bearer abc123"}, "abc123", false},
		{[]string{"bearer abc123"}, "abc123", false},
		{[]string{"BEARER   abc123"}, "abc123", false},
		{[]string{""}, "", true},
		{[]string{"Bearer"}, "", true},
		{[]string{"Bearer "}, "", true},
		{[]string{"Bearer a b"}, "", true},
		{[]string{"Bearer a "}, "", true},
		{[]string{"Bearer\tabc"}, "", true},
		{[]string{"Bearer a\x00"}, "", true},
		{[]string{"Bearer \u212a"}, "", true},
		{[]string{"abc123"}, "", true},
		{[]string{" Bearer abc123"}, "", true},
		{[]string{"Basic YTpi"}, "", true},
		{[]string{"Bearer " + strings.Repeat("x", maxToken+1)}, "", true},
		{[]string{"Bearer a", "Bearer a"}, "", true},
	} {
		token, err := bearer(c.values)
		require.Equal(t, c.wrong, err != nil, "%q", c.values)
		require.Equal(t, c.token, token)
	}
}

// FuzzAuthorization: only a header with the token itself authenticates.
func FuzzAuthorization(f *testing.F) {
	const token = "abc123"
	g, err := New(Config{Enabled: true, Token: secret.New(token)}, Options{})
	require.NoError(f, err)
	for _, seed := range []string{"Bearer abc123", "bearer  abc123", "Bearer abc1234", "Basic abc123", "Bearer", "", "Bearer abc123 ", "Bearer [redacted]"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, header string) {
		c, err := g.identify(callCredentials{authorization: []string{header}})
		scheme, rest, spaced := strings.Cut(header, " ")
		if spaced && strings.EqualFold(scheme, "bearer") && strings.TrimLeft(rest, " ") == token {
			require.NoError(t, err)
			require.Equal(t, RoleAdmin, c.Role)
			return
		}
		require.ErrorIs(t, err, fault.Unauthentic)
		require.Equal(t, caller{}, c)
	})
}

func TestTokenFileIsReloaded(t *testing.T) {
	var at clock
	var log journal
	path := write(t, filepath.Join(t.TempDir(), "token"), []byte("first\n"))
	g := newGuard(t, Config{Enabled: true, TokenFile: path}, Options{Now: at.now, Logger: log.logger()})
	allows := func(token string) bool { return ask(g, "DELETE", "/", "Bearer "+token).Code == 200 }
	require.True(t, allows("first"))

	write(t, path, []byte("second\n"))
	require.True(t, allows("first"), "looked at less than a second ago")
	at.advance(pollEvery)
	require.False(t, allows("first"))
	require.True(t, allows("second"))

	write(t, path, []byte("\n"))
	for range 3 {
		at.advance(pollEvery)
		require.True(t, allows("second"), "what cannot be read changes nothing")
	}
	require.Equal(t, 1, strings.Count(log.String(), "level=WARN"), log.String())
	write(t, path, []byte("third\n"))
	at.advance(-time.Hour) // a clock set back does not end the session
	require.True(t, allows("third"))
}

func TestClientOf(t *testing.T) {
	for address, want := range map[string]string{
		"192.0.2.1:99":              "192.0.2.1",
		"[::ffff:192.0.2.1]:99":     "192.0.2.1",
		"[2001:db8:1:2:3:4:5:6]:99": "2001:db8:1:2::/64",
		"[2001:db8:1:2:ffff::1]:1":  "2001:db8:1:2::/64",
		"[fe80::1%eth0]:1":          "fe80::/64",
		"[2001:db8:1:3:3:4:5:6]:99": "2001:db8:1:3::/64",
		"something else":            "something else",
	} {
		require.Equal(t, want, clientOf(callCredentials{address: address}), address)
	}
	require.Equal(t, "uid:7", clientOf(callCredentials{address: "192.0.2.1:99", remote: peerAddr{uid: 7, known: true}}))
	require.Equal(t, "uid:unknown", clientOf(callCredentials{remote: peerAddr{}}))
}

// TestPeers: root and the owner of the process need no token on the socket, other users do.
func TestPeers(t *testing.T) {
	g := newGuard(t, threeTokens(), Options{})
	g.uid = 1000
	for _, c := range []struct {
		peer peerAddr
		role Role
	}{
		{peerAddr{uid: 1000, known: true}, RoleAdmin},
		{peerAddr{uid: 0, known: true}, RoleAdmin},
		{peerAddr{uid: 1001, known: true}, RoleReadOnly},
		{peerAddr{uid: 0}, RoleReadOnly},
	} {
		got, err := g.identify(callCredentials{remote: c.peer})
		require.NoError(t, err)
		require.Equal(t, c.role, got.Role, "%+v", c)

		got, err = g.identify(callCredentials{remote: c.peer, authorization: []string{"Bearer read-token"}})
		require.NoError(t, err)
		require.Equal(t, "token-2", got.Name, "a token that is brought counts")
		_, err = g.identify(callCredentials{remote: c.peer, authorization: []string{"Bearer wrong"}})
		require.ErrorIs(t, err, fault.Unauthentic)
	}
}

func BenchmarkGuard(b *testing.B) {
	c := threeTokens()
	for range 100 {
		c.Tokens = append(c.Tokens, Token{Token: secret.New("t" + time.Duration(len(c.Tokens)).String()), Role: RoleReadOnly})
	}
	r := httptest.NewRequestWithContext(context.Background(), "GET", "/", nil)
	r.Header.Set("Authorization", "Bearer read-token")
	for name, g := range map[string]*Guard{"open": nil, "token": newGuard(b, threeTokens(), Options{}), "of 103 tokens": newGuard(b, c, Options{})} {
		h := g.HTTP(needs(r), http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), refuse)
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			w := httptest.NewRecorder()
			w.Body = nil
			for b.Loop() {
				h.ServeHTTP(w, r)
			}
		})
	}
}
