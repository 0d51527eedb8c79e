package machine

import (
	"bytes"
	"cmp"
	"fmt"
	"strings"

	"github.com/tidwall/btree"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
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
	m     *Machine
	owner string

	left    int64    // bytes that its parts may still have
	compare uint64   // comparisons so far
	steps   uint64   // steps so far
	look    int      // keys that it may still look at
	room    int64    // bytes that its answer may still have
	changes []change // each key once
	hides   []hidden
	after   *tree // the keys after the changes; nil: as in the machine
}

// branches is a transaction, or one within it.
type branches interface {
	GetCompare() []*apiv1.Compare
	GetThen() []*apiv1.TxnStep
	GetElse() []*apiv1.TxnStep
}

type tree = btree.Map[string, *coord.KeyValue]

// txn compares keys, and then reads and changes keys, all at one revision. An error changes nothing, and refuses a malformed step
// of another branch too.
func (c *call) txn(m *Machine, r *apiv1.TxnRequest) error {
	t := &txn{m: m, owner: c.owner, left: int64(m.limits.TxnBytes), look: int(m.limits.Changes), room: int64(m.limits.TxnBytes)}
	if err := t.check(r); err != nil {
		return err
	}
	answer := &struct {
		one   coordv1.Result_Txn
		txn   apiv1.TxnResponse
		step  [1]apiv1.TxnStepResult // most have one step
		steps [1]*apiv1.TxnStepResult
	}{}
	result := &answer.txn
	result.Header, answer.one.Txn = c.header, result
	var err error
	if result.Results, result.Failed, result.Reason, err = t.execute(r, answer.step[:], answer.steps[:]); err != nil {
		return err
	}
	result.Succeeded = result.Failed == 0
	d := applications
	if t.owner == "" { // the group itself
		d = peers
	}
	if err := feasible(m, t.changes, t.owner, d); err != nil {
		return err
	}
	for _, s := range t.changes {
		if s.kv == nil {
			m.remove(s.key)
		} else {
			m.put(s.kv)
		}
	}
	for _, h := range t.hides {
		m.conceal(h)
	}
	result.Changed = uint32(len(t.changes))
	c.answer.Response = &answer.one
	return nil
}

// execute executes the branch that the comparisons select. They look at the state before the whole transaction, so that no
// step changes which branches within are taken. made and results are space for the results.
func (t *txn) execute(b branches, made []apiv1.TxnStepResult, results []*apiv1.TxnStepResult) (_ []*apiv1.TxnStepResult, failed uint32, reason string, err error) {
	name, steps := "then", b.GetThen()
	for i, c := range b.GetCompare() {
		if reason, err = t.unmet(c); err != nil {
			return nil, 0, "", fault.In(fmt.Sprintf("compare[%d]", i), err)
		}
		if reason != "" {
			name, steps, failed = "else", b.GetElse(), uint32(i+1)
			break
		}
	}
	if len(steps) != len(made) {
		made, results = make([]apiv1.TxnStepResult, len(steps)), make([]*apiv1.TxnStepResult, len(steps))
	}
	for i, s := range steps {
		results[i] = &made[i]
		if err := t.step(s, &made[i]); err != nil {
			return nil, 0, "", fault.In(fmt.Sprintf("%s[%d]", name, i), err)
		}
	}
	return results, failed, reason, nil
}

// unmet says why a comparison does not hold; empty if it does.
func (t *txn) unmet(c *apiv1.Compare) (reason string, err error) {
	if c.GetTarget() == apiv1.Compare_HOLDS {
		if q := t.m.locks[c.GetLock()]; q == nil || !q.holds(coord.Token(c.GetFencingToken())) {
			return fmt.Sprintf("fencing_token %d does not hold the lock", c.GetFencingToken()), nil
		}
		return "", nil
	}
	found := false
	err = t.ascend(&t.m.tree, spanOf(c), func(kv *coord.KeyValue) bool {
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
func differs(c *apiv1.Compare, kv *coord.KeyValue) string {
	target, operator := c.GetTarget(), c.GetOperator()
	if target == apiv1.Compare_VALUE {
		if kv != nil && holds(operator, bytes.Compare(kv.Value, c.GetValue())) {
			return ""
		}
		return fmt.Sprintf("value %s the given one does not hold", sign(operator))
	}
	if kv == nil {
		kv = &coord.KeyValue{}
	}
	number := numberOf(target, kv)
	switch {
	case holds(operator, cmp.Compare(number, c.GetNumber())):
		return ""
	case target == apiv1.Compare_LEASE:
		return fmt.Sprintf("lease %s the given one does not hold", sign(operator))
	case operator == apiv1.Compare_EQUAL:
		return fmt.Sprintf("%s is %d, not %d", strings.ToLower(target.String()), number, c.GetNumber())
	}
	return fmt.Sprintf("%s is %d, not %s %d", strings.ToLower(target.String()), number, sign(operator), c.GetNumber())
}

// sign returns an operator as people write it.
func sign(o apiv1.Compare_Operator) string {
	switch o {
	case apiv1.Compare_EQUAL:
		return "="
	case apiv1.Compare_NOT_EQUAL:
		return "!="
	case apiv1.Compare_LESS:
		return "<"
	}
	return ">"
}

// numberOf returns the number that a comparison looks at.
func numberOf(t apiv1.Compare_Target, kv *coord.KeyValue) int64 {
	switch t {
	case apiv1.Compare_CREATE_REVISION:
		return int64(kv.CreateRevision)
	case apiv1.Compare_VERSION:
		return kv.Version
	case apiv1.Compare_LEASE:
		return int64(kv.Lease)
	}
	return int64(kv.ModRevision)
}

// holds reports whether an operator holds for the order of its two sides.
func holds(o apiv1.Compare_Operator, order int) bool {
	switch o {
	case apiv1.Compare_EQUAL:
		return order == 0
	case apiv1.Compare_NOT_EQUAL:
		return order != 0
	case apiv1.Compare_LESS:
		return order < 0
	}
	return order > 0
}

// step executes one step of the branch.
func (t *txn) step(step *apiv1.TxnStep, r *apiv1.TxnStepResult) (err error) {
	switch s := step.GetStep().(type) {
	case *apiv1.TxnStep_Put:
		return t.put(s.Put, r)
	case *apiv1.TxnStep_Delete:
		return t.delete(s.Delete, r)
	case *apiv1.TxnStep_Hide:
		return t.hide(s.Hide)
	case *apiv1.TxnStep_Txn:
		var failed uint32
		r.Results, failed, _, err = t.execute(s.Txn, nil, nil)
		r.Succeeded = proto.Bool(failed == 0)
		return fault.In("txn", err)
	}
	return t.read(step.GetRange(), r)
}

func (t *txn) put(p *apiv1.TxnPut, r *apiv1.TxnStepResult) error {
	if err := t.spend(1); err != nil {
		return err
	}
	key := string(p.GetKey())
	prev, had := t.m.tree.Get(key)
	kv, err := t.version(key, p, prev)
	if err != nil {
		return err
	}
	if t.write(change{key, kv}); had && p.GetPrevKv() {
		if err := t.show(r, prev); err != nil {
			return err
		}
	}
	r.Count = 1
	return nil
}

// version returns the version that a put makes, and checks the put against the state.
func (t *txn) version(key string, p *apiv1.TxnPut, prev *coord.KeyValue) (*coord.KeyValue, error) {
	kv := &coord.KeyValue{Key: key, Value: p.GetValue(), Lease: coord.LeaseID(p.GetLease()), Version: 1, ModRevision: t.m.revision + 1}
	kv.CreateRevision = kv.ModRevision
	if prev != nil {
		kv.CreateRevision, kv.Version = prev.CreateRevision, prev.Version+1
	}
	switch {
	case prev != nil && prev.LockClaim != nil:
		return nil, fault.Refused(fault.Conflict, "key", "is a lock's: use the lock's commands")
	case prev == nil && p.GetKeepValue():
		return nil, fault.Refused(fault.NotFound, "keep_value", "the key does not exist")
	case prev == nil && p.GetKeepLease():
		return nil, fault.Refused(fault.NotFound, "keep_lease", "the key does not exist")
	}
	if p.GetKeepValue() {
		kv.Value = prev.Value
	}
	if p.GetKeepLease() {
		kv.Lease = prev.Lease
	}
	if kv.Lease == 0 {
		kv.Writer = t.owner
		return kv, nil
	}
	l, err := t.m.leases.usable(kv.Lease, t.owner)
	if err != nil {
		return nil, err
	}
	kv.Writer = l.Owner
	return kv, nil
}

func (t *txn) delete(d *apiv1.TxnDelete, r *apiv1.TxnStepResult) error {
	var gone []*coord.KeyValue
	var refused error
	err := t.ascend(t.now(), spanOf(d), func(kv *coord.KeyValue) bool {
		switch {
		case kv.LockClaim != nil && len(d.GetRangeEnd()) > 0: // stays: a lock ends by its own commands
		case kv.LockClaim != nil:
			refused = fault.Refused(fault.Conflict, "delete", "is a lock's key: use the lock's commands")
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
		if t.write(change{key: kv.Key}); d.GetPrevKv() {
			if err := t.show(r, kv); err != nil {
				return err
			}
		}
	}
	r.Count = int64(len(gone))
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
func (t *txn) show(r *apiv1.TxnStepResult, kv *coord.KeyValue) error {
	if t.room -= kvSize(kv); t.room < 0 {
		return fault.Refused(fault.TooLarge, "range_end", "the answer exceeds %d bytes: ask for fewer keys, or for keys only", t.m.limits.TxnBytes)
	}
	r.Kvs = append(r.Kvs, Message(kv))
	return nil
}

// kept is the part of an answer that a client keeps for a repetition of its command.
func kept(a *coordv1.Result) *coordv1.Result {
	r := a.GetTxn()
	if sizeOf(r.GetResults()) <= keptForClient {
		return a
	}
	return &coordv1.Result{Response: &coordv1.Result_Txn{Txn: &apiv1.TxnResponse{
		Header: r.GetHeader(), Succeeded: r.GetSucceeded(), Changed: r.GetChanged(), Failed: r.GetFailed(), Reason: r.GetReason(), Results: withoutKeys(r.GetResults()), Forgotten: true,
	}}}
}

// sizeOf returns the bytes of the keys in results, and in those within them.
func sizeOf(results []*apiv1.TxnStepResult) (size int64) {
	for _, s := range results {
		size += sizeOf(s.GetResults())
		for _, kv := range s.GetKvs() {
			size += rawSize(len(kv.GetKey()), len(kv.GetValue()))
		}
	}
	return size
}

// withoutKeys returns results without keys.
func withoutKeys(results []*apiv1.TxnStepResult) []*apiv1.TxnStepResult {
	counts := make([]*apiv1.TxnStepResult, len(results))
	for i, s := range results {
		counts[i] = &apiv1.TxnStepResult{Count: s.GetCount(), Succeeded: s.Succeeded, Results: withoutKeys(s.GetResults())}
	}
	return counts
}
