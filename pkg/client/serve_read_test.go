package client

import (
	"bytes"
	"context"

	"google.golang.org/grpc"

	"github.com/blackhole/blackhole/internal/contract/coord"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

func (f *front) Group(ctx context.Context, _ *api.GroupRequest) (*api.GroupResponse, error) {
	s, err := f.solo.Group(ctx)
	members := func(list []coord.Member) (out []*api.GroupMember) {
		for _, m := range list {
			out = append(out, &api.GroupMember{PeerId: m.Peer, MemberId: m.ID, Applied: m.Applied, Active: m.Active})
		}
		return out
	}
	return &api.GroupResponse{
		GroupId: s.ID, Phase: s.Phase, Missing: s.Missing, Term: s.Term, Leader: s.Leader,
		Voters: members(s.Voters), Learners: members(s.Learners), Revision: int64(s.Revision),
		Incarnation: s.Incarnation, Leases: uint64(s.Leases), Locks: uint64(s.Locks), Keys: uint64(s.Keys),
	}, err
}

func (f *front) ChangeMembers(ctx context.Context, r *api.ChangeMembersRequest) (*api.ChangeMembersResponse, error) {
	done, err := f.solo.ChangeMembers(ctx, coord.MemberChange{Action: coord.MemberAction(r.GetAction()), Peer: r.GetPeerId(), DryRun: r.GetDryRun()})
	return &api.ChangeMembersResponse{Done: done.Done, Before: done.Before, After: done.After}, err
}

func (f *front) Backup(_ *api.BackupRequest, out grpc.ServerStreamingServer[api.BackupResponse]) error {
	var b bytes.Buffer
	if err := f.solo.Backup(out.Context(), &b); err != nil {
		return err
	}
	return out.Send(&api.BackupResponse{Data: b.Bytes()})
}
