package httpapi

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	"github.com/blackhole/blackhole/internal/frontend/grpcapi"
	"github.com/blackhole/blackhole/internal/frontend/httpapi/openapi"
	"github.com/blackhole/blackhole/internal/platform/access"
)

// wholeTable returns the routes of all planes.
func wholeTable() []route {
	return table(&discoveryAPI{}, &coordinationAPI{Coordination: schemaAlone()}, &agentAPI{}, &eventsAPI{}, nil)
}

// schemaAlone has the calls of the coordination plane, without the plane.
func schemaAlone() Coordination {
	return Coordination{Calls: grpcapi.New(grpcapi.Config{Coordination: &grpcapi.Coordination{}}).Calls()}
}

// TestNoTwoRoutes: no request matches two routes. These are all pairs of overlapping patterns, of
// which the narrower one wins.
func TestNoTwoRoutes(t *testing.T) {
	mux := http.NewServeMux()
	for _, r := range wholeTable() {
		require.NotPanics(t, func() { mux.Handle(r.pattern, http.NotFoundHandler()) }, r.pattern)
	}
	var pairs []string
	for _, wide := range wholeTable() {
		for _, narrow := range wholeTable() {
			if wide.method() == narrow.method() && wide.pattern != narrow.pattern && overlap(wide.path(), narrow.path()) && wide.pattern < narrow.pattern {
				pairs = append(pairs, wide.pattern+" | "+narrow.path())
			}
		}
	}
	slices.Sort(pairs)
	require.Equal(t, []string{
		"GET /v1/services/{service}/instances | /v1/services/{service}/{id}",
		"GET /v1/services/{service}/watch | /v1/services/{service}/{id}",
	}, pairs)
}

// overlap reports whether there is a path of both patterns.
func overlap(a, b string) bool {
	x, y := strings.Split(a, "/"), strings.Split(b, "/")
	for n := range min(len(x), len(y)) {
		switch {
		case strings.HasSuffix(x[n], "...}") || strings.HasSuffix(y[n], "...}"):
			return true
		case x[n] != y[n] && !strings.HasPrefix(x[n], "{") && !strings.HasPrefix(y[n], "{"):
			return false
		}
	}
	return len(x) == len(y)
}

// TestEachRouteIsReached: each route has a path that reaches it.
func TestEachRouteIsReached(t *testing.T) {
	mux := http.NewServeMux()
	for _, r := range wholeTable() {
		mux.Handle(r.pattern, http.NotFoundHandler())
	}
	for _, r := range wholeTable() {
		path := strings.NewReplacer("{service}", "payment", "{id}", "a", "{lease}", "l", "{name}", "x%2Fy").Replace(r.path())
		_, got := mux.Handler(httptest.NewRequest(r.method(), path, nil))
		require.Equal(t, r.pattern, got)
	}
}

// TestUnknownParameters: no operation ignores a parameter, which would answer another question in silence. Exactly those
// with parameters of their own in the document read some.
func TestUnknownParameters(t *testing.T) {
	solo := coordtest.New(coordtest.Config{})
	a := newAgentFixture(t, func(c *Config) {
		c.Coordination = soloCoordination(t, solo)
	})
	paths := newSpecification(t).Paths
	for _, r := range wholeTable() {
		path := strings.NewReplacer("{service}", "payment", "{id}", "7", "{lease}", "l", "{name}", "x", "{key}", "x").Replace(r.path())
		unheard := "?unheard=1"
		for _, other := range wholeTable() {
			if instead, parameter, ok := openapi.Named(other.path()); ok && instead == r.path() {
				unheard = "?" + parameter + "=7&unheard=1"
			}
		}
		got := a.send(t, r.method()+" "+path+unheard, "")
		require.Equal(t, http.StatusBadRequest, got.code, "%s: %s", r.pattern, got.text)
		require.Equal(t, "unheard", got.json["field"], r.pattern)
		require.Regexp(t, "unknown parameter|not a known parameter", got.json["message"], r.pattern)
		item := paths.Find(r.path())
		require.NotNil(t, item, r.pattern)
		asks := slices.ContainsFunc(slices.Concat(item.Parameters, item.GetOperation(r.method()).Parameters), func(p *openapi3.ParameterRef) bool {
			return p.Value.In == "query"
		})
		require.Equal(t, asks, r.asks, r.pattern)
	}
}

// TestRouteTable: the documentation has exactly the routes and roles of the table.
func TestRouteTable(t *testing.T) {
	text, err := os.ReadFile("../../../docs/reference/http.md")
	require.NoError(t, err)
	documented := map[string]string{}
	for _, line := range regexp.MustCompile("(?m)^- `(/[^`]*)`: (.*)$").FindAllStringSubmatch(string(text), -1) {
		for _, m := range regexp.MustCompile(`(?:^|; )([A-Z]+) \(([a-z-]+)\)`).FindAllStringSubmatch(line[2], -1) {
			documented[m[1]+" "+line[1]] = m[2]
		}
	}
	var document struct {
		Paths map[string]map[string]struct{ Summary string }
	}
	require.NoError(t, json.Unmarshal([]byte(openapi.Document()), &document))
	wanted := map[string]string{}
	for _, r := range wholeTable() {
		method, path, _ := strings.Cut(r.pattern, " ")
		if summary := document.Paths[path][strings.ToLower(method)].Summary; !strings.HasSuffix(summary, ", named in the query") {
			wanted[r.pattern] = r.role.String()
		}
	}
	require.Equal(t, wanted, documented)
}

// TestRolesOfRequests checks the role that each request needs, including requests outside the table.
func TestRolesOfRequests(t *testing.T) {
	var role access.Role
	a := newAgentFixture(t, func(c *Config) {
		c.Guard = func(needed access.Role, _ http.Handler, _ func(http.ResponseWriter, error)) http.Handler {
			return http.HandlerFunc(func(http.ResponseWriter, *http.Request) { role = needed })
		}
		calls := schemaAlone()
		c.Coordination = &calls
	})
	for line, want := range map[string]access.Role{
		"GET /livez":                                  access.RoleNone,
		"GET /v1/health":                              access.RoleNone,
		"GET /openapi.json":                           access.RoleNone,
		"GET /v1/status":                              access.RoleReadOnly,
		"GET /nothing":                                access.RoleReadOnly,
		"PATCH /v1/services":                          access.RoleReadOnly,
		"POST /v1/discovery/query":                    access.RoleReadOnly,
		"POST /v1/discovery/records":                  access.RoleAdmin,
		"DELETE /v1/discovery/records/a":              access.RoleAdmin,
		"GET /v1/services/payment":                    access.RoleReadOnly,
		"HEAD /v1/services/payment":                   access.RoleReadOnly,
		"POST /v1/services":                           access.RoleService,
		"POST /v1/services/payment/instances":         access.RoleService,
		"DELETE /v1/services/payment/instances/a":     access.RoleService,
		"PUT /v1/services/payment/instances/a/status": access.RoleService,
		"DELETE /v1/services/payment/a":               access.RoleService,
		"PUT /v1/services/payment/a/heartbeat":        access.RoleService,
		"PUT /v1/leases/l/renew":                      access.RoleService,
		"POST /v1/coordination/leases":                access.RoleService,
		"POST /v1/coordination/locks/%2Fx":            access.RoleService,
		"DELETE /v1/coordination/locks/a%2F..%2Fb":    access.RoleService,
		"HEAD /v1/coordination/locks/a":               access.RoleReadOnly,
		"BREW /v1/coordination/locks/a":               access.RoleReadOnly,
	} {
		role = 255
		do(a.Handler(), strings.Split(line, " ")[0], strings.Split(line, " ")[1], "")
		require.Equal(t, want, role, line)
	}
}

// tally counts requests.
type tally struct {
	mu    sync.Mutex
	asked map[string]int
	took  map[string]int
}

// Requested implements Requests.
func (y *tally) Requested(endpoint, method string, status int) {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.asked[fmt.Sprint(method, " ", endpoint, " ", status)]++
}

// Took implements Requests.
func (y *tally) Took(endpoint, method string, _ time.Duration) {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.took[method+" "+endpoint]++
}

// TestRequestsAreCounted: requests are counted by route, because paths are unbounded.
func TestRequestsAreCounted(t *testing.T) {
	y := &tally{asked: map[string]int{}, took: map[string]int{}}
	solo := coordtest.New(coordtest.Config{})
	a := newAgentFixture(t, func(c *Config) {
		c.Requests = y
		c.Coordination = soloCoordination(t, solo)
	})
	a.ok(t, 201, "POST "+payments, beating())
	a.ok(t, 200, "GET "+payments, "")
	a.ok(t, 200, "GET /v1/services/other/instances", "")
	a.ok(t, 200, "GET /v1/services", "")
	a.ok(t, 204, "PUT /v1/services/payment/payment-1/heartbeat", "")
	a.ok(t, 200, "GET "+watched, "")
	a.refused(t, noRoute(), "GET /a", "")
	a.refused(t, noRoute(), "GET /b", "")
	a.refused(t, refusal{405, "method_not_allowed", "method"}, "BREW "+payments, "")
	a.refused(t, refusal{404, "not_found", "name"}, "GET /v1/coordination/locks/x", "")
	a.refused(t, refusal{405, "method_not_allowed", "method"}, "BREW /v1/coordination/locks/x", "")
	a.Close() // the client sees an answer before its count
	y.mu.Lock()
	defer y.mu.Unlock()
	require.Equal(t, map[string]int{
		"POST /services/{service}/instances 201": 1, "GET /services/{service}/instances 200": 2, "GET /services 200": 1, "PUT /heartbeat 204": 1,
		"GET /services/{service}/watch 200": 1, "other none 404": 2, "other none 405": 2, "GET /coordination/locks/{name} 404": 1,
	}, y.asked)
	require.NotContains(t, y.took, "GET /services/{service}/watch", "its time is the client's")
	require.Equal(t, 2, y.took["GET /services/{service}/instances"])
}

// TestNamedHosts: the server answers requests to its configured names.
func TestNamedHosts(t *testing.T) {
	a := newAgentFixture(t, func(c *Config) { c.Hosts = []string{"peer.example", "192.0.2.7"} })
	for _, name := range []string{"peer.example", "PEER.example:8500", "192.0.2.7:1", "localhost"} {
		require.Equal(t, 200, a.send(t, "GET /v1/health", "", host(name)).code, name)
	}
	for _, name := range []string{"other.example", "peer.example.evil.example", "192.0.2.8"} {
		a.refused(t, refusal{403, "forbidden", "host"}, "GET /v1/health", "", host(name))
	}
}

// TestTLS: TLS listeners support HTTP/2, and handlers see the state of the connection.
func TestTLS(t *testing.T) {
	seen := make(chan bool, 1)
	a := newAgentFixture(t, func(c *Config) {
		c.Guard = func(_ access.Role, next http.Handler, _ func(http.ResponseWriter, error)) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				seen <- r.TLS != nil
				next.ServeHTTP(w, r)
			})
		}
	})
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	config, roots := selfSigned(t)
	done := make(chan error, 1)
	go func() { done <- a.Serve(tls.NewListener(l, config)) }()
	for _, two := range []bool{false, true} {
		transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "localhost"}, ForceAttemptHTTP2: two}
		resp, err := (&http.Client{Transport: transport}).Get("https://" + l.Addr().String() + "/v1/services")
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, 200, resp.StatusCode)
		require.Equal(t, two, resp.ProtoMajor == 2)
		require.True(t, <-seen)
		transport.CloseIdleConnections()
	}
	a.Close()
	require.NoError(t, <-done)
}

// selfSigned makes a certificate for localhost.
func selfSigned(t testing.TB) (*tls.Config, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"localhost"}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	text, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	parsed, err := x509.ParseCertificate(text)
	require.NoError(t, err)
	roots := x509.NewCertPool()
	roots.AddCert(parsed)
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{text}, PrivateKey: key}}, NextProtos: []string{"h2", "http/1.1"}}, roots
}

// connNumber is the context key of TestConnContext.
type connNumber struct{}

func TestConnContext(t *testing.T) {
	a := newAgentFixture(t, func(c *Config) {
		c.ConnContext = func(ctx context.Context, _ net.Conn) context.Context { return context.WithValue(ctx, connNumber{}, 7) }
		c.Guard = func(_ access.Role, next http.Handler, _ func(http.ResponseWriter, error)) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Context().Value(connNumber{}) == 7 && connOf(r) != nil {
					next.ServeHTTP(w, r)
				}
			})
		}
	})
	a.ok(t, 200, "GET /livez", "")
}
