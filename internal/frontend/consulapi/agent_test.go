package consulapi_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/agent"
	"github.com/blackhole/blackhole/internal/agent/directory"
	"github.com/blackhole/blackhole/internal/agent/health"
	"github.com/blackhole/blackhole/internal/agent/registry"
	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	"github.com/blackhole/blackhole/internal/frontend/authority"
	"github.com/blackhole/blackhole/internal/frontend/consulapi"
	"github.com/blackhole/blackhole/internal/platform/access"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// peerOf is a front with the agent plane of one peer.
type peerOf struct {
	*front
	agent   *agent.Service
	checker *health.Checker
	told    atomic.Pointer[consulapi.Server] // of the results of checks
	disk    vfs.FS
	down    atomic.Bool  // checked addresses refuse connections
	failed  atomic.Value // last error of Config.Failed; errNone for nil
	named   bool         // callers have names, and the rights of their roles

	group *coordtest.Solo // that has the directory; nil: the peer is alone
}

func playAgent(t *testing.T, test func(t *testing.T, f *peerOf)) {
	synctest.Test(t, func(t *testing.T) {
		f := &peerOf{disk: vfs.NewMem()}
		f.start(t)
		defer func() { f.close(t) }()
		test(t, f)
	})
}

func (f *peerOf) close(t *testing.T) {
	f.checker.Close()
	require.NoError(t, f.agent.Close())
}

// checks are those of the daemon.
type checks struct{ *health.Checker }

func targetOf(p consulapi.Probe) health.Target {
	return health.Target{Key: instance.Key{ID: p.ID}, Host: p.Host, Port: p.Port, Check: p.Check, Local: p.Local, TLS: p.TLS, Head: p.Head}
}

func (c checks) Validate(p consulapi.Probe) error { return c.Checker.Validate(targetOf(p)) }

func (c checks) Set(p consulapi.Probe) error { return c.Checker.Set(targetOf(p)) }

func (c checks) Remove(id string) { c.Checker.Remove(instance.Key{ID: id}) }

var errNone = errors.New("none")

func (f *peerOf) start(t *testing.T) {
	var err error
	f.checker = health.New(health.Config{
		Report: func(r health.Report) {
			if s := f.told.Load(); s != nil {
				s.Checked(r.Key.ID, r.Status)
			}
		},
		Random: func() uint64 { return 0 },
		Dial: func(_ context.Context, _, address string) (net.Conn, error) {
			if f.down.Load() || address == "127.0.0.1:9" {
				return nil, errors.New("refused")
			}
			here, there := net.Pipe()
			there.Close()
			return here, nil
		},
	})
	var group directory.Group
	if f.group != nil {
		group = led{f.group}
	}
	f.agent, err = agent.New(agent.Config{
		Group:    group,
		Registry: registry.Config{Dir: "instances", FS: f.disk, Self: coordtest.Peer}, Loopback: true, Now: time.Now,
		Checks: health.Config{Random: func() uint64 { return 0 }},
		Caller: func(ctx context.Context) string { return access.From(ctx).Name },
	})
	require.NoError(t, err)
	f.front = startWith(t, f.group, func(c *consulapi.Config) {
		c.Agent = &consulapi.Agent{
			Registrar: f.agent, Catalog: f.agent, Address: "127.0.0.1", Checks: checks{f.checker},
			Limit: func(context.Context) error { return nil },
			May: func(ctx context.Context, service string) error {
				if service == "default/secret" {
					return fault.New("", fault.Forbidden, "no")
				}
				if f.named {
					return access.Check(ctx, access.Need{Role: access.RoleService, Service: service})
				}
				return nil
			},
		}
		c.Failed = func(err error) {
			if err == nil {
				err = errNone
			}
			f.failed.Store(fmt.Errorf("%w", err))
		}
		if f.named {
			gate := authority.New(authority.Config{Service: c.Plane, Peer: coordtest.Peer, Front: consulapi.Front})
			c.Service, c.Owner = gate, gate.Owner
		}
	})
	f.told.Store(f.server)
}

// entry is a service with its checks as clients read it.
type entry struct {
	Node    struct{ Node, Address string }
	Service struct {
		ID, Service, Address string
		Port                 int
		Tags                 []string
		Meta                 map[string]string
		Weights              struct{ Passing, Warning int }
	}
	Checks []struct{ CheckID, Name, Status, Output, Notes, Type, ServiceID string }
}

func (f *peerOf) done(path, body string) {
	f.t.Helper()
	require.Equal(f.t, answer{http.StatusOK, 1, "", "true"}, f.put(path, body), path)
}

// statuses returns the checks of a service, without that of the node, as ID=status, and how many instances pass.
func (f *peerOf) statuses(service string) string {
	f.t.Helper()
	var out []string
	for _, e := range read[[]entry](f.t, f.get("health/service/"+service)) {
		require.Equal(f.t, "serfHealth", e.Checks[0].CheckID)
		for _, c := range e.Checks[1:] {
			out = append(out, c.CheckID+"="+c.Status)
		}
	}
	return fmt.Sprint(strings.Join(out, " "), " ", len(read[[]entry](f.t, f.get("health/service/"+service+"?passing"))))
}

// TestTags: all of them, in the order of the registration.
func TestTags(t *testing.T) {
	playAgent(t, func(t *testing.T, f *peerOf) {
		for tags, want := range map[string]string{
			`[]`: `[]`, `["a","b"]`: `["a","b"]`, `["c","a","b"]`: `["c","a","b"]`, `["b","a","b","c","a"]`: `["b","a","b","c","a"]`, `["a","a"]`: `["a","a"]`,
		} {
			f.done("agent/service/register", `{"ID":"web-1","Name":"web","Port":1,"Tags":`+tags+`,"Check":{"TTL":"1h"}}`)
			f.done("agent/check/pass/service:web-1", "")
			require.Contains(t, f.get("catalog/service/web").body, `"ServiceTags":`+want)
			require.Contains(t, f.get("health/checks/web").body, `"ServiceTags":`+want)
			require.Contains(t, f.get("agent/services").body, `"Tags":`+want)
		}
	})
}

func TestRegister(t *testing.T) {
	playAgent(t, func(t *testing.T, f *peerOf) {
		f.done("agent/service/register", `{"id":"web-1","Name":"web","Tags":["v2","Canary"],"Port":8080,"Meta":{"zone_":"a"},"Weights":{"Passing":5,"Warning":2},
			"TaggedAddresses":{"wan":{"Address":"192.0.2.1","Port":80}},"enable_tag_override":true,"Check":null,"Proxy":{},"Namespace":""}`)
		e := read[[]entry](t, f.get("health/service/web?passing&tag=v2&tag=canary"))[0]
		require.Equal(t, "web-1", e.Service.ID)
		require.Equal(t, []string{"", "127.0.0.1"}, []string{e.Service.Address, e.Node.Address}, "it is that of the node")
		require.Equal(t, 8080, e.Service.Port)
		require.Equal(t, map[string]string{"zone_": "a"}, e.Service.Meta)
		require.Equal(t, []string{"v2", "Canary"}, e.Service.Tags, "in the order of the registration")
		require.Equal(t, struct{ Passing, Warning int }{5, 2}, e.Service.Weights)
		require.Equal(t, "[]", f.get("health/service/web?tag=v3").body)
		require.Equal(t, `{"consul":[],"web":["Canary","v2"]}`, f.get("catalog/services").body)
		one := read[[]map[string]any](t, f.get("catalog/service/web"))[0]
		require.Equal(t, coordtest.Peer, one["Node"])
		require.EqualValues(t, 8080, one["ServicePort"])
		require.Equal(t, true, one["ServiceEnableTagOverride"])
		require.Equal(t, map[string]any{"wan": map[string]any{"Address": "192.0.2.1", "Port": 80.0}}, one["ServiceTaggedAddresses"])
		require.Contains(t, f.get("agent/services").body, `"web-1":{"ID":"web-1"`)
		require.Contains(t, f.get("agent/service/web-1").body, `"Port":8080`)
		require.Equal(t, http.StatusNotFound, f.get("agent/service/none").code)
		require.Contains(t, f.get("agent/self").body, `"NodeName":"solo"`)
		require.Equal(t, `["dc1"]`, f.get("catalog/datacenters").body)
		require.Len(t, read[[]any](t, f.get("catalog/nodes")), 1)
		require.Contains(t, f.get("catalog/node/solo").body, `"web-1"`)
		require.Equal(t, "null", f.get("catalog/node/other").body)

		time.Sleep(72 * time.Hour)
		require.Equal(t, " 1", f.statuses("web"), "a service without a check stays until it is deregistered")
		f.done("agent/service/register", `{"ID":"web-1","Name":"api","Port":1}`)
		require.Equal(t, `{"api":[],"consul":[]}`, f.get("catalog/services").body, "an id has one service at a peer")
		f.done("agent/service/deregister/web-1", "")
		require.Equal(t, http.StatusNotFound, f.put("agent/service/deregister/web-1", "").code)
		require.Equal(t, `{"consul":[]}`, f.get("catalog/services").body)
	})
}

// TestAnyID: a service has the id that its client chose, whatever it is.
func TestAnyID(t *testing.T) {
	playAgent(t, func(t *testing.T, f *peerOf) {
		for _, id := range []string{"demo/n1", "demo.n1", "watch", "a b", strings.Repeat("x", 200), "ü"} {
			f.done("agent/service/register", fmt.Sprintf(`{"ID":%q,"Name":"web","Port":1,"Check":{"TTL":"1h"}}`, id))
			path := url.PathEscape(id)
			f.done("agent/check/pass/service:"+path, "")
			require.Equal(t, id, read[map[string]any](t, f.get("agent/service/"+path))["ID"])
			require.Contains(t, f.get("agent/services").body, fmt.Sprintf("%q:{", id))
			require.Equal(t, id, read[[]map[string]any](t, f.get("health/checks/web"))[0]["ServiceID"])
			require.Equal(t, "service:"+id+"=passing 1", f.statuses("web"))
			f.done("agent/service/maintenance/"+path+"?enable=true", "")
			f.done("agent/service/deregister/"+strings.ReplaceAll(path, "%2F", "/"), "")
			require.Equal(t, "[]", f.get("health/service/web").body)
		}
		f.done("agent/service/register", `{"ID":"demo/n1","Name":"web","Port":1}`)
		f.done("agent/service/register", `{"ID":"demo.n1","Name":"web","Port":1}`)
		require.Len(t, read[[]entry](t, f.get("health/service/web")), 2)
	})
}

func TestRefusedServices(t *testing.T) {
	playAgent(t, func(t *testing.T, f *peerOf) {
		f.done("agent/service/register", `{"Name":"web","Port":1,"Check":{"CheckID":"ttl","TTL":"10s"},"Checks":[{"CheckID":"tcp","TCP":"127.0.0.1:1","Interval":"5s"}]}`)
		_, err := f.agent.Register(t.Context(), instance.Registration{Key: instance.Key{Service: "native", ID: "n"}, Spec: instance.Spec{Host: "192.0.2.1", Port: 1}})
		require.NoError(t, err)
		for _, c := range []struct{ path, body, text string }{
			{"agent/service/register", `{}`, "Missing service name"},
			{"agent/service/register", `{"Name":"a","Kind":"connect-proxy","Port":1}`, "Kind is not supported"},
			{"agent/service/register", `{"Name":"a b","Port":1}`, "contains ' '"},
			{"agent/service/register", `{"Name":"a","Port":65536}`, "port must be 1 to 65535"},
			{"agent/service/register", `{"Name":"a","Port":1,"Check":{"Name":"x"}}`, "Check needs one of"},
			{"agent/service/register", `{"Name":"a","Port":1,"Check":{"TTL":"1s","TCP":"1"}}`, "Check needs one of"},
			{"agent/service/register", `{"Name":"a","Port":1,"Check":{"Args":["x"]}}`, "Args is not supported"},
			{"agent/service/register", `{"Name":"a","Port":1,"Check":{"TTL":"soon"}}`, "duration"},
			{"agent/service/register", `{"Name":"a","Port":1,"Check":{"TTL":"1s","Status":"good"}}`, "Checks[0].Status must be"},
			{"agent/service/register", `{"Name":"a","Port":1,"Check":{"TCP":"1"}}`, "Interval is missing"},
			{"agent/service/register", `{"Name":"a","Port":1,"Check":{"HTTP":"http://127.0.0.1:1/","Method":"POST","Interval":"1s"}}`, "Method must be GET or HEAD"},
			{"agent/service/register", `{"Name":"a","Port":1,"Checks":[null]}`, "Checks[0] must be an object"},
			{"agent/service/register", `{"Name":"a","Port":1,"Namespace":"x"}`, "Namespace must be default"},
			{"agent/service/register", `{"Name":"a","Port":1,"Check":{"TTL":"1s","Partition":"x"}}`, "Partition must be default"},
			{"session/create", `{"Namespace":"x"}`, "Namespace must be default"},
			{"agent/service/register", `{"Name":"a","Port":1,"Check":{"TCP":"192.0.2.1:1","Interval":"1s"}}`, "not the instance's own"},
			{"agent/service/register", `{"Name":"a","Port":1,"Checks":[{"CheckID":"x","TTL":"1s"},{"CheckID":"x","TTL":"1s"}]}`, "Checks[1].CheckID occurs twice"},
			{"agent/service/register", `{"Name":"a","Port":1,"Check":{"CheckID":"ttl","TTL":"1s"}}`, "that of a check of the service web"},
			{"agent/service/register?ns=x", `{"Name":"a","Port":1}`, "ns must be default"},
			{"agent/check/register", `{"Name":"a"}`, "Check needs one of"},
			{"agent/check/register", `{"ServiceID":"web","TTL":"1s"}`, "Missing check name"},
			{"agent/check/register", `{"ServiceID":"web","Name":"second","HTTP":"http://192.0.2.1:1/","Interval":"1s"}`, "not the instance's own"},
			{"agent/check/register", `{"ServiceID":"n","Name":"x","TTL":"1s"}`, "not registered by the API of Consul"},
			{"agent/check/pass/tcp", "", "does not have associated TTL"},
			{"agent/check/update/ttl", `{"Status":"good"}`, "Status must be"},
			{"agent/service/maintenance/web", "", "enable must be"},
		} {
			a := f.put(c.path, c.body)
			require.Equal(t, http.StatusBadRequest, a.code, "%s %s", c.path, c.body)
			require.Contains(t, a.body, c.text)
		}
		for path, body := range map[string]string{
			"agent/check/pass/none": "", "agent/check/deregister/none": "", "agent/service/maintenance/none?enable=true": "", "agent/check/register": `{"ServiceID":"none","Name":"x","TTL":"1s"}`,
		} {
			require.Equal(t, http.StatusNotFound, f.put(path, body).code, path)
		}
		require.Equal(t, http.StatusMethodNotAllowed, f.get("agent/check/pass/none").code)
		require.Equal(t, http.StatusForbidden, f.put("agent/service/register", `{"Name":"secret","Port":1}`).code)
		require.Equal(t, http.StatusBadRequest, f.get("health/service/web?near=other").code)
		for _, filter := range []string{
			"x", "Typo == 1", "Service.Port == many", "Service.Port matches `x`", "Node.Node ==", "Service.ID matches `(`", strings.Repeat("(", 100) + "Service.Port == 1",
			"Service.ID == " + strings.Repeat("x", 5000), strings.Repeat("Service.Port == 1 or ", 32) + "Service.Port == 1",
		} {
			a := f.get("health/service/none?index=1&filter=" + url.QueryEscape(filter))
			require.Equal(t, http.StatusBadRequest, a.code, filter)
			require.Contains(t, a.body, "filter ")
		}
	})
}

// TestFilter: each list takes the expressions of Consul, with the names of its own fields.
func TestFilter(t *testing.T) {
	playAgent(t, func(t *testing.T, f *peerOf) {
		f.done("agent/service/register", `{"Name":"web","ID":"w1","Port":1,"Tags":["blue"],"Meta":{"version":"1"},"Check":{"TTL":"1h","Status":"passing"}}`)
		f.done("agent/service/register", `{"Name":"web","ID":"w2","Port":2,"Tags":["green"],"Check":{"TTL":"1h"}}`)
		f.done("agent/service/register", `{"Name":"db","Port":3}`)
		for _, c := range []struct{ path, filter, in, out string }{
			{"health/service/web", "Service.Meta.version == 1", "w1", "w2"},
			{"health/service/web", "Service.Tags contains `green` and not Node.Node == other", "w2", "w1"},
			{"health/service/web", "Checks.Status == critical", "w2", "w1"},
			{"health/service/web", "Service.Meta is not empty or Service.Port != 2", "w1", "w2"},
			{"health/checks/web", "ServiceTags contains blue", "w1", "w2"},
			{"health/state/any", "ServiceName == web and Status == passing", "w1", "w2"},
			{"health/node/solo", "ServiceID == w2", "w2", "w1"},
			{"catalog/service/web", "ServicePort == 2 and NodeMeta is empty and Node == solo", "w2", "w1"},
			{"catalog/services", "ServiceTags is empty", "db", "web"},
			{"catalog/node/solo", "Service matches `^w` and Port == 1", "w1", "w2"},
			{"catalog/nodes", "Address == `127.0.0.1`", "solo", "none"},
			{"catalog/nodes", "Meta.role == db", "[]", "solo"},
			{"agent/services", "Tags contains green", "w2", "w1"},
			{"agent/checks", "Status == critical", "w2", "w1"},
		} {
			a := f.get(c.path + "?filter=" + url.QueryEscape(c.filter))
			require.Equal(t, http.StatusOK, a.code, "%s %s %s", c.path, c.filter, a.body)
			require.Contains(t, a.body, c.in, "%s %s", c.path, c.filter)
			require.NotContains(t, a.body, c.out, "%s %s", c.path, c.filter)
		}
		require.Equal(t, `{"db":[],"web":["blue","green"]}`, f.get("catalog/services?filter="+url.QueryEscape("ServicePort != 9")).body)
	})
}

// TestRemoteRegistration: who is not on this host registers no loopback address, also through a later change.
func TestRemoteRegistration(t *testing.T) {
	playAgent(t, func(t *testing.T, f *peerOf) {
		f.from = "192.0.2.9:1"
		a := f.put("agent/service/register", `{"Name":"web","Port":1}`)
		require.Equal(t, http.StatusBadRequest, a.code)
		require.Contains(t, a.body, "loopback")
		f.done("agent/service/register", `{"Name":"web","Address":"192.0.2.9","Port":1,"Check":{"TTL":"1h"}}`)
		f.done("agent/check/pass/service:web", "")
		a = f.put("agent/check/register", `{"ServiceID":"web","Name":"own","TCP":"127.0.0.1:1","Interval":"1s"}`)
		require.Equal(t, http.StatusBadRequest, a.code, "no check leads to this host")
		require.Equal(t, "service:web=passing 1", f.statuses("web"))
	})
}

// TestTTL: a check with a TTL is critical until it passes and when it is silent, and all checks of a service must pass.
func TestTTL(t *testing.T) {
	playAgent(t, func(t *testing.T, f *peerOf) {
		f.done("agent/service/register", `{"Name":"web","Port":1,"Checks":[{"TTL":"10s","Notes":"n"},{"CheckID":"second","TTL":"1h","Status":"passing"}]}`)
		require.Equal(t, "service:web:1=critical second=passing 0", f.statuses("web"))
		f.done("agent/check/pass/service:web:1?note=fine", "")
		require.Equal(t, "service:web:1=passing second=passing 1", f.statuses("web"))
		require.Contains(t, f.get("health/checks/web").body, `"Output":"fine"`)
		f.done("agent/check/warn/second", "")
		require.Equal(t, "service:web:1=passing second=warning 0", f.statuses("web"))
		f.done("agent/check/update/second", `{"Status":"passing","Output":"again"}`)
		for range 5 {
			time.Sleep(9 * time.Second)
			f.done("agent/check/pass/service:web:1?note=still", "")
		}
		require.Equal(t, "service:web:1=passing second=passing 1", f.statuses("web"))
		require.Contains(t, f.get("agent/checks").body, `"Output":"still"`)
		time.Sleep(12 * time.Second)
		require.Equal(t, "service:web:1=critical second=passing 0", f.statuses("web"))
		require.Contains(t, f.get("health/checks/web").body, "TTL expired")
		require.Len(t, read[[]any](t, f.get("health/state/critical")), 1)
		require.Len(t, read[[]any](t, f.get("health/state/any")), 3)
		require.Len(t, read[[]any](t, f.get("health/node/solo")), 3)
		f.done("agent/check/fail/second", "")
		f.done("agent/check/pass/service:web:1", "")
		require.Equal(t, "service:web:1=passing second=critical 0", f.statuses("web"))

		f.done("agent/service/register", `{"Name":"web","Port":2,"Check":{"CheckID":"second","TTL":"1h"}}`)
		require.Equal(t, "second=critical service:web:1=passing 0", f.statuses("web"), "checks stay, with their statuses")
		f.done("agent/service/register?replace-existing-checks", `{"Name":"web","Port":2,"Check":{"CheckID":"third","TTL":"1h"}}`)
		require.Equal(t, "third=critical 0", f.statuses("web"))
		f.done("agent/check/register", `{"Name":"fourth","ServiceID":"web","TTL":"1h","Status":"passing"}`)
		f.done("agent/check/deregister/third", "")
		require.Equal(t, "fourth=passing 1", f.statuses("web"))
	})
}

// TestTTLAfterRestart: the statuses of checks outlive the peer, and their clocks begin anew.
func TestTTLAfterRestart(t *testing.T) {
	playAgent(t, func(t *testing.T, f *peerOf) {
		f.done("agent/service/register", `{"Name":"web","Port":1,"Check":{"TTL":"1m"}}`)
		f.done("agent/service/register", `{"Name":"free","Port":1}`)
		f.done("agent/check/pass/service:web", "")
		f.stop()
		f.close(t)
		f.start(t)
		require.Equal(t, "service:web=passing 1", f.statuses("web"))
		require.Equal(t, " 1", f.statuses("free"))
		time.Sleep(58 * time.Second)
		f.done("agent/check/pass/service:web", "")
		time.Sleep(59 * time.Second)
		require.Equal(t, "service:web=passing 1", f.statuses("web"))
		time.Sleep(3 * time.Second)
		require.Equal(t, "service:web=critical 0", f.statuses("web"))
	})
}

func TestDeregisterCritical(t *testing.T) {
	playAgent(t, func(t *testing.T, f *peerOf) {
		f.done("agent/service/register", `{"Name":"web","Port":1,"Check":{"TTL":"10s","DeregisterCriticalServiceAfter":"1m","Status":"passing"}}`)
		time.Sleep(65 * time.Second)
		require.Equal(t, "service:web=critical 0", f.statuses("web"))
		f.done("agent/check/pass/service:web", "")
		time.Sleep(65 * time.Second)
		require.Equal(t, "service:web=critical 0", f.statuses("web"), "the time begins anew")
		time.Sleep(10 * time.Second)
		require.Equal(t, `{"consul":[]}`, f.get("catalog/services").body)
	})
}

// TestActiveChecks: the peer runs several checks of a service, beside those with a TTL, and all must pass.
func TestActiveChecks(t *testing.T) {
	playAgent(t, func(t *testing.T, f *peerOf) {
		f.done("agent/service/register", `{"Name":"web","Port":1,"Checks":[{"CheckID":"tcp","TCP":"127.0.0.1:1","Interval":"10s"},
			{"CheckID":"admin","TCP":"127.0.0.1:2","Interval":"10s","Status":"passing","DeregisterCriticalServiceAfter":"30h"},{"CheckID":"ttl","TTL":"24h"}]}`)
		require.Equal(t, "tcp=critical admin=passing ttl=critical 0", f.statuses("web"))
		f.done("agent/check/pass/ttl", "")
		time.Sleep(12 * time.Second)
		require.Equal(t, "tcp=passing admin=passing ttl=passing 1", f.statuses("web"))
		f.done("agent/check/register", `{"ServiceID":"web","Name":"dead","TCP":"127.0.0.1:9","Interval":"10s"}`)
		time.Sleep(12 * time.Second)
		require.Equal(t, "tcp=passing admin=passing ttl=passing dead=critical 0", f.statuses("web"), "one fails, and each shows its own result")
		f.done("agent/check/register", `{"ServiceID":"web","Name":"dead","TTL":"24h","Status":"passing"}`)
		time.Sleep(12 * time.Second)
		require.Equal(t, "tcp=passing admin=passing ttl=passing dead=passing 1", f.statuses("web"), "it has become one with a TTL")
		f.done("agent/check/deregister/dead", "")

		f.down.Store(true)
		time.Sleep(22 * time.Second)
		require.Equal(t, "tcp=critical admin=critical ttl=passing 0", f.statuses("web"))
		require.Contains(t, f.get("health/checks/web").body, "the check of the peer fails")
		f.stop()
		f.close(t)
		f.start(t)
		time.Sleep(24 * time.Hour)
		require.Contains(t, f.statuses("web"), "tcp=critical admin=critical", "it stays registered")
		f.down.Store(false)
		f.done("agent/check/pass/ttl", "")
		time.Sleep(12 * time.Second)
		require.Equal(t, "tcp=passing admin=passing ttl=passing 1", f.statuses("web"), "the checks go on after a restart")
		f.done("agent/check/deregister/tcp", "")
		f.done("agent/check/deregister/admin", "")
		f.down.Store(true)
		time.Sleep(time.Hour)
		require.Equal(t, "ttl=passing 1", f.statuses("web"))
		f.done("agent/check/register", `{"ServiceID":"web","Name":"last","TCP":"127.0.0.1:1","Interval":"10s","DeregisterCriticalServiceAfter":"1m"}`)
		time.Sleep(80 * time.Second)
		require.Equal(t, `{"consul":[]}`, f.get("catalog/services").body)
	})
}

// TestReportAtExpiry: a report that arrives while the clock of its check runs out is the last word.
func TestReportAtExpiry(t *testing.T) {
	playAgent(t, func(t *testing.T, f *peerOf) {
		f.done("agent/service/register", `{"Name":"web","Port":1,"Check":{"TTL":"10s","DeregisterCriticalServiceAfter":"1m","Status":"passing"}}`)
		for range 200 {
			f.done("agent/check/pass/service:web", "")
			time.Sleep(10 * time.Second)
			f.done("agent/check/pass/service:web", "")
			time.Sleep(2 * time.Second)
			require.Equal(t, "service:web=passing 1", f.statuses("web"))
		}
		f.done("agent/check/fail/service:web", "")
		time.Sleep(time.Minute)
		f.put("agent/check/pass/service:web", "")
		time.Sleep(2 * time.Second)
		require.Contains(t, []string{"service:web=passing 1", " 0"}, f.statuses("web"), "it is there and passes, or it is gone")
	})
}

// TestManyOutputs: the outputs of many checks take no more room than there is, and definitions that do are refused.
func TestManyOutputs(t *testing.T) {
	playAgent(t, func(t *testing.T, f *peerOf) {
		define := func(n int) string {
			list := make([]string, n)
			for i := range list {
				list[i] = fmt.Sprintf(`{"CheckID":"c%d","TTL":"1h"}`, i)
			}
			return `{"Name":"web","Port":1,"Checks":[` + strings.Join(list, ",") + "]}"
		}
		f.done("agent/service/register", define(20))
		for n := range 20 {
			f.done(fmt.Sprintf("agent/check/pass/c%d?note=%s", n, strings.Repeat("%C3%BC", 256)), "")
		}
		require.Len(t, read[[]any](t, f.get("health/service/web?passing")), 1)
		a := f.put("agent/service/register", define(80))
		require.Equal(t, http.StatusBadRequest, a.code)
		require.Contains(t, a.body, "Checks ")
	})
}

func TestMaintenance(t *testing.T) {
	playAgent(t, func(t *testing.T, f *peerOf) {
		f.done("agent/service/register", `{"Name":"web","Port":1,"Check":{"TTL":"1h","Status":"passing"}}`)
		f.done("agent/service/maintenance/web?enable=true&reason=upgrade", "")
		require.Equal(t, "service:web=passing _service_maintenance:web=critical 0", f.statuses("web"))
		require.Contains(t, f.get("health/checks/web").body, `"Notes":"upgrade"`)
		f.done("agent/service/register", `{"Name":"web","Port":2}`)
		require.Contains(t, f.statuses("web"), "_service_maintenance:web=critical", "a registration does not end it")
		f.done("agent/check/fail/service:web", "")
		f.done("agent/service/maintenance/web?enable=false", "")
		require.Equal(t, "service:web=critical 0", f.statuses("web"))
		f.done("agent/check/pass/service:web", "")
		require.Equal(t, "service:web=passing 1", f.statuses("web"))
	})
}

// TestNativeInstances: clients of Consul find instances that were registered otherwise, with what is wrong with them.
func TestNativeInstances(t *testing.T) {
	playAgent(t, func(t *testing.T, f *peerOf) {
		_, err := f.agent.Register(t.Context(), instance.Registration{Key: instance.Key{Service: "web", ID: "n"}, Spec: instance.Spec{Host: "192.0.2.1", Port: 1}})
		require.NoError(t, err)
		require.Equal(t, " 1", f.statuses("web"))
		time.Sleep(31 * time.Second)
		require.Equal(t, "status:n=critical 0", f.statuses("web"))
		require.Contains(t, f.get("health/checks/web").body, "UNHEALTHY")
	})
}

func TestBlockingCatalog(t *testing.T) {
	playAgent(t, func(t *testing.T, f *peerOf) {
		f.done("agent/service/register", `{"Name":"web","Port":1,"Check":{"TTL":"1h","Status":"passing"}}`)
		at := f.get("health/service/web?passing").index
		w := f.wait(fmt.Sprint("health/service/web?passing&wait=1m&index=", at))
		state := f.wait(fmt.Sprint("health/state/any?index=", f.get("health/state/any").index))
		w.waits(t)
		f.done("agent/check/fail/service:web", "")
		changed := w.ends(t)
		require.Equal(t, "[]", changed.body)
		require.Greater(t, changed.index, at)
		require.Contains(t, state.ends(t).body, "critical")
		now := f.get("health/service/web").index // a failure is more than one change: the status, and what the check says
		quiet := f.wait(fmt.Sprint("health/service/web?wait=1m&index=", now))
		list := f.wait(fmt.Sprint("catalog/services?wait=10m&index=", f.get("catalog/services").index))
		list.waits(t)
		f.done("agent/service/register", `{"Name":"other","Port":1}`)
		require.Contains(t, list.ends(t).body, "other")
		quiet.waits(t)
		time.Sleep(2 * time.Minute)
		require.Equal(t, now, quiet.ends(t).index, "nothing changed")
		require.Equal(t, now, f.get("health/service/web?index=1000000").index, "an index from the future is reset")
	})
}
