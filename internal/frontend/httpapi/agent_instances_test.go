package httpapi

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/internal/platform/access"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// payment is the request of the low-level design "Service Discovery".
const payment = `{
	"id": "payment-1", "host": "10.0.1.1", "port": 8080,
	"health_check": {"type": "HTTP", "endpoint": "/health", "interval": "10s"},
	"metadata": {"version": "2.1.0", "zone": "us-east-1a", "weight": 100}
}`

// beating is payment without a check, and therefore UP.
func beating(edits ...func(object)) string {
	return with(payment, append(edits, without("health_check"))...)
}

const payments = "/v1/services/payment/instances"

func key(service, id string) instance.Key {
	return instance.Key{Namespace: "default", Service: service, ID: id}
}

func TestRegisterInstance(t *testing.T) {
	a := newAgentFixture(t)
	got := a.ok(t, 201, "POST "+payments, payment)
	require.Equal(t, "payment-1", got.json["instance_id"])
	require.Regexp(t, "^lease-[0-9a-f]{32}$", got.json["lease_id"])
	require.Equal(t, 30.0, got.json["lease_ttl"])
	require.Equal(t, true, got.json["committed"])
	require.Equal(t, 2.0, got.json["revision"])
	require.Equal(t, payments+"/payment-1", got.header.Get("Location"))

	i := a.all[key("payment", "payment-1")]
	require.Equal(t, instance.Spec{
		Host: "10.0.1.1", Port: 8080, Version: "2.1.0", Zone: "us-east-1a", Weight: 100, Metadata: i.Spec.Metadata,
		Check:          &instance.Check{Type: instance.HTTP, Endpoint: "/health", Interval: 10 * time.Second, Timeout: 5 * time.Second, HealthyThreshold: 1, UnhealthyThreshold: 3},
		UnhealthyAfter: 30 * time.Second, RemoveAfter: 30 * time.Second, Lasting: true,
	}, i.Spec)
	require.Empty(t, i.Spec.Metadata, "version, zone and weight are fields")

	again := a.ok(t, 200, "POST "+payments, payment)
	require.Equal(t, got.json["lease_id"], again.json["lease_id"], "registering anew keeps the lease")
	a.apart = true
	kept := a.ok(t, 202, "POST "+payments, payment)
	require.Equal(t, false, kept.json["committed"])
	require.NotContains(t, kept.json, "revision")
	a.apart = false
	a.refused(t, refusal{409, "service_already_exists", ""}, "POST "+payments+"?strict=true", payment)

	made := a.ok(t, 201, "POST "+payments, with(payment, without("id")))
	require.NotEmpty(t, made.json["instance_id"])
	require.NotEqual(t, got.json["lease_id"], made.json["lease_id"])
}

func TestRegisterInstanceInANamespace(t *testing.T) {
	a := newAgentFixture(t)
	got := a.ok(t, 201, "POST "+payments+"?namespace=blue", beating())
	require.Equal(t, payments+"/payment-1?namespace=blue", got.header.Get("Location"))
	a.ok(t, 200, "POST "+payments, beating(set("namespace", "blue")))
	a.refused(t, invalid("namespace"), "POST "+payments+"?namespace=blue", beating(set("namespace", "green")))
	require.Empty(t, a.ok(t, 200, "GET "+payments, "").instances(t))
	require.Len(t, a.ok(t, 200, "GET "+payments+"?namespace=blue", "").instances(t), 1)
	a.refused(t, missing(""), "GET "+payments+"/payment-1", "")
	require.Equal(t, "blue", a.ok(t, 200, "GET "+got.header.Get("Location"), "").json["namespace"])
	a.refused(t, missing(""), "DELETE "+payments+"/payment-1", "")
	a.ok(t, 204, "DELETE "+payments+"/payment-1?namespace=blue", "")
}

// TestEveryFieldOfAnInstance comes back as it was given.
func TestEveryFieldOfAnInstance(t *testing.T) {
	a := newAgentFixture(t)
	a.ok(t, 201, "POST "+payments, `{
		"id": "p", "host": "10.0.1.1", "port": 8080, "version": "2.1.0-rc.1", "zone": "z", "weight": 7,
		"interfaces": {"gRPC": "grpc://10.0.1.1:9000"}, "tags": ["canary", "a<b"], "dependencies": ["ledger"], "environment": "staging",
		"region": "eu", "owner": "team", "description": "Zahlung <€>", "metadata": {"team": "payments", "retries": 3, "fast": true, "none": null},
		"health_check": {"type": "tcp", "endpoint": 9000, "interval": 5, "timeout": "1s", "healthy_threshold": 2, "unhealthy_threshold": 4},
		"unhealthy_after": "45s", "remove_after": 120, "status": "STARTING", "offer": {"type":"compute"}
	}`)
	got := a.ok(t, 200, "GET "+payments+"/p", "").json
	delete(got, "revision")
	require.Equal(t, object{
		"id": "p", "service": "payment", "namespace": "default", "host": "10.0.1.1", "port": 8080.0, "health": "STARTING", "weight": 7.0,
		"metadata":   object{"team": "payments", "retries": "3", "fast": "true", "version": "2.1.0-rc.1", "zone": "z", "weight": 7.0},
		"interfaces": object{"gRPC": "grpc://10.0.1.1:9000"}, "tags": []any{"a<b", "canary"}, "dependencies": []any{"ledger"}, "environment": "staging",
		"region": "eu", "owner": "team", "description": "Zahlung <€>",
		"health_check":    object{"type": "TCP", "endpoint": "9000", "interval": "5s", "timeout": "1s", "healthy_threshold": 2.0, "unhealthy_threshold": 4.0},
		"unhealthy_after": "45s", "remove_after": "2m0s", "offer": object{"type": "compute"},
		"registered_at": "2025-11-12T10:00:00Z", "last_heartbeat": "2025-11-12T10:00:00Z", "peer": "12D3",
	}, got)
}

func TestRegisterInstanceRefuses(t *testing.T) {
	a := newAgentFixture(t)
	for _, one := range []struct {
		edit  func(object)
		field string
	}{
		{without("host"), "host"},
		{set("host", ""), "host"},
		{without("port"), "health_check.endpoint"},
		{set("host", "not a host"), "host"},
		{set("port", 0), "health_check.endpoint"},
		{set("port", 70000), "port"},
		{set("port", "http"), "port"},
		{set("id", "instances"), "id"},
		{set("id", "a/b"), "id"},
		{set("namespace", "A"), "namespace"},
		{set("metadata", object{"weight": 101}), "weight"},
		{set("metadata", object{"weight": "x"}), "metadata.weight"},
		{set("metadata", object{"zone": "a"}), "metadata.zone"},
		{set("metadata", object{"a": []any{1}}), "metadata.a"},
		{set("metadata", "x"), "metadata"},
		{set("tags", []any{"a", ""}), "tags[1]"},
		{set("tags", "a"), "tags"},
		{set("environment", "test"), "environment"},
		{set("status", "UP"), "status"},
		{set("status", "up and away"), "status"},
		{set("health_check", object{"type": "ping"}), "health_check.type"},
		{set("health_check", object{"type": "HTTP", "interval": "often"}), "health_check.interval"},
		{set("health_check", object{"type": "HTTP", "retries": 3}), "health_check.retries"},
		{set("health_check", 3), "health_check"},
		{set("unhealthy_after", "0.1s"), "unhealthy_after"},
		{set("remove_after", "25h"), "remove_after"},
		{set("interfaces", object{"REST": ""}), "interfaces.REST"},
		{set("hots", "10.0.0.1"), "hots"},
	} {
		a.refused(t, invalid(one.field), "POST "+payments, with(payment, set("zone", "b"), set("metadata", object{}), one.edit))
	}
	a.refused(t, invalid("service"), "POST /v1/services/a%20b/instances", payment)
	for _, body := range []string{"", "{", "[]", payment + payment, `"x"`, "null1"} {
		a.refused(t, invalid("body"), "POST "+payments, body)
	}
	a.refused(t, refusal{422, "invalid_version", "version"}, "POST "+payments, beating(set("metadata", object{"version": "two"})))
	a.refused(t, refusal{413, "too_large", "body"}, "POST "+payments, string(make([]byte, maxBody+1)))
	for _, parameter := range []string{"strict=1", "require_commit=yes", "force=true", "strict=true&strict=true"} {
		field, _, _ := cutParameter(parameter)
		a.refused(t, refusal{400, "invalid_parameter", field}, "POST "+payments+"?"+parameter, payment)
	}
	a.refused(t, refusal{503, "service_unavailable", ""}, "POST "+payments+"?require_commit=true", payment)
	require.Empty(t, a.all)
	a.most = 1
	a.ok(t, 201, "POST "+payments, payment)
	a.refused(t, refusal{429, "pool_exhausted", "pool.instances"}, "POST "+payments, with(payment, set("id", "payment-2")))
}

func cutParameter(text string) (name, value string, ok bool) {
	for i := range text {
		if text[i] == '=' {
			return text[:i], text[i+1:], true
		}
	}
	return text, "", false
}

func TestDeregisterInstance(t *testing.T) {
	a := newAgentFixture(t)
	a.ok(t, 201, "POST "+payments, payment)
	a.ok(t, 204, "DELETE "+payments+"/payment-1", "")
	require.Empty(t, a.all)
	a.refused(t, missing(""), "DELETE "+payments+"/payment-1", "")
	a.refused(t, invalid("id"), "DELETE "+payments+"/a%2Fb", "")
	a.refused(t, invalid("service"), "DELETE /v1/services/a%20b/instances/payment-1", "")
	a.refused(t, refusal{400, "invalid_parameter", "force"}, "DELETE "+payments+"/payment-1?force=true", "")
}

func TestRenewLease(t *testing.T) {
	a := newAgentFixture(t)
	lease := a.ok(t, 201, "POST "+payments, beating()).json["lease_id"].(string)
	a.pass(20 * time.Second)
	got := a.ok(t, 200, "PUT /v1/leases/"+lease+"/renew", "")
	require.Equal(t, object{"lease_id": lease, "ttl": 30.0, "expires_at": "2025-11-12T10:00:50Z"}, got.json)
	a.pass(29 * time.Second)
	require.NotEmpty(t, a.all)
	a.refused(t, missing(""), "PUT /v1/leases/lease-none/renew", "")

	a.pass(time.Second)
	require.Empty(t, a.all, "in this dialect an instance is removed when its lease ends")
	gone := a.refused(t, refusal{410, "service_gone", "id"}, "PUT /v1/leases/"+lease+"/renew", "")
	require.Equal(t, "Lease expired, re-register required", gone.json["message"])
	require.Equal(t, "2025-11-12T10:00:50Z", gone.json["deregistered_at"])
	require.NotContains(t, gone.json, "value")
}

func TestSetStatus(t *testing.T) {
	a := newAgentFixture(t)
	a.ok(t, 201, "POST "+payments, beating())
	got := a.ok(t, 200, "PUT "+payments+"/payment-1/status", `{"status": "OUT_OF_SERVICE"}`)
	require.Equal(t, "OUT_OF_SERVICE", got.json["health"])
	require.Equal(t, "OUT_OF_SERVICE", got.json["override"])
	require.Empty(t, a.ok(t, 200, "GET "+payments, "").instances(t))
	require.Equal(t, "UP", a.ok(t, 200, "PUT "+payments+"/payment-1/status", `{"status": "up"}`).json["health"])
	require.Len(t, a.ok(t, 200, "GET "+payments, "").instances(t), 1)

	a.refused(t, missing(""), "PUT "+payments+"/payment-2/status", `{"status": "UP"}`)
	a.refused(t, invalid("status"), "PUT "+payments+"/payment-1/status", `{"status": "GREAT"}`)
	a.refused(t, invalid("status"), "PUT "+payments+"/payment-1/status", `{}`)
	a.refused(t, invalid("health"), "PUT "+payments+"/payment-1/status", `{"health": "UP"}`)
	a.refused(t, invalid("body"), "PUT "+payments+"/payment-1/status", ``)
}

func TestListInstances(t *testing.T) {
	a := newAgentFixture(t)
	none := a.ok(t, 200, "GET "+payments, "")
	require.JSONEq(t, `{"service": "payment", "index": 1, "instances": []}`, none.text)
	for n, edit := range []func(object){
		set("metadata", object{"version": "2.1.0", "zone": "a", "team": "payments", "canary": "true"}),
		set("metadata", object{"version": "2.2.0", "zone": "b"}),
		set("metadata", object{"version": "1.9.0", "zone": "b"}),
	} {
		a.ok(t, 201, "POST "+payments, beating(edit, set("id", fmt.Sprint("p", n)), set("environment", "staging"), set("dependencies", []any{"ledger"})))
	}
	a.ok(t, 201, "POST "+payments, with(payment, set("id", "checked")))
	a.ok(t, 201, "POST /v1/services/order/instances", beating(set("id", "o")))

	got := a.ok(t, 200, "GET "+payments, "")
	require.Equal(t, "payment", got.json["service"])
	require.Equal(t, object{
		"id": "p0", "host": "10.0.1.1", "port": 8080.0, "health": "UP", "environment": "staging", "dependencies": []any{"ledger"},
		"metadata": object{"version": "2.1.0", "zone": "a", "team": "payments", "canary": "true"},
	}, got.instances(t)[0])
	require.Equal(t, "4", got.header.Get("X-Blackhole-Index"))
	require.Empty(t, got.header.Get("X-Blackhole-Stale"))
	for query, want := range map[string][]any{
		"":                          {"p0", "p1", "p2"},
		"health=UP":                 {"p0", "p1", "p2"},
		"health=up":                 {"p0", "p1", "p2"},
		"health=UNKNOWN":            {"checked"},
		"health=UP,UNKNOWN":         {"checked", "p0", "p1", "p2"},
		"health=any":                {"checked", "p0", "p1", "p2"},
		"health=DOWN":               {},
		"zone=b":                    {"p1", "p2"},
		"version=2.x":               {"p0", "p1"},
		"version=%3E%3D2.2":         {"p1"},
		"tags=canary,team:payments": {"p0"},
		"tags=canary,team:orders":   {},
		"environment=staging":       {"p0", "p1", "p2"},
		"environment=production":    {},
		"dependency=ledger":         {"p0", "p1", "p2"},
		"prefer_zone=b":             {"p1", "p2", "p0"},
		"consistency=local&zone=a":  {"p0"},
	} {
		require.Equal(t, want, all(a.ok(t, 200, "GET "+payments+"?"+query, "").instances(t), "id"), query)
	}
}

func TestListInstancesRefuses(t *testing.T) {
	a := newAgentFixture(t)
	for query, field := range map[string]string{
		"health=GREAT": "health", "health=UP,": "health", "version=x.y.z": "version", "tags=a,,b": "tags[1]", "consistency=eventual": "consistency",
		"near=here": "near", "zone=a&zone=b": "zone", "namespace=A": "namespace", "zone=%ff": "zone", "a=%zz": "url",
	} {
		a.refused(t, refusal{400, "invalid_parameter", field}, "GET "+payments+"?"+query, "")
		a.refused(t, refusal{400, "invalid_parameter", field}, "GET /v1/services/payment/watch?"+query, "")
		a.refused(t, refusal{400, "invalid_parameter", field}, "GET /v1/services/payment/watch?"+query, "", header("Accept", "text/event-stream"))
	}
	a.refused(t, invalid("service"), "GET /v1/services/a%20b/instances", "")
	a.refused(t, refusal{503, "service_unavailable", ""}, "GET "+payments+"?consistency=linearizable", "")
	a.refused(t, refusal{503, "service_unavailable", ""}, "GET "+payments+"/a?consistency=linearizable", "")
	a.refused(t, refusal{400, "invalid_parameter", "zone"}, "GET "+payments+"/a?zone=b", "")
	a.refused(t, refusal{400, "invalid_parameter", "consistency"}, "GET "+payments+"/a?consistency=b", "")
	a.refused(t, invalid("id"), "GET "+payments+"/watch", "")
	a.refused(t, missing(""), "GET "+payments+"/a", "")
}

// TestLostContact: answers are marked as stale, and lists stay complete.
func TestLostContact(t *testing.T) {
	a := newAgentFixture(t)
	a.ok(t, 201, "POST "+payments, beating())
	a.lose("no leader")
	for _, path := range []string{payments, payments + "/payment-1", "/v1/services", "/v1/services/payment", "/v1/services/payment/payment-1", "/v1/prometheus/sd"} {
		got := a.ok(t, 200, "GET "+path, "")
		require.Equal(t, "true", got.header.Get("X-Blackhole-Stale"), path)
		require.Equal(t, "1.500", got.header.Get("X-Blackhole-Age"))
		require.Contains(t, got.text, "payment")
	}
}

// TestBroken: the registry's own errors come through on every route.
func TestBroken(t *testing.T) {
	a := newAgentFixture(t)
	a.ok(t, 201, "POST "+payments, payment)
	a.broken = fault.New("instances.Open", fault.Internal, "the disk is full")
	service := `{"name": "payment", "version": "1.0.0", "interfaces": {"REST": "http://10.0.0.1:1"}}`
	for line, body := range map[string]string{
		"POST " + payments: payment, "DELETE " + payments + "/payment-1": "", "PUT " + payments + "/payment-1/status": `{"status":"UP"}`,
		"PUT /v1/leases/a/renew": "", "GET " + payments: "", "GET " + payments + "/payment-1": "", "GET /v1/services/payment/watch": "",
		"POST /v1/services": service, "PUT /v1/services/payment/payment-1/heartbeat": "", "DELETE /v1/services/payment/payment-1": "",
		"GET /v1/services/payment": "", "GET /v1/services/payment/payment-1": "", "GET /v1/services": "", "GET /v1/prometheus/sd": "",
	} {
		got := a.refused(t, refusal{500, "internal_error", ""}, line, body)
		require.Equal(t, "the disk is full", got.json["message"], line)
		require.Contains(t, got.json["details"], "the disk is full")
	}
}

// TestGuards: a caller has a rate limit and may change only its own services.
func TestGuards(t *testing.T) {
	limit := error(nil)
	a := newAgentFixture(t, func(c *Config) {
		c.Limit = func(context.Context) error { return limit }
		c.May = func(_ context.Context, service string) error {
			if service == "default/payment" {
				return nil
			}
			return fault.New("test.May", fault.Forbidden, "is not yours")
		}
	})
	service := `{"name": "payment", "version": "1.0.0", "interfaces": {"REST": "http://10.0.0.1:1"}}`
	a.refused(t, refusal{403, "forbidden", ""}, "POST "+payments, beating(set("namespace", "blue")))
	other := with(service, set("name", "order"), set("id", "o"))
	a.ok(t, 201, "POST "+payments, beating())
	a.ok(t, 201, "POST /v1/services", service)
	for line, body := range map[string]string{
		"POST /v1/services/order/instances": payment, "POST /v1/services": other, "DELETE /v1/services/order/instances/o": "",
		"DELETE /v1/services/order/o": "", "PUT /v1/services/order/instances/o/status": `{"status":"UP"}`, "PUT /v1/services/order/o/heartbeat": "",
	} {
		a.refused(t, refusal{403, "forbidden", ""}, line, body)
	}
	limiter, now := access.NewLimiter(40, 1), time.Unix(1e9, 0) // one in 1.5 s
	require.NoError(t, limiter.Take("client", 40, now))
	limit = limiter.Take("client", 1, now)
	for line, body := range map[string]string{"POST " + payments: payment, "POST /v1/services": service} {
		got := a.refused(t, refusal{429, "rate_limit_exceeded", ""}, line, body)
		require.Equal(t, "2", got.header.Get("Retry-After"))
	}
	a.ok(t, 200, "GET "+payments, "")
	a.ok(t, 204, "PUT /v1/services/payment/payment-1/heartbeat", "")
	a.ok(t, 204, "DELETE "+payments+"/payment-1", "")
	limit = fault.New("test.Limit", fault.Unauthentic, "Missing or invalid authentication token")
	got := a.refused(t, refusal{401, "unauthorized", ""}, "POST "+payments, payment)
	require.Contains(t, got.header.Get("WWW-Authenticate"), "Bearer")
}

// TestLocalRegistrations come over a loopback address or a socket of this host.
func TestLocalRegistrations(t *testing.T) {
	a := newAgentFixture(t)
	a.ok(t, 201, "POST "+payments, payment)
	require.True(t, a.local)
	require.Equal(t, 200, do(a.Handler(), "POST", payments, payment).Code, "from an address of a network")
	require.False(t, a.local)

	path := filepath.Join(t.TempDir(), "socket")
	l, err := access.ListenUnix(path)
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- a.Serve(l) }()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}
	defer transport.CloseIdleConnections()
	caller{&http.Client{Transport: transport}, "http://localhost"}.ok(t, 200, "POST "+payments, payment)
	require.True(t, a.local)
	a.Close()
	require.NoError(t, <-done)
}

// TestLastChecks: only operators learn why checks failed.
func TestLastChecks(t *testing.T) {
	ends := []instances.LastCheck{
		{At: time.Unix(9, 0).UTC(), TookMs: 2, Status: instance.StatusDown, State: "refuses", Cause: "connection refused"},
		{At: time.Unix(1, 0).UTC(), TookMs: 1, Passing: true, State: "answers", Status: instance.StatusUp},
	}
	for _, open := range []bool{true, false} {
		a := newAgentFixture(t, func(c *Config) {
			c.Agent.LastChecks = func(k instance.Key) []instances.LastCheck {
				require.Equal(t, "payment-1", k.ID)
				return ends
			}
			if open {
				c.Guard = nil
			}
		})
		a.ok(t, 201, "POST "+payments, beating())
		got := a.ok(t, 200, "GET "+payments+"/payment-1", "").json
		if open {
			require.Equal(t, []any{
				object{"at": "1970-01-01T00:00:09Z", "took_ms": 2.0, "passing": false, "state": "refuses", "status": "DOWN", "cause": "connection refused"},
				object{"at": "1970-01-01T00:00:01Z", "took_ms": 1.0, "passing": true, "state": "answers", "status": "UP"},
			}, got["last_checks"])
		} else {
			require.NotContains(t, got, "last_checks")
		}
	}
}
