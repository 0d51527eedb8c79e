package grpcapi

import (
	"context"
	"strconv"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/pkg/fault"
	agentv1 "github.com/blackhole/blackhole/proto/blackhole/agent/v1"
)

// maxLease bounds the bytes of the name of a lease; a registry makes names of 38 bytes.
const maxLease = 128

// Heartbeat implements agentv1.DiscoveryServiceServer. A request for a single lease fails with the
// error of that lease.
func (a *agent) Heartbeat(ctx context.Context, req *agentv1.HeartbeatRequest) (*agentv1.HeartbeatResponse, error) {
	if err := a.beatable(ctx, req); err != nil {
		return nil, err
	}
	beats, err := a.Registrar.Heartbeat(ctx, refsOf(req))
	if err != nil {
		return nil, err
	}
	if len(beats) == 1 && len(req.GetLeaseIds()) == 0 && beats[0].Err != nil {
		return nil, beats[0].Err
	}
	return beaten(req, beats), nil
}

// headed reports whether a request names an instance besides lease_ids.
func headed(req *agentv1.HeartbeatRequest) bool {
	return req.GetLeaseId() != "" || req.GetServiceName() != "" || req.GetInstanceId() != ""
}

// beatsOf returns the number of heartbeats in a request.
func beatsOf(req *agentv1.HeartbeatRequest) int {
	if headed(req) {
		return 1 + len(req.GetLeaseIds())
	}
	return len(req.GetLeaseIds())
}

// beatable validates a request and the permission of the caller.
func (a *agent) beatable(ctx context.Context, req *agentv1.HeartbeatRequest) error {
	const op = "grpcapi.Heartbeat"
	switch n := beatsOf(req); {
	case n == 0:
		return fault.Wrap(op, fault.Invalidf("lease_id", nil, "is required: name a lease or an instance"))
	case n > instances.MaxBeats:
		return fault.Wrap(op, fault.Invalidf("lease_ids", n, "must have at most %d entries: send more requests", instances.MaxBeats))
	case headed(req) && req.GetLeaseId() == "":
		if err := toKey(req).Validate(); err != nil {
			return fault.Wrap(op, err)
		}
		return a.allowed(ctx, toKey(req).Name())
	case len(req.GetLeaseId()) > maxLease:
		return fault.Wrap(op, fault.Invalidf("lease_id", nil, "must have at most %d bytes", maxLease))
	}
	for i, lease := range req.GetLeaseIds() {
		if len(lease) > maxLease {
			return fault.Wrap(op, fault.In("lease_ids", fault.Invalidf("["+strconv.Itoa(i)+"]", nil, "must have at most %d bytes", maxLease)))
		}
	}
	return nil
}

func refsOf(req *agentv1.HeartbeatRequest) (refs []instances.Ref) {
	if lease := req.GetLeaseId(); lease != "" {
		refs = append(refs, instances.Ref{Lease: lease})
	} else if headed(req) {
		refs = append(refs, instances.Ref{Key: toKey(req)})
	}
	for _, lease := range req.GetLeaseIds() {
		refs = append(refs, instances.Ref{Lease: lease})
	}
	return refs
}

// beaten answers a request. An unknown lease has TTL 0.
func beaten(req *agentv1.HeartbeatRequest, beats []instances.Beat) *agentv1.HeartbeatResponse {
	resp := &agentv1.HeartbeatResponse{}
	if headed(req) {
		if b := beats[0]; b.Err == nil {
			resp.LeaseId, resp.Ttl, resp.ExpiresAt = b.Lease, seconds(b.TTL), timestamppb.New(b.Expires)
			resp.Status = b.Status.Proto()
		} else {
			resp.LeaseId = req.GetLeaseId()
		}
		beats = beats[1:]
	}
	if len(beats) == 0 {
		return resp
	}
	all := make([]agentv1.Beat, len(beats)) // one allocation for thousands of heartbeats
	resp.Beats = make([]*agentv1.Beat, len(beats))
	for i, b := range beats {
		resp.Beats[i] = &all[i]
		if b.Err == nil {
			all[i].TtlMs, all[i].Status = max(1, b.TTL.Milliseconds()), b.Status.Proto()
		}
	}
	return resp
}
