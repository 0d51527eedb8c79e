package client

import (
	"context"
	"errors"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/coord/calls"
	"github.com/blackhole/blackhole/pkg/fault"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// Coordination is the contract of the coordination plane as served by a peer: each call is one
// request without repetition. Sessions, watches and elections add repetition; most programs
// want them.
//
// It implements Writer, Reader and Admin of package coord. The peer determines the owner of a
// call: Owner of a command is not sent, except with SpeakForOwners. Results lack the fields that the API lacks: position
// and predecessor of a waiting claim, the ended leases of a revocation, and the index of a
// lease's grant.
type Coordination struct {
	calls   *calls.Caller
	watches api.LockServiceClient         // on a separate connection for long calls
	admin   api.CoordinationServiceClient // on that connection
	speaks  bool                          // see SpeakForOwners
}

// Coordination returns the contract of the coordination plane. It is safe for concurrent use
// and ends with the client.
func (c *Client) Coordination() *Coordination { return c.coordination }

// Do implements coord.Writer for all commands except the commands of members.
//
// Errors: Unsupported for commands of members.
func (p *Coordination) Do(ctx context.Context, cmd coord.Command) (coord.Result, coord.Header, error) {
	const op = "client.Do"
	m, err := coord.Message(cmd)
	if err != nil {
		return coord.Result{}, coord.Header{}, fault.Wrap(op, err)
	}
	if method, _ := calls.MethodOf(m); method == "" {
		return coord.Result{}, coord.Header{}, fault.As(op, fault.Unsupported,
			&fault.Error{Kind: fault.Unsupported, Field: "op", Err: errors.New("no peer takes this command from a client")})
	}
	if r := m.GetCloseClient(); r != nil {
		r.Client = uint64(cmd.Client)
	}
	resp, err := p.execute(ctx, m)
	if err != nil {
		return coord.Result{}, coord.Header{}, fromStatus(op, err)
	}
	switch r := resp.GetResponse().(type) {
	case *coordv1.Result_Lock:
		return answered(r.Lock, locked(r.Lock))
	case *coordv1.Result_TryLock:
		return answered(r.TryLock, locked(r.TryLock))
	case *coordv1.Result_Unlock:
		asked := m.GetUnlock()
		return answered(r.Unlock, coord.Result{Lock: coord.LockResult{
			Key:   coord.LockKey(asked.GetName(), coord.LeaseID(asked.GetLeaseId())),
			Token: coord.Token(asked.GetFencingToken()), Count: r.Unlock.GetCount(), Granted: r.Unlock.GetCount() > 0,
		}})
	case *coordv1.Result_LeaseGrant:
		return answered(r.LeaseGrant, coord.Result{Lease: coord.LeaseID(r.LeaseGrant.GetId()), TTL: r.LeaseGrant.GetTtlMs()})
	case *coordv1.Result_LeaseRevoke:
		return answered(r.LeaseRevoke, coord.Result{})
	case *coordv1.Result_Txn:
		return answered(r.Txn, coord.Result{Changed: int(r.Txn.GetChanged()), Txn: toTxn(r.Txn)})
	case *coordv1.Result_PublishInstances:
		return answered(r.PublishInstances, published(r.PublishInstances))
	case *coordv1.Result_SetRequirement:
		return answered(r.SetRequirement, coord.Result{Changed: int(r.SetRequirement.GetChanged())})
	case *coordv1.Result_DeleteRequirement:
		return answered(r.DeleteRequirement, coord.Result{Changed: 1})
	case *coordv1.Result_OpenClient:
		return answered(r.OpenClient, coord.Result{Client: coord.ClientID(r.OpenClient.GetClient())})
	}
	return coord.Result{}, coord.Header{}, nil // of CloseClient
}

// execute sends a command, with its owner only from a peer that speaks for its applications.
func (p *Coordination) execute(ctx context.Context, m *coordv1.Command) (*coordv1.Result, error) {
	if !p.speaks {
		m.Owner = ""
	}
	return p.calls.Execute(ctx, m)
}

// answer is common to the responses of all commands.
type answer interface{ GetHeader() *api.Header }

// answered completes a result.
func answered(resp answer, r coord.Result) (coord.Result, coord.Header, error) {
	h := toHeader(resp.GetHeader())
	r.Revision = h.Revision
	return r, h, nil
}

// locked returns the result of a claim.
func locked(resp interface {
	GetKey() string
	GetFencingToken() int64
	GetAcquired() bool
	GetCount() uint32
}) coord.Result {
	return coord.Result{Lock: coord.LockResult{
		Key: resp.GetKey(), Token: coord.Token(resp.GetFencingToken()), Granted: resp.GetAcquired(), Count: resp.GetCount(),
	}}
}

func published(resp *api.PublishInstancesResponse) coord.Result {
	result := coord.Result{Changed: int(resp.GetChanged())}
	for _, key := range resp.GetForeign() {
		result.Foreign = append(result.Foreign, string(key))
	}
	for _, revision := range resp.GetSince() {
		result.Since = append(result.Since, coord.Revision(revision))
	}
	return result
}

// Acquire implements coord.Writer. Errors: Invalid for a command without a lock to wait for.
func (p *Coordination) Acquire(ctx context.Context, cmd coord.Command, wait time.Duration) (coord.Result, coord.Header, error) {
	const op = "client.Acquire"
	m, err := coord.Message(cmd)
	if err != nil {
		return coord.Result{}, coord.Header{}, fault.Wrap(op, err)
	}
	req := m.GetLock()
	if req == nil {
		return coord.Result{}, coord.Header{}, fault.Wrap(op, fault.Invalidf("op", nil, "must be a lock that waits"))
	}
	req.TimeoutMs = -1
	if wait >= 0 {
		req.TimeoutMs = max(1, int64((wait+time.Millisecond-1)/time.Millisecond)) // 0 means no claim that waits
	}
	resp, err := p.execute(ctx, m)
	if err != nil {
		return coord.Result{}, coord.Header{}, fromStatus(op, err)
	}
	return answered(resp.GetLock(), locked(resp.GetLock()))
}

// text refuses invalid UTF-8.
func text(field, s string) error {
	if !utf8.ValidString(s) {
		return fault.Invalidf(field, nil, "must be UTF-8")
	}
	return nil
}

// KeepAlive implements coord.Writer. The peer determines the owner, except with SpeakForOwners.
// Lifetimes start at the sending of the request.
func (p *Coordination) KeepAlive(ctx context.Context, owner string, ids []coord.LeaseID) ([]coord.Renewal, coord.Header, error) {
	const op = "client.KeepAlive"
	switch {
	case len(ids) == 0:
		return nil, coord.Header{}, nil
	case len(ids) > coord.MaxKeepAlive:
		return nil, coord.Header{}, fault.Wrap(op, fault.Invalidf("ids", len(ids), "must be at most %d", coord.MaxKeepAlive))
	}
	req := &api.LeaseKeepAliveRequest{Id: int64(ids[0])}
	for _, id := range ids[1:] {
		req.Ids = append(req.Ids, int64(id))
	}
	r, err := p.execute(ctx, &coordv1.Command{Owner: owner, Request: &coordv1.Command_KeepAlive{KeepAlive: req}})
	if err != nil {
		return nil, coord.Header{}, fromStatus(op, err)
	}
	resp := r.GetKeepAlive()
	if len(resp.GetTtlsMs()) != len(ids)-1 {
		return nil, coord.Header{}, fault.New(op, fault.Internal, "the peer answered for %d leases of %d", 1+len(resp.GetTtlsMs()), len(ids))
	}
	out := make([]coord.Renewal, len(ids))
	out[0] = coord.Renewal{ID: ids[0], TTL: resp.GetTtlMs()}
	for i, ttl := range resp.GetTtlsMs() {
		out[i+1] = coord.Renewal{ID: ids[i+1], TTL: ttl}
	}
	for _, published := range resp.GetPublished() {
		if i := slices.Index(ids, coord.LeaseID(published.GetLeaseId())); i >= 0 {
			out[i].Published = &coord.Publication{
				Generation: published.GetGeneration(),
				Digest:     coord.Digest{Count: int(published.GetCount()), High: published.GetHigh(), Low: published.GetLow()},
			}
		}
	}
	return out, toHeader(resp.GetHeader()), nil
}
