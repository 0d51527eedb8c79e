package daemon

import (
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/config"
	"github.com/blackhole/blackhole/internal/sim/loopback"
	"github.com/blackhole/blackhole/pkg/fault"
)

// TestClientsOfEtcd writes by the API of etcd, reads by ours, and finds that the names of locks stay out of its keys.
func TestClientsOfEtcd(t *testing.T) {
	c := config.Default()
	c.Etcd.Listen = loopback.Free(t)
	p := startWith(t, c, t.TempDir())
	call := func(path, body string) (int, string) {
		resp, err := http.Post("http://"+c.Etcd.Listen+path, "application/json", strings.NewReader(body))
		require.NoError(t, err)
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return resp.StatusCode, string(text)
	}
	until(t, "a leader", func() bool {
		code, _ := call("/v3/kv/put", `{"key":"YQ==","value":"MQ=="}`)
		return code == http.StatusOK
	})
	_, port, err := net.SplitHostPort(c.Etcd.Listen)
	require.NoError(t, err)
	_, members := call("/v3/cluster/member/list", "{}")
	require.Contains(t, members, `"http://localhost:`+port+`"`)
	kv, err := p.KV().Get(t.Context(), "etcd/a")
	require.NoError(t, err)
	require.Equal(t, "1", string(kv.Value))
	session, err := p.Locks().Session(t.Context())
	require.NoError(t, err)
	defer session.Close(t.Context())
	for _, name := range []string{"etcd", "etcd/jobs"} {
		_, err = session.Lock(t.Context(), name)
		require.ErrorIs(t, err, fault.Forbidden)
	}
	_, err = session.TryLock(t.Context(), "etcd-jobs")
	require.NoError(t, err)
}

// TestEtcdNeedsTheGroup refuses settings with a front end that could answer nothing.
func TestEtcdNeedsTheGroup(t *testing.T) {
	p := &parts{config: config.Default()}
	require.NoError(t, p.startEtcd(nil, bounds{}))
	p.config.Etcd.Listen = "127.0.0.1:0"
	require.ErrorContains(t, p.startEtcd(nil, bounds{}), "coordination.enabled")
}
