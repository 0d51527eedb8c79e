package service

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// apiServer keeps services and EndpointSlices as far as an exporter uses them.
type apiServer struct {
	t        *testing.T
	services []any
	slices   map[string]endpointSlice
	writes   int
	refuse   string // the name of a slice
}

func (a *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	const slices = "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices"
	name := strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, slices), "/")
	switch {
	case r.Method == http.MethodGet && r.URL.Path == "/api/v1/namespaces/shop/services":
		_ = json.NewEncoder(w).Encode(map[string]any{"items": a.services})
	case r.Method == http.MethodGet && r.URL.Path == slices:
		require.Equal(a.t, "endpointslice.kubernetes.io/managed-by=blackholed", r.URL.Query().Get("labelSelector"))
		var items []endpointSlice
		for _, s := range a.slices {
			items = append(items, s)
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"items": items})
	case name == a.refuse:
		w.WriteHeader(http.StatusUnprocessableEntity)
		_, _ = w.Write([]byte(`{"kind":"Status","message":"is not valid"}`))
	case r.Method == http.MethodPatch:
		require.Equal(a.t, "application/apply-patch+yaml", r.Header.Get("Content-Type"))
		require.Equal(a.t, "blackholed", r.URL.Query().Get("fieldManager"))
		var s endpointSlice
		require.NoError(a.t, json.NewDecoder(r.Body).Decode(&s))
		require.Equal(a.t, name, s.Metadata.Name)
		a.slices[name] = s
		a.writes++
	case r.Method == http.MethodDelete:
		delete(a.slices, name)
		a.writes++
	default:
		a.t.Errorf("%s %s", r.Method, r.URL)
	}
}

func clusterServiceNamed(name, annotation string, spec map[string]any) map[string]any {
	return map[string]any{
		"metadata": map[string]any{"name": name, "namespace": "shop", "uid": "u-" + name, "annotations": map[string]string{serviceAnnotation: annotation}},
		"spec":     spec,
	}
}

func here(host string, port int, status instance.Status, tags ...string) *instance.Instance {
	return &instance.Instance{Key: instance.Key{Service: "web", ID: host}, Spec: instance.Spec{Host: host, Port: port, Tags: tags, Zone: "eu-1"}, Status: status}
}

// export returns an exporter to an API server, and the instances that it finds.
func export(t *testing.T, services ...any) (*exporter, *apiServer, map[string]*instance.Result) {
	api := &apiServer{t: t, services: services, slices: map[string]endpointSlice{}, refuse: "-"}
	server := httptest.NewServer(api)
	t.Cleanup(server.Close)
	at, err := url.Parse(server.URL)
	require.NoError(t, err)
	k := &kubernetes{namespace: "shop"}
	k.connect(at, nil, "")
	t.Cleanup(k.close)
	found := make(map[string]*instance.Result)
	return &exporter{to: k, find: func(_ context.Context, q instance.Query) (instance.Result, error) {
		require.True(t, q.AnyStatus)
		if r := found[q.Namespace+"/"+q.Service]; r != nil {
			return *r, nil
		}
		return instance.Result{View: instance.NewView(1, nil, nil)}, nil
	}}, api, found
}

func results(list ...*instance.Instance) *instance.Result {
	return &instance.Result{View: instance.NewView(1, list, nil)}
}

// TestExport writes, changes and deletes what differs, and nothing that is not its own to write.
func TestExport(t *testing.T) {
	one := map[string]any{"ports": []any{map[string]any{"name": "http", "port": 80, "protocol": "TCP"}}}
	e, api, found := export(t,
		clusterServiceNamed("shop-web", "web", one),
		clusterServiceNamed("two", "team/both", map[string]any{"ports": []any{map[string]any{"name": "a", "port": 1}, map[string]any{"name": "b", "port": 2, "protocol": "UDP"}}}),
		clusterServiceNamed("plain", "", one),
		clusterServiceNamed("selected", "web", map[string]any{"selector": map[string]string{"app": "x"}}))
	fromThere := here("10.0.0.3", 80, instance.StatusUp)
	fromThere.Spec.Metadata = map[string]string{sourceKey: fromKubernetes}
	found["default/web"] = results(here("10.0.0.2", 8080, instance.StatusDown), here("10.0.0.1", 8080, instance.StatusUp), here("fd00::1", 8080, instance.StatusUp),
		here("10.0.0.1", 9090, instance.StatusUp), here("127.0.0.1", 8080, instance.StatusUp), here("web.example", 8080, instance.StatusUp), here("10.0.0.9", 0, instance.StatusUp), fromThere)
	found["team/both"] = results(here("10.0.1.1", 1, instance.StatusUp, "a"), here("10.0.1.2", 2, instance.StatusUp, "b"), here("10.0.1.3", 3, instance.StatusUp, "c"))

	did, err := e.round(t.Context())
	require.ErrorContains(t, err, "the cluster refuses 1 of them, the first is shop/selected: has a selector")
	require.Equal(t, 5, did.changed)
	require.Equal(t, 6, did.found)
	require.Equal(t, "shop/two lacks 1 instances: others do not reach their hosts, or they serve none of its ports", did.note)
	require.Len(t, api.slices, 5)
	yes, no := true, false
	require.Equal(t, endpointSlice{
		APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice",
		Metadata: objectMeta{
			Name: "shop-web-blackholed-ipv4-tcp-http-8080-0", Namespace: "shop",
			Labels:          map[string]string{"kubernetes.io/service-name": "shop-web", "endpointslice.kubernetes.io/managed-by": "blackholed"},
			OwnerReferences: []ownerReference{{APIVersion: "v1", Kind: "Service", Name: "shop-web", UID: "u-shop-web"}},
		},
		AddressType: "IPv4",
		Endpoints: []endpoint{
			{Addresses: []string{"10.0.0.1"}, Conditions: conditions{Ready: &yes}, Zone: "eu-1"},
			{Addresses: []string{"10.0.0.2"}, Conditions: conditions{Ready: &no}, Zone: "eu-1"},
		},
		Ports: []port{{Name: "http", Port: 8080, Protocol: "TCP"}},
	}, api.slices["shop-web-blackholed-ipv4-tcp-http-8080-0"])
	require.Contains(t, api.slices, "shop-web-blackholed-ipv6-tcp-http-8080-0")
	require.Contains(t, api.slices, "shop-web-blackholed-ipv4-tcp-http-9090-0")
	require.Equal(t, "UDP", api.slices["two-blackholed-ipv4-udp-b-2-0"].Ports[0].Protocol)

	writes := api.writes
	_, _ = e.round(t.Context())
	require.Equal(t, writes, api.writes, "nothing differs")

	found["default/web"] = results(here("10.0.0.2", 8080, instance.StatusUp))
	api.services = api.services[:1]
	did, err = e.round(t.Context())
	require.NoError(t, err)
	require.Len(t, api.slices, 1, "a service that asks no longer loses its slices, and a port without instances its own")
	require.Equal(t, 1, did.found)
}

// TestExportKeeps what is there while the peer has no contact, and tells what the API server refuses.
func TestExportKeeps(t *testing.T) {
	e, api, found := export(t, clusterServiceNamed("web", "web", map[string]any{"ports": []any{map[string]any{"port": 80}}}))
	found["default/web"] = results(here("10.0.0.1", 80, instance.StatusUp))
	_, err := e.round(t.Context())
	require.NoError(t, err)
	require.Len(t, api.slices, 1)
	found["default/web"] = &instance.Result{View: instance.NewView(2, nil, nil), Contact: instance.Contact{Stale: true, Reason: "no leader"}}
	did, err := e.round(t.Context())
	require.NoError(t, err)
	require.Len(t, api.slices, 1)
	require.Equal(t, "shop/web stays as it is: the peer says no leader", did.note)

	found["default/web"] = results(here("10.0.0.1", 80, instance.StatusUp), here("10.0.0.2", 90, instance.StatusUp))
	api.refuse = "web-blackholed-ipv4-tcp-90-0"
	_, err = e.round(t.Context())
	require.ErrorContains(t, err, "is not valid")
	require.Equal(t, fault.Invalid, fault.KindOf(err))
}

// TestExportLarge: a slice has 1,000 endpoints at most.
func TestExportLarge(t *testing.T) {
	s := clusterService{Metadata: objectMeta{Name: "web"}}
	s.Spec.Ports = []port{{Port: 80}}
	var list []*instance.Instance
	for n := range 1001 {
		list = append(list, here(fmt.Sprintf("10.0.%d.%d", n/250, n%250), 80, instance.StatusUp))
	}
	all, count, left := s.slices(list)
	require.Zero(t, left)
	require.Equal(t, 1001, count)
	require.Len(t, all, 2)
	require.Len(t, all[0].Endpoints, maxSlice)
}
