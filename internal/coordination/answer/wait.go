package answer

import (
	"math"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// CheckWait refuses a time to wait that is none. Errors: Invalid.
func CheckWait(r *apiv1.LockRequest) error {
	if wait := r.GetTimeoutMs(); wait < -1 {
		return fault.Invalidf("timeout_ms", wait, "must be -1 (no limit), 0 (no wait) or more")
	}
	return nil
}

// Wait returns the time to wait for a lock, capped at the longest duration; below 0: no limit.
func Wait(r *apiv1.LockRequest) time.Duration {
	return time.Duration(min(r.GetTimeoutMs(), math.MaxInt64/int64(time.Millisecond))) * time.Millisecond
}

// TryLock returns the command of the log for a lock that does not wait.
func TryLock(m *coordv1.Command) *coordv1.Command {
	r := m.GetLock()
	return &coordv1.Command{Owner: m.GetOwner(), Attempt: m.GetAttempt(), Request: &coordv1.Command_TryLock{TryLock: &apiv1.TryLockRequest{
		Name: r.GetName(), LeaseId: r.GetLeaseId(), Metadata: r.GetMetadata(), Mode: r.GetMode(), Permits: r.GetPermits(),
	}}}
}
