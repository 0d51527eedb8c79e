package grpcapi

import (
	"context"

	"google.golang.org/grpc"

	"github.com/blackhole/blackhole/internal/contract/coord"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// maxTxn bounds the bytes of one transaction, which every member stores in one piece.
const maxTxn = 4 << 20

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
		FailuresSurvived: uint32(g.Survives), Tolerance: g.Tolerance, Removed: g.Removed,
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
	}
	if c.Peers {
		order.By, order.Via = req.GetBy(), owner
	}
	done, err := c.Admin.ChangeMembers(ctx, order)
	if err != nil {
		return nil, err
	}
	return &api.ChangeMembersResponse{
		Done: done.Done, Steps: done.Steps, Before: done.Before, After: done.After, Standing: string(done.Standing),
	}, nil
}

// Backup implements api.CoordinationServiceServer. It holds the values of all keys and the ids of all leases, so a peer whose word
// does not count gets none.
func (c *coordination) Backup(_ *api.BackupRequest, out grpc.ServerStreamingServer[api.BackupResponse]) error {
	if _, err := c.Owner(out.Context()); err != nil {
		return err
	}
	if err := c.vouched(out.Context()); err != nil {
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
