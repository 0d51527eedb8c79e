package answer

import (
	"math"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
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
