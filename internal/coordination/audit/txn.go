package audit

import (
	"bytes"
	"cmp"
	"slices"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// foresight is what a transaction must do, by the keys before it.
type foresight struct {
	met  []bool                     // all comparisons hold: of the transaction, and of those executed within it, in order
	keys map[string]*coord.KeyValue // the changed ones; nil: deleted
}

// foresee works out a transaction; nil for another command.
func (l *Log) foresee(e Entry) *foresight {
	if e.Command.GetTxn() == nil {
		return nil
	}
	f := &foresight{keys: make(map[string]*coord.KeyValue)}
	l.follow(f, whole(e.Command.GetTxn()))
	return f
}

// whole is a transaction in the form of those within it.
func whole(r *apiv1.TxnRequest) *apiv1.TxnBranch {
	return &apiv1.TxnBranch{Compare: r.GetCompare(), Then: r.GetThen(), Else: r.GetElse()}
}

// follow works out a transaction, or one within it. Nothing has changed: all comparisons look at the keys before.
func (l *Log) follow(f *foresight, b *apiv1.TxnBranch) {
	met, steps := true, b.GetThen()
	for _, c := range b.GetCompare() {
		met = met && l.holds(c)
	}
	if f.met = append(f.met, met); !met {
		steps = b.GetElse()
	}
	for _, s := range steps {
		if s.GetTxn() != nil {
			l.follow(f, s.GetTxn())
		}
		if p := s.GetPut(); p != nil {
			f.keys[string(p.GetKey())] = next(l.keys[string(p.GetKey())], p)
		}
		if s.GetDelete() == nil {
			continue
		}
		span := spanOf(s.GetDelete())
		for key, kv := range l.keys { // no step puts a key that another one deletes, and claims stay
			if span.Contains(key) && kv.LockClaim == nil {
				f.keys[key] = nil
			}
		}
	}
}

// outcomes passes an executed transaction, and those executed within it, in order, with what each says of its comparisons.
func outcomes(b *apiv1.TxnBranch, succeeded bool, results []ops.StepResult, f func(*apiv1.TxnBranch, bool)) {
	f(b, succeeded)
	steps := b.GetThen()
	if !succeeded {
		steps = b.GetElse()
	}
	for i, s := range steps[:min(len(steps), len(results))] {
		if s.GetTxn() != nil {
			outcomes(s.GetTxn(), results[i].Succeeded, results[i].Steps, f)
		}
	}
}

// spanOf returns the keys that a part of a transaction names.
func spanOf(r interface {
	GetKey() []byte
	GetRangeEnd() []byte
}) coord.Span {
	if len(r.GetRangeEnd()) == 0 {
		return coord.Exactly(string(r.GetKey()))
	}
	return coord.SpanOf(r.GetKey(), r.GetRangeEnd())
}

// next is the version that a put makes of a key.
func next(prev *coord.KeyValue, p *apiv1.TxnPut) *coord.KeyValue {
	kv := &coord.KeyValue{Value: p.GetValue(), Lease: coord.LeaseID(p.GetLease()), Version: 1}
	if prev != nil {
		kv.Version = prev.Version + 1
	}
	if p.GetKeepValue() && prev != nil {
		kv.Value = prev.Value
	}
	if p.GetKeepLease() && prev != nil {
		kv.Lease = prev.Lease
	}
	return kv
}

// holds works out one comparison.
func (l *Log) holds(c *apiv1.Compare) bool {
	if c.GetTarget() == apiv1.Compare_HOLDS {
		_, held := l.lock(c.GetLock()).holding[coord.Token(c.GetFencingToken())]
		return held
	}
	absent, span := true, spanOf(c)
	for key, kv := range l.keys {
		if span.Contains(key) {
			if absent = false; !holds(c, kv) {
				return false
			}
		}
	}
	return !absent || holds(c, nil)
}

// holds compares one version, nil for an absent key.
func holds(c *apiv1.Compare, kv *coord.KeyValue) bool {
	if kv == nil && c.GetTarget() == apiv1.Compare_VALUE {
		return false
	}
	if kv == nil {
		kv = new(coord.KeyValue)
	}
	order := map[apiv1.Compare_Target]int{
		apiv1.Compare_MOD_REVISION:    cmp.Compare(int64(kv.ModRevision), c.GetNumber()),
		apiv1.Compare_CREATE_REVISION: cmp.Compare(int64(kv.CreateRevision), c.GetNumber()),
		apiv1.Compare_VERSION:         cmp.Compare(kv.Version, c.GetNumber()),
		apiv1.Compare_LEASE:           cmp.Compare(int64(kv.Lease), c.GetNumber()),
		apiv1.Compare_VALUE:           bytes.Compare(kv.Value, c.GetValue()),
	}[c.GetTarget()]
	return map[apiv1.Compare_Operator]bool{
		apiv1.Compare_EQUAL: order == 0, apiv1.Compare_NOT_EQUAL: order != 0, apiv1.Compare_LESS: order < 0, apiv1.Compare_GREATER: order > 0,
	}[c.GetOperator()]
}

// check compares the foresight with what happened (K1).
func (f *foresight) check(e Entry) error {
	if f == nil {
		return nil
	}
	var met []bool
	outcomes(whole(e.Command.GetTxn()), e.Result.Txn.Succeeded, e.Result.Txn.Steps, func(_ *apiv1.TxnBranch, succeeded bool) { met = append(met, succeeded) })
	switch {
	case !slices.Equal(f.met, met):
		return breach("K1", "entry %d: all comparisons hold: %v, and the transaction succeeded: %v", e.Index, f.met, met)
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
	switch r := e.Command.GetRequest().(type) {
	case *coordv1.Command_Lock:
		return []coord.LeaseID{coord.LeaseID(r.Lock.GetLeaseId())}
	case *coordv1.Command_TryLock:
		return []coord.LeaseID{coord.LeaseID(r.TryLock.GetLeaseId())}
	case *coordv1.Command_LeaseRevoke:
		return []coord.LeaseID{coord.LeaseID(r.LeaseRevoke.GetId())}
	case *coordv1.Command_Txn:
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
	r := e.Command.GetPublishInstances()
	if last := l.begun[e.Command.GetOwner()]; r != nil && fault.KindOf(e.Result.Err) == fault.Conflict && fault.FieldOf(e.Result.Err) == "generation" && r.GetGeneration() >= last.generation {
		return breach("I4", "entry %d: generation %d of %q was refused after %d", e.Index, r.GetGeneration(), e.Command.GetOwner(), last.generation)
	}
	return l.nothing("R1", e)
}
