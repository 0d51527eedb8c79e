package consulapi_test

import (
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	"github.com/blackhole/blackhole/internal/platform/access"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// led is a group under a leader.
type led struct{ *coordtest.Solo }

func (led) Leading() (term uint64, leader string, changed <-chan struct{}) {
	return 1, coordtest.Peer, nil
}

func playOutside(t *testing.T, named bool, test func(t *testing.T, f *peerOf)) {
	synctest.Test(t, func(t *testing.T) {
		f := &peerOf{disk: vfs.NewMem(), group: newSolo(), named: named}
		f.start(t)
		time.Sleep(time.Second)
		defer func() { f.close(t) }()
		test(t, f)
	})
}

// outside tells the checks of the first instance of a service with those of its node, and how many instances pass.
func (f *peerOf) outside(service string) (out string) {
	f.t.Helper()
	for _, c := range read[[]entry](f.t, f.get("health/service/"+service))[0].Checks {
		out += c.CheckID + "=" + c.Status + " "
	}
	return out + fmt.Sprint(len(read[[]entry](f.t, f.get("health/service/"+service+"?passing"))))
}

const legacy = `{"Node":"legacy","Address":"10.0.0.9","NodeMeta":{"external-node":"true"},"Service":{"ID":"db-1","Service":"db","Port":5432,"Tags":["z","a"]},
	"Checks":[{"CheckID":"alive","Status":"passing"},{"CheckID":"db","ServiceID":"db-1","Status":"passing","Definition":{"TCP":"10.0.0.9:5432","Interval":"10s"}}]}`

// TestOutside: a service that no peer answers for is found at every door, is what its registrar said last, and outlives the peer that took the call.
func TestOutside(t *testing.T) {
	playOutside(t, false, func(t *testing.T, f *peerOf) {
		at := f.get("health/service/db").index
		w := f.wait(fmt.Sprint("health/service/db?index=", at))
		f.yes("PUT", "catalog/register", legacy)
		require.Contains(t, w.ends(t).body, `"Address":"10.0.0.9"`)
		require.Equal(t, `{"consul":[],"db":["a","z"]}`, f.get("catalog/services").body, "the node is no service")
		service := read[[]map[string]any](t, f.get("catalog/service/db"))[0]
		require.Equal(t, []any{"legacy", "10.0.0.9", "db-1", "", []any{"z", "a"}, map[string]any{"external-node": "true"}},
			[]any{service["Node"], service["Address"], service["ServiceID"], service["ServiceAddress"], service["ServiceTags"], service["NodeMeta"]})
		require.Equal(t, "alive=passing db=passing 1", f.outside("db"))
		require.Len(t, read[[]any](t, f.get("catalog/nodes")), 2)
		require.Len(t, read[[]any](t, f.get("catalog/nodes?node-meta=external-node:true")), 1)
		require.Len(t, read[[]any](t, f.get("agent/members")), 1, "it is no peer")
		require.Contains(t, f.get("health/node/legacy").body, `"Definition":{"Interval":"10s","TCP":"10.0.0.9:5432"}`)
		require.Contains(t, f.get("catalog/node/legacy").body, `"db-1":{`)
		require.Equal(t, "db-1", read[struct{ Services []struct{ ID string } }](t, f.get("catalog/node-services/legacy")).Services[0].ID)

		// The check of a node changes those of its services, and who waits for them wakes.
		w = f.wait(fmt.Sprint("health/service/db?passing&index=", f.get("health/service/db").index))
		w.waits(t)
		f.yes("PUT", "catalog/register", `{"Node":"legacy","SkipNodeUpdate":true,"Check":{"CheckID":"alive","Status":"critical","Output":"no answer"}}`)
		require.Equal(t, "[]", w.ends(t).body)
		require.Equal(t, "alive=critical db=passing 0", f.outside("db"))
		require.Len(t, read[[]any](t, f.get("health/state/critical")), 1)

		// Every other door has it, with the status of its own checks, and does not change it.
		found, err := f.agent.Discover(t.Context(), instance.Query{Name: instance.Name{Namespace: "default", Service: "db"}, Consistency: instance.Linearizable})
		require.NoError(t, err)
		require.Equal(t, []any{"outside:legacy:db-1", "outside", instance.StatusUp}, []any{found.Instances[0].ID, found.Instances[0].Peer, found.Instances[0].Status})
		_, err = f.agent.Deregister(t.Context(), found.Instances[0].Key)
		require.ErrorIs(t, err, fault.Unprocessable)
		_, err = f.agent.Register(t.Context(), instance.Registration{Key: instance.Key{Service: "db", ID: "outside:x"}, Spec: instance.Spec{Host: "h", Port: 1}})
		require.Equal(t, "id", fault.FieldOf(err))

		// Another registration keeps the checks, and one that changes nothing has no revision.
		f.yes("PUT", "catalog/register", `{"Node":"legacy","Address":"10.0.0.9","Service":{"ID":"db-1","Service":"db","Address":"10.0.0.10","Port":5433}}`)
		require.Equal(t, "alive=critical db=passing 0", f.outside("db"))
		index := f.get("catalog/nodes").index
		f.yes("PUT", "catalog/register", `{"Node":"legacy","Address":"10.0.0.9","Service":{"ID":"db-1","Service":"db","Address":"10.0.0.10","Port":5433}}`)
		require.Equal(t, index, f.get("catalog/nodes").index)
		f.yes("PUT", "catalog/register", `{"Node":"legacy","Address":"10.0.0.9","Service":{"ID":"db-1","Service":"cache","Port":1}}`)
		require.Equal(t, `{"cache":[],"consul":[]}`, f.get("catalog/services").body, "an id has one service")

		other := &peerOf{disk: vfs.NewMem(), group: f.group}
		other.start(t)
		f.close(t)
		time.Sleep(time.Hour)
		require.Equal(t, `{"cache":[],"consul":[]}`, other.get("catalog/services").body)
		other.yes("PUT", "catalog/deregister", `{"Node":"legacy","CheckID":"alive"}`)
		require.NotContains(t, other.get("health/node/legacy").body, "alive")
		other.yes("PUT", "catalog/deregister", `{"Node":"legacy","ServiceID":"db-1"}`)
		require.Equal(t, `{"consul":[]}`, other.get("catalog/services").body)
		require.Len(t, read[[]any](t, other.get("catalog/nodes")), 2)
		other.yes("PUT", "catalog/register", legacy)
		other.yes("PUT", "catalog/deregister", `{"Node":"legacy"}`)
		require.Equal(t, []any{http.StatusOK, "null"}, bare(other.get("catalog/node/legacy")))
		require.Equal(t, `{"Node":null,"Services":[]}`, other.get("catalog/node-services/legacy").body)
		other.yes("PUT", "catalog/deregister", `{"Node":"legacy"}`)
		f.agent, f.checker = other.agent, other.checker
	})
}

// TestOutsideRefused: who lacks the right to a service or to nodes changes neither, and bad input names the field.
func TestOutsideRefused(t *testing.T) {
	playOutside(t, true, func(t *testing.T, f *peerOf) {
		admin, db := access.Principal{Name: "root", Role: access.RoleAdmin}, access.Principal{Name: "db", Role: access.RoleService, Services: []string{"default/db"}}
		f.as = db
		require.Equal(t, 403, f.put("catalog/register", legacy).code)
		f.as = admin
		f.yes("PUT", "catalog/register", legacy)
		f.as = db
		f.yes("PUT", "catalog/register", `{"Node":"legacy","Address":"10.0.0.9","NodeMeta":{"external-node":"true"},"Service":{"Service":"db","ID":"db-2","Port":2}}`)
		for body, says := range map[string]string{
			`{"Node":"legacy","Address":"10.0.0.8"}`:                                                 "consul-node",
			`{"Node":"legacy","Address":"10.0.0.9","NodeMeta":{"a":"b"}}`:                            "consul-node",
			`{"Node":"legacy","SkipNodeUpdate":true,"Check":{"CheckID":"alive"}}`:                    "consul-node",
			`{"Node":"legacy","SkipNodeUpdate":true,"Service":{"Service":"web"}}`:                    "default/web",
			`{"Address":"10.0.0.9"}`:                                                                 "Node",
			`{"Node":"new"}`:                                                                         "Address",
			`{"Node":"new","Address":"a b"}`:                                                         "host",
			`{"Node":"` + coordtest.Peer + `","Address":"10.0.0.9"}`:                                 "is a peer",
			`{"Node":"legacy","Datacenter":"dc2","Address":"10.0.0.9"}`:                              "No path to datacenter",
			`{"Node":"legacy","Address":"10.0.0.9","Service":{"ID":"x"}}`:                            "Service.Service",
			`{"Node":"legacy","Address":"10.0.0.9","Service":{"Service":"db","Kind":"x"}}`:           "Kind",
			`{"Node":"legacy","SkipNodeUpdate":true,"Check":{"CheckID":"c","ServiceID":"none"}}`:     "ServiceID",
			`{"Node":"legacy","SkipNodeUpdate":true,"Check":{"CheckID":"c","Node":"other"}}`:         "Checks[0].Node",
			`{"Node":"legacy","SkipNodeUpdate":true,"Check":{"CheckID":"c","Status":"fine"}}`:        "Status",
			`{"Node":"legacy","SkipNodeUpdate":true,"Check":{"ServiceID":"db-1"}}`:                   "CheckID",
			`{"Node":"legacy","SkipNodeUpdate":true,"Service":{"Service":"db","Namespace":"other"}}`: "Namespace",
		} {
			got := f.put("catalog/register", body)
			require.GreaterOrEqual(t, got.code, 400, body)
			require.Contains(t, got.body, says, body)
		}
		for _, body := range []string{`{"Node":"legacy"}`, `{"Node":"legacy","CheckID":"alive"}`} {
			require.Equal(t, 403, f.put("catalog/deregister", body).code, body)
		}
		f.yes("PUT", "catalog/deregister", `{"Node":"legacy","ServiceID":"db-2"}`)
		f.as = admin
		require.Contains(t, f.put("catalog/register", `{"Node":"new","SkipNodeUpdate":true,"Service":{"Service":"db"}}`).body, "host")
		require.Equal(t, "alive=passing db=passing 1", f.outside("db"))
		f.yes("PUT", "catalog/register", `{"Node":"a:b c","Address":"h","Service":{"Service":"odd","ID":"x/ y"}}`)
		require.Equal(t, "x/ y", read[[]map[string]any](t, f.get("catalog/service/odd"))[0]["ServiceID"])
	})
}
