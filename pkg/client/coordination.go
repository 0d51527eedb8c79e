package client

import (
	"context"
	crand "crypto/rand"
	"encoding/binary"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/coord/attempt"
	"github.com/blackhole/blackhole/pkg/fault"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// jitter varies delays by 20 % in both directions, so that clients with a common failure do not
// retry together. The system provides the seed, which affects only the times of retries.
func jitter() func(time.Duration) time.Duration {
	var seed [16]byte
	_, _ = crand.Read(seed[:]) // never fails
	random := rand.New(rand.NewPCG(binary.LittleEndian.Uint64(seed[:8]), binary.LittleEndian.Uint64(seed[8:])))
	var mu sync.Mutex
	return func(d time.Duration) time.Duration {
		mu.Lock()
		defer mu.Unlock()
		return time.Duration(float64(d) * (0.8 + 0.4*random.Float64()))
	}
}

func errClosed() error { return fault.New("client.Close", fault.Canceled, "the client is closed") }

// Pauses between two calls.
const (
	firstPause = 50 * time.Millisecond
	lastPause  = 2 * time.Second
)

// repeat repeats a call while the peer or the group is unreachable and ctx lasts. It returns the error of the last call.
func (c *Client) repeat(ctx context.Context, call func(*attempt.Run) error) error {
	for run := c.rules.Begin(); ; {
		if err := call(&run); err == nil || !run.Again(ctx, err, nil) {
			return err
		}
	}
}

// rest pauses for about a duration; false at the end of ctx.
func (c *Client) rest(ctx context.Context, d time.Duration, _ <-chan struct{}) bool {
	return pause(ctx, c.vary(d)) == nil
}

// passing reports whether a later call may succeed in spite of err, and time remains.
func (c *Client) passing(ctx context.Context, err error) bool {
	if ctx.Err() != nil || c.sessions.ctx.Err() != nil { // the second condition: the client is closed
		return false
	}
	switch fault.KindOf(err) {
	case fault.Unavailable, fault.Timeout, fault.Canceled: // the last two come from the peer
		return true
	}
	return false
}

// ended returns the error of ctx after its end, when the error of the last call does not matter.
func ended(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// run repeats a command until its result is known. After a failure, it may be called again. A short command whose last
// call was cut off by the end of ctx fails with the error before.
func (c *Client) run(ctx context.Context, a *attempt.Attempt, send attempt.Send) (r *coordv1.Result, err error) {
	var told error
	err = c.repeat(ctx, func(*attempt.Run) error {
		if r, err = a.Once(ctx, send); told != nil && !a.Waits() && fault.KindOf(err) == fault.Timeout && ctx.Err() != nil {
			return told
		}
		told = err
		return err
	})
	return r, err
}

// do executes a short command once.
func (c *Client) do(ctx context.Context, request proto.Message) (*coordv1.Result, error) {
	a := c.identities.Attempt(coord.CommandOf("", request))
	defer a.End()
	return c.run(ctx, a, c.link.Coordination.Execute)
}
