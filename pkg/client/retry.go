package client

import (
	"context"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/coord/attempt"
	"github.com/blackhole/blackhole/pkg/fault"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

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
	return c.run(ctx, a, c.coordination.Execute)
}

// Txn compares keys, and then reads and changes keys, all at one revision. It retries until ctx ends while the group is
// unreachable, and is applied once. A comparison that does not hold is no error: see coord.Unmet.
//
// Errors: those of the group; Unavailable if no group was reachable until ctx ended.
func (c *Client) Txn(ctx context.Context, r *api.TxnRequest) (*api.TxnResponse, error) {
	result, err := c.do(ctx, r)
	return result.GetTxn(), fault.Wrap("client.Txn", err)
}
