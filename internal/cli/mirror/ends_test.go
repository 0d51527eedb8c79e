package mirror

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc"

	"github.com/blackhole/blackhole/internal/cli/term"
	pb "github.com/blackhole/blackhole/internal/frontend/etcdapi/etcdserverpb"
	"github.com/blackhole/blackhole/pkg/fault"
)

// fakeEtcd has 1200 keys of an application, and one of a lease.
type fakeEtcd struct {
	pb.UnimplementedKVServer
	pb.UnimplementedWatchServer
	t *testing.T

	mu        sync.Mutex // guards revisions
	revisions []int64    // of the ranges
}

func (f *fakeEtcd) Range(_ context.Context, r *pb.RangeRequest) (*pb.RangeResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.revisions = append(f.revisions, r.Revision)
	var kvs []*mvccpb.KeyValue
	for n := range 1200 {
		kvs = append(kvs, &mvccpb.KeyValue{Key: []byte{'/', byte(n >> 8), byte(n)}, Value: []byte{byte(n)}})
	}
	kvs = append(kvs, &mvccpb.KeyValue{Key: []byte("/lock"), Lease: 7})
	res := &pb.RangeResponse{Header: &pb.ResponseHeader{Revision: 41}}
	for _, kv := range kvs {
		if bytes.Compare(kv.Key, r.Key) >= 0 && bytes.Compare(kv.Key, r.RangeEnd) < 0 {
			if len(res.Kvs) == int(r.Limit) {
				res.More = true
				break
			}
			res.Kvs = append(res.Kvs, kv)
		}
	}
	return res, nil
}

func (f *fakeEtcd) Watch(s grpc.BidiStreamingServer[pb.WatchRequest, pb.WatchResponse]) error {
	req, err := s.Recv()
	if err != nil {
		return err
	}
	res := &pb.WatchResponse{Created: true}
	if err := s.Send(res); err != nil {
		return err
	}
	if req.GetCreateRequest().GetStartRevision() > 41 { // what follows the list
		return s.Send(&pb.WatchResponse{Events: []*mvccpb.Event{{Kv: &mvccpb.KeyValue{Key: []byte("/new")}}}})
	}
	return s.Send(&pb.WatchResponse{Canceled: true, CancelReason: "no"})
}

// TestEtcd reads the pages at one revision, and waits for what follows it.
func TestEtcd(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	f, s := &fakeEtcd{t: t}, grpc.NewServer()
	pb.RegisterKVServer(s, f)
	pb.RegisterWatchServer(s, f)
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	k, err := address{url: &url.URL{Host: l.Addr().String()}}.etcd("/")
	require.NoError(t, err)
	t.Cleanup(k.close)
	entries, version, err := k.list(t.Context())
	require.NoError(t, err)
	require.Len(t, entries, 1201)
	require.EqualValues(t, 41, version)
	require.Equal(t, []int64{0, 41, 41}, f.revisions)
	require.True(t, entries["/lock"].bound)
	require.NoError(t, k.changed(t.Context(), 41))
	require.ErrorContains(t, k.changed(t.Context(), 40), "the watch was refused: no")
}

// serve answers paths with texts, and keeps what is written.
func serve(t *testing.T, answers map[string]string) (w web, written *[]string) {
	written = new([]string)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		require.Equal(t, "secret", r.Header.Get("X-Consul-Token"))
		if r.Method != http.MethodGet {
			body, _ := io.ReadAll(r.Body)
			*written = append(*written, r.Method+" "+r.URL.RequestURI()+" "+string(body))
			return
		}
		w.Header().Set("X-Consul-Index", "12")
		if text, ok := answers[r.URL.Path+"?"+r.URL.Query().Get("continue")]; ok {
			_, _ = io.WriteString(w, text)
		} else {
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	t.Cleanup(s.Close)
	u, err := url.Parse(s.URL)
	require.NoError(t, err)
	return address{url: u, secret: "secret"}.web("X-Consul-Token", ""), written
}

func TestConsulKeys(t *testing.T) {
	w, written := serve(t, map[string]string{"/v1/kv/app/?": `[{"LockIndex":0,"Key":"app/a","Flags":3,"Value":"YQ==","CreateIndex":9,"ModifyIndex":9},
		{"LockIndex":1,"Key":"app/lock","Flags":0,"Value":null,"Session":"adf4238a-882b-9ddc-4a9d-5b6758e4159e"}]`})
	k := &consulKeys{web: w, prefix: "app/"}
	entries, version, err := k.list(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 12, version)
	require.Equal(t, map[string]entry{"app/a": {value: []byte("a"), flags: 3}, "app/lock": {bound: true}}, entries)
	require.NoError(t, k.changed(t.Context(), 11))
	require.NoError(t, k.put(t.Context(), "app/a", entries["app/a"], false))
	require.NoError(t, k.remove(t.Context(), "/b"))
	require.Equal(t, []string{"PUT /v1/kv/app/a?flags=3 a", "DELETE /v1/kv/%2Fb "}, *written)

	k.prefix = "none/"
	entries, _, err = k.list(t.Context())
	require.NoError(t, err)
	require.Empty(t, entries)
	_, _, err = (&consulServices{web: w}).list(t.Context())
	require.ErrorIs(t, err, fault.NotFound, "another kind of server is not an empty one")
}

// TestServices: a service has the worst status among its checks and its node's. Without an address it has the node's.
func TestServices(t *testing.T) {
	from, _ := serve(t, map[string]string{
		"/v1/catalog/services?": `{"consul":[],"web":["v1"]}`,
		"/v1/health/service/web?": `[
			{"Node":{"Node":"n1","Address":"10.0.0.1"},"Service":{"ID":"w","Service":"web","Tags":["v2","v1"],"Meta":null,"Address":"","Port":80},"Checks":[{"Status":"passing"},{"Status":"warning"}]},
			{"Node":{"Node":"n2","Address":"10.0.0.2"},"Service":{"ID":"w","Service":"web","Tags":[],"Meta":{"a":"b"},"Address":"10.1.0.2","Port":81},"Checks":[{"Status":"maintenance"}]},
			{"Node":{"Node":"n2","Address":"10.0.0.2"},"Service":{"ID":"back","Service":"web","Meta":{"external-source":"blackholed-sync"},"Port":82},"Checks":[]}]`,
		"/v1/health/service/consul?": `[]`,
	})
	to, written := serve(t, map[string]string{"/v1/agent/services?": `{
		"n2-w":{"ID":"n2-w","Service":"web","Tags":[],"Meta":{"a":"b","external-source":"blackholed-sync"},"Address":"10.1.0.2","Port":81},
		"gone":{"ID":"gone","Service":"web","Meta":{"external-source":"blackholed-sync"},"Address":"10.1.0.2","Port":81},
		"own":{"ID":"own","Service":"own","Port":1}}`})
	m := mirror{
		con: &term.Console{Stderr: io.Discard}, from: &consulServices{web: from}, restless: true, copied: map[string][32]byte{},
		to: &consulServices{web: to, asTarget: true, ttl: time.Minute},
	}
	_, err := m.round(t.Context())
	require.NoError(t, err)
	require.Len(t, *written, 3)
	require.Equal(t, `PUT /v1/agent/check/update/sync:n2-w {"Status":"critical","Output":"as at the source"}`, (*written)[1], "the agent has it")
	require.Contains(t, (*written)[0], `"Address":"10.0.0.1","Check":{"CheckID":"sync:n1-w","Name":"as at the source","Status":"warning","TTL":"1m0s"},"ID":"n1-w","Meta":{"external-source":"blackholed-sync"},"Name":"web","Port":80,"Tags":["v1","v2"]`)
	require.Equal(t, "PUT /v1/agent/service/deregister/gone ", (*written)[2])
}

// TestKubernetes reads what an API server answers, page by page.
func TestKubernetes(t *testing.T) {
	text, err := json.Marshal(map[string]any{"kind": "EndpointSliceList", "metadata": map[string]any{"continue": "more"}, "items": []any{map[string]any{
		"metadata": map[string]any{"name": "web-abc", "namespace": "shop", "labels": map[string]string{"kubernetes.io/service-name": "web"}},
		"endpoints": []any{
			map[string]any{"addresses": []string{"10.2.0.1"}, "conditions": map[string]bool{"ready": true}, "targetRef": map[string]string{"kind": "Pod", "name": "web-1"}},
			map[string]any{"addresses": []string{"10.2.0.2"}, "conditions": map[string]bool{"ready": false}},
			map[string]any{"addresses": []string{"10.2.0.3"}, "conditions": map[string]bool{"ready": false, "terminating": true}},
		},
		"ports": []any{map[string]any{"name": "http", "port": 8080, "protocol": "TCP"}},
	}}})
	require.NoError(t, err)
	path := "/apis/discovery.k8s.io/v1/endpointslices"
	w, _ := serve(t, map[string]string{path + "?": string(text), path + "?more": `{"metadata":{},"items":[{"metadata":{"name":"headless"},"endpoints":[{"addresses":["10.2.0.9"]}],"ports":[{"port":1}]}]}`})
	entries, _, err := (&endpointSlices{web: w}).list(t.Context())
	require.NoError(t, err)
	require.Len(t, entries, 2)
	one := service{Name: "web", Address: "10.2.0.1", Port: 8080, Tags: []string{"http"}, Meta: map[string]string{"k8s-namespace": "shop"}}
	require.Equal(t, one.entry("passing"), entries["shop-web-web-1-8080"])
	require.Equal(t, "critical", entries["shop-web-10-2-0-2-8080"].status)
}

func TestAddresses(t *testing.T) {
	f := &flags{Console: &term.Console{}}
	for text, says := range map[string]string{"": "is missing", "http://h": "must be etcd", "etcd+ftp://h": "must be etcd", "etcd+http://u:p@h": "must be etcd"} {
		_, err := f.parse("--from", text, "")
		require.ErrorContains(t, err, says, text)
		require.Equal(t, "--from", fault.FieldOf(err))
	}
	a, err := f.parse("--to", "consul+https://h:8501/base", "")
	require.NoError(t, err)
	require.Equal(t, "consul", a.protocol)
	require.NotNil(t, a.tls)
}
