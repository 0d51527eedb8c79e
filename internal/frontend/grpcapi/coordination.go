package grpcapi

import (
	"context"

	"google.golang.org/protobuf/proto"

	"google.golang.org/grpc"

	"github.com/blackhole/blackhole/internal/platform/access"
	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// Coordination holds the parts of the coordination plane. All are required.
type Coordination struct {
	Service coord.Service
	Admin   coord.Admin

	// Owner names the client on whose behalf a call acts, by its connection, or refuses it. It runs
	// once per call and per stream.
	Owner func(ctx context.Context) (string, error)

	// Peers marks callers as peers of the network, which publish their own instances.
	Peers bool

	// Vouches returns nil if the word of a calling peer on its applications counts. Other peers speak for no caller with
	// a name. nil: the word of every peer counts.
	Vouches func(ctx context.Context) error

	// Authenticated says that applications authenticate here: instances are published only by peers whose word counts.
	Authenticated bool
}

// coordination serves LockService and CoordinationService.
type coordination struct {
	api.UnimplementedLockServiceServer
	api.UnimplementedCoordinationServiceServer
	coordv1.UnimplementedCallServiceServer
	Coordination
	waits     *access.Pool // waiting calls of Lock
	watches   *access.Pool
	closing   context.Context
	intercept grpc.UnaryServerInterceptor // for the calls of a stream
}

// Execute implements coord.Service, for the caller: the methods for single commands go through it.
func (c *coordination) Execute(ctx context.Context, cmd *coordv1.Command) (*coordv1.Result, error) {
	caller, err := c.Owner(ctx)
	if err != nil {
		return nil, err
	}
	if cmd.Owner, err = c.ownerFor(ctx, caller, cmd.GetOwner()); err != nil {
		return nil, err
	}
	if err := c.check(ctx, caller, cmd); err != nil {
		return nil, fault.Wrap("grpcapi", err)
	}
	if cmd.GetLock().GetTimeoutMs() == 0 {
		return c.Service.Execute(ctx, cmd)
	}
	release, err := c.waits.Take(ctx, "grpcapi.Lock")
	if err != nil {
		return nil, err
	}
	defer release()
	ctx, cancel := untilClosing(ctx, c.closing)
	defer cancel()
	r, err := c.Service.Execute(ctx, cmd)
	return r, orClosing(c.closing, "grpcapi.Lock", err)
}

// check refuses a command that callers may not send, or that this peer can judge alone.
func (c *coordination) check(ctx context.Context, caller string, cmd *coordv1.Command) error {
	switch r := cmd.GetRequest().(type) {
	case *coordv1.Command_LeaseGrant:
		if r.LeaseGrant.GetTtlMs() <= 0 && r.LeaseGrant.GetTtl() < 0 {
			return fault.Invalidf("ttl", r.LeaseGrant.GetTtl(), "must be above 0")
		}
	case *coordv1.Command_Txn:
		if n := proto.Size(r.Txn); n > maxTxn {
			return fault.Refused(fault.TooLarge, "then", "the transaction has %d bytes, at most %d: split it", n, maxTxn)
		}
	case *coordv1.Command_PublishInstances:
		return c.checkPublisher(ctx, caller, cmd)
	case *coordv1.Command_SetRequirement:
		return complete(r.SetRequirement)
	}
	if internal(cmd) {
		return fault.Refused(fault.Unsupported, "op", "no peer takes this command from a client")
	}
	return nil
}

// internal reports whether only members propose a command.
func internal(m *coordv1.Command) bool {
	switch m.GetRequest().(type) {
	case *coordv1.Command_Cancel, *coordv1.Command_Compact, *coordv1.Command_Expire, *coordv1.Command_ClientsExpire, *coordv1.Command_Configure,
		*coordv1.Command_BumpIncarnation, *coordv1.Command_SetLevel, *coordv1.Command_Dissolve, *coordv1.Command_RaiseRevision:
		return true
	}
	return false
}

// Read implements coord.Service, for the caller.
func (c *coordination) Read(ctx context.Context, q *coordv1.Question) (*coordv1.Answer, error) {
	caller, err := c.Owner(ctx)
	if err != nil {
		return nil, err
	}
	if !c.Peers { // a peer restricts the lists of its callers itself
		q.Owner = caller
	}
	return c.Service.Read(ctx, q)
}

// Lock implements api.LockServiceServer.
func (c *coordination) Lock(ctx context.Context, req *api.LockRequest) (*api.LockResponse, error) {
	r, err := c.execute(ctx, req)
	return r.GetLock(), err
}

// TryLock implements api.LockServiceServer.
func (c *coordination) TryLock(ctx context.Context, req *api.TryLockRequest) (*api.TryLockResponse, error) {
	r, err := c.execute(ctx, req)
	return r.GetTryLock(), err
}

// Unlock implements api.LockServiceServer.
func (c *coordination) Unlock(ctx context.Context, req *api.UnlockRequest) (*api.UnlockResponse, error) {
	r, err := c.execute(ctx, req)
	return r.GetUnlock(), err
}

// LockInfo implements api.LockServiceServer.
func (c *coordination) LockInfo(ctx context.Context, req *api.LockInfoRequest) (*api.LockInfoResponse, error) {
	a, err := c.Read(ctx, coord.QuestionOf("", req))
	return a.GetLockInfo(), err
}

// ListLocks implements api.LockServiceServer. It returns a page: a client continues after the last
// lock until a page is empty.
func (c *coordination) ListLocks(ctx context.Context, req *api.ListLocksRequest) (*api.ListLocksResponse, error) {
	a, err := c.Read(ctx, coord.QuestionOf("", req))
	return a.GetListLocks(), err
}

// LeaseGrant implements api.LockServiceServer.
func (c *coordination) LeaseGrant(ctx context.Context, req *api.LeaseGrantRequest) (*api.LeaseGrantResponse, error) {
	r, err := c.execute(ctx, req)
	return r.GetLeaseGrant(), err
}

// LeaseRevoke implements api.LockServiceServer.
func (c *coordination) LeaseRevoke(ctx context.Context, req *api.LeaseRevokeRequest) (*api.LeaseRevokeResponse, error) {
	r, err := c.execute(ctx, req)
	return r.GetLeaseRevoke(), err
}

// LeaseTimeToLive implements api.LockServiceServer.
func (c *coordination) LeaseTimeToLive(ctx context.Context, req *api.LeaseTimeToLiveRequest) (*api.LeaseTimeToLiveResponse, error) {
	a, err := c.Read(ctx, coord.QuestionOf("", req))
	return a.GetLeaseTimeToLive(), err
}

// ListLeases implements api.LockServiceServer.
func (c *coordination) ListLeases(ctx context.Context, req *api.ListLeasesRequest) (*api.ListLeasesResponse, error) {
	if req.GetVisibleTo() != "" && !c.Peers {
		return nil, fault.Wrap("grpcapi.ListLeases", fault.Invalidf("visible_to", nil, "is for peers alone: leave it out"))
	}
	a, err := c.Read(ctx, coord.QuestionOf(req.GetVisibleTo(), req))
	return a.GetListLeases(), err
}

// Txn implements api.CoordinationServiceServer.
func (c *coordination) Txn(ctx context.Context, req *api.TxnRequest) (*api.TxnResponse, error) {
	r, err := c.execute(ctx, req)
	return r.GetTxn(), err
}

// Range implements api.CoordinationServiceServer. Large pages end early.
func (c *coordination) Range(ctx context.Context, req *api.RangeRequest) (*api.RangeResponse, error) {
	a, err := c.Read(ctx, coord.QuestionOf("", req))
	return a.GetRange(), err
}

// OpenClient implements api.CoordinationServiceServer.
func (c *coordination) OpenClient(ctx context.Context, req *api.OpenClientRequest) (*api.OpenClientResponse, error) {
	r, err := c.execute(ctx, req)
	return r.GetOpenClient(), err
}

// CloseClient implements api.CoordinationServiceServer.
func (c *coordination) CloseClient(ctx context.Context, req *api.CloseClientRequest) (*api.CloseClientResponse, error) {
	r, err := c.execute(ctx, req)
	return r.GetCloseClient(), err
}

// PublishInstances implements api.CoordinationServiceServer. Only peers publish instances, not
// applications.
func (c *coordination) PublishInstances(ctx context.Context, req *api.PublishInstancesRequest) (*api.PublishInstancesResponse, error) {
	r, err := c.execute(ctx, req)
	return r.GetPublishInstances(), err
}

// SetRequirement implements api.CoordinationServiceServer.
func (c *coordination) SetRequirement(ctx context.Context, req *api.SetRequirementRequest) (*api.SetRequirementResponse, error) {
	r, err := c.execute(ctx, req)
	return r.GetSetRequirement(), err
}

// DeleteRequirement implements api.CoordinationServiceServer.
func (c *coordination) DeleteRequirement(ctx context.Context, req *api.DeleteRequirementRequest) (*api.DeleteRequirementResponse, error) {
	r, err := c.execute(ctx, req)
	return r.GetDeleteRequirement(), err
}
