package client

import (
	"context"
	crand "crypto/rand"
	"encoding/binary"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/coord/attempt"
	"github.com/blackhole/blackhole/internal/contract/coord/calls"
	"github.com/blackhole/blackhole/internal/platform/clean"
	"github.com/blackhole/blackhole/pkg/fault"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// Coordination is the contract of the coordination plane as served by a peer: each call is one
// request without repetition. Sessions, watches and elections add repetition; most programs
// want them.
//
// It implements coord.Service and coord.Admin. The peer determines the owner of a call: the owner of a command is not
// sent.
type Coordination = calls.Peer

// Coordination returns the contract of the coordination plane. It is safe for concurrent use
// and ends with the client.
func (c *Client) Coordination() *Coordination { return c.coordination }

// WithClock is an option of New: the clock for the lifetime of leases. The default is
// CLOCK_BOOTTIME on Linux, and Go's monotonic clock elsewhere.
func WithClock(clock Clock) grpc.DialOption { return clockOption{clock: clock} }

// clockOption is an option for New; gRPC ignores it.
type clockOption struct {
	grpc.EmptyDialOption
	clock Clock
}

// maxApplication bounds the name of a program, as file systems do, in bytes.
const maxApplication = 255

// connectCoordination adds the coordination plane to a connected client.
func connectCoordination(c *Client, opts []grpc.DialOption) {
	c.clock = systemClock()
	c.application = clean.Text(filepath.Base(os.Args[0]), maxApplication)
	for _, o := range opts {
		if own, ok := o.(clockOption); ok {
			c.clock = own.clock
		}
	}
	c.vary = jitter()
	c.coordination = calls.NewPeer(calls.PeerConfig{Conn: c.conn, Patient: c.patient, Begin: spans(opts)})
	c.sessions = &renewer[*Session]{batch: coord.MaxKeepAlive, tries: 2, send: c.renewSessions}
	c.sessions.configure(c)
	c.identities = attempt.NewPool("", nil)
	c.rules = attempt.Rules{First: firstPause, Last: lastPause, Passing: c.passing, Rest: c.rest}
}

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

// Types of package coord for users of sessions and watches, so that these need not import it.
type (
	// Token is a fencing token.
	Token = coord.Token
	// Revision counts the changes of the key space.
	Revision = coord.Revision
	// Span is a range of keys: see Exactly and Under.
	Span = coord.Span
	// Watch selects keys: see KV.Watch.
	Watch = coord.Watch
	// Batch holds the events of complete revisions.
	Batch = coord.Batch
	// Compacted is the cause of an error: the group has compacted the requested revision.
	Compacted = coord.Compacted
)

// Exactly is the span of one key.
func Exactly(key string) Span { return coord.Exactly(key) }

// Under is the span of all keys that begin with prefix.
func Under(prefix string) Span { return coord.Under(prefix) }

// Modes of a claim.
const (
	ModeExclusive = coord.Exclusive
	ModeShared    = coord.Shared
	ModePermit    = coord.Permit
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
