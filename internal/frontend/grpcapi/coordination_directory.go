package grpcapi

import (
	"context"

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

// SetRequirement implements api.CoordinationServiceServer.
func (c *coordination) SetRequirement(ctx context.Context, req *api.SetRequirementRequest) (*api.SetRequirementResponse, error) {
	const op = "grpcapi.SetRequirement"
	q, err := toQuery(req.GetQuery())
	if err != nil {
		return nil, fault.Wrap(op, err)
	}
	if _, err := q.Compile(); err != nil {
		return nil, fault.Wrap(op, fault.In("selector", err))
	}
	if req.Query == nil {
		req.Query = &agentv1.DiscoverRequest{}
	}
	req.Query.Namespace = q.Name.Namespace // this peer chooses the default; the log holds it
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
