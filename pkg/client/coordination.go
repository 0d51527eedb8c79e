package client

import (
	"context"
	crand "crypto/rand"
	"encoding/binary"
	"errors"
	"iter"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/coord/attempt"
	"github.com/blackhole/blackhole/pkg/coord/calls"
	"github.com/blackhole/blackhole/pkg/fault"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
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

// connectCoordination adds the coordination plane to a connected client.
func connectCoordination(c *Client, opts []grpc.DialOption) {
	c.clock = systemClock()
	c.application = strings.ToValidUTF8(filepath.Base(os.Args[0]), "")
	for _, o := range opts {
		if own, ok := o.(clockOption); ok {
			c.clock = own.clock
		}
	}
	c.vary = jitter()
	c.coordination = calls.NewPeer(calls.PeerConfig{Conn: c.conn, Patient: c.patient, Begin: spans(opts)})
	c.sessions = &renewer[*Session]{batch: coord.MaxKeepAlive, tries: 2, send: c.renewSessions}
	c.sessions.configure(c)
	c.identities = attempt.NewPool("")
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
	// Watch selects keys: see Client.Follow.
	Watch = coord.Watch
	// Batch holds the events of complete revisions.
	Batch = coord.Batch
	// KeyEvent is one change of one key.
	KeyEvent = coord.Event
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

// Follow watches keys until ctx ends, across lost connections and restarts of the peer. It
// resumes after the last revision without gaps or duplicates. Batches have complete revisions; a
// batch without events reports progress. Another Follow can resume at the Next of a processed
// batch.
//
// The last pair has an error and no batch: an error with *Compacted if the group has compacted
// the revision (list the keys at its Current and follow from the next revision), Invalid or
// Forbidden for a permanent refusal, Canceled or Timeout after the end of ctx.
func (c *Client) Follow(ctx context.Context, w Watch) iter.Seq2[Batch, error] {
	return func(yield func(Batch, error) bool) {
		if err := c.follow(ctx, w, yield); err != nil {
			yield(Batch{}, fault.Wrap("client.Follow", err))
		}
	}
}

// errEnough reports that the caller has left the loop over a watch.
var errEnough = errors.New("enough")

// follow returns nil after the caller has left the loop.
func (c *Client) follow(ctx context.Context, w Watch, yield func(Batch, error) bool) error {
	err := c.repeat(ctx, func(run *attempt.Run) error {
		return c.coordination.Watch(ctx, w.Request(), func(r *api.WatchKeysResponse) error {
			run.Progress()
			b := w.Batch(r)
			b.Events, b.Next = since(b.Events, w.From), max(b.Next, w.From)
			w.From = b.Next
			if !yield(b, nil) {
				return errEnough
			}
			return nil
		})
	})
	if errors.Is(err, errEnough) {
		return nil
	}
	return ended(ctx, err)
}

// since drops events before a revision. A correct peer sends none.
func since(events []KeyEvent, from Revision) []KeyEvent {
	for len(events) > 0 && events[0].Revision < from {
		events = events[1:]
	}
	return events
}
