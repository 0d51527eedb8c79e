package daemon

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/frontend/httpapi"
	"github.com/blackhole/blackhole/internal/platform/config"
	"github.com/blackhole/blackhole/pkg/fault"
)

// TestClientsOfConsul writes by the API of Consul with a token of the peer, reads by ours, and finds that the names of locks stay out of its keys.
func TestClientsOfConsul(t *testing.T) {
	c := config.Default()
	c.Consul.Enabled = true
	c.Auth.Tokens = []config.Token{{Name: "app", Token: func() string { return "of-app" }, Role: "service", Services: []string{"consul/app"}}}
	p := startWith(t, c, t.TempDir())
	call := func(method, path, token string) (int, string) {
		r, err := http.NewRequestWithContext(t.Context(), method, p.http+path, strings.NewReader("1"))
		require.NoError(t, err)
		if token != "" {
			r.Header.Set("X-Consul-Token", token)
		}
		resp, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return resp.StatusCode, string(text)
	}
	const token = "of-app"
	until(t, "a leader", func() bool {
		code, _ := call("PUT", "/v1/kv/app/a", token)
		return code == http.StatusOK
	})
	code, _ := call("PUT", "/v1/kv/app/a?token="+token, "")
	require.Equal(t, http.StatusOK, code)
	code, _ = call("PUT", "/v1/kv/app/a", "")
	require.Equal(t, http.StatusUnauthorized, code)
	code, _ = call("PUT", "/v1/kv/app/a", "wrong")
	require.Equal(t, http.StatusUnauthorized, code)
	code, _ = call("PUT", "/v1/kv/other", token)
	require.Equal(t, http.StatusForbidden, code)
	code, text := call("GET", "/v1/status/leader", token)
	require.Equal(t, http.StatusOK, code)
	require.NotEqual(t, `""`, text)
}

// TestConsulAtTwoPeers registers at one peer, and finds with the check's status at another; a lock of one is held for the other, and queries wake.
func TestConsulAtTwoPeers(t *testing.T) {
	c := config.Default()
	c.Consul.Enabled = true
	a := startWith(t, c, t.TempDir())
	b := startWith(t, c, t.TempDir(), a.addr)
	call := func(p *peerUnderTest, method, path, body string) (string, string) {
		r, err := http.NewRequestWithContext(t.Context(), method, p.http+"/v1/"+path, strings.NewReader(body))
		require.NoError(t, err)
		resp, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return string(text), resp.Header.Get("X-Consul-Index")
	}
	until(t, "a group at both", func() bool {
		_, _ = call(a, "PUT", "kv/x", "1")
		text, _ := call(b, "GET", "kv/x?raw", "")
		return text == "1"
	})
	text, _ := call(a, "PUT", "session/create", `{"TTL":"1h","LockDelay":"0s"}`)
	id := strings.Split(text, `"`)[3]
	text, _ = call(b, "PUT", "kv/lock?acquire="+id, "at b")
	require.Equal(t, "true", text, "a session is good at every peer")
	text, index := call(b, "GET", "kv/lock", "")
	require.Contains(t, text, id)
	free := make(chan string, 1)
	go func() {
		text, _ := call(b, "GET", "kv/lock?index="+index, "")
		free <- text
	}()
	_, _ = call(a, "PUT", "session/destroy/"+id, "")
	require.NotContains(t, <-free, id)

	text, _ = call(a, "PUT", "agent/service/register", `{"Name":"web","Address":"127.0.0.1","Port":1,"Check":{"TTL":"1h"}}`)
	require.Empty(t, text)
	for {
		text, index = call(b, "GET", "health/service/web", "")
		if strings.Contains(text, `"Status":"critical"`) {
			break
		}
	}
	_, _ = call(a, "PUT", "agent/check/pass/service:web", "")
	for !strings.Contains(text, `"CheckID":"service:web","Name":"Service 'web' check","Status":"passing"`) {
		text, index = call(b, "GET", "health/service/web?index="+index, "")
	}
	text, _ = call(b, "GET", "agent/services", "")
	require.Equal(t, "{}", text, "an agent knows its own services")
}

// TestConsulKeepsLocksOut refuses locks whose keys would stand among those of clients, also at a peer that serves none.
func TestConsulKeepsLocksOut(t *testing.T) {
	p := startWith(t, config.Default(), t.TempDir())
	session, err := p.Session(t.Context())
	require.NoError(t, err)
	defer session.Close(t.Context())
	_, err = session.Lock(t.Context(), "consul/jobs")
	require.ErrorIs(t, err, fault.Forbidden)
}

// TestConsulNeedsTheGroup refuses settings with a front end that could answer nothing.
func TestConsulNeedsTheGroup(t *testing.T) {
	p := &parts{config: config.Default()}
	require.NoError(t, p.startConsul(&httpapi.Config{}))
	p.config.Consul.Enabled = true
	require.ErrorContains(t, p.startConsul(&httpapi.Config{}), "coordination.enabled")
}

func TestOutward(t *testing.T) {
	require.Equal(t, "10.0.0.7", outward([]string{"/ip4/127.0.0.1/tcp/1/p2p/x", "/dns4/a/tcp/1", "/ip4/192.0.2.1/tcp/1/p2p/r/p2p-circuit/p2p/x", "/ip4/10.0.0.7/tcp/1/p2p/x"}))
	require.Equal(t, "127.0.0.1", outward(nil))
}
