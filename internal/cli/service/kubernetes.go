package service

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"maps"
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

// kubernetes speaks to the API server of a cluster.
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

// list reads the ready and unready endpoints behind all services, with their ports. An endpoint that ends is left out.
func (k *kubernetes) list(ctx context.Context) (map[string]instance.Registration, error) {
	all := make(map[string]instance.Registration)
	err := pages(ctx, k, k.path(slicesAPI, k.namespace), nil, func(s *endpointSlice) error {
		if s.add(all); len(all) > maxEndpoints {
			return fault.New("", fault.LimitReached, "has more than %d endpoints: synchronize it by namespaces", maxEndpoints)
		}
		return nil
	})
	return all, err
}

// The resources that this package uses, and their versions.
const (
	servicesAPI = "/api/v1|services"
	slicesAPI   = "/apis/discovery.k8s.io/v1|endpointslices"
)

// path returns the path of a resource in a namespace, or in all for "".
func (k *kubernetes) path(resource, namespace string) string {
	version, name, _ := strings.Cut(resource, "|")
	if namespace == "" {
		return version + "/" + name
	}
	return version + "/namespaces/" + url.PathEscape(namespace) + "/" + name
}

// pages gives all objects of a resource, page by page, until give fails.
func pages[T any](ctx context.Context, k *kubernetes, path string, query url.Values, give func(*T) error) error {
	q := url.Values{"limit": {strconv.Itoa(pageSize)}}
	maps.Copy(q, query)
	for {
		var got struct {
			Metadata struct{ Continue string }
			Items    []T
		}
		if err := k.call(ctx, http.MethodGet, path, q, nil, &got); err != nil {
			return err
		}
		for i := range got.Items {
			if err := give(&got.Items[i]); err != nil {
				return err
			}
		}
		if got.Metadata.Continue == "" {
			return nil
		}
		q.Set("continue", got.Metadata.Continue)
	}
}

// call sends a request. A body is one of a server-side apply. answer can be nil.
func (k *kubernetes) call(ctx context.Context, method, path string, query url.Values, body, answer any) error {
	u := *k.base
	u.Path, u.RawQuery = strings.TrimSuffix(u.Path, "/")+path, query.Encode()
	var text io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return fault.As("", fault.Internal, err)
		}
		text = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), text)
	if err != nil {
		return fault.As("", fault.Invalid, err)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/apply-patch+yaml") // JSON is YAML
	}
	if k.token != "" {
		req.Header.Set("Authorization", "Bearer "+k.token)
	}
	got, err := k.client.Do(req)
	if err != nil {
		return fault.As("", fault.Unavailable, err)
	}
	defer func() { _ = got.Body.Close() }()
	limited := json.NewDecoder(io.LimitReader(got.Body, maxPage))
	if got.StatusCode/100 != 2 {
		var said struct{ Message string } // of a Status
		_ = limited.Decode(&said)
		return fault.New("", refusal(got.StatusCode), "the API server answers %s to %s %s: %.300s", got.Status, method, path, said.Message)
	}
	if answer == nil {
		return nil
	}
	if err := limited.Decode(answer); err != nil {
		return fault.New("", fault.Unavailable, "%s is not answered as expected: %w", path, err)
	}
	return nil
}

// refusal is the kind of an answer. An object that the API server refuses keeps no other one out.
func refusal(code int) fault.Kind {
	switch code {
	case http.StatusConflict, http.StatusNotFound, http.StatusUnprocessableEntity:
		return fault.Invalid
	}
	return fault.Unavailable
}

// endpointSlice is the part of a discovery.k8s.io/v1 EndpointSlice that this package reads and writes.
type endpointSlice struct {
	APIVersion  string     `json:"apiVersion,omitempty"`
	Kind        string     `json:"kind,omitempty"`
	Metadata    objectMeta `json:"metadata"`
	AddressType string     `json:"addressType"`
	Endpoints   []endpoint `json:"endpoints"`
	Ports       []port     `json:"ports"`
}

type objectMeta struct {
	Name            string            `json:"name"`
	Namespace       string            `json:"namespace"`
	UID             string            `json:"uid,omitempty"`
	Labels          map[string]string `json:"labels,omitempty"`
	Annotations     map[string]string `json:"annotations,omitempty"`
	OwnerReferences []ownerReference  `json:"ownerReferences,omitempty"`
}

type ownerReference struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Name       string `json:"name"`
	UID        string `json:"uid"`
}

type endpoint struct {
	Addresses  []string   `json:"addresses"`
	Conditions conditions `json:"conditions"`
	TargetRef  *targetRef `json:"targetRef,omitempty"`
	Zone       string     `json:"zone,omitempty"`
}

type conditions struct {
	Ready       *bool `json:"ready,omitempty"` // nil: ready
	Terminating *bool `json:"terminating,omitempty"`
}

type targetRef struct {
	Name string `json:"name"`
}

type port struct {
	Name     string `json:"name"`
	Port     int    `json:"port"`
	Protocol string `json:"protocol"`
}

const (
	serviceLabel = "kubernetes.io/service-name"
	managedLabel = "endpointslice.kubernetes.io/managed-by"
	manager      = "blackholed"

	sourceKey, fromKubernetes = "external-source", "kubernetes" // metadata of an instance that a cluster has
)

// add adds an instance for each endpoint and port. Slices without a service belong to nobody.
func (s *endpointSlice) add(all map[string]instance.Registration) {
	name := s.Metadata.Labels[serviceLabel]
	if s.Metadata.Labels[managedLabel] == manager {
		return // these instances came from here
	}
	for _, e := range s.Endpoints {
		if name == "" || len(e.Addresses) == 0 || e.Conditions.Terminating != nil && *e.Conditions.Terminating {
			continue
		}
		status := instance.StatusUp
		if e.Conditions.Ready != nil && !*e.Conditions.Ready {
			status = instance.StatusDown
		}
		target := strings.NewReplacer(":", "-", ".", "-").Replace(e.Addresses[0])
		if e.TargetRef != nil && e.TargetRef.Name != "" {
			target = e.TargetRef.Name
		}
		for _, p := range s.Ports {
			id := fmt.Sprintf("%s-%s-%s-%d", s.Metadata.Namespace, name, target, p.Port)
			reg := instance.Registration{Key: instance.Key{Service: name, ID: id}.WithDefaults(), Status: status}
			reg.Spec = instance.Spec{
				Host: e.Addresses[0], Port: p.Port, Zone: e.Zone,
				Metadata: map[string]string{"k8s-namespace": s.Metadata.Namespace, sourceKey: fromKubernetes},
			}
			if p.Name != "" {
				reg.Spec.Tags = []string{p.Name}
			}
			all[id] = reg
		}
	}
}

func loopback(host string) bool { return host == "localhost" || net.ParseIP(host).IsLoopback() }
