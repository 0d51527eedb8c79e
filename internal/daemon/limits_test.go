package daemon

import (
	"net/http"
	"reflect"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/platform/config"
	"github.com/blackhole/blackhole/pkg/instance"
)

// TestIndexBytes: a setting wins, a leaf has a small index, and else the memory limit decides.
func TestIndexBytes(t *testing.T) {
	p := &parts{config: config.Default()}
	require.Positive(t, p.indexBytes())
	require.LessOrEqual(t, p.indexBytes(), int64(maxIndex))
	old := debug.SetMemoryLimit(64 << 20)
	t.Cleanup(func() { debug.SetMemoryLimit(old) })
	require.Equal(t, int64(16<<20), p.indexBytes())
	p.config.Leaf = "on"
	require.Equal(t, int64(leafIndex), p.indexBytes())
	p.config.Discovery.Limits.IndexBytes = 1 << 20
	require.Equal(t, int64(1<<20), p.indexBytes())
}

// TestEveryLimitIsProposed: each setting changes the limits of the group, and none is there for nothing.
func TestEveryLimitIsProposed(t *testing.T) {
	initial := coord.DefaultLimits()
	require.Equal(t, initial, limitsOf(config.GroupLimits{})(initial))
	for i := range reflect.TypeFor[config.GroupLimits]().NumField() {
		var c config.GroupLimits
		reflect.ValueOf(&c).Elem().Field(i).SetInt(7)
		require.NotEqual(t, initial, limitsOf(c)(initial), reflect.TypeFor[config.GroupLimits]().Field(i).Name)
	}
}

// TestAMachineRegistersAtOnce: more services than the rate of another machine come up over each front.
func TestAMachineRegistersAtOnce(t *testing.T) {
	c := config.Default()
	c.Consul.Enabled = true
	p := startWith(t, c, t.TempDir())
	for front, send := range map[string]struct{ method, path, body string }{
		"low-level design": {"POST", "/v1/services/a%d/instances", `{"id":"a","host":"10.0.0.1","port":80}`},
		"SAP-044 Registry": {"POST", "/v1/services", `{"name":"b%d","version":"1.0.0","interfaces":{"REST":"x"}}`},
		"Consul":           {"PUT", "/v1/agent/service/register", `{"Name":"c%d","Port":80}`},
	} {
		for n := range c.Agent.RegistrationsPerMinute + 20 {
			path, body := strings.ReplaceAll(send.path, "%d", strconv.Itoa(n)), strings.ReplaceAll(send.body, "%d", strconv.Itoa(n))
			r, err := http.NewRequestWithContext(t.Context(), send.method, p.http+path, strings.NewReader(body))
			require.NoError(t, err)
			resp, err := http.DefaultClient.Do(r)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			require.Less(t, resp.StatusCode, 300, "%s, number %d", front, n)
		}
	}
	for n := range c.Agent.RegistrationsPerMinute + 20 {
		_, err := p.Agent().Register(t.Context(), instance.Registration{
			Key: instance.Key{Service: "d" + strconv.Itoa(n)}, Spec: instance.Spec{Host: "10.0.0.1", Port: 80},
		})
		require.NoError(t, err, n)
	}
}
