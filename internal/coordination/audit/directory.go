package audit

import (
	"bytes"
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/coord/directory"
	"github.com/blackhole/blackhole/internal/coordination/machine"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// directory checks changes of entries (I1, I3, I4, I6), before the entry applies.
func (l *Log) directory(e Entry) error {
	r := e.Command.GetPublishInstances()
	isBatch := r != nil
	for _, event := range e.Effects.Events {
		if !strings.HasPrefix(event.Key, directory.Prefix) {
			continue
		}
		switch {
		case event.KV != nil && !isBatch:
			return breach("I1", "entry %d: %q was put by no batch", e.Index, event.Key)
		case !isBatch:
			if before := l.keys[event.Key]; before == nil || !slices.Contains(e.Effects.Ended, before.Lease) {
				return breach("I1", "entry %d: %q went, and its lease did not", e.Index, event.Key)
			}
		case !l.may(r, e.Command.GetOwner(), event):
			return breach("I3", "entry %d: %q changed %q, which is another owner's", e.Index, e.Command.GetOwner(), event.Key)
		}
	}
	if !isBatch {
		l.end(e.Effects.Events)
		return nil
	}
	last := l.begun[e.Command.GetOwner()]
	now := begun{r.GetGeneration(), coord.LeaseID(r.GetLeaseId())}
	if now.generation < last.generation || now.generation == last.generation && now.lease != last.lease {
		return breach("I4", "entry %d: generation %d of %q was accepted after %d", e.Index, now.generation, e.Command.GetOwner(), last.generation)
	}
	l.begun[e.Command.GetOwner()] = now
	return l.words(r, e)
}

// words checks which puts of a batch count (I6), and records them.
func (l *Log) words(r *apiv1.PublishInstancesRequest, e Entry) error {
	for _, p := range r.GetPuts() {
		if over := slices.Contains(e.Result.Foreign, string(p.GetKey())); over != l.outdated(p, e.Command.GetOwner()) {
			return breach("I6", "entry %d: %q of %q, since %d, was passed over: %v", e.Index, p.GetKey(), e.Command.GetOwner(), p.GetSince(), over)
		}
	}
	l.end(e.Effects.Events)
	for _, event := range e.Effects.Events {
		if event.KV != nil {
			delete(l.gone, event.Key)
			continue
		}
		if l.gone[event.Key] = (departure{event.Revision, e.Command.GetOwner()}); len(l.gone) > machine.MaxRemovalRecords {
			delete(l.gone, l.oldest())
		}
	}
	for i, p := range r.GetPuts() {
		key, since := string(p.GetKey()), l.known(p)
		if p.GetAdopt() {
			since = e.Result.Revision
		}
		if slices.Contains(e.Result.Foreign, key) {
			continue
		}
		said := e.Result.Since[i]
		if l.since[key] = max(l.since[key], since); l.since[key] != said {
			return breach("I6", "entry %d: %q is said to be since %d, and is since %d", e.Index, key, said, l.since[key])
		}
	}
	return nil
}

// outdated reports whether another owner made a later decision about a put's key.
func (l *Log) outdated(p *apiv1.DirectoryEntry, owner string) bool {
	if kv := l.keys[string(p.GetKey())]; kv != nil {
		foreign := l.leases[kv.Lease] != owner
		return foreign && (l.barred(p) || !p.GetAdopt() && l.known(p) <= l.since[string(p.GetKey())])
	}
	if p.GetAdopt() {
		return false
	}
	d, ok := l.gone[string(p.GetKey())]
	return ok && d.owner != owner && l.known(p) < d.at
}

// barred reports whether the present entry belongs to another authenticated caller than a put.
func (l *Log) barred(p *apiv1.DirectoryEntry) bool {
	kv := l.keys[string(p.GetKey())]
	return kv != nil && kv.Principal != "" && kv.Principal != p.GetPrincipal()
}

// known returns the since of a put, or 0 for a future one.
func (l *Log) known(p *apiv1.DirectoryEntry) coord.Revision {
	if since := coord.Revision(p.GetSince()); since <= l.revision {
		return since
	}
	return 0
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
func (l *Log) may(r *apiv1.PublishInstancesRequest, owner string, event coord.Event) bool {
	before := l.keys[event.Key]
	if before == nil || l.leases[before.Lease] == owner {
		return true
	}
	return event.KV != nil && slices.ContainsFunc(r.GetPuts(), func(p *apiv1.DirectoryEntry) bool {
		return string(p.GetKey()) == event.Key && !l.barred(p) && (p.GetAdopt() || l.known(p) > l.since[event.Key])
	})
}

// batch checks that the state agrees with a batch, and that events are real changes (I2), after the
// entry applied.
func (l *Log) batch(e Entry) error {
	r := e.Command.GetPublishInstances()
	if r == nil {
		return nil
	}
	for _, event := range e.Effects.Events {
		if was, is := event.Prev, event.KV; was != nil && is != nil && was.Lease == is.Lease && was.Principal == is.Principal && bytes.Equal(was.Value, is.Value) {
			return breach("I2", "entry %d: an event of %q changes nothing", e.Index, event.Key)
		}
	}
	put := make(map[string]bool, len(r.GetPuts()))
	for _, p := range r.GetPuts() {
		key := string(p.GetKey())
		put[key] = true
		kv := l.keys[key]
		if slices.Contains(e.Result.Foreign, key) {
			continue
		}
		if kv == nil || int64(kv.Lease) != r.GetLeaseId() || kv.Principal != p.GetPrincipal() || !bytes.Equal(kv.Value, p.GetValue()) {
			return breach("I2", "entry %d: %q is not as the batch says", e.Index, key)
		}
	}
	span := coord.SpanOf(r.GetKey(), r.GetRangeEnd())
	for key, kv := range l.keys {
		deleted := slices.ContainsFunc(r.GetDeletes(), func(b []byte) bool { return string(b) == key })
		gone := deleted || r.GetReplace() && span.Contains(key) && !put[key]
		if gone && strings.HasPrefix(key, directory.Prefix) && l.leases[kv.Lease] == e.Command.GetOwner() {
			return breach("I2", "entry %d: %q should be gone", e.Index, key)
		}
	}
	return nil
}
