package consulapi_test

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/internal/platform/access"
	"github.com/blackhole/blackhole/pkg/instance"
)

// all is what clients read of this peer: services, checks, keys, and sessions of all callers.
func (f *peerOf) all(callers ...access.Principal) (out []string) {
	was := f.as
	defer func() { f.as = was }()
	for _, as := range callers {
		f.as = as
		for _, path := range []string{"agent/services", "agent/checks", "health/state/any", "catalog/services", "kv/?recurse", "session/list"} {
			out = append(out, path+" "+f.get(path).body)
		}
	}
	return out
}

// TestRefusedCallsChangeNothing: a caller without the right to a service, a check, a session or a key changes nothing
// of them, at once and two lifetimes later.
func TestRefusedCallsChangeNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &peerOf{disk: vfs.NewMem(), named: true}
		f.start(t)
		defer func() { f.close(t) }()
		a := access.Principal{Name: "a", Role: access.RoleService, Services: []string{"default/web", "consul/web"}}
		b := access.Principal{Name: "b", Role: access.RoleService, Services: []string{"default/other", "consul/other"}}
		f.as = b
		f.done("agent/service/register", `{"Name":"other","Port":1}`)
		f.as = a
		f.done("agent/service/register", `{"Name":"web","Port":1,"Checks":[{"CheckID":"ttl","TTL":"1h","Status":"passing"},{"CheckID":"tcp","TCP":"127.0.0.1:1","Interval":"1s"}]}`)
		lasting, timed := f.session(`{"LockDelay":"0s"}`), f.session(`{"TTL":"1h"}`)
		f.yes("PUT", "kv/web/lasting?acquire="+lasting, "")
		f.yes("PUT", "kv/web/timed?acquire="+timed, "")
		time.Sleep(20 * time.Second)
		require.Equal(t, "ttl=passing tcp=passing 1", f.statuses("web"))
		before := f.all(a, b)
		f.as = b
		for _, c := range []struct {
			method, path, body string
			code               int
		}{
			{"PUT", "agent/service/register", `{"Name":"web","Port":2}`, 403},
			{"PUT", "agent/service/register", `{"Name":"other","ID":"web","Port":2}`, 403},
			{"PUT", "agent/service/register", `{"Name":"other","ID":"new","Port":2,"Check":{"CheckID":"ttl","TTL":"1s"}}`, 400},
			{"PUT", "agent/service/register", `{"Name":"other","Port":2,"Checks":[{"CheckID":"own","TTL":"1s"},{"CheckID":"tcp","TCP":"127.0.0.1:9","Interval":"1s"}]}`, 400},
			{"PUT", "agent/service/register", `{"Name":"other","Port":1,"Check":{"TCP":"192.0.2.1:9","Interval":"1s"}}`, 400},
			{"PUT", "agent/check/register", `{"ServiceID":"other","Name":"ttl","TTL":"1s"}`, 400},
			{"PUT", "agent/check/register", `{"ServiceID":"other","Name":"x","ID":"tcp","TCP":"127.0.0.1:9","Interval":"1s"}`, 400},
			{"PUT", "agent/check/register", `{"ServiceID":"web","Name":"mine","TTL":"1s"}`, 403},
			{"PUT", "agent/check/pass/ttl?note=b", "", 403},
			{"PUT", "agent/check/warn/ttl?note=b", "", 403},
			{"PUT", "agent/check/fail/ttl?note=b", "", 403},
			{"PUT", "agent/check/update/ttl", `{"Status":"critical","Output":"b"}`, 403},
			{"PUT", "agent/check/pass/tcp", "", 403},
			{"PUT", "agent/check/deregister/ttl", "", 403},
			{"PUT", "agent/check/deregister/tcp", "", 403},
			{"PUT", "agent/service/maintenance/web?enable=true", "", 403},
			{"PUT", "agent/service/deregister/web", "", 403},
			{"PUT", "session/destroy/" + lasting, "", 403},
			{"PUT", "session/destroy/" + timed, "", 403},
			{"PUT", "kv/web/lasting", "b", 403},
			{"PUT", "kv/web/lasting?release=" + lasting, "", 403},
			{"PUT", "kv/other/x?acquire=" + lasting, "", 500},
			{"DELETE", "kv/web/lasting", "", 403},
			{"DELETE", "kv/?recurse", "", 403},
			{"PUT", "txn", `[{"KV":{"Verb":"delete","Key":"web/timed"}}]`, 403},
		} {
			got := f.call(c.method, "/v1/"+c.path, c.body)
			require.Equal(t, c.code, got.code, "%s %s %s: %s", c.method, c.path, c.body, got.body)
			require.Equal(t, before, f.all(a, b), "%s %s %s", c.method, c.path, c.body)
		}
		f.put("session/renew/"+lasting, "")
		time.Sleep(5 * time.Minute)
		require.Equal(t, before, f.all(a, b), "two lifetimes later")
	})
}

// TestIDsOfOthers: an instance that another front end registers under the id of a service takes nothing from it.
func TestIDsOfOthers(t *testing.T) {
	playAgent(t, func(t *testing.T, f *peerOf) {
		f.done("agent/service/register", `{"ID":"web-1","Name":"web","Port":1,"Check":{"CheckID":"ttl","TTL":"10s","Status":"passing"}}`)
		_, err := f.agent.Register(t.Context(), instance.Registration{Key: instance.Key{Service: "aaa", ID: "web-1"}, Spec: instance.Spec{
			Host: "192.0.2.1", Port: 9, UnhealthyAfter: instance.MaxTTL, Metadata: map[string]string{"consul": `{"Checks":[{"ID":"ttl","Type":"ttl","TTL":1}]}`},
		}})
		require.NoError(t, err)
		require.Contains(t, f.get("agent/service/web-1").body, `"Service":"web"`)
		require.Contains(t, f.get("agent/services").body, `"Service":"web"`)
		time.Sleep(12 * time.Second)
		require.Equal(t, "ttl=critical 0", f.statuses("web"), "its clock runs on")
		f.done("agent/check/pass/ttl", "")
		require.Equal(t, "ttl=passing 1", f.statuses("web"))
		f.done("agent/service/register", `{"ID":"web-1","Name":"web","Port":2,"Check":{"CheckID":"ttl","TTL":"10s"}}`)
		require.Equal(t, " 1", f.statuses("aaa"), "it stays")
		f.done("agent/service/deregister/web-1", "")
		require.Equal(t, `{"aaa":[],"consul":[]}`, f.get("catalog/services").body)
	})
}

// TestIDsStay: a service has the same instance over restarts and registrations. One that another front end registered
// under its id at this peer becomes it, and what ends like an instance of this peer is another service.
func TestIDsStay(t *testing.T) {
	playAgent(t, func(t *testing.T, f *peerOf) {
		ids := func() (ids []string) {
			all, err := f.agent.List(t.Context(), instances.ListQuery{Namespace: instance.DefaultNamespace, Selector: instance.Selector{AnyStatus: true}})
			require.NoError(t, err)
			for _, i := range all.Instances {
				ids = append(ids, i.ID)
			}
			return ids
		}
		own := func() []string {
			return slices.Sorted(maps.Keys(read[map[string]any](t, f.get("agent/services"))))
		}
		native := instance.Registration{Key: instance.Key{Service: "web", ID: "native"}, Spec: instance.Spec{Host: "192.0.2.1", Port: 1}}
		_, err := f.agent.Register(t.Context(), native)
		require.NoError(t, err)
		for range 2 {
			f.done("agent/service/register", `{"Name":"web"}`)
			f.done("agent/service/register", `{"Name":"web","ID":"web-solo"}`)
			f.done("agent/service/register", `{"Name":"web","ID":"native"}`)
			f.done("agent/service/register", `{"Name":"web","ID":"a/b"}`)
			require.Equal(t, []string{"a/b", "native", "web", "web-solo"}, own())
			require.ElementsMatch(t, []string{"native", "web-solo", "web-solo-solo", ids()[0]}, ids())
			f.stop()
			f.close(t)
			f.start(t)
			require.Equal(t, []string{"a/b", "native", "web", "web-solo"}, own())
		}
		native.ID = "web" // another instance of another front, though both give it the id
		_, err = f.agent.Register(t.Context(), native)
		require.NoError(t, err)
		f.done("agent/service/register", `{"Name":"web"}`)
		require.Len(t, ids(), 5)
		for _, id := range []string{"a%2Fb", "native", "web", "web-solo"} {
			f.done("agent/service/deregister/"+id, "")
		}
		require.Equal(t, []string{"web"}, ids())
		f.done("agent/service/deregister/web", "")
		require.Empty(t, ids())
	})
}

// TestMovedID: a service gets another name under its id, and keeps the ids of its checks; if it is refused, the one
// before stays.
func TestMovedID(t *testing.T) {
	playAgent(t, func(t *testing.T, f *peerOf) {
		f.done("agent/service/register", `{"ID":"x","Name":"web","Port":1,"Check":{"TTL":"10s","Status":"passing"}}`)
		require.Equal(t, http.StatusBadRequest, f.put("agent/service/register", `{"ID":"x","Name":"api","Port":70000,"Check":{"TTL":"10s"}}`).code)
		require.Equal(t, "service:x=passing 1", f.statuses("web"))
		f.done("agent/service/register", `{"ID":"x","Name":"api","Port":1,"Check":{"TTL":"10s","Status":"passing"}}`)
		require.Equal(t, `{"api":[],"consul":[]}`, f.get("catalog/services").body)
		time.Sleep(12 * time.Second)
		require.Equal(t, "service:x=critical 0", f.statuses("api"))
	})
}

// TestBrokenRecord: a record with parts that do not pass, as another member of the group may have written it, harms
// neither this peer nor the other services, is down, and is told until the service is registered anew.
func TestBrokenRecord(t *testing.T) {
	playAgent(t, func(t *testing.T, f *peerOf) {
		for n, text := range []string{
			`{"Checks":[null]}`, `[]`, `null`, `7`, `{"Checks":[{"ID":"ttl","Type":"ttl","TTL":1,"Status":"critical","Remove":1}]}`, `{"Checks":[{"ID":"x","Type":"http","Status":"passing"}]}`,
			`{"Checks":[{"ID":"run","Type":"tcp","Status":"passing","Run":{"Type":"TCP","Endpoint":"127.0.0.1:25","Interval":1}}]}`, `{"ID":"web"}`,
		} {
			_, err := f.agent.Register(t.Context(), instance.Registration{Key: instance.Key{Service: "bad", ID: fmt.Sprint("bad-", n)}, Spec: instance.Spec{
				Host: "192.0.2.1", Port: 1, UnhealthyAfter: instance.MaxTTL, RemoveAfter: instance.Never, Note: "consul " + text,
			}})
			require.NoError(t, err)
		}
		f.done("agent/service/register", `{"Name":"web","Port":1,"Check":{"CheckID":"ttl","TTL":"1h","Status":"passing"}}`)
		time.Sleep(time.Minute)
		require.Equal(t, "ttl=passing 1", f.statuses("web"))
		require.Contains(t, f.failed.Load().(error).Error(), "register it again")
		require.Equal(t, http.StatusBadRequest, f.put("agent/service/maintenance/bad-0?enable=true", "").code)
		f.stop()
		f.close(t)
		f.start(t)
		time.Sleep(time.Minute)
		require.Equal(t, "ttl=passing 1", f.statuses("web"))
		require.Contains(t, f.get("health/service/bad").body, "note:bad-0")
		for _, e := range read[[]entry](t, f.get("health/service/bad?passing")) {
			require.Equal(t, "bad-2", e.Service.ID, "only null says nothing wrong")
		}
		for n := range 8 {
			f.done("agent/service/register", fmt.Sprintf(`{"Name":"bad","ID":"bad-%d","Port":1}`, n))
		}
		time.Sleep(time.Minute)
		require.Len(t, read[[]entry](t, f.get("health/service/bad?passing")), 8)
		require.ErrorIs(t, f.failed.Load().(error), errNone)
	})
}
