package access

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/secret"
	"github.com/blackhole/blackhole/pkg/fault"
)

// visit makes a call with a bearer token and returns the context in which it is served.
func visit(t *testing.T, g *Guard, token string) (ctx context.Context, err error) {
	t.Helper()
	r := httptest.NewRequest("GET", "/", nil)
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	g.HTTP(Need{Role: RoleReadOnly}, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { ctx = r.Context() }),
		func(_ http.ResponseWriter, refusal error) { err = refusal }).ServeHTTP(httptest.NewRecorder(), r)
	return ctx, err
}

// sessionGuard knows the tokens a, of an admin in a file, and s, of a service.
func sessionGuard(t *testing.T) (g *Guard, at *clock, tokenFile string) {
	at = &clock{}
	tokenFile = write(t, filepath.Join(t.TempDir(), "token"), []byte("a"))
	g, err := New(Config{Enabled: true, Method: MethodToken, Tokens: []Token{
		{TokenFile: tokenFile, Name: "ops", Role: RoleAdmin},
		{Token: secret.New("s"), Name: "web", Role: RoleService, Services: []string{"web"}},
	}}, Options{Now: at.now})
	require.NoError(t, err)
	return g, at, tokenFile
}

// signIn plays a page: the caller of a token makes a code, and the page redeems it.
func signIn(t *testing.T, g *Guard, token string) string {
	t.Helper()
	ctx, err := visit(t, g, token)
	require.NoError(t, err)
	code, _, err := g.Code(ctx)
	require.NoError(t, err)
	session, _, err := g.Redeem(code)
	require.NoError(t, err)
	return session
}

func TestSession(t *testing.T) {
	g, at, _ := sessionGuard(t)
	page, err := visit(t, g, signIn(t, g, "s"))
	require.NoError(t, err)
	require.Equal(t, Principal{Name: "web", Role: RoleService, Services: []string{"web"}}, From(page))
	require.Equal(t, "web", Client(page))
	_, _, err = g.Code(page)
	require.ErrorIs(t, err, fault.Forbidden, "a page must not prolong its session")

	session := signIn(t, g, "s")
	at.advance(sessionLife - time.Second)
	page, err = visit(t, g, session)
	require.NoError(t, err)
	deadline, _ := page.Deadline()
	require.WithinDuration(t, time.Now().Add(time.Second), deadline, 10*time.Second, "open streams end with the session")
	require.NoError(t, g.End(page))
	_, err = visit(t, g, session)
	require.ErrorIs(t, err, fault.Unauthentic)
	require.ErrorIs(t, g.End(context.Background()), fault.Invalid)

	session = signIn(t, g, "s")
	at.advance(sessionLife)
	_, err = visit(t, g, session)
	require.ErrorIs(t, err, fault.Unauthentic)
}

// TestSessionEndsWithItsCredentials: a session lives no longer than the token that opened it.
func TestSessionEndsWithItsCredentials(t *testing.T) {
	g, at, tokenFile := sessionGuard(t)
	session := signIn(t, g, "a")
	write(t, tokenFile, []byte("b"))
	at.advance(2 * pollEvery)
	_, err := visit(t, g, session)
	require.ErrorIs(t, err, fault.Unauthentic)
}

func TestCodes(t *testing.T) {
	g, at, _ := sessionGuard(t)
	ctx, err := visit(t, g, "a")
	require.NoError(t, err)
	code, expires, err := g.Code(ctx)
	require.NoError(t, err)
	require.Equal(t, at.now().Add(codeLife), expires)
	_, _, err = g.Redeem(code)
	require.NoError(t, err)
	_, _, err = g.Redeem(code)
	require.ErrorIs(t, err, fault.Unauthentic, "a code works once")
	_, _, err = g.Redeem("")
	require.ErrorIs(t, err, fault.Unauthentic)

	code, _, err = g.Code(ctx)
	require.NoError(t, err)
	_, err = visit(t, g, code)
	require.ErrorIs(t, err, fault.Unauthentic, "a code is no token")
	at.advance(codeLife)
	_, _, err = g.Redeem(code)
	require.ErrorIs(t, err, fault.Unauthentic, "a code is brief")

	anonymous, err := visit(t, g, "")
	require.NoError(t, err)
	code, _, err = g.Code(anonymous)
	require.NoError(t, err)
	require.Empty(t, code)
	_, _, err = (*Guard)(nil).Redeem("x")
	require.ErrorIs(t, err, fault.Unsupported)
	code, _, err = (*Guard)(nil).Code(ctx)
	require.NoError(t, err)
	require.Empty(t, code)
}

// TestSessionsAreBounded: a caller's next session ends its own oldest one, and all callers together have a bound.
func TestSessionsAreBounded(t *testing.T) {
	g, at, _ := sessionGuard(t)
	other, first := signIn(t, g, "a"), signIn(t, g, "s")
	for range maxOfOne {
		at.advance(time.Second)
		signIn(t, g, "s")
	}
	_, err := visit(t, g, first)
	require.ErrorIs(t, err, fault.Unauthentic)
	_, err = visit(t, g, other)
	require.NoError(t, err)

	full := sessions{}
	for n := range maxSessions {
		require.NoError(t, add(&full.open, maxSessions, fmt.Sprint(n), session{name: fmt.Sprint(n), expires: at.now().Add(time.Hour)}, at.now()))
	}
	one := session{name: "late", expires: at.now().Add(2 * time.Hour)}
	require.ErrorIs(t, add(&full.open, maxSessions, "late", one, at.now()), fault.PoolExhausted)
	at.advance(time.Hour)
	require.NoError(t, add(&full.open, maxSessions, "late", one, at.now()))
	require.Len(t, full.open, 1)
}

// TestSessionOfACertificate: without bearer tokens, the end of a session is no way to become anonymous.
func TestSessionOfACertificate(t *testing.T) {
	ca := newAuthority(t, "ca")
	_, c := serverFiles(t, ca, ca)
	c.Anonymous = "read-only"
	g, err := New(c, Options{Now: (&clock{}).now})
	require.NoError(t, err)
	_, err = visit(t, g, "")
	require.NoError(t, err)
	_, err = visit(t, g, sessionPrefix+"gone")
	require.ErrorIs(t, err, fault.Unauthentic)
}
