package client

import (
	"context"
	"errors"
	"iter"

	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/coord/attempt"
	"github.com/blackhole/blackhole/pkg/fault"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
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
			b := coord.BatchOf(r, w.Span)
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
