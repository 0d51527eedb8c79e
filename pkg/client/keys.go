package client

import (
	"encoding/json"
	"errors"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// Revision counts the commands that changed the keys of the group. In requests 0 means "the present" or "absent".
type Revision int64

// KeyValue is one version of a key.
type KeyValue struct {
	Key   string
	Value []byte
	// CreateRevision is the revision of the put that made the key. A put after a delete makes a new key.
	CreateRevision Revision
	// ModRevision is the revision of the put that made this version.
	ModRevision Revision
	// Version counts the puts since the key was made, from 1.
	Version int64
	// Lease whose end deletes the key; 0 is none, or one of which the caller may not learn.
	Lease LeaseID
	// LeaseTag is the public name of a lease that is hidden.
	LeaseTag string
}

// keyValue reads a version of a key; what is not there is nil.
func keyValue(kv *api.KeyVal) *KeyValue {
	if kv == nil {
		return nil
	}
	return &KeyValue{
		Key: string(kv.GetKey()), Value: kv.GetValue(), CreateRevision: Revision(kv.GetCreateRevision()),
		ModRevision: Revision(kv.GetModRevision()), Version: kv.GetVersion(), Lease: LeaseID(kv.GetLease()),
		LeaseTag: kv.GetLeaseTag(),
	}
}

// MarshalJSON implements json.Marshaler, with the names of the API. Bytes that are not text have names of their own:
// key_base64 and value_base64.
func (kv *KeyValue) MarshalJSON() ([]byte, error) {
	out := coord.KeyValue{
		Key: kv.Key, Value: kv.Value, CreateRevision: coord.Revision(kv.CreateRevision),
		ModRevision: coord.Revision(kv.ModRevision), Version: kv.Version, Lease: coord.LeaseID(kv.Lease),
	}
	if kv.LeaseTag != "" {
		out.Lease = coord.HiddenLease
	}
	return json.Marshal(&out)
}

// KeyEvent is one change of one key.
type KeyEvent struct {
	Revision Revision  `json:"revision"`
	Key      string    `json:"key"`
	KV       *KeyValue `json:"kv,omitempty"` // the new version; nil after a delete
	// Prev is the version before, if the watch asked for it; nil for a new key.
	Prev *KeyValue `json:"prev_kv,omitempty"`
}

// Deletes reports whether the event deletes its key.
func (e KeyEvent) Deletes() bool { return e.KV == nil }

// Creates reports whether the event creates its key.
func (e KeyEvent) Creates() bool { return e.KV != nil && e.KV.Version == 1 }

// Span is the keys From <= key < To in byte order: see Exactly and Under. An empty To means the end of the
// keyspace: the zero Span is the whole keyspace.
type Span struct{ From, To string }

// Exactly is the span of one key.
func Exactly(key string) Span { return Span(coord.Exactly(key)) }

// Under is the span of all keys that begin with prefix.
func Under(prefix string) Span { return Span(coord.Under(prefix)) }

// Watch selects events of keys: see KV.Watch.
type Watch struct {
	Span Span
	// From is the first revision to report; 0: the next one.
	From Revision
	// Prev asks for the versions before the events as well.
	Prev bool
	// Mark asks for a batch without events as soon as the watch has caught up with the state at its start, or a
	// later one.
	Mark bool
}

func (w Watch) contract() *coord.Watch {
	return &coord.Watch{Span: coord.Span(w.Span), From: coord.Revision(w.From), Prev: w.Prev, Mark: w.Mark}
}

// Batch holds the events of whole revisions.
type Batch struct {
	// Events are ordered by revision, then by key.
	Events []KeyEvent
	// Next is the From of a later watch: this batch and earlier ones include every matching event before it.
	Next Revision
}

// batch reads the events of an answer that lie in a span.
func batch(span Span, r *api.WatchKeysResponse) Batch {
	b := Batch{Next: Revision(r.GetNextRevision())}
	for _, e := range r.GetEvents() {
		kv := keyValue(e.GetKv())
		if kv == nil || !coord.Span(span).Contains(kv.Key) {
			continue
		}
		ev := KeyEvent{Revision: kv.ModRevision, Key: kv.Key, Prev: keyValue(e.GetPrevKv())}
		if e.GetType() == api.KeyEvent_PUT {
			ev.KV = kv
		}
		b.Events = append(b.Events, ev)
	}
	return b
}

// Compacted is the cause of an error: the group has compacted the revision that was asked for. List the keys at
// Current, and watch from the next revision.
type Compacted struct {
	// Revision is the latest revision without events.
	Revision Revision
	// Current is the present revision.
	Current Revision
}

// Error implements error.
func (c *Compacted) Error() string {
	return (&coord.Compacted{Revision: coord.Revision(c.Revision), Current: coord.Revision(c.Current)}).Error()
}

// compacted gives an error of the group the cause that callers know.
func compacted(err error) error {
	if past := (*coord.Compacted)(nil); errors.As(err, &past) {
		return fault.As("", fault.KindOf(err), &Compacted{Revision: Revision(past.Revision), Current: Revision(past.Current)})
	}
	return err
}
