package client

import (
	"context"
	"errors"
	"io"

	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/coord/calls"
	"github.com/blackhole/blackhole/pkg/fault"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// Watch implements coord.Service.
func (p *Coordination) Watch(ctx context.Context, w *api.WatchKeysRequest, send func(*api.WatchKeysResponse) error) error {
	const op = "client.Watch"
	if err := checkText(w); err != nil {
		return fault.Wrap(op, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the stream after a failed send
	stream, err := p.watches.Watch(ctx)
	if err != nil {
		return fromStatus(op, err)
	}
	if err := stream.Send(w); err != nil && !errors.Is(err, io.EOF) { // EOF: Recv returns the cause
		return fromStatus(op, err)
	}
	if err := stream.CloseSend(); err != nil { // no further requests
		return fromStatus(op, err)
	}
	for whole := (*api.WatchKeysResponse)(nil); ; {
		resp, err := stream.Recv()
		if err != nil {
			return fromStatus(op, err)
		}
		if err := ended(op, resp); err != nil {
			return err
		}
		if whole != nil {
			resp.Events = append(whole.GetEvents(), resp.GetEvents()...)
		}
		if whole = resp; resp.GetFragment() {
			continue
		}
		whole = nil
		if err := send(resp); err != nil {
			return err
		}
	}
}

// ended returns the cause if an answer is the last of a watch: an event of an unknown kind ends it too, because
// nothing else may be lost without a word.
func ended(op string, resp *api.WatchKeysResponse) error {
	switch {
	case resp.GetCompactRevision() > 0:
		return fault.As(op, fault.NotFound, calls.CompactedOf(resp))
	case resp.GetCanceled() && resp.GetError() != nil && fault.Kind(resp.GetError().GetKind()) != fault.LimitReached:
		return toFault(op, resp.GetError())
	case resp.GetCanceled(): // also a full peer, which has room later
		return fault.New(op, fault.Unavailable, "the peer ended the watch: %s", resp.GetReason())
	}
	for _, e := range resp.GetEvents() {
		if _, known := api.KeyEvent_Type_name[int32(e.GetType())]; !known {
			return fault.New(op, fault.Unsupported, "the peer sent an event of a kind that this version does not know: %d", e.GetType())
		}
	}
	return nil
}

// Group implements coord.Admin.
func (p *Coordination) Group(ctx context.Context) (coord.GroupState, error) {
	resp, err := p.admin.Group(ctx, &api.GroupRequest{})
	if err != nil {
		return coord.GroupState{}, fromStatus("client.Group", err)
	}
	return coord.GroupState{
		ID: resp.GetGroupId(), Phase: resp.GetPhase(), Missing: resp.GetMissing(), Term: resp.GetTerm(), Leader: resp.GetLeader(),
		Voters: convert(resp.GetVoters(), toMember), Learners: convert(resp.GetLearners(), toMember),
		Revision: coord.Revision(resp.GetRevision()), Incarnation: resp.GetIncarnation(),
		Leases: int(resp.GetLeases()), Locks: int(resp.GetLocks()), Keys: int(resp.GetKeys()),
		Survives: int(resp.GetFailuresSurvived()), Tolerance: resp.GetTolerance(),
		Level: resp.GetFeatureLevel(), HeldBackBy: convert(resp.GetHeldBackBy(), func(h *api.HeldBack) coord.HeldBack {
			return coord.HeldBack{Peer: h.GetPeerId(), Levels: coord.Levels{Min: h.GetMinLevel(), Max: h.GetMaxLevel()}}
		}),
	}, nil
}

// ChangeMembers implements coord.Admin.
func (p *Coordination) ChangeMembers(ctx context.Context, c coord.MemberChange) (coord.MemberOutcome, error) {
	resp, err := p.admin.ChangeMembers(ctx, &api.ChangeMembersRequest{
		Action: string(c.Action), PeerId: c.Peer, With: c.With, DryRun: c.DryRun, Force: c.Force, By: c.By,
		GroupId: c.Group, Revision: int64(c.Revision),
	})
	if err != nil {
		return coord.MemberOutcome{}, fromStatus("client.ChangeMembers", err)
	}
	return coord.MemberOutcome{
		Done: resp.GetDone(), Steps: resp.GetSteps(), Before: resp.GetBefore(), After: resp.GetAfter(), Standing: coord.Standing(resp.GetStanding()),
		Revision: coord.Revision(resp.GetRevision()),
	}, nil
}

// Backup implements coord.Admin.
func (p *Coordination) Backup(ctx context.Context, w io.Writer) error {
	const op = "client.Backup"
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the stream after a failed write
	stream, err := p.admin.Backup(ctx, &api.BackupRequest{})
	if err != nil {
		return fromStatus(op, err)
	}
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fromStatus(op, err)
		}
		if _, err := w.Write(part.GetData()); err != nil {
			return fault.As(op, fault.Canceled, err)
		}
	}
}
