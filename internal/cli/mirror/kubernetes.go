package mirror

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// endpointSlices are the services of a Kubernetes cluster: the ready and unready endpoints behind its services, with their ports.
type endpointSlices struct {
	web
	namespace string // "": all
}

func (k *endpointSlices) changed(ctx context.Context, _ uint64) error {
	<-ctx.Done()
	return nil
}

// list reads the pages of discovery.k8s.io/v1. An endpoint that ends is left out.
func (k *endpointSlices) list(ctx context.Context) (map[string]entry, uint64, error) {
	path := "/apis/discovery.k8s.io/v1/endpointslices"
	if k.namespace != "" {
		path = "/apis/discovery.k8s.io/v1/namespaces/" + k.namespace + "/endpointslices"
	}
	entries, size, next := make(map[string]entry), 0, ""
	for {
		var got struct {
			Metadata struct{ Continue string }
			Items    []slice
		}
		if _, err := k.call(ctx, http.MethodGet, path, url.Values{"limit": {strconv.Itoa(page)}, "continue": {next}}, nil, &got); err != nil {
			return nil, 0, err
		}
		for _, s := range got.Items {
			for id, e := range s.entries() {
				entries[id] = e
				size += len(e.value)
			}
		}
		next = got.Metadata.Continue
		if err := fits(len(entries), size); err != nil || next == "" {
			return entries, 0, err
		}
	}
}

type slice struct {
	Metadata struct {
		Namespace string
		Labels    map[string]string
	}
	Endpoints []struct {
		Addresses  []string
		Conditions struct{ Ready, Terminating *bool }
		TargetRef  struct{ Name string }
	}
	Ports []struct {
		Name string
		Port int
	}
}

// entries returns an entry for each endpoint and port. Slices without a service belong to nobody.
func (s *slice) entries() map[string]entry {
	entries, name := make(map[string]entry), s.Metadata.Labels["kubernetes.io/service-name"]
	for _, e := range s.Endpoints {
		if name == "" || len(e.Addresses) == 0 || e.Conditions.Terminating != nil && *e.Conditions.Terminating {
			continue
		}
		status := "passing"
		if e.Conditions.Ready != nil && !*e.Conditions.Ready {
			status = "critical"
		}
		for _, p := range s.Ports {
			one := service{Name: name, Address: e.Addresses[0], Port: p.Port, Meta: map[string]string{"k8s-namespace": s.Metadata.Namespace}}
			if p.Name != "" {
				one.Tags = []string{p.Name}
			}
			target := cmp.Or(e.TargetRef.Name, strings.NewReplacer(":", "-", ".", "-").Replace(one.Address))
			entries[fmt.Sprintf("%s-%s-%s-%d", s.Metadata.Namespace, name, target, p.Port)] = one.entry(status)
		}
	}
	return entries
}
