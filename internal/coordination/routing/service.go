package routing

import (
	"context"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/coordination/answer"
	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// Execute implements coord.Service.
func (r *Router) Execute(ctx context.Context, cmd *coordv1.Command) (result *coordv1.Result, err error) {
	execute := func(ctx context.Context, t Target) error {
		result, err = t.Execute(ctx, cmd)
		return err
	}
	switch q := cmd.GetRequest().(type) {
	case *coordv1.Command_KeepAlive:
		if _, err := coord.Renewed(q.KeepAlive); err != nil {
			return nil, fault.Wrap("group.Execute", err)
		}
		err = r.AtLeader(ctx, execute)
	case *coordv1.Command_Lock:
		return r.lock(ctx, cmd)
	default:
		err = r.once(ctx, &cmd, execute, nil)
	}
	return result, err
}

// lock executes a command that waits for a lock. A repetition waits for the rest of the time.
func (r *Router) lock(ctx context.Context, cmd *coordv1.Command) (result *coordv1.Result, err error) {
	if err := answer.CheckWait(cmd.GetLock()); err != nil {
		return nil, fault.Wrap("group.Execute", err)
	}
	wait, began, undo := answer.Wait(cmd.GetLock()), time.Now(), r.withdraw
	if cmd.GetLock().GetTimeoutMs() == 0 {
		undo = nil
	}
	repeated := false
	err = r.once(ctx, &cmd, func(ctx context.Context, t Target) error {
		if repeated && wait > 0 {
			cmd = waiting(cmd, max(wait-time.Since(began), time.Millisecond))
		}
		repeated = true
		result, err = t.Execute(ctx, cmd)
		return err
	}, undo)
	return result, err
}

// waiting returns a command for a lock with another time to wait. The command may still be in use.
func waiting(cmd *coordv1.Command, wait time.Duration) *coordv1.Command {
	again := proto.CloneOf(cmd)
	again.GetLock().TimeoutMs = coord.WaitOf(wait)
	return again
}

// Read implements coord.Service. Only the leader knows the remaining times of leases.
func (r *Router) Read(ctx context.Context, q *coordv1.Question) (a *coordv1.Answer, err error) {
	if m := r.config.Member(); m != nil && answer.IsLocal(q) && m.Belongs() {
		return m.Read(ctx, q)
	}
	anywhere := r.AtMember
	if answer.AboutLeases(q) {
		anywhere = r.AtLeader
	}
	err = anywhere(ctx, func(ctx context.Context, t Target) error {
		a, err = t.Read(ctx, q)
		return err
	})
	return a, err
}

// Watch implements coord.Service. It resumes at another member after the loss of the serving one.
func (r *Router) Watch(ctx context.Context, w *apiv1.WatchKeysRequest, send func(*apiv1.WatchKeysResponse) error) error {
	const op = "coordination.Watch"
	if _, floor := r.config.Left(); w.GetStartRevision() > 0 && w.GetStartRevision() <= floor { // perhaps of a group that this peer left
		return anew(op, floor)
	}
	var refused error // the error of send, which ends the watch
	begun := false
	w = proto.CloneOf(w) // the start moves on
	err := r.AtMember(ctx, func(ctx context.Context, t Target) error {
		resuming := begun
		_, abroad := t.(Remote)
		established := false
		defer func() {
			if established {
				r.watches.Add(-1)
			}
		}()
		err := t.Watch(ctx, w, func(b *apiv1.WatchKeysResponse) error {
			if abroad && !established {
				established = true
				r.watches.Add(1)
			}
			if resuming && len(b.GetEvents()) == 0 {
				resuming = false
				return nil // the client knows the start already
			}
			begun, w.StartRevision = true, b.GetNextRevision()
			refused = send(b)
			return refused
		})
		if refused != nil { // even an Unavailable of send
			return fault.As(op, fault.Canceled, refused)
		}
		return err
	})
	if departed, _ := r.config.Left(); err != nil && refused == nil && ctx.Err() == nil && departed {
		return anew(op, w.GetStartRevision())
	}
	return err
}

// anew ends a watch that must not go on: its revisions are of another group's history.
func anew(op string, at int64) error {
	return fault.As(op, fault.NotFound, &coord.Compacted{Revision: coord.Revision(at), Current: coord.Revision(at)})
}
