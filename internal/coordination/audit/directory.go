package audit

import (
	"bytes"
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/pkg/coord"
)

// directory checks changes of entries (I1, I3, I4, I6), before the entry applies.
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
		l.end(e.Effects.Events)
		return nil
	}
	last := l.begun[e.Command.Owner]
	if o.Generation < last.generation || o.Generation == last.generation && o.Lease != last.lease {
		return breach("I4", "entry %d: generation %d of %q was accepted after %d", e.Index, o.Generation, e.Command.Owner, last.generation)
	}
	l.begun[e.Command.Owner] = begun{o.Generation, o.Lease}
	return l.words(o, e)
}

// words checks which puts of a batch count (I6), and records them.
func (l *Log) words(o *coord.RegisterBatch, e Entry) error {
	for _, p := range o.Puts {
		if over := slices.Contains(e.Result.Foreign, p.Key); over != l.outdated(p, e.Command.Owner) {
			return breach("I6", "entry %d: %q of %q, since %d, was passed over: %v", e.Index, p.Key, e.Command.Owner, p.Since, over)
		}
	}
	l.end(e.Effects.Events)
	for _, event := range e.Effects.Events {
		if event.KV != nil {
			delete(l.gone, event.Key)
			continue
		}
		if l.gone[event.Key] = (departure{event.Revision, e.Command.Owner}); len(l.gone) > machine.MaxRemovalRecords {
			delete(l.gone, l.oldest())
		}
	}
	for i, p := range o.Puts {
		said, since := p.Since, l.known(p.Since)
		if p.Adopt {
			said, since = e.Result.Revision, e.Result.Revision
		}
		if slices.Contains(e.Result.Foreign, p.Key) {
			continue
		}
		if len(e.Result.Since) > 0 {
			said = e.Result.Since[i]
		}
		if l.since[p.Key] = max(l.since[p.Key], since); l.since[p.Key] != said {
			return breach("I6", "entry %d: %q is said to be since %d, and is since %d", e.Index, p.Key, said, l.since[p.Key])
		}
	}
	return nil
}

// outdated reports whether another owner made a later decision about a put's key.
func (l *Log) outdated(p coord.Entry, owner string) bool {
	if kv := l.keys[p.Key]; kv != nil {
		foreign := l.leases[kv.Lease] != owner
		return foreign && (l.barred(p) || !p.Adopt && l.known(p.Since) <= l.since[p.Key])
	}
	if p.Adopt {
		return false
	}
	d, ok := l.gone[p.Key]
	return ok && d.owner != owner && l.known(p.Since) < d.at
}

// barred reports whether the present entry belongs to another authenticated caller than a put.
func (l *Log) barred(p coord.Entry) bool {
	kv := l.keys[p.Key]
	return kv != nil && kv.Principal != "" && kv.Principal != p.Principal
}

// known returns a revision, or 0 for a future one.
func (l *Log) known(since coord.Revision) coord.Revision {
	if since > l.revision {
		return 0
	}
	return since
}

// end drops the Since of deleted entries.
func (l *Log) end(events []coord.Event) {
	for _, event := range events {
		if event.KV == nil {
			delete(l.since, event.Key)
		}
	}
}

// oldest returns the oldest removal record.
func (l *Log) oldest() string {
	return slices.MinFunc(slices.Collect(maps.Keys(l.gone)), func(a, b string) int {
		return cmp.Or(cmp.Compare(l.gone[a].at, l.gone[b].at), strings.Compare(a, b))
	})
}

// may reports whether a batch may make an event of an entry.
func (l *Log) may(o *coord.RegisterBatch, owner string, event coord.Event) bool {
	before := l.keys[event.Key]
	if before == nil || l.leases[before.Lease] == owner {
		return true
	}
	return event.KV != nil && slices.ContainsFunc(o.Puts, func(e coord.Entry) bool {
		return e.Key == event.Key && !l.barred(e) && (e.Adopt || l.known(e.Since) > l.since[e.Key])
	})
}

// batch checks that the state agrees with a batch, and that events are real changes (I2), after the
// entry applied.
func (l *Log) batch(e Entry) error {
	o, ok := e.Command.Op.(*coord.RegisterBatch)
	if !ok {
		return nil
	}
	for _, event := range e.Effects.Events {
		if was, is := event.Prev, event.KV; was != nil && is != nil && was.Lease == is.Lease && was.Principal == is.Principal && bytes.Equal(was.Value, is.Value) {
			return breach("I2", "entry %d: an event of %q changes nothing", e.Index, event.Key)
		}
	}
	put := make(map[string]bool, len(o.Puts))
	for _, p := range o.Puts {
		put[p.Key] = true
		kv := l.keys[p.Key]
		if slices.Contains(e.Result.Foreign, p.Key) {
			continue
		}
		if kv == nil || kv.Lease != o.Lease || kv.Principal != p.Principal || !bytes.Equal(kv.Value, p.Value) {
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
