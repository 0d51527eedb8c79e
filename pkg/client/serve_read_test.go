package client

import (
	"bytes"
	"context"

	"google.golang.org/grpc"

	"github.com/blackhole/blackhole/pkg/coord"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

func (f *front) Txn(ctx context.Context, r *api.TxnRequest) (*api.TxnResponse, error) {
	got, h, err := f.do(ctx, r.GetAttempt(), &coord.Encoded{Message: &coordv1.Command{Request: &coordv1.Command_Txn{Txn: r}}})
	return &api.TxnResponse{
		Header: h, Changed: uint32(got.Changed), Succeeded: got.Txn.Succeeded, Failed: uint32(got.Txn.Failed), Reason: got.Txn.Reason,
		Results: convert(got.Txn.Steps, func(s coord.StepResult) *api.TxnStepResult {
			return &api.TxnStepResult{Count: int64(s.Count), Kvs: convert(s.Keys, keyVal)}
		}),
	}, err
}

func spanOf(key, end []byte) coord.Span {
	switch string(end) {
	case "":
		return coord.Exactly(string(key))
	case "\x00":
		return coord.Span{From: string(key)}
	}
	return coord.Span{From: string(key), To: string(end)}
}

func (f *front) Range(ctx context.Context, r *api.RangeRequest) (*api.RangeResponse, error) {
	c, limit := coord.Linearizable, int(r.GetLimit())
	if r.GetLocal() {
		c = coord.Local
	}
	if limit == 0 {
		limit = 4 // forces several pages
	}
	page, h, err := f.solo.Range(ctx, coord.Query{
		Span: spanOf(r.GetKey(), r.GetRangeEnd()), At: coord.Revision(r.GetRevision()), Limit: limit, Bytes: 2 << 20, From: string(r.GetFrom()),
		Order: coord.Order(r.GetOrder()), Descending: r.GetDescending(), KeysOnly: r.GetKeysOnly(), CountOnly: r.GetCountOnly(),
	}, c)
	return &api.RangeResponse{
		Header: header(h), Kvs: convert(page.Keys, keyVal), Next: []byte(page.Next), Revision: int64(page.Revision), Count: int64(page.Count),
	}, err
}

func (f *front) OpenClient(ctx context.Context, _ *api.OpenClientRequest) (*api.OpenClientResponse, error) {
	got, h, err := f.do(ctx, nil, &coord.ClientOpen{})
	return &api.OpenClientResponse{Header: h, Client: uint64(got.Client)}, err
}

func (f *front) CloseClient(ctx context.Context, r *api.CloseClientRequest) (*api.CloseClientResponse, error) {
	cmd := coord.Command{Client: coord.ClientID(r.GetClient()), Sequence: 1 << 62, Owner: owner(ctx), Op: &coord.ClientClose{}}
	_, _, err := f.solo.Do(ctx, cmd)
	return &api.CloseClientResponse{}, err
}

func (f *front) LeaseTimeToLive(ctx context.Context, r *api.LeaseTimeToLiveRequest) (*api.LeaseTimeToLiveResponse, error) {
	states, h, err := f.solo.Leases(ctx, coord.LeaseQuery{ID: coord.LeaseID(r.GetId())})
	if err != nil {
		return nil, err
	}
	return &api.LeaseTimeToLiveResponse{Header: header(h), Lease: leaseState(states[0])}, nil
}

func leaseState(l coord.LeaseState) *api.LeaseState {
	return &api.LeaseState{Id: int64(l.ID), GrantedTtlMs: l.TTL, RemainingMs: l.Remaining, ClientId: l.Owner, Keys: l.Keys, Application: l.Application, Tag: l.Tag, Granted: l.Granted}
}

func (f *front) ListLeases(ctx context.Context, r *api.ListLeasesRequest) (*api.ListLeasesResponse, error) {
	states, h, err := f.solo.Leases(ctx, coord.LeaseQuery{After: r.GetAfter(), Limit: int(r.GetLimit())})
	return &api.ListLeasesResponse{Header: header(h), Leases: convert(states, leaseState)}, err
}

func (f *front) LockInfo(ctx context.Context, r *api.LockInfoRequest) (*api.LockInfoResponse, error) {
	states, h, err := f.solo.Locks(ctx, coord.LockQuery{Name: r.GetName(), AfterToken: coord.Token(r.GetAfterToken()), Bytes: 1 << 10})
	if err != nil {
		return nil, err
	}
	return &api.LockInfoResponse{Header: header(h), Lock: lockState(states[0])}, nil
}

func (f *front) ListLocks(ctx context.Context, r *api.ListLocksRequest) (*api.ListLocksResponse, error) {
	states, h, err := f.solo.Locks(ctx, coord.LockQuery{Prefix: r.GetPrefix(), After: r.GetAfter(), Limit: int(r.GetLimit())})
	return &api.ListLocksResponse{Header: header(h), Locks: convert(states, lockState)}, err
}

func lockState(l coord.LockState) *api.LockState {
	return &api.LockState{Name: l.Name, Holding: convert(l.Holding, lockClaim), Waiting: convert(l.Waiting, lockClaim), LeftOut: uint32(l.LeftOut)}
}

func lockClaim(c coord.ClaimState) *api.LockClaim {
	return &api.LockClaim{
		Key: c.Key, HolderId: c.Holder, LeaseId: int64(c.Lease), FencingToken: int64(c.Token), ModRevision: int64(c.ModRevision),
		Version: c.Version, Metadata: c.Metadata, Mode: api.ShareMode(c.Mode), Permits: c.Permits, Count: c.Count,
		AgeMs: c.Age.Milliseconds(),
	}
}

func (f *front) Group(ctx context.Context, _ *api.GroupRequest) (*api.GroupResponse, error) {
	s, err := f.solo.Group(ctx)
	member := func(m coord.Member) *api.GroupMember {
		return &api.GroupMember{PeerId: m.Peer, MemberId: m.ID, Applied: m.Applied, Active: m.Active}
	}
	return &api.GroupResponse{
		GroupId: s.ID, Phase: s.Phase, Missing: s.Missing, Term: s.Term, Leader: s.Leader,
		Voters: convert(s.Voters, member), Learners: convert(s.Learners, member), Revision: int64(s.Revision),
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
