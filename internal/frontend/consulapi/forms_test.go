package consulapi_test

import (
	"encoding/json"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

type form struct{ who, body, right string }

// forms are registrations as programs send them. right is a part of the refusal, "" for none.
func forms() []form {
	return []form{
		{"Spring Cloud Consul", `{"ID":"orders-8080","Name":"orders","Tags":["secure=false"],"Address":"127.0.0.1","Meta":{"spring_boot_version":"3.3.1"},"Port":8080,
		"Check":{"Interval":"10s","HTTP":"http://127.0.0.1:8080/actuator/health","Header":{}}}`, ""},
		{"Spring Cloud Consul, deregistering", `{"ID":"orders-1","Name":"orders","Address":"127.0.0.1","Port":8080,"Check":{"Interval":"10s","Timeout":"10s","HTTP":"http://127.0.0.1:8080/health",
		"DeregisterCriticalServiceAfter":"30m","TLSSkipVerify":true}}`, ""},
		{"Spring Cloud Consul, TTL", `{"ID":"orders-2","Name":"orders","Address":"127.0.0.1","Port":8080,"Check":{"TTL":"30s"}}`, ""},
		{"Spring Cloud Consul, headers", `{"ID":"orders-3","Name":"orders","Address":"127.0.0.1","Port":8080,"Check":{"Interval":"10s","HTTP":"http://127.0.0.1:8080/health",
		"Header":{"X-Config-Token":["secret"]}}}`, "Header"},
		{"Steeltoe", `{"ID":"pricing-5000","Name":"pricing","Tags":["version=1"],"Port":5000,"Address":"127.0.0.1","EnableTagOverride":false,"Check":{"HTTP":"http://127.0.0.1:5000/actuator/health",
		"Interval":"10s","Timeout":"10s","TLSSkipVerify":false,"DeregisterCriticalServiceAfter":"30m"},"Meta":{"group":"a"}}`, ""},
		{"Steeltoe, capitals", `{"ID":"PricingService","Name":"PricingService","Port":5000,"Address":"127.0.0.1","Check":{"TTL":"30s"}}`, ""},
		{"Consul.NET", `{"ID":"basket","Name":"basket","Tags":null,"Port":5001,"Address":"127.0.0.1","EnableTagOverride":false,"Check":{"DeregisterCriticalServiceAfter":"5m0s","Interval":"15s","HTTP":"http://127.0.0.1:5001/hc","Timeout":"5s"},
		"Checks":null,"Meta":null,"Proxy":null,"Connect":null,"Kind":null}`, ""},
		{".NET, dots", `{"ID":"com.acme.catalog","Name":"com.acme.catalog","Port":5002,"Address":"127.0.0.1","Check":{"TTL":"15s"}}`, ""},
		{"Nomad", `{"ID":"_nomad-task-9e2f-web","Name":"web","Tags":["urlprefix-/"],"Port":23456,"Address":"127.0.0.1","EnableTagOverride":false,"Meta":{"external-source":"nomad"},
		"TaggedAddresses":{"lan_ipv4":{"Address":"127.0.0.1","Port":23456}},"Weights":{"Passing":1,"Warning":1},"Check":null,"Checks":null,"Proxy":null,"Connect":null,"Namespace":"default","Partition":"default"}`, ""},
		{"Nomad, checks", `{"ID":"_nomad-task-9e2f-api","Name":"api","Port":23457,"Address":"127.0.0.1","Checks":[{"CheckID":"_nomad-check-1","Name":"alive","Interval":"10s","Timeout":"2s","TCP":"127.0.0.1:23457","Status":"critical"},
		{"CheckID":"_nomad-check-2","Name":"ready","Interval":"10s","Timeout":"2s","HTTP":"http://127.0.0.1:23457/ready","Method":"GET","TLSSkipVerify":true}]}`, ""},
		{"Nomad, its own service", `{"ID":"_nomad-client-1","Name":"nomad-client","Tags":["http"],"Port":4646,"Address":"127.0.0.1","Checks":[{"Name":"Nomad Client HTTP Check","HTTP":"https://127.0.0.1:4646/v1/agent/health","Interval":"10s","Timeout":"5s","TLSSkipVerify":true}]}`, "TLSSkipVerify"},
		{"Nomad, Connect", `{"ID":"_nomad-task-c","Name":"count","Port":9001,"Address":"127.0.0.1","Connect":{"SidecarService":{"Port":21000}}}`, "Connect"},
		{"Nomad, gRPC", `{"ID":"_nomad-task-g","Name":"grpc","Port":9002,"Address":"127.0.0.1","Checks":[{"Name":"g","GRPC":"127.0.0.1:9002/health","GRPCUseTLS":true,"Interval":"10s","Timeout":"2s"}]}`, ""},
		{"Nomad, gRPC unverified", `{"ID":"_nomad-task-u","Name":"grpc","Port":9003,"Address":"127.0.0.1","Checks":[{"Name":"g","GRPC":"127.0.0.1:9003","GRPCUseTLS":true,"TLSSkipVerify":true,"Interval":"10s"}]}`, "TLSSkipVerify"},
		{"registrator", `{"ID":"host:redis:6379","Name":"redis","Port":6379,"Tags":[],"Address":"127.0.0.1"}`, ""},
		{"registrator, TTL", `{"ID":"host:redis_1:6379","Name":"redis","Port":6379,"Tags":["master"],"Address":"127.0.0.1","Check":{"TTL":"30s"},"Meta":{}}`, ""},
		{"registrator, script", `{"ID":"host:db:5432","Name":"db","Port":5432,"Address":"127.0.0.1","Check":{"Script":"pg_isready","Interval":"10s"}}`, "agent.checks.scripts"},
		{"registrator, underscores", `{"ID":"host:my_app:80","Name":"my_app","Port":80,"Address":"127.0.0.1"}`, ""},
		{"consul-k8s", `{"ID":"web-abc-web","Name":"web","Kind":"connect-proxy","Address":"127.0.0.1","Port":20000,"Proxy":{"DestinationServiceName":"web"}}`, "Kind"},
		{"consul-k8s, service", `{"ID":"web-abc","Name":"web","Address":"127.0.0.1","Port":8080,"Meta":{"pod-name":"web-abc","k8s-namespace":"default"},"Tags":[],"Namespace":"default","Locality":{"Region":"eu-west-1","Zone":"eu-west-1a"}}`, ""},
		{"the documents: redis", `{"ID":"redis1","Name":"redis","Tags":["primary","v1"],"Address":"127.0.0.1","Port":8000,"Meta":{"redis_version":"4.0"},"EnableTagOverride":false,
		"Check":{"DeregisterCriticalServiceAfter":"90m","Args":["/usr/local/bin/check_redis.py"],"Interval":"10s","Timeout":"5s"},"Weights":{"Passing":10,"Warning":1}}`, "agent.checks.scripts"},
		{"the documents: web", `{"Name":"web","Port":80,"Check":{"HTTP":"http://localhost:80/health","Interval":"10s"}}`, ""},
		{"the documents: ports", `{"Name":"multi","Address":"127.0.0.1","Ports":[{"Name":"http","Port":8080,"Default":true},{"Name":"metrics","Port":9102}]}`, ""},
		{"the documents: no port", `{"Name":"worker","Check":{"TTL":"1m"}}`, ""},
		{"the documents: neither port nor check", `{"Name":"batch"}`, ""},
		{"the documents: alias", `{"Name":"alias","Port":1,"Check":{"AliasService":"web"}}`, "AliasService"},
		{"the documents: docker", `{"Name":"boxed","Port":1,"Check":{"DockerContainerID":"f972c95ebf0e","Shell":"/bin/bash","Args":["/check.py"],"Interval":"10s"}}`, "agent.checks.scripts"},
		{"the documents: UDP", `{"Name":"dns","Port":53,"Check":{"UDP":"127.0.0.1:53","Interval":"10s"}}`, "UDP"},
		{"the documents: HTTP in full", `{"Name":"full","Address":"127.0.0.1","Port":80,"Check":{"id":"api","name":"HTTP API","http":"http://127.0.0.1:80/health","method":"HEAD","interval":"10s","timeout":"1s","disable_redirects":true,
		"success_before_passing":3,"failures_before_warning":1,"failures_before_critical":3,"output_max_size":1024}}`, ""},
		{"the documents: POST", `{"Name":"post","Address":"127.0.0.1","Port":80,"Check":{"HTTP":"http://127.0.0.1:80/health","Method":"POST","Body":"{}","Interval":"10s"}}`, "Body"},
		{"the documents: socket", `{"Name":"sock","SocketPath":"/run/web.sock"}`, "SocketPath"},
		{"the documents: gateway", `{"Name":"gw","Kind":"mesh-gateway","Port":8443,"Address":"127.0.0.1"}`, "Kind"},
		{"traefik", `{"ID":"traefik","Name":"traefik","Tags":["traefik.enable=true","traefik.http.routers.x.rule=Host(` + "`x`" + `)"],"Port":80,"Address":"127.0.0.1","Check":{"TCP":"127.0.0.1:80","Interval":"5s","Timeout":"30s"}}`, ""},
		{"fabio", `{"ID":"fabio-host-9998","Name":"fabio","Tags":[],"Port":9998,"Address":"127.0.0.1","Check":{"HTTP":"http://127.0.0.1:9998/health","Interval":"1s","Timeout":"3s","TLSSkipVerify":true,"DeregisterCriticalServiceAfter":"90m"}}`, ""},
		{"node_exporter", `{"ID":"node-exporter","Name":"node-exporter","Address":"192.0.2.7","Port":9100,"Tags":["prometheus"],"Checks":[{"HTTP":"http://192.0.2.7:9100/metrics","Interval":"5s"}]}`, ""},
		{"node_exporter, underscore", `{"ID":"node_exporter","Name":"node_exporter","Address":"192.0.2.7","Port":9100,"Check":{"HTTP":"http://192.0.2.7:9100/","Interval":"5s"}}`, ""},
		{"another host", `{"ID":"blackbox","Name":"blackbox","Address":"192.0.2.8","Port":9115,"Check":{"HTTP":"http://192.0.2.9:9115/","Interval":"5s"}}`, "192.0.2.9"},
		{"another host, TCP", `{"ID":"ext","Name":"ext","Address":"192.0.2.8","Port":80,"Check":{"TCP":"example.org:80","Interval":"5s"}}`, "example.org"},
		{"Vault", `{"ID":"vault:127.0.0.1:8200","Name":"vault","Port":8200,"Address":"127.0.0.1","Tags":["standby"],"EnableTagOverride":false,"Check":{"CheckID":"vault-sealed-check","Name":"Vault Sealed Status","TTL":"5s","Status":"passing","Notes":"n","SuccessBeforePassing":0}}`, ""},
		{"Patroni", `{"ID":"main/n1","Name":"main","Address":"127.0.0.1","Port":5432,"Tags":["replica"],"Check":{"HTTP":"http://127.0.0.1:8008/replica","Interval":"5s","DeregisterCriticalServiceAfter":"150s"},"EnableTagOverride":true}`, ""},
		{"go-kit", `{"id":"addsvc-1","name":"addsvc","tags":["go"],"port":8081,"address":"127.0.0.1","check":{"http":"http://127.0.0.1:8081/health","interval":"10s","timeout":"1s","notes":"Basic health checks"}}`, ""},
		{"an unknown field", `{"ID":"w","Name":"weighty","Port":1,"Address":"127.0.0.1","Weight":10}`, ""},
		{"Micronaut", `{"Name":"hello","ID":"hello:8080","Address":"127.0.0.1","Port":8080,"Tags":[],"Meta":{},"Check":{"Name":"hello","TTL":"30s","Status":"passing","DeregisterCriticalServiceAfter":"1m"},"Token":"x","CreateIndex":0,"ContentHash":""}`, ""},
		{"another namespace", `{"Name":"tenant","Port":1,"Address":"127.0.0.1","Namespace":"team-a"}`, "Namespace must be default"},
	}
}

// snake writes names in the other way that Consul takes.
func snake(body string) string {
	keep := regexp.MustCompile(`"(Meta|TaggedAddresses|Header)":\{[^}]*\}+`)
	held := keep.FindAllString(body, -1)
	body = keep.ReplaceAllString(body, `"held":0`)
	body = regexp.MustCompile(`"([A-Za-z]+)":`).ReplaceAllStringFunc(body, func(m string) string {
		return strings.ToLower(regexp.MustCompile(`([a-z])([A-Z])`).ReplaceAllString(m, "${1}_${2}"))
	})
	for _, m := range held {
		body = strings.Replace(body, `"held":0`, m, 1)
	}
	return body
}

// TestForms registers what programs send, in both ways to write names: it is taken, or refused by the name of what
// would mislead.
func TestForms(t *testing.T) {
	require.Len(t, forms(), 44)
	playAgent(t, func(t *testing.T, f *peerOf) {
		for _, form := range forms() {
			for _, body := range []string{form.body, snake(form.body), strings.ReplaceAll(snake(form.body), "_", "")} {
				if strings.Contains(form.body, "_") && body != form.body && strings.ReplaceAll(form.body, "_", "") == body {
					continue
				}
				require.True(t, json.Valid([]byte(body)), "%s: %s", form.who, body)
				got := f.put("agent/service/register", body)
				switch {
				case form.right != "":
					require.Equal(t, http.StatusBadRequest, got.code, "%s: %s", form.who, body)
					plain := func(s string) string { return strings.ToLower(strings.ReplaceAll(s, "_", "")) }
					require.Contains(t, plain(got.body), plain(form.right), form.who)
				default:
					require.Equal(t, http.StatusOK, got.code, "%s: %s: %s", form.who, body, got.body)
				}
				for id := range read[map[string]any](t, f.get("agent/services")) {
					f.done("agent/service/deregister/"+strings.ReplaceAll(id, "/", "%2F"), "")
				}
			}
		}
	})
}
