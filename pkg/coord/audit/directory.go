package audit

import (
	"bytes"
	"slices"
	"strings"

	"github.com/blackhole/blackhole/pkg/coord"
)

// directory checks who changes entries (I1, I3, I4). It looks at the state before the entry.
func (l *Log) directory(e Entry) error {
	o, isBatch := e.Command.Op.(*coord.RegisterBatch)
	for _, event := range e.Effects.Events {
		if !strings.HasPrefix(event.Key, coord.DirectoryPrefix) {
			continue
		}
		switch {
		case event.KV != nil && !isBatch:
			return breach("I1", "entry %d: %q was put by no batch", e.Index, event.Key)
		case !isBatch:
			if before := l.keys[event.Key]; before == nil || !slices.Contains(e.Effects.Ended, before.Lease) {
				return breach("I1", "entry %d: %q went, and its lease did not", e.Index, event.Key)
			}
		case !l.may(o, e.Command.Owner, event):
			return breach("I3", "entry %d: %q changed %q, which is another owner's", e.Index, e.Command.Owner, event.Key)
		}
	}
	if !isBatch {
		return nil
	}
	last := l.begun[e.Command.Owner]
	if o.Generation < last.generation || o.Generation == last.generation && o.Lease != last.lease {
		return breach("I4", "entry %d: generation %d of %q was accepted after %d", e.Index, o.Generation, e.Command.Owner, last.generation)
	}
	l.begun[e.Command.Owner] = begun{o.Generation, o.Lease}
	return nil
}

// may reports whether a batch may make an event of an entry.
func (l *Log) may(o *coord.RegisterBatch, owner string, event coord.Event) bool {
	before := l.keys[event.Key]
	if before == nil || l.leases[before.Lease] == owner {
		return true
	}
	return event.KV != nil && slices.ContainsFunc(o.Puts, func(e coord.Entry) bool { return e.Key == event.Key && e.Adopt })
}

// batch checks that what a batch says is so, and was not before where it has an event (I2). It looks at
// the state after the entry.
func (l *Log) batch(e Entry) error {
	o, ok := e.Command.Op.(*coord.RegisterBatch)
	if !ok {
		return nil
	}
	for _, event := range e.Effects.Events {
		if was, is := event.Prev, event.KV; was != nil && is != nil && was.Lease == is.Lease && bytes.Equal(was.Value, is.Value) {
			return breach("I2", "entry %d: an event of %q changes nothing", e.Index, event.Key)
		}
	}
	put := make(map[string]bool, len(o.Puts))
	for _, p := range o.Puts {
		put[p.Key] = true
		kv := l.keys[p.Key]
		if slices.Contains(e.Result.Foreign, p.Key) {
			if kv == nil || p.Adopt || l.leases[kv.Lease] == e.Command.Owner {
				return breach("I2", "entry %d: %q was passed over and is nobody else's", e.Index, p.Key)
			}
			continue
		}
		if kv == nil || kv.Lease != o.Lease || !bytes.Equal(kv.Value, p.Value) {
			return breach("I2", "entry %d: %q is not as the batch says", e.Index, p.Key)
		}
	}
	for key, kv := range l.keys {
		gone := slices.Contains(o.Deletes, key) || o.Replace != nil && o.Replace.Contains(key) && !put[key]
		if gone && strings.HasPrefix(key, coord.DirectoryPrefix) && l.leases[kv.Lease] == e.Command.Owner {
			return breach("I2", "entry %d: %q should be gone", e.Index, key)
		}
	}
	return nil
}
