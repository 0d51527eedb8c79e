package grpcapi

import (
	"context"
	"math"
	"time"

	"google.golang.org/grpc"

	"github.com/blackhole/blackhole/internal/platform/access"
	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// Coordination holds the parts of the coordination plane. All are required.
type Coordination struct {
	Writer coord.Writer
	Reader coord.Reader
	Admin  coord.Admin

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
	atOnce    *access.Pool // calls under way on streams
	watches   *access.Pool
	closing   context.Context
	intercept grpc.UnaryServerInterceptor // for the calls of a stream
}

// command returns the command of a request. The plane forwards the request unchanged.
func (c *coordination) command(ctx context.Context, a *api.Attempt, m *coordv1.Command) (coord.Command, error) {
	owner, err := c.owner(ctx)
	if err != nil {
		return coord.Command{}, err
	}
	return coord.Command{
		Client: coord.ClientID(a.GetClient()), Sequence: a.GetSequence(), Owner: owner, Op: &coord.Encoded{Message: m},
	}, nil
}

// do executes a command that does not wait.
func (c *coordination) do(ctx context.Context, a *api.Attempt, m *coordv1.Command) (coord.Result, *api.Header, error) {
	cmd, err := c.command(ctx, a, m)
	if err != nil {
		return coord.Result{}, nil, err
	}
	r, h, err := c.Writer.Do(ctx, cmd)
	if err != nil {
		return coord.Result{}, nil, err
	}
	return r, fromHeader(h), nil
}

// Lock implements api.LockServiceServer.
func (c *coordination) Lock(ctx context.Context, req *api.LockRequest) (*api.LockResponse, error) {
	wait := req.GetTimeoutMs()
	switch {
	case wait < -1:
		return nil, fault.Wrap("grpcapi.Lock", fault.Invalidf("timeout_ms", wait, "must be -1 (no limit), 0 (no wait) or more"))
	case wait == 0:
		return c.lockNow(ctx, req)
	}
	cmd, err := c.command(ctx, req.GetAttempt(), &coordv1.Command{Request: &coordv1.Command_Lock{Lock: req}})
	if err != nil {
		return nil, err
	}
	release, err := c.waits.Take(ctx, "grpcapi.Lock")
	if err != nil {
		return nil, err
	}
	defer release()
	ctx, cancel := untilClosing(ctx, c.closing)
	defer cancel()
	r, h, err := c.Writer.Acquire(ctx, cmd, toWait(wait))
	if err != nil {
		return nil, orClosing(c.closing, "grpcapi.Lock", err)
	}
	return &api.LockResponse{
		Header: fromHeader(h), Key: r.Lock.Key, FencingToken: int64(r.Lock.Token), Acquired: r.Lock.Granted, Count: r.Lock.Count,
	}, nil
}

// lockNow executes a request for a lock that does not wait: as TryLock.
func (c *coordination) lockNow(ctx context.Context, req *api.LockRequest) (*api.LockResponse, error) {
	r, err := c.TryLock(ctx, &api.TryLockRequest{
		Name: req.GetName(), LeaseId: req.GetLeaseId(), Metadata: req.GetMetadata(), Mode: req.GetMode(),
		Permits: req.GetPermits(), Attempt: req.GetAttempt(),
	})
	return &api.LockResponse{
		Header: r.GetHeader(), Key: r.GetKey(), FencingToken: r.GetFencingToken(), Acquired: r.GetAcquired(), Count: r.GetCount(),
	}, err
}

// toWait converts milliseconds and caps them at the longest duration. -1 is no limit.
func toWait(ms int64) time.Duration {
	if ms < 0 {
		return coord.NoLimit
	}
	return time.Duration(min(ms, math.MaxInt64/int64(time.Millisecond))) * time.Millisecond
}

// TryLock implements api.LockServiceServer.
func (c *coordination) TryLock(ctx context.Context, req *api.TryLockRequest) (*api.TryLockResponse, error) {
	r, h, err := c.do(ctx, req.GetAttempt(), &coordv1.Command{Request: &coordv1.Command_TryLock{TryLock: req}})
	if err != nil {
		return nil, err
	}
	return &api.TryLockResponse{
		Header: h, Key: r.Lock.Key, FencingToken: int64(r.Lock.Token), Acquired: r.Lock.Granted, Count: r.Lock.Count,
	}, nil
}

// Unlock implements api.LockServiceServer.
func (c *coordination) Unlock(ctx context.Context, req *api.UnlockRequest) (*api.UnlockResponse, error) {
	r, h, err := c.do(ctx, req.GetAttempt(), &coordv1.Command{Request: &coordv1.Command_Unlock{Unlock: req}})
	if err != nil {
		return nil, err
	}
	return &api.UnlockResponse{Header: h, Count: r.Lock.Count}, nil
}

// LockInfo implements api.LockServiceServer.
func (c *coordination) LockInfo(ctx context.Context, req *api.LockInfoRequest) (*api.LockInfoResponse, error) {
	if req.GetName() == "" {
		return nil, fault.Wrap("grpcapi.LockInfo", fault.Invalidf("name", nil, "is missing: name the lock"))
	}
	states, h, err := lockStates(ctx, c, coord.LockQuery{Name: req.GetName(), AfterToken: coord.Token(req.GetAfterToken())})
	if err != nil {
		return nil, err
	}
	return &api.LockInfoResponse{Header: h, Lock: states[0]}, nil
}

// ListLocks implements api.LockServiceServer. It returns a page: a client continues after the last
// lock until a page is empty.
func (c *coordination) ListLocks(ctx context.Context, req *api.ListLocksRequest) (*api.ListLocksResponse, error) {
	states, h, err := lockStates(ctx, c, coord.LockQuery{Prefix: req.GetPrefix(), After: req.GetAfter(), Limit: toLimit(req.GetLimit())})
	if err != nil {
		return nil, err
	}
	return &api.ListLocksResponse{Header: h, Locks: states}, nil
}

func lockStates(ctx context.Context, c *coordination, q coord.LockQuery) ([]*api.LockState, *api.Header, error) {
	if _, err := c.Owner(ctx); err != nil {
		return nil, nil, err
	}
	q.Bytes = pageBytes
	states, h, err := c.Reader.Locks(ctx, q)
	return convert(states, fromLock), fromHeader(h), err
}

// LeaseGrant implements api.LockServiceServer.
func (c *coordination) LeaseGrant(ctx context.Context, req *api.LeaseGrantRequest) (*api.LeaseGrantResponse, error) {
	if req.GetTtlMs() <= 0 && req.GetTtl() < 0 {
		return nil, fault.Wrap("grpcapi.LeaseGrant", fault.Invalidf("ttl", req.GetTtl(), "must be above 0"))
	}
	r, h, err := c.do(ctx, req.GetAttempt(), &coordv1.Command{Request: &coordv1.Command_LeaseGrant{LeaseGrant: req}})
	if err != nil {
		return nil, err
	}
	return &api.LeaseGrantResponse{Header: h, Id: int64(r.Lease), Ttl: r.TTL / 1000, TtlMs: r.TTL}, nil
}

// LeaseRevoke implements api.LockServiceServer.
func (c *coordination) LeaseRevoke(ctx context.Context, req *api.LeaseRevokeRequest) (*api.LeaseRevokeResponse, error) {
	_, h, err := c.do(ctx, req.GetAttempt(), &coordv1.Command{Request: &coordv1.Command_LeaseRevoke{LeaseRevoke: req}})
	if err != nil {
		return nil, err
	}
	return &api.LeaseRevokeResponse{Header: h}, nil
}

// LeaseTimeToLive implements api.LockServiceServer.
func (c *coordination) LeaseTimeToLive(ctx context.Context, req *api.LeaseTimeToLiveRequest) (*api.LeaseTimeToLiveResponse, error) {
	if req.GetId() == 0 {
		return nil, fault.Wrap("grpcapi.LeaseTimeToLive", fault.Invalidf("id", 0, "is missing"))
	}
	states, h, err := leaseStates(ctx, c, coord.LeaseQuery{ID: coord.LeaseID(req.GetId())})
	if err != nil {
		return nil, err
	}
	return &api.LeaseTimeToLiveResponse{Header: h, Lease: states[0]}, nil
}

// ListLeases implements api.LockServiceServer.
func (c *coordination) ListLeases(ctx context.Context, req *api.ListLeasesRequest) (*api.ListLeasesResponse, error) {
	if req.GetVisibleTo() != "" && !c.Peers {
		return nil, fault.Wrap("grpcapi.ListLeases", fault.Invalidf("visible_to", nil, "is for peers alone: leave it out"))
	}
	states, h, err := leaseStates(ctx, c, coord.LeaseQuery{After: req.GetAfter(), Limit: toLimit(req.GetLimit()), VisibleTo: req.GetVisibleTo()})
	if err != nil {
		return nil, err
	}
	return &api.ListLeasesResponse{Header: h, Leases: states}, nil
}

func leaseStates(ctx context.Context, c *coordination, q coord.LeaseQuery) ([]*api.LeaseState, *api.Header, error) {
	if _, err := c.Owner(ctx); err != nil {
		return nil, nil, err
	}
	states, h, err := c.Reader.Leases(ctx, q)
	return convert(states, fromLease), fromHeader(h), err
}
