package answer

import (
	"math"
	"time"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/machine"
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

// Claims returns the claims of a request, by its answer: of name, and of others.
func Claims(r *apiv1.LockRequest, lock *apiv1.LockResponse) []machine.Grant {
	lease := coord.LeaseID(r.GetLeaseId())
	claims := []machine.Grant{{Lock: r.GetName(), Lease: lease, Token: coord.Token(lock.GetFencingToken())}}
	if tokens := lock.GetFencingTokens(); len(tokens) == len(r.GetOthers())+1 {
		for i, name := range r.GetOthers() {
			claims = append(claims, machine.Grant{Lock: name, Lease: lease, Token: coord.Token(tokens[i+1])})
		}
	}
	return claims
}

// Wait returns the time to wait for a lock, capped at the longest duration; below 0: no limit.
func Wait(r *apiv1.LockRequest) time.Duration {
	return time.Duration(min(r.GetTimeoutMs(), math.MaxInt64/int64(time.Millisecond))) * time.Millisecond
}
