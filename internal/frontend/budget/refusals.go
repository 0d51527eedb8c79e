package budget

import (
	"context"
	"hash/fnv"
	"time"

	"github.com/blackhole/blackhole/internal/platform/access"
	"github.com/blackhole/blackhole/internal/platform/pause"
)

// afterRefusal is the time of one refusal.
const afterRefusal = 10 * time.Millisecond

// Refusals lets refused watches of a caller through one after another, on all its streams: to ask costs a client less than to be refused.
type Refusals struct {
	turns [64]chan struct{} // each taken by the callers of one hash
}

// NewRefusals makes a Refusals.
func NewRefusals() *Refusals {
	r := new(Refusals)
	for n := range r.turns {
		r.turns[n] = make(chan struct{}, 1)
	}
	return r
}

// Wait returns after the turn of the caller, or when ctx ends.
func (r *Refusals) Wait(ctx context.Context) {
	h := fnv.New32a()
	_, _ = h.Write([]byte(access.Client(ctx)))
	turn := r.turns[h.Sum32()%uint32(len(r.turns))]
	select {
	case turn <- struct{}{}:
		pause.For(ctx, afterRefusal)
		<-turn
	case <-ctx.Done():
	}
}
