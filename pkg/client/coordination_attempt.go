package client

import (
	"context"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// Delays between attempts of a command.
const (
	firstPause = 50 * time.Millisecond
	lastPause  = 2 * time.Second
)

// slots lends identities to commands, so that the group applies a repeated command once. An
// identity carries one command at a time. Two pools separate two kinds of commands: short
// commands wait for a free slot. Commands that wait for locks are refused above the limit,
// because the holders of these locks may themselves wait for a slot.
type slots struct {
	limit int
	open  func(ctx context.Context) (coord.ClientID, error) // creates an identity in the group

	mu   sync.Mutex
	lent int
	free []slot        // used as a stack, so that few identities stay in use
	gave chan struct{} // capacity 1: a slot was returned during a wait
}

// slot is one identity.
type slot struct {
	client   coord.ClientID
	sequence uint64 // sequence number of the last command
}

// take lends a slot. With wait it waits for a free slot.
func (s *slots) take(ctx context.Context, wait bool) (slot, error) {
	const op = "client.slots"
	for {
		s.mu.Lock()
		if s.lent < s.limit {
			break
		}
		s.mu.Unlock()
		if !wait {
			return slot{}, fault.New(op, fault.LimitReached, "%d locks are waited for already", s.limit)
		}
		select {
		case <-s.gave:
		case <-ctx.Done():
			return slot{}, fault.Wrap(op, ctx.Err())
		}
	}
	s.lent++
	if n := len(s.free); n > 0 {
		taken := s.free[n-1]
		s.free = s.free[:n-1]
		s.mu.Unlock()
		s.notify() // another slot may be free
		return taken, nil
	}
	s.mu.Unlock()
	s.notify()
	id, err := s.open(ctx)
	if err != nil {
		s.give(slot{})
		return slot{}, err
	}
	return slot{client: id}, nil
}

// give returns a slot. The zero slot only frees the place.
func (s *slots) give(used slot) {
	s.mu.Lock()
	s.lent--
	if used.client != 0 {
		s.free = append(s.free, used)
	}
	s.mu.Unlock()
	s.notify()
}

func (s *slots) notify() {
	select {
	case s.gave <- struct{}{}:
	default:
	}
}

// attempt is a command with its own identity until its result is known.
type attempt struct {
	c    *Client
	pool *slots
	wait bool
	slot
	cmd  *coordv1.Command
	sent bool // the message may still be in use
	// unknown is true after a send without a result: the group may apply the command, now or
	// later.
	unknown bool
}

// try sends a command once.
type try func(ctx context.Context, cmd *coordv1.Command) (*coordv1.Result, error)

// attempt prepares a short command. The caller must call end.
func (c *Client) attempt(request proto.Message) *attempt {
	return &attempt{c: c, pool: &c.calls, wait: true, cmd: coord.CommandOf("", request)}
}

// run repeats the command until its result is known, while the group is unreachable and ctx
// lasts. It returns the error of the last attempt; for a short operation, the last error before
// the deadline. After a failure, run may be called again.
func (a *attempt) run(ctx context.Context, send try) (*coordv1.Result, error) {
	var told error
	for delay := firstPause; ; delay = min(2*delay, lastPause) {
		r, err := a.once(ctx, send)
		if err == nil || !a.c.passing(ctx, err) {
			if a.wait && told != nil && fault.KindOf(err) == fault.Timeout { // a timeout has no information
				err = told
			}
			return r, err
		}
		told = err
		if pause(ctx, a.c.vary(delay)) != nil {
			return nil, err
		}
	}
}

// once sends the command once, with an identity. It replaces an identity that the group has
// forgotten: earlier commands of that identity are applied or refused, and this command may
// rarely be applied twice.
func (a *attempt) once(ctx context.Context, send try) (*coordv1.Result, error) {
	for forgotten := 0; ; forgotten++ {
		if a.client == 0 {
			s, err := a.pool.take(ctx, a.wait)
			if err != nil {
				return nil, err
			}
			a.slot = slot{s.client, s.sequence + 1}
		}
		if a.sent {
			a.cmd = proto.CloneOf(a.cmd)
		}
		a.cmd.Attempt = &api.Attempt{Client: uint64(a.client), Sequence: a.sequence}
		a.sent = true
		before := a.unknown
		a.unknown = true
		r, err := send(ctx, a.cmd)
		if fault.KindOf(err) == fault.NotFound && fault.FieldOf(err) == "client" && forgotten < 3 {
			a.forget()
			continue
		}
		// A limit of the peer itself has no information about earlier attempts.
		a.unknown = err != nil && (uncertain(err) || before && fault.KindOf(err) == fault.LimitReached)
		return r, err
	}
}

// again makes the next run a new command instead of a repetition.
func (a *attempt) again() { a.sequence++ }

func (a *attempt) forget() {
	a.pool.give(slot{})
	a.slot = slot{}
}

// end returns the identity. The group applies a command without a known result before the next
// command of the identity, or never.
func (a *attempt) end() {
	if a.client != 0 {
		a.pool.give(a.slot)
		a.client = 0
	}
}

// uncertain reports whether the group may have applied a command in spite of err.
func uncertain(err error) bool {
	switch fault.KindOf(err) {
	case fault.Unavailable, fault.Timeout, fault.Canceled, fault.Internal:
		return true
	}
	return false
}

// passing reports whether a later attempt may succeed in spite of err, and time remains.
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

// do executes a short command once.
func (c *Client) do(ctx context.Context, request proto.Message) (*coordv1.Result, error) {
	a := c.attempt(request)
	defer a.end()
	return a.run(ctx, c.coordination.Execute)
}

// Txn compares keys, and then reads and changes keys, all at one revision. It retries until ctx ends while the group is
// unreachable, and is applied once. A comparison that does not hold is no error: see coord.Unmet.
//
// Errors: those of the group; Unavailable if no group was reachable until ctx ended.
func (c *Client) Txn(ctx context.Context, r *api.TxnRequest) (*api.TxnResponse, error) {
	result, err := c.do(ctx, r)
	return result.GetTxn(), fault.Wrap("client.Txn", err)
}

// openSlot creates an identity in the group.
func (c *Client) openSlot(ctx context.Context) (coord.ClientID, error) {
	r, err := c.coordination.Execute(ctx, coord.CommandOf("", &api.OpenClientRequest{}))
	return coord.ClientID(r.GetOpenClient().GetClient()), err
}

// closeSlots closes identities in the group until ctx ends. The group forgets the rest after a
// long idle time.
func (c *Client) closeSlots(ctx context.Context) {
	var all sync.WaitGroup
	for _, s := range []*slots{&c.calls, &c.waits} {
		s.mu.Lock()
		free := s.free[:min(len(s.free), 64)]
		s.free = nil
		s.mu.Unlock()
		for _, one := range free {
			all.Go(func() {
				_, _ = c.coordination.Execute(ctx, coord.CommandOf("", &api.CloseClientRequest{Client: uint64(one.client)}))
			})
		}
	}
	all.Wait()
}
