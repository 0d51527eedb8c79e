package machine

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/tidwall/btree"

	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

// keptForClient bounds the keys in the kept result of a transaction, in bytes. MAGIC: every one of
// Limits.Clients may have such a result, in memory and in snapshots.
const keptForClient = 4 << 10

// change is a change of one key by a transaction; a nil kv deletes the key.
type change struct {
	key string
	kv  *coord.KeyValue
}

// txn executes one transaction. Until commit it leaves the machine unchanged.
type txn struct {
	*coord.Txn
	m     *Machine
	owner string

	look    int          // keys that it may still look at
	room    int64        // bytes that its answer may still have
	changes []change     // each key once
	after   *tree        // the keys after the changes; nil: as in the machine
	current []coord.Step // the branch
}

type tree = btree.Map[string, *coord.KeyValue]

func (o *txnOp) run(m *Machine, c *call) error {
	t := &txn{Txn: (*coord.Txn)(o), m: m, owner: c.owner, look: int(m.limits.Changes), room: int64(m.limits.TxnBytes)}
	if err := t.check(); err != nil {
		return err
	}
	result := &c.result.Txn
	if err := t.compare(result); err != nil {
		return err
	}
	name := "then"
	if t.current = t.Then; !result.Succeeded {
		name, t.current = "else", t.Else
	}
	if len(t.current) > 0 {
		result.Steps = make([]coord.StepResult, len(t.current))
	}
	for i := range t.current {
		if err := t.step(i, &result.Steps[i]); err != nil {
			return fault.In(fmt.Sprintf("%s[%d]", name, i), err)
		}
	}
	if err := feasible(m, t.changes, t.owner); err != nil {
		return err
	}
	for _, s := range t.changes {
		if s.kv == nil {
			m.remove(s.key)
		} else {
			m.put(s.kv)
		}
	}
	c.result.Changed = len(t.changes)
	return nil
}

// compare finds the first comparison that does not hold.
func (t *txn) compare(r *coord.TxnResult) error {
	for i := range t.If {
		reason, err := t.unmet(&t.If[i])
		if err != nil {
			return fault.In(fmt.Sprintf("compare[%d]", i), err)
		}
		if reason != "" {
			r.Failed, r.Reason = i+1, reason
			return nil
		}
	}
	r.Succeeded = true
	return nil
}

// unmet says why a comparison does not hold; empty if it does.
func (t *txn) unmet(c *coord.Compare) (reason string, err error) {
	if c.Target == coord.Holds {
		if q := t.m.locks[c.Lock]; q == nil || !q.holds(c.Token) {
			return fmt.Sprintf("fencing_token %d does not hold the lock", c.Token), nil
		}
		return "", nil
	}
	found := false
	err = t.ascend(&t.m.tree, c.Span, func(kv *coord.KeyValue) bool {
		found = true
		reason = differs(c, kv)
		return reason == ""
	})
	if !found && err == nil {
		reason = differs(c, nil)
	}
	return reason, err
}

// differs says why a version, nil for an absent key, does not have a property. The text contains
// neither values nor lease ids, because the caller may lack the right to read them.
func differs(c *coord.Compare, kv *coord.KeyValue) string {
	if c.Target == coord.Value {
		if kv != nil && holds(c.Operator, strings.Compare(string(kv.Value), c.Value)) {
			return ""
		}
		return fmt.Sprintf("value %v the given one does not hold", c.Operator)
	}
	if kv == nil {
		kv = &coord.KeyValue{}
	}
	number := numberOf(c.Target, kv)
	switch {
	case holds(c.Operator, cmp.Compare(number, c.Number)):
		return ""
	case c.Target == coord.LeaseOf:
		return fmt.Sprintf("lease %v the given one does not hold", c.Operator)
	case c.Operator == coord.Equal:
		return fmt.Sprintf("%v is %d, not %d", c.Target, number, c.Number)
	}
	return fmt.Sprintf("%v is %d, not %v %d", c.Target, number, c.Operator, c.Number)
}

// numberOf returns the number that a comparison looks at.
func numberOf(t coord.Target, kv *coord.KeyValue) int64 {
	switch t {
	case coord.CreateRevision:
		return int64(kv.CreateRevision)
	case coord.Version:
		return kv.Version
	case coord.LeaseOf:
		return int64(kv.Lease)
	}
	return int64(kv.ModRevision)
}

// holds reports whether an operator holds for the order of its two sides.
func holds(o coord.Operator, order int) bool {
	switch o {
	case coord.Equal:
		return order == 0
	case coord.NotEqual:
		return order != 0
	case coord.Less:
		return order < 0
	}
	return order > 0
}

// step executes one step of the branch.
func (t *txn) step(i int, r *coord.StepResult) error {
	switch s := &t.current[i]; {
	case s.Put != nil:
		return t.put(s, r)
	case s.Delete != nil:
		return t.delete(s, r)
	default:
		return t.read(s.Read, r)
	}
}

func (t *txn) put(s *coord.Step, r *coord.StepResult) error {
	if err := t.spend(1); err != nil {
		return err
	}
	prev, had := t.m.tree.Get(s.Put.Key)
	kv, err := t.version(s.Put, prev)
	if err != nil {
		return err
	}
	if t.write(change{s.Put.Key, kv}); had && s.Prev {
		if err := t.show(r, prev); err != nil {
			return err
		}
	}
	r.Count = 1
	return nil
}

// version returns the version that a put makes, and checks the put against the state.
func (t *txn) version(p *coord.Put, prev *coord.KeyValue) (*coord.KeyValue, error) {
	kv := &coord.KeyValue{Key: p.Key, Value: p.Value, Lease: p.Lease, Version: 1, ModRevision: t.m.revision + 1}
	kv.CreateRevision = kv.ModRevision
	if prev != nil {
		kv.CreateRevision, kv.Version = prev.CreateRevision, prev.Version+1
	}
	switch {
	case prev != nil && prev.LockClaim != nil:
		return nil, fault.Refused(fault.Conflict, "key", "is a lock's: use the lock's commands")
	case prev == nil && p.KeepValue:
		return nil, fault.Refused(fault.NotFound, "keep_value", "the key does not exist")
	case prev == nil && p.KeepLease:
		return nil, fault.Refused(fault.NotFound, "keep_lease", "the key does not exist")
	}
	if p.KeepValue {
		kv.Value = prev.Value
	}
	if p.KeepLease {
		kv.Lease = prev.Lease
	}
	if kv.Lease == 0 {
		kv.Writer = t.owner
	} else if _, err := t.m.leases.usable(kv.Lease, t.owner); err != nil {
		return nil, err
	}
	return kv, nil
}

func (t *txn) delete(s *coord.Step, r *coord.StepResult) error {
	var gone []*coord.KeyValue
	var refused error
	err := t.ascend(t.now(), *s.Delete, func(kv *coord.KeyValue) bool {
		switch {
		case kv.LockClaim != nil:
			refused = fault.Refused(fault.Conflict, "delete", "the span has a lock's key: use the lock's commands")
		case reserved(kv.Key):
			refused = fault.Refused(fault.Conflict, "delete", "the span has a key of the directory: use its commands")
		default:
			gone = append(gone, kv)
		}
		return refused == nil
	})
	if refused != nil {
		return refused
	}
	if err != nil {
		return err
	}
	for _, kv := range gone {
		if t.write(change{key: kv.Key}); s.Prev {
			if err := t.show(r, kv); err != nil {
				return err
			}
		}
	}
	r.Count = len(gone)
	return nil
}

// write notes a change.
func (t *txn) write(c change) {
	t.changes = append(t.changes, c)
	if t.after != nil {
		t.apply(c)
	}
}

func (t *txn) apply(c change) {
	if c.kv == nil {
		t.after.Delete(c.key)
	} else {
		t.after.Set(c.key, c.kv)
	}
}

// now returns the keys with the changes so far.
func (t *txn) now() *tree {
	if t.after == nil && len(t.changes) == 0 {
		return &t.m.tree
	}
	if t.after == nil {
		t.after = t.m.tree.Copy()
		for _, c := range t.changes {
			t.apply(c)
		}
	}
	return t.after
}

// ascend visits the keys of a span, up to the bound on keys that a transaction looks at.
func (t *txn) ascend(keys *tree, span coord.Span, visit func(*coord.KeyValue) bool) (err error) {
	if span.Empty() {
		return nil
	}
	keys.Ascend(span.From, func(key string, kv *coord.KeyValue) bool {
		if span.To != "" && key >= span.To {
			return false
		}
		if err = t.spend(1); err != nil {
			return false
		}
		return visit(kv)
	})
	return err
}

// spend counts keys looked at.
func (t *txn) spend(n int) error {
	if t.look -= n; t.look < 0 {
		return limitReached("range_end", "too many keys compared, read and deleted in one transaction", uint64(t.m.limits.Changes))
	}
	return nil
}

// show adds a version to the answer.
func (t *txn) show(r *coord.StepResult, kv *coord.KeyValue) error {
	if t.room -= kvSize(kv); t.room < 0 {
		return fault.Refused(fault.TooLarge, "range_end", "the answer exceeds %d bytes: ask for fewer keys, or for keys only", t.m.limits.TxnBytes)
	}
	if isEntry(kv) { // its Since may change later, and snapshots do not keep these fields in results
		shown := *kv
		shown.Since, shown.Principal, kv = 0, "", &shown
	}
	r.Keys = append(r.Keys, kv)
	return nil
}

// kept is the part of a result that a client keeps for a repetition of its command.
func kept(r coord.Result) coord.Result {
	var size int64
	for _, s := range r.Txn.Steps {
		for _, kv := range s.Keys {
			size += kvSize(kv)
		}
	}
	if size <= keptForClient {
		return r
	}
	r.Txn.Forgotten = true
	r.Txn.Steps = slices.Clone(r.Txn.Steps)
	for i := range r.Txn.Steps {
		r.Txn.Steps[i].Keys = nil
	}
	return r
}
