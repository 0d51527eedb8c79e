package grpcapi

import (
	"context"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	agentv1 "github.com/blackhole/blackhole/proto/blackhole/agent/v1"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// PublishInstances implements api.CoordinationServiceServer. Only peers publish instances, not
// applications.
func (c *coordination) PublishInstances(ctx context.Context, req *api.PublishInstancesRequest) (*api.PublishInstancesResponse, error) {
	if !c.Peers {
		return nil, fault.New("grpcapi.PublishInstances", fault.Forbidden, "only peers publish instances")
	}
	if err := checkEntries(req.GetPuts()); err != nil {
		return nil, fault.Wrap("grpcapi.PublishInstances", err)
	}
	if SpokenFor(ctx) != "" {
		return nil, fault.New("grpcapi.PublishInstances", fault.Forbidden, "a peer publishes its own instances, and for nobody else")
	}
	named := func(e *api.DirectoryEntry) bool { return e.GetPrincipal() != "" }
	if len(req.GetPuts()) > 0 && c.Authenticated || slices.ContainsFunc(req.GetPuts(), named) {
		if err := c.vouched(ctx); err != nil {
			return nil, err
		}
	}
	r, h, err := c.do(ctx, req.GetAttempt(), &coordv1.Command{Request: &coordv1.Command_PublishInstances{PublishInstances: req}})
	if err != nil {
		return nil, err
	}
	resp := &api.PublishInstancesResponse{
		Header: h, Changed: uint32(r.Changed), Foreign: convert(r.Foreign, func(key string) []byte { return []byte(key) }),
	}
	for i, e := range req.GetPuts() {
		put := coord.Entry{Adopt: e.GetAdopt(), Since: coord.Revision(e.GetSince())}
		resp.Since = append(resp.Since, int64(r.SinceOf(i, put)))
	}
	return resp, nil
}

// checkEntries refuses entries that are not the instance that their key names. The group keeps values
// without reading them, so every member checks each batch of another peer here. A later version may
// send more fields and other values.
func checkEntries(puts []*api.DirectoryEntry) error {
	var i agentv1.Instance
	for n, e := range puts[:min(len(puts), coord.MaxBatch)] { // the group refuses a larger batch
		field := fmt.Sprintf("puts[%d].value", n)
		switch _, _, _, ok := coord.EntryNames(string(e.GetKey())); {
		case !ok:
			return fault.Invalidf(fmt.Sprintf("puts[%d].key", n), nil, "must be directory/NAMESPACE/SERVICE/ID")
		case len(e.GetValue()) > coord.MaxEntry:
			return fault.Refused(fault.TooLarge, field, "has %d bytes, at most %d", len(e.GetValue()), coord.MaxEntry)
		case proto.Unmarshal(e.GetValue(), &i) != nil:
			return fault.Invalidf(field, nil, "is no instance")
		case string(e.GetKey()) != coord.DirectoryKey(i.GetNamespace(), i.GetServiceName(), i.GetId()):
			return fault.Invalidf(field, nil, "is not of the instance that the key names")
		}
	}
	return nil
}

// SetRequirement implements api.CoordinationServiceServer.
func (c *coordination) SetRequirement(ctx context.Context, req *api.SetRequirementRequest) (*api.SetRequirementResponse, error) {
	const op = "grpcapi.SetRequirement"
	q, err := toQuery(req.GetQuery())
	if err != nil {
		return nil, fault.Wrap(op, err)
	}
	if _, err := q.Question(); err != nil {
		return nil, fault.Wrap(op, err)
	}
	req.Query = q.Proto() // with the default namespace, which this peer chooses; the log holds it
	r, h, err := c.do(ctx, req.GetAttempt(), &coordv1.Command{Request: &coordv1.Command_SetRequirement{SetRequirement: req}})
	if err != nil {
		return nil, err
	}
	return &api.SetRequirementResponse{Header: h, Changed: uint32(r.Changed)}, nil
}

// DeleteRequirement implements api.CoordinationServiceServer.
func (c *coordination) DeleteRequirement(ctx context.Context, req *api.DeleteRequirementRequest) (*api.DeleteRequirementResponse, error) {
	_, h, err := c.do(ctx, req.GetAttempt(), &coordv1.Command{Request: &coordv1.Command_DeleteRequirement{DeleteRequirement: req}})
	if err != nil {
		return nil, err
	}
	return &api.DeleteRequirementResponse{Header: h}, nil
}

// publications returns the publications under renewed leases.
func publications(renewals []coord.Renewal) []*api.Publication {
	var all []*api.Publication
	for _, r := range renewals {
		if p := r.Published; p != nil {
			all = append(all, &api.Publication{
				LeaseId: int64(r.ID), Generation: p.Generation, Count: uint32(p.Count), High: p.High, Low: p.Low,
			})
		}
	}
	return all
}
