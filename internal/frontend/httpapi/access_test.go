package httpapi

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/discovery"
	"github.com/blackhole/blackhole/internal/platform/access"
	"github.com/blackhole/blackhole/internal/platform/secret"
)

// TestAccess: the roles of the table and the guard of package access work together.
func TestAccess(t *testing.T) {
	guard, err := access.New(access.Config{Enabled: true, Method: "token", Anonymous: "none", Tokens: []access.Token{
		{Token: secret.New(strings.Repeat("r", 32)), Name: "dashboard", Role: access.RoleReadOnly},
		{Token: secret.New(strings.Repeat("s", 32)), Name: "payment", Role: access.RoleService, Services: []string{"payment", "blue/orders"}},
		{Token: secret.New(strings.Repeat("a", 32)), Name: "operator", Role: access.RoleAdmin},
	}}, access.Options{})
	require.NoError(t, err)
	a := newAgentFixture(t, func(c *Config) {
		watch := c.Guard
		c.Guard = func(role access.Role, next http.Handler, refuse func(http.ResponseWriter, error)) http.Handler {
			return watch(role, guard.HTTP(access.Need{Role: role}, next, refuse), refuse)
		}
		c.May = func(ctx context.Context, service string) error {
			return access.Check(ctx, access.Need{Role: access.RoleService, Service: service})
		}
	})
	as := func(token string) func(*http.Request) {
		return header("Authorization", "Bearer "+strings.Repeat(token, 32))
	}
	unknown, denied := refusal{401, "unauthorized", ""}, refusal{403, "forbidden", ""}

	a.ok(t, 200, "GET /v1/health", "")
	got := a.refused(t, unknown, "GET /v1/services", "")
	require.Equal(t, "Missing or invalid authentication token", got.json["message"])
	require.Contains(t, got.header.Get("WWW-Authenticate"), "Bearer")
	a.refused(t, unknown, "POST "+payments, payment)
	a.refused(t, unknown, "POST "+payments, payment, as("x"))
	a.refused(t, denied, "POST "+payments, payment, as("r"))
	a.ok(t, 201, "POST "+payments, beating(), as("s"))
	a.ok(t, 200, "GET "+payments, "", as("r"))
	a.ok(t, 204, "PUT /v1/services/payment/payment-1/heartbeat", "", as("s"))
	a.refused(t, denied, "PUT /v1/services/payment/payment-1/heartbeat", "", as("r"))
	a.refused(t, denied, "DELETE /v1/services/orders/a", "", as("s"))
	a.refused(t, denied, "POST /v1/services", service("orders", "a"), as("s"))
	a.ok(t, 201, "POST /v1/services", service("orders", "a", set("namespace", "blue")), as("s"))
	a.ok(t, 204, "DELETE /v1/services/orders/a?namespace=blue", "", as("s"))
	a.ok(t, 201, "POST /v1/services", service("orders", "a"), as("a"))
	a.refused(t, denied, "DELETE /v1/discovery/records/a", "", as("s"))
	a.refused(t, refusal{404, "service_not_found", "id"}, "DELETE /v1/discovery/records/a", "", as("a"))
}

// TestWrongCredentialAtWellKnownPaths: it counts as none, and none has the rights of anonymous callers and no more.
func TestWrongCredentialAtWellKnownPaths(t *testing.T) {
	for anonymous, want := range map[string][3]int{"read-only": {200, 404, 401}, "none": {401, 401, 401}} {
		guard, err := access.New(access.Config{Enabled: true, Method: "token", Anonymous: anonymous, Tokens: []access.Token{
			{Token: secret.New("r"), Name: "dashboard", Role: access.RoleReadOnly},
		}}, access.Options{})
		require.NoError(t, err)
		s := New(Config{
			Metrics: http.NotFoundHandler(),
			Guard: func(role access.Role, next http.Handler, refuse func(http.ResponseWriter, error)) http.Handler {
				return guard.HTTP(access.Need{Role: role}, next, refuse)
			},
			Others: []Route{{
				Pattern: "GET /.well-known/catalog", Role: access.RoleReadOnly,
				Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(200) }),
			}},
		})
		for n, path := range []string{"/.well-known/catalog", "/.well-known/none", "/v1/status"} {
			send := func(token string) int {
				r := httptest.NewRequest("GET", "http://localhost"+path, nil)
				if token != "" {
					r.Header.Set("Authorization", "Bearer "+token)
				}
				w := httptest.NewRecorder()
				s.Handler().ServeHTTP(w, r)
				return w.Code
			}
			require.Equal(t, want[n], send("wrong"), "%s %s", anonymous, path)
			if n < 2 {
				require.Equal(t, want[n], send(""), "%s %s", anonymous, path)
				require.Equal(t, []int{200, 404}[n], send("r"), "%s %s", anonymous, path)
			}
		}
	}
}

// guardPages signs in with a guard, as the daemon does.
type guardPages struct{ *access.Guard }

// Link implements Pages.
func (p guardPages) Link(ctx context.Context) (discovery.PageLink, error) {
	code, expires, err := p.Code(ctx)
	return discovery.PageLink{URL: "http://localhost/ui/#code=" + code, Expires: expires}, err
}

// TestPageSession: a link works once and gives the page the rights of its caller, and no more.
func TestPageSession(t *testing.T) {
	guard, err := access.New(access.Config{Enabled: true, Method: "token", Anonymous: "none", Tokens: []access.Token{
		{Token: secret.New("s"), Name: "payment", Role: access.RoleService, Services: []string{"payment"}},
	}}, access.Options{})
	require.NoError(t, err)
	a := newAgentFixture(t, func(c *Config) {
		c.Pages = guardPages{guard}
		watch := c.Guard
		c.Guard = func(role access.Role, next http.Handler, refuse func(http.ResponseWriter, error)) http.Handler {
			return watch(role, guard.HTTP(access.Need{Role: role}, next, refuse), refuse)
		}
	})
	unknown := refusal{401, "unauthorized", ""}
	a.refused(t, unknown, "POST /v1/page/links", "")
	link := a.ok(t, 201, "POST /v1/page/links", "", header("Authorization", "Bearer s"))
	require.Equal(t, "no-store", link.header.Get("Cache-Control"))
	_, code, _ := strings.Cut(link.json["url"].(string), "#code=")
	a.refused(t, refusal{400, "validation_error", "coed"}, "POST /v1/page/sessions", `{"coed": "x"}`)
	opened := a.ok(t, 201, "POST /v1/page/sessions", `{"code": "`+code+`"}`)
	require.Equal(t, "no-store", opened.header.Get("Cache-Control"))
	a.refused(t, unknown, "POST /v1/page/sessions", `{"code": "`+code+`"}`)

	session := header("Authorization", "Bearer "+opened.json["token"].(string))
	a.ok(t, 200, "GET "+payments, "", session)
	a.refused(t, refusal{403, "forbidden", ""}, "DELETE /v1/discovery/records/a", "", session)
	a.refused(t, refusal{403, "forbidden", ""}, "POST /v1/page/links", "", session)
	a.ok(t, 204, "DELETE /v1/page/sessions", "", session)
	a.refused(t, unknown, "GET "+payments, "", session)
}
