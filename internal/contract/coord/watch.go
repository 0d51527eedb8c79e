package coord

import (
	"fmt"
	"unicode/utf8"

	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// Compacted reports a request for dropped history. List the keys at Current and watch from the
// next revision.
type Compacted struct {
	// Revision is the latest revision without events.
	Revision Revision
	// Current is the present revision.
	Current Revision
}

// Error implements error.
func (c *Compacted) Error() string {
	return fmt.Sprintf("earlier revisions are compacted: read at %d or later, watch from %d or later; the present revision is %d",
		c.Revision, c.Revision+1, c.Current)
}

// Watch selects events. A watcher has no other state: a slow watcher lags behind and costs the
// group nothing.
type Watch struct {
	Span Span
	// From is the first revision to report, above 0.
	From Revision
	// Prev asks for the versions before the events as well.
	Prev bool
	// Mark asks for a batch without events as soon as the watch has caught up with the state at its start, or a later one.
	Mark bool
	// Limit on events: the batch ends after the revision that reaches it; 0 or less is 256. Bytes end a batch too, so that
	// slow and large watches take bounded memory. A revision with more than 32 MiB of events ends the watch: TooLarge.
	Limit int
}

// Batch answers a Watch with whole revisions.
type Batch struct {
	// Events are ordered by revision, then by key.
	Events []Event
	// Next is the From of the next request: this batch and earlier ones include every matching event
	// before it. Next-1 is a progress revision.
	Next Revision
	// More says that the history goes on: ask again now. Otherwise ask when the revision
	// reaches Next.
	More bool
}

// Request returns the request for a watch. Its key or prefix contains the span, and can contain more: see Batch.
func (w *Watch) Request() *apiv1.WatchKeysRequest {
	key, prefix := w.Span.common()
	return &apiv1.WatchKeysRequest{Key: key, Prefix: prefix, StartRevision: int64(w.From), PrevKv: w.Prev, Mark: w.Mark}
}

// common returns the key or text prefix that contains a span.
func (s Span) common() (key string, prefix bool) {
	if s == Exactly(s.From) && utf8.ValidString(s.From) {
		return s.From, false
	}
	within := func(other Span) bool {
		return s.From >= other.From && (other.To == "" || s.To != "" && s.To <= other.To)
	}
	key = s.From
	for key != "" && !(utf8.ValidString(key) && within(Under(key))) {
		key = key[:len(key)-1]
	}
	return key, true
}

// Batch returns the events of an answer that the watch selects.
func (w *Watch) Batch(r *apiv1.WatchKeysResponse) Batch {
	b := Batch{Next: Revision(r.GetNextRevision())}
	for _, e := range r.GetEvents() {
		kv := KeyValueOf(e.GetKv())
		if kv == nil || !w.Span.Contains(kv.Key) {
			continue
		}
		ev := Event{Revision: kv.ModRevision, Key: kv.Key, Prev: KeyValueOf(e.GetPrevKv())}
		if e.GetType() == apiv1.KeyEvent_PUT {
			ev.KV = kv
		}
		b.Events = append(b.Events, ev)
	}
	return b
}

// KeyValueOf gives a version of a key; what is not there is nil.
func KeyValueOf(kv *apiv1.KeyVal) *KeyValue {
	if kv == nil {
		return nil
	}
	out := &KeyValue{
		Key: string(kv.GetKey()), Value: kv.GetValue(), CreateRevision: Revision(kv.GetCreateRevision()),
		ModRevision: Revision(kv.GetModRevision()), Version: kv.GetVersion(), Lease: LeaseID(kv.GetLease()),
	}
	if kv.GetLeaseTag() != "" {
		out.Lease = HiddenLease
	}
	return out
}
