package grpcapi

import (
	"context"

	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// execute executes the request of a command.
func (c *coordination) execute(ctx context.Context, cmd *coordv1.Command) (*coordv1.Result, error) {
	ctx = speakFor(ctx, cmd.GetOwner())
	switch r := cmd.GetRequest().(type) {
	case *coordv1.Command_Lock:
		resp, err := c.Lock(ctx, r.Lock)
		return &coordv1.Result{Response: &coordv1.Result_Lock{Lock: resp}}, err
	case *coordv1.Command_TryLock:
		resp, err := c.TryLock(ctx, r.TryLock)
		return &coordv1.Result{Response: &coordv1.Result_TryLock{TryLock: resp}}, err
	case *coordv1.Command_Unlock:
		resp, err := c.Unlock(ctx, r.Unlock)
		return &coordv1.Result{Response: &coordv1.Result_Unlock{Unlock: resp}}, err
	case *coordv1.Command_LeaseGrant:
		resp, err := c.LeaseGrant(ctx, r.LeaseGrant)
		return &coordv1.Result{Response: &coordv1.Result_LeaseGrant{LeaseGrant: resp}}, err
	case *coordv1.Command_LeaseRevoke:
		resp, err := c.LeaseRevoke(ctx, r.LeaseRevoke)
		return &coordv1.Result{Response: &coordv1.Result_LeaseRevoke{LeaseRevoke: resp}}, err
	case *coordv1.Command_Txn:
		resp, err := c.Txn(ctx, r.Txn)
		return &coordv1.Result{Response: &coordv1.Result_Txn{Txn: resp}}, err
	case *coordv1.Command_PublishInstances:
		resp, err := c.PublishInstances(ctx, r.PublishInstances)
		return &coordv1.Result{Response: &coordv1.Result_PublishInstances{PublishInstances: resp}}, err
	case *coordv1.Command_SetRequirement:
		resp, err := c.SetRequirement(ctx, r.SetRequirement)
		return &coordv1.Result{Response: &coordv1.Result_SetRequirement{SetRequirement: resp}}, err
	case *coordv1.Command_DeleteRequirement:
		resp, err := c.DeleteRequirement(ctx, r.DeleteRequirement)
		return &coordv1.Result{Response: &coordv1.Result_DeleteRequirement{DeleteRequirement: resp}}, err
	case *coordv1.Command_OpenClient:
		resp, err := c.OpenClient(ctx, r.OpenClient)
		return &coordv1.Result{Response: &coordv1.Result_OpenClient{OpenClient: resp}}, err
	case *coordv1.Command_CloseClient:
		resp, err := c.CloseClient(ctx, r.CloseClient)
		return &coordv1.Result{Response: &coordv1.Result_CloseClient{CloseClient: resp}}, err
	case *coordv1.Command_KeepAlive:
		resp, err := c.keepAlive(ctx, r.KeepAlive)
		return &coordv1.Result{Response: &coordv1.Result_KeepAlive{KeepAlive: resp}}, err
	}
	return nil, fault.Wrap("grpcapi.Calls", fault.Invalidf("command", nil, "is not known"))
}

// read answers a question.
func (c *coordination) read(ctx context.Context, q *coordv1.Question) (*coordv1.Answer, error) {
	ctx = speakFor(ctx, q.GetOwner())
	switch r := q.GetRequest().(type) {
	case *coordv1.Question_LockInfo:
		resp, err := c.LockInfo(ctx, r.LockInfo)
		return &coordv1.Answer{Response: &coordv1.Answer_LockInfo{LockInfo: resp}}, err
	case *coordv1.Question_ListLocks:
		resp, err := c.ListLocks(ctx, r.ListLocks)
		return &coordv1.Answer{Response: &coordv1.Answer_ListLocks{ListLocks: resp}}, err
	case *coordv1.Question_LeaseTimeToLive:
		resp, err := c.LeaseTimeToLive(ctx, r.LeaseTimeToLive)
		return &coordv1.Answer{Response: &coordv1.Answer_LeaseTimeToLive{LeaseTimeToLive: resp}}, err
	case *coordv1.Question_ListLeases:
		resp, err := c.ListLeases(ctx, r.ListLeases)
		return &coordv1.Answer{Response: &coordv1.Answer_ListLeases{ListLeases: resp}}, err
	case *coordv1.Question_Range:
		resp, err := c.Range(ctx, r.Range)
		return &coordv1.Answer{Response: &coordv1.Answer_Range{Range: resp}}, err
	}
	return nil, fault.Wrap("grpcapi.Calls", fault.Invalidf("question", nil, "is not known"))
}

// speakFor notes the owner that a peer speaks for; see SpokenFor.
func speakFor(ctx context.Context, owner string) context.Context {
	if owner == "" {
		return ctx
	}
	return context.WithValue(ctx, principalKey{}, coord.Principal(owner))
}

// keepAlive renews the leases of one request.
func (c *coordination) keepAlive(ctx context.Context, req *api.LeaseKeepAliveRequest) (*api.LeaseKeepAliveResponse, error) {
	if err := renewable(req); err != nil {
		return nil, err
	}
	owner, err := c.owner(ctx)
	if err != nil {
		return nil, err
	}
	one := []*api.LeaseKeepAliveRequest{req}
	renewals, h, err := c.Writer.KeepAlive(ctx, owner, asked(one))
	if err != nil {
		return nil, err
	}
	resp, _ := renewed(req, renewals)
	resp.Header = fromHeader(h)
	return resp, nil
}
