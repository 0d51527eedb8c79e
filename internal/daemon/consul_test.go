package daemon

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/blackhole/blackhole/internal/frontend/httpapi"
	"github.com/blackhole/blackhole/internal/platform/condition"
	"github.com/blackhole/blackhole/internal/platform/config"
	"github.com/blackhole/blackhole/pkg/fault"
	agentv1 "github.com/blackhole/blackhole/proto/blackhole/agent/v1"
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
	require.Equal(t, http.StatusForbidden, code, "Consul has no 401")
	code, _ = call("PUT", "/v1/kv/app/a", "wrong")
	require.Equal(t, http.StatusForbidden, code)
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

	// The same registration at both, without an id: both stay, and each peer deregisters its own.
	nodes := func(p *peerUnderTest) (nodes []string) {
		text, _ := call(p, "GET", "catalog/service/web", "")
		var list []struct{ Node, ServiceID string }
		require.NoError(t, json.Unmarshal([]byte(text), &list))
		for _, one := range list {
			require.Equal(t, "web", one.ServiceID)
			nodes = append(nodes, one.Node)
		}
		return nodes
	}
	of := func(p *peerUnderTest) string { return p.parts.node.Host().ID().String() }
	text, _ = call(b, "PUT", "agent/service/register", `{"Name":"web","Address":"127.0.0.1","Port":2,"Check":{"TTL":"1h"}}`)
	require.Empty(t, text)
	for _, p := range []*peerUnderTest{a, b} {
		until(t, "both", func() bool { return len(nodes(p)) == 2 })
		require.ElementsMatch(t, []string{of(a), of(b)}, nodes(p))
	}
	_, _ = call(b, "PUT", "agent/check/pass/service:web", "")
	until(t, "two that pass", func() bool {
		text, _ := call(a, "GET", "health/service/web?passing", "")
		return strings.Count(text, `"ServiceID":"web"`) == 2
	})
	text, _ = call(a, "PUT", "agent/service/deregister/web", "")
	require.Empty(t, text)
	for _, p := range []*peerUnderTest{a, b} {
		until(t, "one", func() bool { return len(nodes(p)) == 1 })
		require.Equal(t, []string{of(b)}, nodes(p))
	}
	text, _ = call(a, "PUT", "agent/service/deregister/web", "")
	require.Contains(t, text, "Unknown service ID")
	text, _ = call(b, "PUT", "agent/service/deregister/web", "")
	require.Empty(t, text)
	until(t, "none", func() bool { return len(nodes(a)) == 0 })
}

// TestNotesOfCallers writes what this program would take for a note of its own at each place where callers can write,
// over each front: the peer lives, starts again, and says so.
func TestNotesOfCallers(t *testing.T) {
	c := config.Default()
	c.Consul.Enabled = true
	dir := t.TempDir()
	p := startWith(t, c, dir)
	call := func(method, path string, body any) int {
		text, err := json.Marshal(body)
		require.NoError(t, err)
		r, err := http.NewRequestWithContext(t.Context(), method, p.http+path, bytes.NewReader(text))
		require.NoError(t, err)
		r.Header.Set("Content-Type", "application/json")
		resp, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		return resp.StatusCode
	}
	until(t, "a leader", func() bool { return call("PUT", "/v1/kv/a", 1) == http.StatusOK })
	conn, err := grpc.NewClient(p.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close()) }()
	api := agentv1.NewDiscoveryServiceClient(conn)
	type object map[string]any
	for n, bad := range []string{`{"Checks":[null]}`, `null`, `[]`, `[null]`, `7`, `{"Checks":[{"ID":"x","Type":"http"}],"Peer":"` + p.parts.node.Host().ID().String() + `"}`, `{"Order":[-1]}`, strings.Repeat("[", 2000)} {
		id, metadata := fmt.Sprint("n-", n), map[string]string{"consul": bad, "metrics_path": bad, "metrics_scheme": bad, "metrics_port": bad, "weight": bad, "zone": bad}
		code := call("POST", "/v1/services/rest/instances", object{"id": id, "host": "192.0.2.1", "port": 1, "metadata": metadata})
		require.Less(t, code, http.StatusInternalServerError)
		code = call("POST", "/v1/services/rest/instances", object{"id": id, "host": "192.0.2.1", "port": 1, "metadata": object{"consul": bad}})
		require.Contains(t, []int{http.StatusOK, http.StatusCreated}, code)
		_, err := api.Register(t.Context(), &agentv1.RegisterRequest{Instance: &agentv1.Instance{
			ServiceName: "grpc", Id: id, Host: "192.0.2.1", Port: 1, Metadata: metadata, Note: "consul " + bad,
		}})
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, call("PUT", "/v1/agent/service/register", object{"ID": id, "Name": "consul", "Port": 1, "Meta": metadata}))
		for _, key := range []string{"k", "k\x00held", "k\x00meta", "k\x00slow", "\x00held"} {
			_, _ = p.KV().Put(t.Context(), "consul/"+key, []byte(bad))
		}
	}
	for _, id := range []string{"", "0", "8000000000000000", strings.Repeat("0", 34), strings.Repeat("f", 200)} {
		code := call("POST", "/v1/coordination/leases", object{"ttl": 3600, "application": "consul-session " + id + " - " + p.parts.node.Host().ID().String() + " x"})
		require.Less(t, code, http.StatusInternalServerError)
	}
	read := func() {
		for _, path := range []string{"kv/?recurse", "agent/services", "agent/checks", "catalog/services", "health/state/any", "health/service/grpc", "catalog/service/rest", "session/list"} {
			require.Equal(t, http.StatusOK, call("GET", "/v1/"+path, nil), path)
		}
		require.Equal(t, http.StatusOK, call("GET", "/livez", nil))
	}
	read()
	p.stop()
	p = startWith(t, c, dir)
	until(t, "a leader", func() bool { return call("GET", "/v1/kv/a", nil) == http.StatusOK })
	read()
	for _, active := range p.parts.conditions.Active() {
		require.NotContains(t, []condition.Name{condition.FrontFailed, condition.SetAside}, active.Name)
	}
}

// TestConsulKeepsLocksOut refuses locks whose keys would stand among those of clients, also at a peer that serves none.
func TestConsulKeepsLocksOut(t *testing.T) {
	p := startWith(t, config.Default(), t.TempDir())
	session, err := p.Locks().Session(t.Context())
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
