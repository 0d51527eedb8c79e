package consulapi_test

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/coordination/coordtest"
)

// TestNode: a node is there without services, as tools wait for it, and tells load balancers of its services by codes.
func TestNode(t *testing.T) {
	playAgent(t, func(t *testing.T, f *peerOf) {
		self := read[map[string]map[string]any](t, f.get("agent/self"))["Config"]["NodeName"].(string)
		require.Contains(t, f.get("health/node/"+self).body, `"CheckID":"serfHealth"`)
		require.Len(t, read[[]any](t, f.get("health/state/passing")), 1)
		require.Equal(t, self, read[map[string]map[string]any](t, f.get("catalog/node/"+self))["Node"]["Node"])
		require.Equal(t, "null", f.get("catalog/node/another").body)
		require.Equal(t, self, read[[]map[string]any](t, f.get("agent/members"))[0]["Name"])
		require.NotEmpty(t, read[map[string]string](t, f.get("agent/version"))["HumanVersion"])

		require.Equal(t, []any{http.StatusNotFound, "ServiceNameNotFound"}, bare(f.get("agent/health/service/name/web?format=text")))
		require.Equal(t, []any{http.StatusNotFound, "ServiceIdNotFound"}, bare(f.get("agent/health/service/id/web?format=text")))
		f.done("agent/service/register", `{"ID":"a","Name":"web","Port":1,"Check":{"CheckID":"ca","TTL":"1h"}}`)
		f.done("agent/service/register", `{"ID":"b","Name":"web","Port":2,"Check":{"CheckID":"cb","TTL":"1h","Status":"passing"}}`)
		for _, c := range []struct {
			report, status string
			code           int
		}{{"", "critical", 503}, {"warn", "warning", 429}, {"pass", "passing", 200}, {"fail", "critical", 503}} {
			if c.report != "" {
				f.done("agent/check/"+c.report+"/ca", "")
			}
			require.Equal(t, []any{c.code, c.status}, bare(f.get("agent/health/service/id/a?format=text")))
			require.Equal(t, []any{c.code, c.status}, bare(f.get("agent/health/service/name/web?format=text")), "the worst one counts")
			require.Equal(t, []any{200, "passing"}, bare(f.get("agent/health/service/id/b?format=text")))
		}
		require.Equal(t, coordtest.Peer, read[[]map[string]any](t, f.get("catalog/service/consul"))[0]["Node"], "a voter")
		require.NotEmpty(t, read[map[string]any](t, f.get("agent/host"))["CollectionTime"])
		require.Equal(t, 400, f.get("agent/metrics").code)

		// A node has checks and a maintenance of its own, which its services share.
		f.done("agent/check/register", `{"Name":"disk","TTL":"1h","Status":"passing"}`)
		require.Contains(t, f.get("agent/checks").body, `"disk":{"Node":"`+self+`","CheckID":"disk","Name":"disk","Status":"passing","Notes":"","Output":"","ServiceID":"","ServiceName":""`)
		require.Len(t, read[[]any](t, f.get("health/service/web?passing")), 1)
		f.done("agent/check/fail/disk", "")
		require.Empty(t, read[[]any](t, f.get("health/service/web?passing")))
		require.Equal(t, []any{503, "critical"}, bare(f.get("agent/health/service/id/b?format=text")))
		f.done("agent/check/deregister/disk", "")
		f.done("agent/maintenance?enable=true&reason=disk", "")
		require.Contains(t, f.get("health/node/"+self).body, `"CheckID":"_node_maintenance"`)
		require.Empty(t, read[[]any](t, f.get("health/service/web?passing")))
		f.done("agent/maintenance?enable=false", "")
		require.Len(t, read[[]any](t, f.get("health/service/web?passing")), 1)
		require.NotContains(t, f.get("agent/services").body+f.get("catalog/services").body, "consul-node")
		all := f.get("agent/health/service/name/web")
		require.Equal(t, 503, all.code)
		var services []map[string]any
		require.NoError(t, json.Unmarshal([]byte(all.body), &services))
		require.Len(t, services, 2)
		require.Equal(t, []any{"critical", "passing"}, []any{services[0]["AggregatedStatus"], services[1]["AggregatedStatus"]})
		require.Equal(t, "cb", services[1]["Checks"].([]any)[0].(map[string]any)["CheckID"])
	})
}

func bare(a answer) []any { return []any{a.code, a.body} }
