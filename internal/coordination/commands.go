package coordination

import (
	"context"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/coordination/answer"
	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// Execute implements coord.Service.
func (p *Plane) Execute(ctx context.Context, cmd *coordv1.Command) (result *coordv1.Result, err error) {
	execute := func(ctx context.Context, t coord.Service) error {
		result, err = t.Execute(ctx, cmd)
		return err
	}
	switch r := cmd.GetRequest().(type) {
	case *coordv1.Command_KeepAlive:
		if _, err := coord.Renewed(r.KeepAlive); err != nil {
			return nil, fault.Wrap("group.Execute", err)
		}
		err = p.router.retry(ctx, execute)
	case *coordv1.Command_Lock:
		return p.lock(ctx, cmd)
	default:
		err = p.router.once(ctx, &cmd, execute, nil)
	}
	return result, err
}

// lock executes a command that waits for a lock. A repetition waits for the rest of the time.
func (p *Plane) lock(ctx context.Context, cmd *coordv1.Command) (result *coordv1.Result, err error) {
	if err := answer.CheckWait(cmd.GetLock()); err != nil {
		return nil, fault.Wrap("group.Execute", err)
	}
	wait, began, undo := answer.Wait(cmd.GetLock()), time.Now(), p.router.withdraw
	if cmd.GetLock().GetTimeoutMs() == 0 {
		undo = nil
	}
	repeated := false
	err = p.router.once(ctx, &cmd, func(ctx context.Context, t coord.Service) error {
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
