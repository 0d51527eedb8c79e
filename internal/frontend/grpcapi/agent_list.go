package grpcapi

import (
	"cmp"
	"context"
	"encoding/base64"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
	agentv1 "github.com/blackhole/blackhole/proto/blackhole/agent/v1"
)

// Bounds of a page of instances.
const (
	defaultPage = 100
	maxPage     = 1000
	maxToken    = 512 // bytes, more than any key
)

// ListInstances implements agentv1.DiscoveryServiceServer. A page begins after the last key of the
// previous page, even if that instance is gone.
func (a *agent) ListInstances(ctx context.Context, req *agentv1.ListInstancesRequest) (*agentv1.ListInstancesResponse, error) {
	const op = "grpcapi.ListInstances"
	q, err := toListQuery(req.GetQuery())
	if err != nil {
		return nil, fault.Wrap(op, fault.In("query", err))
	}
	size, after, err := toPage(req)
	if err != nil {
		return nil, fault.Wrap(op, err)
	}
	r, err := a.Catalog.List(ctx, q)
	if err != nil {
		return nil, err
	}
	from, _ := slices.BinarySearchFunc(r.Instances, after, func(i *instance.Instance, after place) int {
		return cmp.Or(placeOf(i).compare(after), -1) // the instance itself belongs to the previous page
	})
	page := r.Instances[from:min(from+size, len(r.Instances))]
	if err := growFor(ctx, page, (*instance.Instance).Bytes); err != nil {
		return nil, err
	}
	resp := &agentv1.ListInstancesResponse{
		Instances: convert(page, a.known), Total: uint32(len(r.Instances)), Revision: r.Index, Stale: r.Stale, Reason: r.Reason,
	}
	if from+size < len(r.Instances) {
		resp.NextPageToken = placeOf(page[size-1]).token()
	}
	if r.Stale {
		resp.Age = durationpb.New(r.Age)
	}
	return resp, nil
}

func toListQuery(req *agentv1.DiscoverRequest) (instances.ListQuery, error) {
	switch {
	case req.GetServiceName() != "":
		return instances.ListQuery{}, fault.Invalidf("service_name", req.GetServiceName(), "conflicts with a list of all services: call Discover for one service")
	case req.GetPreferZone() != "":
		return instances.ListQuery{}, fault.Invalidf("prefer_zone", req.GetPreferZone(), "conflicts with the order by service and id: leave it empty")
	}
	q, err := toQuery(req)
	return instances.ListQuery{Namespace: q.Namespace, Selector: q.Selector, Consistency: q.Consistency}, err
}

func toPage(req *agentv1.ListInstancesRequest) (size int, after place, err error) {
	n := cmp.Or(req.GetPageSize(), defaultPage)
	if n > maxPage {
		return 0, place{}, fault.Invalidf("page_size", n, "must be at most %d", maxPage)
	}
	after, ok := toPlace(req.GetPageToken())
	if !ok {
		return 0, place{}, fault.Invalidf("page_token", nil, "is malformed: send next_page_token from an answer")
	}
	return int(n), after, nil
}

// place is the position of an instance in a list. The zero place precedes all instances.
type place struct{ service, id string }

func placeOf(i *instance.Instance) place { return place{i.Service, i.ID} }

func (p place) compare(q place) int {
	return cmp.Or(strings.Compare(p.service, q.service), strings.Compare(p.id, q.id))
}

// token is the inverse of toPlace. The name of a service has no slash.
func (p place) token() string {
	return base64.RawURLEncoding.EncodeToString([]byte(p.service + "/" + p.id))
}

func toPlace(token string) (p place, ok bool) {
	if token == "" {
		return p, true
	}
	if len(token) > maxToken {
		return p, false
	}
	b, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil {
		return p, false
	}
	p.service, p.id, ok = strings.Cut(string(b), "/")
	return p, ok
}
