package client

import (
	"context"
	"math"

	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

func (p *Coordination) publish(ctx context.Context, cmd coord.Command, o *coord.RegisterBatch) (coord.Result, coord.Header, error) {
	req := &api.PublishInstancesRequest{Attempt: toAttempt(cmd), LeaseId: int64(o.Lease), Generation: o.Generation}
	for _, e := range o.Puts {
		req.Puts = append(req.Puts, &api.DirectoryEntry{Key: []byte(e.Key), Value: e.Value, Adopt: e.Adopt, Since: int64(e.Since)})
	}
	for _, key := range o.Deletes {
		req.Deletes = append(req.Deletes, []byte(key))
	}
	if o.Replace != nil {
		req.Replace = true
		req.Key, req.RangeEnd = bounds(*o.Replace)
	}
	resp, err := p.keys.PublishInstances(ctx, req)
	result := coord.Result{Changed: int(resp.GetChanged())}
	for _, key := range resp.GetForeign() {
		result.Foreign = append(result.Foreign, string(key))
	}
	for _, revision := range resp.GetSince() {
		result.Since = append(result.Since, coord.Revision(revision))
	}
	return answered("client.PublishInstances", resp, err, result)
}

func (p *Coordination) require(ctx context.Context, cmd coord.Command, r coord.Requirement) (coord.Result, coord.Header, error) {
	const op = "client.SetRequirement"
	if err := text("name", r.Name); err != nil {
		return coord.Result{}, coord.Header{}, fault.Wrap(op, err)
	}
	if r.Min < 0 || r.Min > math.MaxInt32 {
		return coord.Result{}, coord.Header{}, fault.Wrap(op, fault.Invalidf("min", r.Min, "must be 1 to %d", coord.MaxRequired))
	}
	query := fromQuery(instance.Query{Name: r.Service, Selector: r.Selector})
	resp, err := p.keys.SetRequirement(ctx, &api.SetRequirementRequest{Name: r.Name, Min: uint32(r.Min), Query: query, Attempt: toAttempt(cmd)})
	return answered(op, resp, err, coord.Result{Changed: int(resp.GetChanged())})
}

// publish puts what a peer has in the directory to the renewals of its leases.
func publish(renewals []coord.Renewal, published []*api.Publication) {
	for _, p := range published {
		for i := range renewals {
			if renewals[i].ID == coord.LeaseID(p.GetLeaseId()) {
				renewals[i].Published = &coord.Publication{
					Generation: p.GetGeneration(), Digest: coord.Digest{Count: int(p.GetCount()), High: p.GetHigh(), Low: p.GetLow()},
				}
			}
		}
	}
}
