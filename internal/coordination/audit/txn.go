package audit

import (
	"bytes"
	"cmp"

	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

// foresight is what a transaction must do, by the keys before it.
type foresight struct {
	met  bool                       // all comparisons hold
	keys map[string]*coord.KeyValue // the changed ones; nil: deleted
}

// foresee works out a transaction; nil for another command.
func (l *Log) foresee(e Entry) *foresight {
	o, ok := e.Command.Op.(*coord.Txn)
	if !ok {
		return nil
	}
	f := &foresight{met: true, keys: make(map[string]*coord.KeyValue)}
	for i := range o.If {
		f.met = f.met && l.holds(&o.If[i])
	}
	steps := o.Then
	if !f.met {
		steps = o.Else
	}
	for _, s := range steps {
		if s.Put != nil {
			f.keys[s.Put.Key] = next(l.keys[s.Put.Key], s.Put)
		}
		if s.Delete == nil {
			continue
		}
		for key := range l.keys { // no step puts a key that another one deletes
			if s.Delete.Contains(key) {
				f.keys[key] = nil
			}
		}
	}
	return f
}

// next is the version that a put makes of a key.
func next(prev *coord.KeyValue, p *coord.Put) *coord.KeyValue {
	kv := &coord.KeyValue{Value: p.Value, Lease: p.Lease, Version: 1}
	if prev != nil {
		kv.Version = prev.Version + 1
	}
	if p.KeepValue && prev != nil {
		kv.Value = prev.Value
	}
	if p.KeepLease && prev != nil {
		kv.Lease = prev.Lease
	}
	return kv
}

// holds works out one comparison.
func (l *Log) holds(c *coord.Compare) bool {
	if c.Target == coord.Holds {
		_, held := l.lock(c.Lock).holding[c.Token]
		return held
	}
	absent := true
	for key, kv := range l.keys {
		if c.Span.Contains(key) {
			if absent = false; !holds(c, kv) {
				return false
			}
		}
	}
	return !absent || holds(c, nil)
}

// holds compares one version, nil for an absent key.
func holds(c *coord.Compare, kv *coord.KeyValue) bool {
	if kv == nil && c.Target == coord.Value {
		return false
	}
	if kv == nil {
		kv = new(coord.KeyValue)
	}
	order := map[coord.Target]int{
		coord.ModRevision: cmp.Compare(int64(kv.ModRevision), c.Number), coord.CreateRevision: cmp.Compare(int64(kv.CreateRevision), c.Number),
		coord.Version: cmp.Compare(kv.Version, c.Number), coord.LeaseOf: cmp.Compare(int64(kv.Lease), c.Number),
		coord.Value: bytes.Compare(kv.Value, []byte(c.Value)),
	}[c.Target]
	return map[coord.Operator]bool{coord.Equal: order == 0, coord.NotEqual: order != 0, coord.Less: order < 0, coord.Greater: order > 0}[c.Operator]
}

// check compares the foresight with what happened (K1).
func (f *foresight) check(e Entry) error {
	switch {
	case f == nil:
		return nil
	case f.met != e.Result.Txn.Succeeded:
		return breach("K1", "entry %d: all comparisons hold: %v, and the transaction succeeded: %v", e.Index, f.met, e.Result.Txn.Succeeded)
	case len(f.keys) != len(e.Effects.Events):
		return breach("K1", "entry %d changed %d keys, its steps change %d", e.Index, len(e.Effects.Events), len(f.keys))
	}
	for _, event := range e.Effects.Events {
		want, ok := f.keys[event.Key]
		has := event.KV
		if !ok || (want == nil) != (has == nil) || want != nil &&
			!(bytes.Equal(want.Value, has.Value) && want.Lease == has.Lease && want.Version == has.Version) {
			return breach("K1", "entry %d made %+v of %q, which is not what its steps say", e.Index, has, event.Key)
		}
	}
	return nil
}

// uses lists the leases that an accepted command used; I3 is the rule for batches.
func uses(e Entry) (ids []coord.LeaseID) {
	switch o := e.Command.Op.(type) {
	case *coord.Lock:
		return []coord.LeaseID{o.Lease}
	case *coord.LeaseRevoke:
		return []coord.LeaseID{o.ID}
	case *coord.Txn:
		for _, event := range e.Effects.Events {
			if event.KV != nil && event.KV.Lease != 0 {
				ids = append(ids, event.KV.Lease)
			}
		}
	}
	return ids
}

// refused checks that a refused entry had no effects (R1), and that no generation that is over blocks a batch (I4).
func (l *Log) refused(e Entry) error {
	o, ok := e.Command.Op.(*coord.RegisterBatch)
	if last := l.begun[e.Command.Owner]; ok && fault.KindOf(e.Result.Err) == fault.Conflict && fault.FieldOf(e.Result.Err) == "generation" && o.Generation >= last.generation {
		return breach("I4", "entry %d: generation %d of %q was refused after %d", e.Index, o.Generation, e.Command.Owner, last.generation)
	}
	return l.nothing("R1", e)
}
