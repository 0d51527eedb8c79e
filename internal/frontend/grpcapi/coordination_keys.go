package grpcapi

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// maxTxn bounds the bytes of one transaction, which every member stores in one piece.
const maxTxn = 4 << 20

// Txn implements api.CoordinationServiceServer.
func (c *coordination) Txn(ctx context.Context, req *api.TxnRequest) (*api.TxnResponse, error) {
	if n := proto.Size(req); n > maxTxn {
		return nil, fault.Wrap("grpcapi.Txn", fault.Refused(fault.TooLarge, "then", "the transaction has %d bytes, at most %d: split it", n, maxTxn))
	}
	r, h, err := c.do(ctx, req.GetAttempt(), &coordv1.Command{Request: &coordv1.Command_Txn{Txn: req}})
	if err != nil {
		return nil, err
	}
	return &api.TxnResponse{
		Header: h, Succeeded: r.Txn.Succeeded, Changed: uint32(r.Changed), Failed: uint32(r.Txn.Failed), Reason: r.Txn.Reason,
		Forgotten: r.Txn.Forgotten, Results: convert(r.Txn.Steps, func(s coord.StepResult) *api.TxnStepResult {
			return &api.TxnStepResult{Count: int64(s.Count), Kvs: convert(s.Keys, fromKeyValue)}
		}),
	}, nil
}

// Range implements api.CoordinationServiceServer. Large pages end early.
func (c *coordination) Range(ctx context.Context, req *api.RangeRequest) (*api.RangeResponse, error) {
	if _, err := c.Owner(ctx); err != nil {
		return nil, err
	}
	span, err := toSpan(req)
	if err != nil {
		return nil, fault.Wrap("grpcapi.Range", err)
	}
	consistency := coord.Linearizable
	if req.GetLocal() {
		consistency = coord.Local
	}
	q := coord.Query{
		Span: span, At: coord.Revision(req.GetRevision()), Limit: toLimit(req.GetLimit()), Bytes: pageBytes, From: string(req.GetFrom()),
		Order: toOrder(req.GetOrder()), Descending: req.GetDescending(), KeysOnly: req.GetKeysOnly(), CountOnly: req.GetCountOnly(),
	}
	page, h, err := c.Reader.Range(ctx, q, consistency)
	if err != nil {
		return nil, err
	}
	return &api.RangeResponse{
		Header: fromHeader(h), Kvs: convert(page.Keys, fromKeyValue), Next: []byte(page.Next), Revision: int64(page.Revision), Count: int64(page.Count),
	}, nil
}

// OpenClient implements api.CoordinationServiceServer.
func (c *coordination) OpenClient(ctx context.Context, req *api.OpenClientRequest) (*api.OpenClientResponse, error) {
	r, h, err := c.do(ctx, nil, &coordv1.Command{Request: &coordv1.Command_OpenClient{OpenClient: req}})
	if err != nil {
		return nil, err
	}
	return &api.OpenClientResponse{Header: h, Client: uint64(r.Client)}, nil
}

// CloseClient implements api.CoordinationServiceServer.
func (c *coordination) CloseClient(ctx context.Context, req *api.CloseClientRequest) (*api.CloseClientResponse, error) {
	last := &api.Attempt{Client: req.GetClient(), Sequence: ^uint64(0)} // the client's last sequence
	if _, _, err := c.do(ctx, last, &coordv1.Command{Request: &coordv1.Command_CloseClient{CloseClient: req}}); err != nil {
		return nil, err
	}
	return &api.CloseClientResponse{}, nil
}

// Group implements api.CoordinationServiceServer.
func (c *coordination) Group(ctx context.Context, _ *api.GroupRequest) (*api.GroupResponse, error) {
	if _, err := c.Owner(ctx); err != nil {
		return nil, err
	}
	g, err := c.Admin.Group(ctx)
	if err != nil {
		return nil, err
	}
	return &api.GroupResponse{
		GroupId: g.ID, Phase: g.Phase, Missing: g.Missing, Term: g.Term, Leader: g.Leader,
		Voters: convert(g.Voters, fromMember), Learners: convert(g.Learners, fromMember),
		Revision: int64(g.Revision), Incarnation: g.Incarnation,
		Leases: uint64(g.Leases), Locks: uint64(g.Locks), Keys: uint64(g.Keys),
		FailuresSurvived: uint32(g.Survives), Tolerance: g.Tolerance,
		FeatureLevel: g.Level, HeldBackBy: convert(g.HeldBackBy, func(h coord.HeldBack) *api.HeldBack {
			return &api.HeldBack{PeerId: h.Peer, MinLevel: h.Levels.Min, MaxLevel: h.Levels.Max}
		}),
	}, nil
}

// ChangeMembers implements api.CoordinationServiceServer. The name of the person comes from the peer that accepted the order.
func (c *coordination) ChangeMembers(ctx context.Context, req *api.ChangeMembersRequest) (*api.ChangeMembersResponse, error) {
	owner, err := c.Owner(ctx)
	if err != nil {
		return nil, err
	}
	order := coord.MemberChange{
		Action: coord.MemberAction(req.GetAction()), Peer: req.GetPeerId(), With: req.GetWith(), DryRun: req.GetDryRun(), Force: req.GetForce(), By: owner,
		Group: req.GetGroupId(), Revision: coord.Revision(req.GetRevision()),
	}
	if c.Peers {
		order.By, order.Via = req.GetBy(), owner
	}
	done, err := c.Admin.ChangeMembers(ctx, order)
	if err != nil {
		return nil, err
	}
	return &api.ChangeMembersResponse{
		Done: done.Done, Steps: done.Steps, Before: done.Before, After: done.After, Standing: string(done.Standing), Revision: int64(done.Revision),
	}, nil
}

// Backup implements api.CoordinationServiceServer.
func (c *coordination) Backup(_ *api.BackupRequest, out grpc.ServerStreamingServer[api.BackupResponse]) error {
	if _, err := c.Owner(out.Context()); err != nil {
		return err
	}
	ctx, cancel := untilClosing(out.Context(), c.closing)
	defer cancel()
	return orClosing(c.closing, "grpcapi.Backup", c.Admin.Backup(ctx, parts{out}))
}

// parts sends what is written.
type parts struct {
	out grpc.ServerStreamingServer[api.BackupResponse]
}

// maxPart bounds the data of one message.
const maxPart = 128 << 10

// Write implements io.Writer.
func (p parts) Write(b []byte) (n int, err error) {
	for n < len(b) && err == nil {
		part := b[n:min(len(b), n+maxPart)]
		if err = p.out.Send(&api.BackupResponse{Data: part}); err == nil {
			n += len(part)
		}
	}
	return n, err
}
