// Package attempt executes commands of the coordination plane once, over calls that can fail without an outcome: it lends
// identities, by which the group knows a repeated command, and repeats calls. The SDK and the peers use it alike.
package attempt

import (
	"context"

	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// Send executes a command in one call.
type Send func(ctx context.Context, cmd *coordv1.Command) (*coordv1.Result, error)

// maxForgotten bounds the identities that one call replaces.
const maxForgotten = 3

// Attempt is a command with an identity until its result is known. It is for one goroutine.
type Attempt struct {
	pool    *Pool
	cmd     *coordv1.Command
	lane    *lane
	brought bool // the caller brought the identity
	lent    identity
	sent    bool // the message may still be in use
	unknown bool // sent without a result: the group may apply the command, now or later
}

// Attempt prepares a command. Without an identity of its caller, it borrows one of the pool at its first call. The
// caller must call End.
func (p *Pool) Attempt(cmd *coordv1.Command) *Attempt {
	return &Attempt{pool: p, cmd: cmd, lane: p.laneOf(cmd), brought: cmd.GetAttempt().GetClient() != 0}
}

// Once sends the command once. It replaces a lent identity that the group has forgotten, unless the command may have been
// applied under it; a repeated claim of a lease on a lock is the same claim.
func (a *Attempt) Once(ctx context.Context, send Send) (*coordv1.Result, error) {
	for forgotten := 0; ; forgotten++ {
		if err := a.identify(ctx, send); err != nil {
			return nil, err
		}
		before := a.unknown
		a.sent, a.unknown = true, true
		r, err := send(ctx, a.cmd)
		if !a.brought && isForgotten(err) {
			a.pool.forget(a.lane, a.cmd.GetOwner())
			a.lent, a.unknown = identity{}, before
			if forgotten < maxForgotten && (!before || a.cmd.GetLock() != nil) {
				continue
			}
			return r, err
		}
		// A limit of the peer itself has no information about earlier calls.
		a.unknown = err != nil && (Uncertain(err) || before && isBusy(err))
		return r, err
	}
}

// identify prepares the message of the next call.
func (a *Attempt) identify(ctx context.Context, send Send) error {
	if !a.brought && a.lent.client == 0 {
		lent, err := a.pool.take(ctx, a.lane, a.cmd.GetOwner(), send)
		if err != nil {
			return err
		}
		a.lent = lent
		a.lent.sequence++
	}
	if a.sent {
		a.cmd = proto.CloneOf(a.cmd)
	}
	if !a.brought {
		a.cmd.Attempt = &apiv1.Attempt{Client: a.lent.client, Sequence: a.lent.sequence}
	}
	return nil
}

// Unknown reports whether the group may apply the command, now or later, though no call had a result.
func (a *Attempt) Unknown() bool { return a.unknown }

// Waits reports whether the command waits for a lock.
func (a *Attempt) Waits() bool { return a.lane == a.pool.long }

// Brought reports whether the caller brought the identity. The caller may repeat such a command through another peer, and gets the
// first answer.
func (a *Attempt) Brought() bool { return a.brought }

// Again makes the next call a new command instead of a repetition.
func (a *Attempt) Again() { a.lent.sequence++ }

// End returns the identity. The group applies a command without a known result before the next command of the
// identity, or never.
func (a *Attempt) End() {
	if a.lent.client != 0 {
		a.pool.give(a.lent, a.lane, a.cmd.GetOwner())
		a.lent = identity{}
	}
}

// isBusy reports whether a call met a limit of the peer, or perhaps of the group.
func isBusy(err error) bool {
	kind := fault.KindOf(err)
	return kind == fault.LimitReached || kind == fault.PoolExhausted
}

// isForgotten reports whether the group has forgotten the identity of a command.
func isForgotten(err error) bool {
	return fault.KindOf(err) == fault.NotFound && fault.FieldOf(err) == "client"
}

// IsWithdrawn reports whether the group has given back the claim of a command, because it had lost contact to its client.
func IsWithdrawn(err error) bool {
	return fault.KindOf(err) == fault.NotFound && fault.FieldOf(err) == "token"
}

// Uncertain reports whether the group may have applied a command in spite of err.
func Uncertain(err error) bool {
	switch fault.KindOf(err) {
	case fault.Unavailable, fault.Timeout, fault.Canceled, fault.Internal:
		return true
	}
	return false
}
