package ui

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/sim/loopback"
)

// startGuarded starts a peer with authentication and a service of one instance.
func startGuarded(t *testing.T, anonymous string) (p *peer, link func(token string) string) {
	settings := filepath.Join(t.TempDir(), "settings.yaml")
	require.NoError(t, os.WriteFile(settings, []byte(`
auth:
  enabled: true
  method: token
  anonymous: `+anonymous+`
  tokens:
    - {token: of-ops, name: ops, role: admin}
    - {token: of-web, name: web, role: service, services: [web]}
    - {token: of-eyes, name: eyes, role: read-only}
`), 0o600))
	grpc := loopback.Free(t)
	p = startPeer(t, "--config", settings, "--grpc", grpc)
	require.Eventually(t, func() bool {
		r, err := http.NewRequest("POST", "http://"+p.http+"/v1/services/web/instances", strings.NewReader(
			`{"id": "web-1", "host": "10.0.0.1", "port": 80, "unhealthy_after": "1h", "remove_after": "2h"}`))
		require.NoError(t, err)
		r.Header.Set("Authorization", "Bearer of-ops")
		resp, err := http.DefaultClient.Do(r)
		if err == nil {
			resp.Body.Close()
		}
		return err == nil && resp.StatusCode < 300
	}, waitForPeer, pollEvery)
	return p, func(token string) string {
		c := exec.CommandContext(t.Context(), p.program, "ui", "--grpc", grpc)
		c.Env = append(os.Environ(), "BLACKHOLE_AUTH_TOKEN="+token)
		text, err := c.Output()
		require.NoError(t, err)
		return strings.Replace(strings.TrimSpace(string(text)), "localhost", "127.0.0.1", 1)
	}
}

// secretsLeft lists where the page keeps something: it must keep nothing.
const secretsLeft = `JSON.stringify([location.href, document.cookie, Object.keys(localStorage), Object.keys(sessionStorage), history.state])`

// TestLogin signs in at a peer with authentication: by a link of the command ui, and by a token. The page
// offers each role what that role may do.
func TestLogin(t *testing.T) {
	t.Parallel()
	b := openBrowser(t)
	p, link := startGuarded(t, "none")
	b.visit(p.url(""))
	b.text("This peer wants to know who asks")
	b.text("blackholed ui")

	first := link("of-ops")
	require.Contains(t, first, "#code=")
	b.visit(first)
	b.text("ops admin")
	b.until(`location.hash === '#/overview'`)
	left := b.eval(secretsLeft)
	require.NotContains(t, left, "code=")
	require.NotContains(t, left, "page-")
	b.offers("web", "Drain", true)

	b.visit("about:blank")
	b.visit(first)
	b.text("has been used or is too old")

	for _, reader := range []struct {
		token, shown string
		drains       bool
	}{{"of-web", "web service", true}, {"of-eyes", "eyes read-only", false}} {
		b.eval(`document.querySelector('#token').value = '` + reader.token + `', document.querySelector('form').requestSubmit()`)
		b.text(reader.shown)
		require.NotContains(t, b.eval(secretsLeft), reader.token)
		b.offers("web", "Drain", reader.drains)
		b.eval(`location.hash = '#/map'`)
		b.text("No offers yet")
		b.text("it needs admin") // an offer takes an admin, so its command is not offered
		b.reloads(`[...document.querySelectorAll('button')].find(b => b.textContent === 'Sign out').click()`)
		b.text("This peer wants to know who asks")
	}

	b.visit(link("of-eyes"))
	b.text("eyes read-only")
	require.NotContains(t, b.eval(secretsLeft), "page-")
}

// TestGuest: a peer that lets strangers read shows them its page, and a way to sign in.
func TestGuest(t *testing.T) {
	t.Parallel()
	b := openBrowser(t)
	p, link := startGuarded(t, "read-only")
	b.visit(p.url("#/services?service=web"))
	b.text("web-1")
	b.offers("web", "Drain", false)
	b.press("button", "Sign in")
	b.text("or a token")
	b.press("button", "Go on")
	b.text("web-1")
	require.NotContains(t, link(""), "#", "a stranger needs no code")
	b.clean()
}

// offers checks whether the page of a service has a button.
func (b *browser) offers(service, button string, want bool) {
	b.t.Helper()
	b.eval(`location.hash = '#/services?service=` + service + `'`)
	b.text(service + "-1")
	b.until(fmt.Sprintf("[...document.querySelectorAll('button')].some(b => b.textContent === '%s') === %t", button, want))
}
