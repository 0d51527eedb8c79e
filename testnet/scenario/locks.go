package scenario

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/blackhole/blackhole/internal/operator"
	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/client/fence"
	"github.com/blackhole/blackhole/testnet/await"
)

// lockName is the one lock that all clients take: each handover is a test.
const lockName = "jobs"

// hold is a lock that was granted. Times are since the start of the run.
type hold struct {
	peer  int
	token fence.Token
	asked time.Duration // before the call
	given time.Duration // after its answer
	left  time.Duration // before the unlock
	sure  bool          // the unlock succeeded, so the lock was held all the time
}

// span is the time in which separate groups became one; zero without any.
type span struct{ from, to time.Duration }

// work takes the lock at any serving peer, holds it for a moment, and gives it back, until ctx ends.
func (r *run) work(ctx context.Context, rng *rand.Rand) {
	for ctx.Err() == nil {
		r.mu.Lock()
		peers := r.all
		r.mu.Unlock()
		i := rng.IntN(len(peers))
		if c := peers[i].client(); c != nil {
			r.take(ctx, i, c, time.Duration(10+rng.IntN(50))*time.Millisecond)
		}
		_ = await.Pause(ctx, time.Duration(rng.IntN(100))*time.Millisecond) // the loop sees the end
	}
}

// take takes the lock once. Errors are refusals during changes; what was granted counts.
func (r *run) take(ctx context.Context, i int, c *operator.Client, during time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	s, err := c.Locks().Session(ctx, client.TTL(3*time.Second))
	if err != nil {
		return
	}
	defer func() { _ = s.Close(ctx) }() // else the lease expires
	h := hold{peer: i, asked: r.now()}
	held, err := s.Lock(ctx, lockName)
	if err != nil {
		return
	}
	h.token, h.given = held.Token(), r.now()
	_ = await.Pause(ctx, during)
	h.left = r.now()
	h.sure = held.Unlock(ctx) == nil
	r.mu.Lock()
	defer r.mu.Unlock()
	r.holds = append(r.holds, h)
}

// check applies the rules:
//
//	T1  a token asked for after another one was given is larger: in one group, and after a merge above those of all groups
//	E1  two clients of one group do not hold at once
func check(all []hold, met span) (violations []string) {
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b hold) int { return cmp.Compare(a.given, b.given) })
	for i, a := range all {
		for _, b := range all[i+1:] {
			apart := met.to > 0 && (b.asked < met.to && a.peer != b.peer || b.asked < met.to && b.given > met.from)
			switch {
			case apart || met.to > 0 && a.given > met.from && a.given < met.to && b.asked < met.to:
			case b.asked >= a.given && b.token <= a.token:
				violations = append(violations, fmt.Sprintf("T1 token %d at %v at peer %d, after %d at %v at peer %d", b.token, b.given, b.peer+1, a.token, a.given, a.peer+1))
			case a.sure && b.sure && b.given < a.left:
				violations = append(violations, fmt.Sprintf("E1 peers %d and %d held at %v, with tokens %d and %d", a.peer+1, b.peer+1, b.given, a.token, b.token))
			}
		}
	}
	return violations
}
