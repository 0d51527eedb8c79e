package flood

import (
	"context"
	"crypto/sha256"
	"time"

	"golang.org/x/time/rate"

	"github.com/blackhole/blackhole/testnet/await"
	"github.com/blackhole/blackhole/testnet/process"
)

// cores is the largest part of a processor that a flood uses.
const cores = 0.5

// pace bounds the messages and the processor time of a flood.
type pace struct {
	limiter *rate.Limiter
	began   time.Time
	before  time.Duration // processor time at the begin
	cores   float64
}

func newPace(each int, part float64) *pace {
	most := part * float64(each)
	return &pace{limiter: rate.NewLimiter(rate.Limit(most), max(int(most/10), 1)), began: time.Now(), before: process.Own(), cores: part * cores}
}

// turn waits until n messages may be sent. It reports false at the end.
func (p *pace) turn(ctx context.Context, n int) bool {
	for range n {
		if p.limiter.Wait(ctx) != nil {
			return false
		}
	}
	for (process.Own() - p.before).Seconds() > p.cores*time.Since(p.began).Seconds()+0.1 {
		if await.Pause(ctx, 5*time.Millisecond) != nil {
			return false
		}
	}
	return ctx.Err() == nil
}

// compute uses the processor and sends nothing.
func compute(ctx context.Context, h *hostile) {
	block := make([]byte, 1<<20)
	for h.pace.turn(ctx, 1) {
		sum := sha256.Sum256(block)
		copy(block, sum[:])
	}
}
