package client

import (
	"context"
	"errors"
	"iter"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/coord/attempt"
	"github.com/blackhole/blackhole/pkg/fault"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// KV reads, changes and watches the keys of the group. Each call repeats itself while the group is unreachable and
// its context lasts, and a change is applied once. Answers include all changes that were answered before. It is
// safe for concurrent use.
type KV struct {
	client *Client
	lease  LeaseID // of the keys that are put; 0: none
}

// KV returns the keys of the group.
func (c *Client) KV() KV { return KV{client: c} }

// Under returns the keys with another rule: what Put and transactions put goes with the lease of a session.
func (kv KV) Under(s *Session) KV { return KV{client: kv.client, lease: s.Lease()} }

// Get returns the present version of a key. Errors: NotFound for an absent key; Forbidden; Unavailable if no group
// was reachable until ctx ended.
func (kv KV) Get(ctx context.Context, key string) (*KeyValue, error) {
	kvs, _, err := kv.list(ctx, &api.RangeRequest{Key: []byte(key)})
	if err == nil && len(kvs) == 0 {
		err = fault.New("", fault.NotFound, "the key does not exist")
	}
	if err != nil {
		return nil, fault.Wrap("client.KV.Get", err)
	}
	return kvs[0], nil
}

// List returns all keys of a span in order, and the revision at which they were read: watch from the next one. The
// answer is in memory as a whole.
func (kv KV) List(ctx context.Context, span Span) ([]*KeyValue, Revision, error) {
	from, to := coord.Span(span).Bounds()
	kvs, at, err := kv.list(ctx, &api.RangeRequest{Key: from, RangeEnd: to})
	return kvs, at, fault.Wrap("client.KV.List", err)
}

// list reads all pages of a range at one revision.
func (kv KV) list(ctx context.Context, r *api.RangeRequest) (kvs []*KeyValue, at Revision, err error) {
	for {
		var page *api.RangeResponse
		err := kv.client.repeat(ctx, func(*attempt.Run) (err error) {
			page, err = coord.Range(ctx, kv.client.link.Coordination, r)
			return err
		})
		if err != nil {
			return nil, 0, ended(ctx, err)
		}
		for _, m := range page.GetKvs() {
			kvs = append(kvs, keyValue(m))
		}
		r.Revision, r.From = page.GetRevision(), page.GetNext()
		if len(r.From) == 0 {
			return kvs, Revision(r.Revision), nil
		}
	}
}

// Put sets a key and returns the revision of the change.
//
// Errors: Invalid, field "key", "value" or "lease"; NotFound for a lease that has ended; PoolExhausted above a quota;
// Forbidden; Unavailable if no group was reachable until ctx ended.
func (kv KV) Put(ctx context.Context, key string, value []byte) (Revision, error) {
	r, err := kv.Txn().Then(Put(key, value)).Commit(ctx)
	return r.Revision, fault.Wrap("client.KV.Put", err)
}

// Delete deletes the keys of a span, as Exactly or Under make it, and returns their number.
func (kv KV) Delete(ctx context.Context, span Span) (int, error) {
	r, err := kv.Txn().Then(span.Delete()).Commit(ctx)
	if err != nil {
		return 0, fault.Wrap("client.KV.Delete", err)
	}
	return r.Changed, nil
}

// Watch follows keys until ctx ends, across lost connections and restarts of the peer. It resumes after the last
// revision without gaps or duplicates. Batches have complete revisions; a batch without events reports progress.
// Another Watch can resume at the Next of a processed batch.
//
// The last pair has an error and no batch: an error with *Compacted if the group has compacted the revision (list
// the keys and watch from the next revision), Invalid or Forbidden for a permanent refusal, Canceled or Timeout
// after the end of ctx.
func (kv KV) Watch(ctx context.Context, w Watch) iter.Seq2[Batch, error] {
	return func(yield func(Batch, error) bool) {
		if err := kv.watch(ctx, w, yield); err != nil {
			yield(Batch{}, fault.Wrap("client.KV.Watch", compacted(err)))
		}
	}
}

// errEnough reports that the caller has left the loop over a watch.
var errEnough = errors.New("enough")

// watch returns nil after the caller has left the loop.
func (kv KV) watch(ctx context.Context, w Watch, yield func(Batch, error) bool) error {
	c := kv.client
	err := c.repeat(ctx, func(run *attempt.Run) error {
		return c.link.Coordination.Watch(ctx, w.contract().Request(), func(r *api.WatchKeysResponse) error {
			run.Progress()
			b := batch(w.Span, r)
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
