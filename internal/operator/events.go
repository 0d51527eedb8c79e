package operator

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"time"

	"github.com/blackhole/blackhole/internal/contract/coord/attempt"
	"github.com/blackhole/blackhole/internal/contract/coord/calls"
	"github.com/blackhole/blackhole/internal/contract/discovery"
	"github.com/blackhole/blackhole/pkg/fault"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// EventQuery selects a part of the history of a peer. The zero value begins now.
type EventQuery struct {
	After string // id of the last event seen
	Since string // without After, the begin: a duration such as 1h, or a time as of RFC 3339; a peer remembers an hour
}

// PeerEvent is one event of a peer: what mattered, oldest first. The first one has all notes since the begin, even
// none.
type PeerEvent struct {
	ID    string           `json:"id"` // for EventQuery.After
	Notes []discovery.Note `json:"notes"`
}

// Events follows what matters at the peer, such as leaders, voters, conditions and ended instances, until the loop or
// ctx ends. It connects again after a loss and continues at the last id.
//
// The last pair has an error: that of ctx, or one that a repetition would not change. Errors: Invalid for a malformed
// id or begin, Unsupported for a peer without events.
func (c *Client) Events(ctx context.Context, q EventQuery) iter.Seq2[PeerEvent, error] {
	return func(yield func(PeerEvent, error) bool) {
		rules := attempt.Rules{First: 50 * time.Millisecond, Last: 2 * time.Second, Passing: c.passing, Rest: c.rest}
		for run := rules.Begin(); ; {
			err := c.followEvents(ctx, q, func(e PeerEvent) bool {
				run.Progress()
				q.After = e.ID
				return yield(e, nil)
			})
			if errors.Is(err, errEnough) {
				return
			}
			if !run.Again(ctx, err, nil) {
				if ctx.Err() != nil {
					err = ctx.Err()
				}
				yield(PeerEvent{}, fault.Wrap("operator.Events", err))
				return
			}
		}
	}
}

// errEnough reports that the caller has left the loop over events.
var errEnough = errors.New("enough")

// passing reports whether a later call may succeed in spite of err.
func (c *Client) passing(ctx context.Context, err error) bool {
	kind := fault.KindOf(err)
	if ctx.Err() != nil || c.life.Err() != nil {
		return false
	}
	return kind == fault.Unavailable || kind == fault.Timeout || kind == fault.Canceled
}

// rest pauses for a duration; false at the end of ctx or of the client.
func (c *Client) rest(ctx context.Context, d time.Duration, _ <-chan struct{}) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
	case <-c.life.Done():
	}
	return false
}

// followEvents passes events of one connection on until it breaks, or give returns false: then it returns errEnough.
func (c *Client) followEvents(ctx context.Context, q EventQuery, give func(PeerEvent) bool) error {
	const op = "operator.Events"
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	from := &api.FollowRequest{After: q.After, Since: q.Since}
	stream, err := api.NewEventServiceClient(c.link.Patient).Follow(ctx, from)
	if err != nil {
		return calls.Fault(op, err)
	}
	for {
		r, err := stream.Recv()
		if err != nil {
			return fault.Wrap(op, calls.Fault(op, err))
		}
		e := PeerEvent{ID: r.GetId()}
		if err := json.Unmarshal(r.GetData(), &e); err != nil {
			return fault.New(op, fault.Internal, "the peer sent an event that is not readable: %v", err)
		}
		if !give(e) {
			return errEnough
		}
	}
}
