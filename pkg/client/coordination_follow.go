package client

import (
	"context"
	"errors"
	"iter"

	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Follow watches keys until ctx ends, across lost connections and peers that come back: each
// time it goes on after the last revision it has given, without gap or duplicate.
// Batches have whole revisions; one without events is a mark of progress. A batch's Next,
// once its events are dealt with, is where another Follow can go on.
//
// The last pair has an error and no batch: one wrapping *Compacted when the past to go on from
// is forgotten (list the keys at its Current and follow from the revision after),
// Invalid or Forbidden for a watch that no retry makes right, Canceled or Timeout when ctx ended.
func (c *Client) Follow(ctx context.Context, w Watch) iter.Seq2[Batch, error] {
	return func(yield func(Batch, error) bool) {
		if err := c.follow(ctx, w, yield); err != nil {
			yield(Batch{}, fault.Wrap("client.Follow", err))
		}
	}
}

// errEnough is how the loop over a watch says that it wants no more.
var errEnough = errors.New("enough")

// follow returns nil when the loop has ended.
func (c *Client) follow(ctx context.Context, w Watch, yield func(Batch, error) bool) error {
	delay := firstPause
	for {
		err := c.coordination.Watch(ctx, w, func(b Batch, _ coord.Header) error {
			delay = firstPause
			b.Events, b.Next = since(b.Events, w.From), max(b.Next, w.From)
			w.From = b.Next
			if !yield(b, nil) {
				return errEnough
			}
			return nil
		})
		switch {
		case errors.Is(err, errEnough):
			return nil
		case ctx.Err() != nil: // whatever the last try has met
			return ctx.Err()
		case !c.passing(ctx, err):
			return err
		}
		if err := pause(ctx, c.vary(delay)); err != nil {
			return err
		}
		delay = min(2*delay, lastPause)
	}
}

// since drops events before a revision: none, from a peer that keeps its word.
func since(events []KeyEvent, from Revision) []KeyEvent {
	for len(events) > 0 && events[0].Revision < from {
		events = events[1:]
	}
	return events
}
