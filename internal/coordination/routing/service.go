package routing

import (
	"cmp"
	"context"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/coord/attempt"
	"github.com/blackhole/blackhole/internal/coordination/answer"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// Execute implements coord.Service. A command is applied once: it borrows an identity of this peer, unless its caller
// brought one. A claim on a lock whose caller leaves is given back.
//
// A command with an identity of its caller is never undone: the caller may repeat it through another peer, and gets the first
// answer. If that answer was a held lock, the lock must still be held.
func (r *Router) Execute(ctx context.Context, cmd *coordv1.Command) (result *coordv1.Result, err error) {
	defer func() {
		if pool, _ := fault.PoolOf(err); pool != "" && r.config.Exhausted != nil {
			r.config.Exhausted(cmd.GetOwner(), err)
		}
	}()
	switch q := cmd.GetRequest().(type) {
	case *coordv1.Command_KeepAlive:
		if _, err := coord.Renewed(q.KeepAlive); err != nil {
			return nil, fault.Wrap("routing.Execute", err)
		}
		err = r.AtLeader(ctx, func(ctx context.Context, t Target) error {
			result, err = t.Execute(ctx, cmd)
			return err
		})
		return result, err
	case *coordv1.Command_OpenClient, *coordv1.Command_CloseClient:
		return r.try(ctx, cmd)
	case *coordv1.Command_Lock:
		if err := answer.CheckWait(q.Lock); err != nil {
			return nil, fault.Wrap("routing.Execute", err)
		}
	}
	a := r.pool.Attempt(cmd)
	if result, err = r.once(ctx, a, answer.Wait(cmd.GetLock())); err != nil && a.Waits() && a.Unknown() && !a.Brought() && ctx.Err() != nil && !cmd.GetLock().GetStays() {
		if r.config.Start(func() { defer a.End(); r.withdraw(a) }) {
			return result, err
		}
	}
	a.End()
	return result, err
}

// once makes an attempt until its outcome is known. A repeated claim waits for the rest of its time.
func (r *Router) once(ctx context.Context, a *attempt.Attempt, wait time.Duration) (result *coordv1.Result, err error) {
	for began := time.Now(); ; a.Again() {
		sent := 0
		err = r.AtLeader(ctx, func(ctx context.Context, t Target) error {
			result, err = a.Once(ctx, func(ctx context.Context, cmd *coordv1.Command) (*coordv1.Result, error) {
				if cmd.GetOpenClient() == nil {
					sent++
				}
				if sent > 1 && wait > 0 && cmd.GetLock() != nil { // the message is a copy then
					cmd.GetLock().TimeoutMs = coord.WaitOf(max(wait-time.Since(began), time.Millisecond))
				}
				return t.Execute(ctx, cmd)
			})
			return err
		})
		// A claim that the leader gave back after a broken connection must be made again.
		if ctx.Err() != nil || a.Brought() || sent < 2 || !attempt.IsWithdrawn(err) {
			return result, err
		}
	}
}

// try executes a command without an identity. It stops after a failure with an unknown outcome.
func (r *Router) try(ctx context.Context, cmd *coordv1.Command) (result *coordv1.Result, err error) {
	var open error
	err = r.AtLeader(ctx, func(ctx context.Context, t Target) error {
		result, err = t.Execute(ctx, cmd)
		if fault.KindOf(err) == fault.Unavailable && err != nil && !r.config.Refused(err) {
			open = err
			return nil
		}
		return err
	})
	return result, cmp.Or(open, err)
}

// withdraw gives back the claim of a lock under an identity of this peer, whose caller is gone. The repeated command
// returns the claim's token, and a wait of little time gives the claim back. The end of the lease covers a failure.
func (r *Router) withdraw(a *attempt.Attempt) {
	ctx, cancel := context.WithTimeout(r.config.Life, cleaningUp)
	defer cancel()
	_ = r.AtLeader(ctx, func(ctx context.Context, t Target) error {
		var sent *coordv1.Command
		result, err := a.Once(ctx, func(ctx context.Context, cmd *coordv1.Command) (*coordv1.Result, error) {
			if cmd.GetLock() != nil {
				cmd.GetLock().TimeoutMs, sent = 1, cmd
			}
			return t.Execute(ctx, cmd)
		})
		if err == nil && result.GetLock().GetAcquired() {
			for _, c := range answer.Claims(sent.GetLock(), result.GetLock()) {
				_, failed := t.Execute(ctx, coord.CommandOf(sent.GetOwner(), &apiv1.UnlockRequest{
					Name: c.Lock, LeaseId: int64(c.Lease), FencingToken: int64(c.Token),
				}))
				err = cmp.Or(err, failed)
			}
		}
		return err
	})
}

// Read implements coord.Service. Only the leader knows the remaining times of leases.
func (r *Router) Read(ctx context.Context, q *coordv1.Question) (a *coordv1.Answer, err error) {
	if m := r.config.Member(); m != nil && answer.IsLocal(q) && m.Listed() {
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
