package httpapi

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// example is the request of the SAP-044 Registry.
const example = `{
	"name": "example-service", "version": "1.0.0",
	"interfaces": {"REST": "http://10.0.0.5:9000", "CLI": "example-cli", "MCP": "tcp://10.0.0.5:7000"},
	"metadata": {"description": "Example capability server", "dependencies": ["manifest"], "tags": ["core", "infrastructure"], "environment": "production"}
}`

// service makes a request of SAP-044.
func service(name, id string, edits ...func(object)) string {
	return with(example, append([]func(object){set("name", name), set("id", id)}, edits...)...)
}

func representation(r *http.Request) { r.Header.Set("Prefer", "respond-async, return=representation") }

func TestRegisterService(t *testing.T) {
	a := newAgentFixture(t)
	got := a.ok(t, 201, "POST /v1/services", example)
	id := got.json["id"].(string)
	require.Regexp(t, "^example-service-[0-9a-f]{8}$", id)
	require.Regexp(t, "^lease-[0-9a-f]{32}$", got.json["lease_id"])
	delete(got.json, "lease_id")
	require.Equal(t, object{
		"id": id, "name": "example-service", "version": "1.0.0", "status": "up", "registered_at": "2025-11-12T10:00:00Z",
		"heartbeat_interval": 10.0, "heartbeat_timeout": 30.0, "committed": true, "revision": 2.0,
	}, got.json)
	require.Equal(t, "/v1/services/example-service/"+id, got.header.Get("Location"))

	want := object{
		"name": "example-service", "id": id, "version": "1.0.0",
		"interfaces": object{"REST": "http://10.0.0.5:9000", "CLI": "example-cli", "MCP": "tcp://10.0.0.5:7000"},
		"metadata":   object{"description": "Example capability server", "dependencies": []any{"manifest"}, "tags": []any{"core", "infrastructure"}, "environment": "production"},
		"status":     "up", "last_heartbeat": "2025-11-12T10:00:00Z", "registered_at": "2025-11-12T10:00:00Z",
	}
	require.Equal(t, want, a.ok(t, 200, "GET "+got.header.Get("Location"), "").json)
	require.Equal(t, want, a.ok(t, 200, "GET /v1/services/example-service", "").json)

	i := a.all[key("example-service", id)]
	require.Equal(t, 30*time.Second, i.Spec.UnhealthyAfter)
	require.Equal(t, 60*time.Second, i.Spec.RemoveAfter)

	other := a.ok(t, 201, "POST /v1/services", example)
	require.NotEqual(t, id, other.json["id"], "without an id there is a new instance each time")
}

// TestRegisterServiceAgain: a client can send a received service back, which updates it.
func TestRegisterServiceAgain(t *testing.T) {
	a := newAgentFixture(t)
	a.ok(t, 201, "POST /v1/services", service("orders", "orders-1", set("metadata", object{"team": "x", "size": 3, "tags": []any{"b", "a"}}),
		set("host", "10.0.0.5"), set("port", 9000), set("zone", "z"), set("weight", 9), set("namespace", "blue"), set("unknown", object{"x": 1})))
	got := a.ok(t, 200, "GET /v1/services/orders/orders-1?namespace=blue", "")
	require.Equal(t, object{"team": "x", "size": "3", "tags": []any{"a", "b"}, "dependencies": []any{}}, got.json["metadata"])
	for field, want := range map[string]any{"host": "10.0.0.5", "port": 9000.0, "zone": "z", "weight": 9.0, "namespace": "blue"} {
		require.Equal(t, want, got.json[field])
	}
	before := a.all[instance.Key{Namespace: "blue", Service: "orders", ID: "orders-1"}]
	a.pass(time.Second)
	answer := a.ok(t, 201, "POST /v1/services", got.text)
	require.Equal(t, "2025-11-12T10:00:00Z", answer.json["registered_at"])
	require.Equal(t, before.Spec, a.all[before.Key].Spec)
	a.refused(t, refusal{409, "service_already_exists", ""}, "POST /v1/services?strict=true", got.text)
}

func TestRegisterServiceRefuses(t *testing.T) {
	a := newAgentFixture(t)
	for _, one := range []struct {
		edit  func(object)
		field string
	}{
		{without("name"), "name"},
		{without("version"), "version"},
		{without("interfaces"), "interfaces"},
		{set("interfaces", object{}), "interfaces"},
		{set("interfaces", object{"REST": 3}), "interfaces.REST"},
		{set("name", "Example_Service"), "name"},
		{set("name", string(make([]byte, 65))), "name"},
		{set("id", "a.b"), "id"},
		{set("id", "instances"), "id"},
		{set("version", 1), "version"},
		{set("metadata", object{"description": string(make([]byte, 501))}), "metadata.description"},
		{set("metadata", object{"description": 3}), "metadata.description"},
		{set("metadata", object{"environment": "test"}), "metadata.environment"},
		{set("metadata", object{"tags": []any{"Core Stuff"}}), "metadata.tags[0]"},
		{set("metadata", object{"tags": "core"}), "metadata.tags"},
		{set("metadata", object{"dependencies": []any{"a", "B"}}), "metadata.dependencies[1]"},
		{set("metadata", object{"x": object{}}), "metadata.x"},
		{set("metadata", []any{}), "metadata"},
		{set("port", -1), "port"},
		{set("remove_after", "10d"), "remove_after"},
	} {
		a.refused(t, invalid(one.field), "POST /v1/services", with(example, one.edit))
	}
	got := a.refused(t, invalid("version"), "POST /v1/services", with(example, without("version")))
	require.Equal(t, "Missing required field: version", got.json["message"])
	got = a.refused(t, invalid("name"), "POST /v1/services", with(example, set("name", "Example_Service")))
	require.Equal(t, "Example_Service", got.json["value"])
	a.refused(t, refusal{422, "invalid_version", "version"}, "POST /v1/services", with(example, set("version", "1.0")))
	for _, body := range []string{"", "{", "[]", example + "{}"} {
		a.refused(t, invalid("body"), "POST /v1/services", body)
	}
	a.refused(t, refusal{400, "invalid_parameter", "force"}, "POST /v1/services?force=true", example)
	require.Empty(t, a.all)
}

func TestDependencies(t *testing.T) {
	a := newAgentFixture(t)
	a.dependencies = true
	got := a.refused(t, refusal{422, "dependency_not_found", "metadata.dependencies"}, "POST /v1/services", example)
	require.Equal(t, []any{"manifest"}, got.json["missing_dependencies"])
	require.Equal(t, "Dependency 'manifest' not found in registry", got.json["message"])
	got = a.refused(t, refusal{422, "dependency_not_found", "metadata.dependencies"}, "POST "+payments, beating(set("dependencies", []any{"b", "a"})))
	require.Equal(t, []any{"a", "b"}, got.json["missing_dependencies"])
	a.ok(t, 201, "POST /v1/services", service("manifest", "m", set("metadata", object{})))
	a.ok(t, 201, "POST /v1/services", example)
}

// TestHeartbeat and the states of a service: up, unhealthy after 30 s, gone after 60 s.
func TestHeartbeat(t *testing.T) {
	a := newAgentFixture(t)
	a.ok(t, 201, "POST /v1/services", service("orchestrator", "orchestrator-a1b2c3d4"))
	const one = "/v1/services/orchestrator/orchestrator-a1b2c3d4"
	a.pass(29 * time.Second)
	a.ok(t, 204, "PUT "+one+"/heartbeat", "")
	a.pass(30 * time.Second)
	require.Equal(t, "unhealthy", a.ok(t, 200, "GET "+one, "").json["status"])
	got := a.ok(t, 200, "PUT "+one+"/heartbeat", "", representation)
	require.Equal(t, object{"status": "up", "last_heartbeat": "2025-11-12T10:00:59Z", "lease_renewed": true, "ttl_remaining": 30.0}, got.json)
	require.Equal(t, "return=representation", got.header.Get("Preference-Applied"))
	a.pass(60 * time.Second)
	a.refused(t, missing(""), "GET "+one, "")
	gone := a.refused(t, refusal{410, "service_gone", "id"}, "PUT "+one+"/heartbeat", "")
	require.Equal(t, "2025-11-12T10:01:59Z", gone.json["deregistered_at"])
	require.Equal(t, "Service 'orchestrator-a1b2c3d4' has been deregistered", gone.json["message"])

	never := a.refused(t, missing(""), "PUT /v1/services/orchestrator/never/heartbeat", "")
	require.Equal(t, "Service 'orchestrator' with ID 'never' not found", never.json["message"])
	a.refused(t, invalid("name"), "PUT /v1/services/a%20b/a/heartbeat", "")
	a.refused(t, invalid("id"), "PUT /v1/services/orchestrator/instances/heartbeat", "")
	a.refused(t, refusal{400, "invalid_parameter", "at"}, "PUT "+one+"/heartbeat?at=1", "")
}

func TestDeregisterService(t *testing.T) {
	a := newAgentFixture(t)
	a.ok(t, 201, "POST /v1/services", service("orders", "a"))
	a.ok(t, 201, "POST /v1/services", service("orders", "b"))
	a.ok(t, 204, "DELETE /v1/services/orders/a", "")
	got := a.ok(t, 200, "DELETE /v1/services/orders/b", "", representation)
	require.Equal(t, object{"message": "Service 'b' deregistered successfully", "deregistered_at": "2025-11-12T10:00:00Z"}, got.json)
	again := a.refused(t, missing(""), "DELETE /v1/services/orders/b", "")
	require.Equal(t, "Service 'b' not found (may already be deregistered)", again.json["message"])
	a.refused(t, refusal{410, "service_gone", "id"}, "PUT /v1/services/orders/b/heartbeat", "")
	a.refused(t, invalid("id"), "DELETE /v1/services/orders/instances", "")
	a.ok(t, 201, "POST /v1/services", service("orders", "b"))
	a.ok(t, 204, "PUT /v1/services/orders/b/heartbeat", "")
}

func TestGetServices(t *testing.T) {
	a := newAgentFixture(t)
	none := a.refused(t, missing(""), "GET /v1/services/orders", "")
	require.Equal(t, "No service with name 'orders' found in registry", none.json["message"])
	a.ok(t, 201, "POST /v1/services", service("orders", "a"))
	require.Equal(t, "a", a.ok(t, 200, "GET /v1/services/orders", "").json["id"])
	a.ok(t, 201, "POST /v1/services", service("orders", "b"))
	a.ok(t, 201, "POST /v1/services/orders/instances", with(payment, set("id", "c")))
	require.Equal(t, []any{"a", "b", "c"}, all(a.ok(t, 200, "GET /v1/services/orders", "").array(t), "id"))
	require.Equal(t, "b", a.ok(t, 200, "GET /v1/services/orders?instance_id=b", "").json["id"])
	require.Equal(t, "c", a.ok(t, 200, "GET /v1/services/orders?status=unknown", "").json["id"])
	require.Equal(t, []any{"a", "b"}, all(a.ok(t, 200, "GET /v1/services/orders?status=up", "").array(t), "id"))
	require.Empty(t, a.ok(t, 200, "GET /v1/services/orders?status=unhealthy", "").array(t))
	a.refused(t, missing(""), "GET /v1/services/orders?instance_id=d", "")
	a.refused(t, refusal{400, "invalid_parameter", "status"}, "GET /v1/services/orders?status=UP", "")
	a.refused(t, refusal{400, "invalid_parameter", "tag"}, "GET /v1/services/orders?tag=a", "")
	a.refused(t, refusal{400, "invalid_parameter", "consistency"}, "GET /v1/services/orders?consistency=x", "")
	a.refused(t, refusal{503, "service_unavailable", ""}, "GET /v1/services/orders?consistency=linearizable", "")
	a.refused(t, invalid("name"), "GET /v1/services/a%20b", "")
}

// TestServiceStatuses: each status maps to a status of SAP-044 Registry.
func TestServiceStatuses(t *testing.T) {
	a := newAgentFixture(t)
	for status, want := range map[instance.Status]string{
		instance.StatusUnknown: "unknown", instance.StatusUp: "up", instance.StatusDown: "down", instance.StatusOutOfService: "down",
		instance.StatusStarting: "unknown", instance.StatusUnhealthy: "unhealthy",
	} {
		a.ok(t, 201, "POST /v1/services", service("s", "x"))
		a.report(key("s", "x"), status)
		for _, filter := range []string{"up", "down", "unhealthy", "unknown"} {
			got := a.ok(t, 200, "GET /v1/services?status="+filter, "").array(t)
			if filter == want {
				require.Equal(t, []any{want}, all(got, "status"), status)
			} else {
				require.Empty(t, got, "%s %s", status, filter)
			}
		}
	}
}

func TestListServices(t *testing.T) {
	a := newAgentFixture(t)
	require.Empty(t, a.ok(t, 200, "GET /v1/services", "").array(t))
	for n := range 120 {
		a.ok(t, 201, "POST /v1/services", service(fmt.Sprintf("s%03d", n), "x", set("metadata", object{
			"tags": []any{[]string{"core", "edge"}[n%2]}, "environment": []string{"production", "staging", "development"}[n%3], "dependencies": []any{fmt.Sprintf("s%03d", n/10)},
		})))
	}
	a.ok(t, 201, "POST /v1/services?namespace=blue", service("hidden", "x"))
	first := a.ok(t, 200, "GET /v1/services", "")
	require.Len(t, first.array(t), 100)
	require.Equal(t, "120", first.header.Get("X-Total-Count"))
	require.Equal(t, "121", first.header.Get("X-Blackhole-Index"))
	require.Equal(t, "s000", first.array(t)[0]["name"])
	for query, want := range map[string]int{
		"limit=1000": 120, "limit=50&offset=100": 20, "offset=120": 0, "offset=99999999999": 0, "limit=1&offset=1": 1, "status=up&limit=1000": 120, "status=down": 0,
		"tag=core&limit=1000": 60, "tag=core,edge": 0, "environment=staging": 40, "dependency=s003": 10, "dependency=s003&tag=edge": 5, "namespace=blue": 1,
	} {
		require.Len(t, a.ok(t, 200, "GET /v1/services?"+query, "").array(t), want, query)
	}
	for query, field := range map[string]string{
		"limit=0": "limit", "limit=1001": "limit", "limit=many": "limit", "limit=-1": "limit", "offset=-1": "offset", "status=UP": "status",
		"filter=x": "filter", "consistency=x": "consistency", "namespace=A": "namespace", "tag=a&tag=b": "tag",
	} {
		a.refused(t, refusal{400, "invalid_parameter", field}, "GET /v1/services?"+query, "")
	}
	a.refused(t, refusal{503, "service_unavailable", ""}, "GET /v1/services?consistency=linearizable", "")
}

func TestRegistryHealth(t *testing.T) {
	storage := error(nil)
	a := newAgentFixture(t, func(c *Config) { c.Agent.Storage = func() error { return storage } })
	a.ok(t, 201, "POST /v1/services", service("s", "x"))
	a.ok(t, 201, "POST /v1/services", service("s", "y"))
	a.report(key("s", "y"), instance.StatusUnhealthy)
	want := object{
		"status": "healthy", "version": "v1.2.3", "uptime_seconds": 7.0, "services_registered": 2.0, "services_healthy": 1.0,
		"services_unhealthy": 1.0, "storage_backend": "pebble", "storage_healthy": true,
	}
	require.Equal(t, want, a.ok(t, 200, "GET /v1/health", "").json)
	a.node.NotReady = fault.New("daemon.Ready", fault.Unavailable, "not joined yet")
	want["status"], want["reason"] = "degraded", "not joined yet"
	require.Equal(t, want, a.ok(t, 200, "GET /v1/health", "").json)
	storage = fault.New("instances.Open", fault.Unavailable, "timeout after 5 seconds")
	want["status"], want["reason"], want["storage_healthy"] = "unhealthy", "storage_backend_unreachable", false
	want["details"] = "instances.Open: timeout after 5 seconds"
	require.Equal(t, want, a.ok(t, 503, "GET /v1/health", "").json)
}

func TestPrometheusTargets(t *testing.T) {
	a := newAgentFixture(t)
	require.Empty(t, a.ok(t, 200, "GET /v1/prometheus/sd", "").array(t))
	a.ok(t, 201, "POST "+payments, with(payment, set("tags", []any{"a", "b"}), set("metadata", object{"metrics_path": "/m", "metrics_port": 9100, "the-team": "x"})))
	a.ok(t, 201, "POST "+payments, beating(set("id", "payment-2"), set("host", "::1")))
	a.ok(t, 201, "POST /v1/services", example)
	got := a.ok(t, 200, "GET /v1/prometheus/sd", "").array(t)
	require.Len(t, got, 2, "what has no address has no metrics")
	require.Equal(t, object{"targets": []any{"10.0.1.1:9100"}, "labels": object{
		"__meta_blackhole_service": "payment", "__meta_blackhole_namespace": "default", "__meta_blackhole_id": "payment-1", "__meta_blackhole_health": "UNKNOWN",
		"__meta_blackhole_weight": "1", "__meta_blackhole_tags": ",a,b,", "__meta_blackhole_metadata_the_team": "x", "__meta_blackhole_metadata_metrics_path": "/m",
		"__meta_blackhole_metadata_metrics_port": "9100", "__metrics_path__": "/m",
	}}, got[0])
	require.Equal(t, []any{"[::1]:8080"}, got[1]["targets"])
	require.Len(t, a.ok(t, 200, "GET /v1/prometheus/sd?service=payment&health=UP", "").array(t), 1)
	require.Empty(t, a.ok(t, 200, "GET /v1/prometheus/sd?service=order", "").array(t))
	a.refused(t, refusal{400, "invalid_parameter", "service"}, "GET /v1/prometheus/sd?service=a%20b", "")
	a.refused(t, refusal{400, "invalid_parameter", "radius"}, "GET /v1/prometheus/sd?radius=1", "")
	a.refused(t, refusal{400, "invalid_parameter", "health"}, "GET /v1/prometheus/sd?health=x", "")
	a.lose("no leader")
	a.ok(t, 200, "GET /v1/prometheus/sd?service=payment", "")
	a.refused(t, refusal{503, "service_unavailable", ""}, "GET /v1/prometheus/sd?service=order", "")
}
