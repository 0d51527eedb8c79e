package service

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

const (
	maxEndpoints = 10_000   // of a cluster; a peer has no room for more
	maxPage      = 64 << 20 // bytes of one answer of the API server
	pageSize     = 500
)

// kubernetes reads the ready and unready endpoints behind the services of a cluster, with their ports.
type kubernetes struct {
	namespace string // "": all
	base      *url.URL
	client    *http.Client
	token     string // "": none
}

// connect says where the API server is. No redirect is followed, which would take the token elsewhere.
func (k *kubernetes) connect(base *url.URL, trust *tls.Config, token string) {
	k.base, k.token = base, token
	k.client = &http.Client{
		Transport:     &http.Transport{TLSClientConfig: trust, Proxy: http.ProxyFromEnvironment, IdleConnTimeout: time.Minute},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

func (k *kubernetes) close() { k.client.CloseIdleConnections() }

// list reads the pages of discovery.k8s.io/v1. An endpoint that ends is left out.
func (k *kubernetes) list(ctx context.Context) (map[string]instance.Registration, error) {
	path := "/apis/discovery.k8s.io/v1/endpointslices"
	if k.namespace != "" {
		path = "/apis/discovery.k8s.io/v1/namespaces/" + url.PathEscape(k.namespace) + "/endpointslices"
	}
	all, next := make(map[string]instance.Registration), ""
	for {
		var got struct {
			Metadata struct{ Continue string }
			Items    []endpointSlice
		}
		if err := k.get(ctx, path, url.Values{"limit": {strconv.Itoa(pageSize)}, "continue": {next}}, &got); err != nil {
			return nil, err
		}
		for _, s := range got.Items {
			s.add(all)
		}
		if len(all) > maxEndpoints {
			return nil, fault.New("", fault.LimitReached, "has more than %d endpoints: synchronize it by namespaces", maxEndpoints)
		}
		if next = got.Metadata.Continue; next == "" {
			return all, nil
		}
	}
}

func (k *kubernetes) get(ctx context.Context, path string, query url.Values, answer any) error {
	u := *k.base
	u.Path, u.RawQuery = strings.TrimSuffix(u.Path, "/")+path, query.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return fault.As("", fault.Invalid, err)
	}
	if k.token != "" {
		req.Header.Set("Authorization", "Bearer "+k.token)
	}
	got, err := k.client.Do(req)
	if err != nil {
		return fault.As("", fault.Unavailable, err)
	}
	defer func() { _ = got.Body.Close() }()
	if got.StatusCode != http.StatusOK {
		return fault.New("", fault.Unavailable, "the API server answers %s to %s", got.Status, path)
	}
	if err := json.NewDecoder(io.LimitReader(got.Body, maxPage)).Decode(answer); err != nil {
		return fault.New("", fault.Unavailable, "%s is not answered as expected: %w", path, err)
	}
	return nil
}

type endpointSlice struct {
	Metadata struct {
		Namespace string
		Labels    map[string]string
	}
	Endpoints []struct {
		Addresses  []string
		Conditions struct{ Ready, Terminating *bool }
		TargetRef  struct{ Name string }
		Zone       string
	}
	Ports []struct {
		Name string
		Port int
	}
}

// add adds an instance for each endpoint and port. Slices without a service belong to nobody.
func (s *endpointSlice) add(all map[string]instance.Registration) {
	name := s.Metadata.Labels["kubernetes.io/service-name"]
	for _, e := range s.Endpoints {
		if name == "" || len(e.Addresses) == 0 || e.Conditions.Terminating != nil && *e.Conditions.Terminating {
			continue
		}
		status := instance.StatusUp
		if e.Conditions.Ready != nil && !*e.Conditions.Ready {
			status = instance.StatusDown
		}
		target := cmp.Or(e.TargetRef.Name, strings.NewReplacer(":", "-", ".", "-").Replace(e.Addresses[0]))
		for _, p := range s.Ports {
			id := fmt.Sprintf("%s-%s-%s-%d", s.Metadata.Namespace, name, target, p.Port)
			reg := instance.Registration{Key: instance.Key{Service: name, ID: id}.WithDefaults(), Status: status}
			reg.Spec = instance.Spec{
				Host: e.Addresses[0], Port: p.Port, Zone: e.Zone,
				Metadata: map[string]string{"k8s-namespace": s.Metadata.Namespace, "external-source": "kubernetes"},
			}
			if p.Name != "" {
				reg.Spec.Tags = []string{p.Name}
			}
			all[id] = reg
		}
	}
}

func loopback(host string) bool { return host == "localhost" || net.ParseIP(host).IsLoopback() }
