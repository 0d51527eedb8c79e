package machine

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// ranged is what names a key or a range of keys.
type ranged interface {
	GetKey() []byte
	GetRangeEnd() []byte
}

// spanOf returns the span of a checked part of a transaction.
func spanOf(r ranged) coord.Span {
	if len(r.GetRangeEnd()) == 0 {
		return coord.Exactly(string(r.GetKey()))
	}
	return coord.SpanOf(r.GetKey(), r.GetRangeEnd())
}

// putAt and deleteAt are what a step changes, or one of the steps within it.
type (
	putAt struct {
		key  []byte
		step int
	}
	deleteAt struct {
		span coord.Span
		step int
	}
)

// check looks at the comparisons and all branches by themselves.
func (t *txn) check(all branches) error {
	if len(all.GetCompare())+len(all.GetThen())+len(all.GetElse()) == 0 {
		return fault.Invalidf("then", nil, "is missing")
	}
	_, _, err := t.checkBranches(all, coord.TxnDepth)
	return err
}

// checkBranches validates the comparisons and both branches of a transaction, or of one within it, which may have a depth of its own.
func (t *txn) checkBranches(b branches, depth int) (puts []putAt, deletes []deleteAt, err error) {
	if depth < 0 {
		return nil, nil, limitReached("", "too many transactions within one another", coord.TxnDepth)
	}
	most := uint64(t.m.limits.Changes)
	if t.compare += uint64(len(b.GetCompare())); t.compare > most {
		return nil, nil, limitReached("compare", "too many comparisons in one transaction", most)
	}
	for i, c := range b.GetCompare() {
		err := t.comparable(c)
		if err == nil {
			err = t.fits(len(c.GetKey()) + len(c.GetRangeEnd()) + len(c.GetValue()) + len(c.GetLock()))
		}
		if err != nil {
			return nil, nil, fault.In(fmt.Sprintf("compare[%d]", i), err)
		}
	}
	if puts, deletes, err = t.checkBranch("then", b.GetThen(), depth); err != nil {
		return nil, nil, err
	}
	morePuts, moreDeletes, err := t.checkBranch("else", b.GetElse(), depth)
	return append(puts, morePuts...), append(deletes, moreDeletes...), err // they exclude each other
}

// fits counts the bytes of a part of the transaction.
func (t *txn) fits(size int) error {
	if t.left -= int64(size); t.left < 0 {
		return fault.Refused(fault.TooLarge, "", "the transaction exceeds %d bytes: split it", t.m.limits.TxnBytes)
	}
	return nil
}

func (t *txn) comparable(c *apiv1.Compare) error {
	target, operator := c.GetTarget(), c.GetOperator()
	switch {
	case target < 0 || target > apiv1.Compare_HOLDS:
		return fault.Invalidf("target", target, "is not known")
	case operator < 0 || operator > apiv1.Compare_GREATER:
		return fault.Invalidf("operator", operator, "is not known")
	case target != apiv1.Compare_HOLDS && (c.GetLock() != "" || c.GetFencingToken() != 0):
		return fault.Invalidf("lock", nil, "goes only with the target HOLDS")
	case target == apiv1.Compare_HOLDS && (len(c.GetKey())+len(c.GetRangeEnd()) > 0 || c.GetNumber() != 0):
		return fault.Invalidf("key", nil, "does not go with the target HOLDS")
	case target == apiv1.Compare_HOLDS && operator != apiv1.Compare_EQUAL:
		return fault.Invalidf("operator", sign(operator), "must be = for a fencing token")
	case target == apiv1.Compare_HOLDS:
		return nil
	case target != apiv1.Compare_VALUE && len(c.GetValue()) > 0:
		return fault.Invalidf("value", nil, "goes only with the target VALUE")
	case target == apiv1.Compare_VALUE && c.GetNumber() != 0:
		return fault.Invalidf("number", nil, "does not go with the target VALUE")
	case target == apiv1.Compare_LEASE && operator >= apiv1.Compare_LESS && c.GetNumber() != 0:
		return fault.Invalidf("operator", sign(operator), "goes only with the lease 0: an order of leases would reveal their ids")
	}
	return t.span(c)
}

// span checks the bounds of a span.
func (t *txn) span(r ranged) error {
	if len(r.GetRangeEnd()) == 0 {
		return t.m.limits.key("key", len(r.GetKey()))
	}
	if most := int64(t.m.limits.KeyBytes); int64(len(r.GetKey())) > most+1 {
		return tooLarge("key", len(r.GetKey()), most)
	} else if int64(len(r.GetRangeEnd())) > most+1 {
		return tooLarge("range_end", len(r.GetRangeEnd()), most)
	}
	return nil
}

// checkBranch validates one branch, taken or not. A key changes once in a revision: no step puts what another one puts or deletes,
// whatever the comparisons within.
func (t *txn) checkBranch(name string, steps []*apiv1.TxnStep, depth int) (puts []putAt, deletes []deleteAt, err error) {
	if t.steps += uint64(len(steps)); t.steps > uint64(t.m.limits.Changes) {
		return nil, nil, limitReached(name, "too many steps in one transaction", uint64(t.m.limits.Changes))
	}
	for i, s := range steps {
		var within []putAt
		var gone []deleteAt
		size, err := t.wellFormed(s)
		if err == nil {
			err = t.fits(size)
		}
		switch r := s.GetStep().(type) {
		case *apiv1.TxnStep_Put:
			puts = append(puts, putAt{r.Put.GetKey(), i})
		case *apiv1.TxnStep_Delete:
			deletes = append(deletes, deleteAt{spanOf(r.Delete), i})
		case *apiv1.TxnStep_Txn:
			within, gone, err = t.checkBranches(r.Txn, depth-1)
			err = fault.In("txn", err)
		}
		if err != nil {
			return nil, nil, fault.In(fmt.Sprintf("%s[%d]", name, i), err)
		}
		for _, p := range within {
			puts = append(puts, putAt{p.key, i})
		}
		for _, d := range gone {
			deletes = append(deletes, deleteAt{d.span, i})
		}
	}
	return puts, deletes, disjoint(name, puts, deletes)
}

// disjoint refuses steps of a branch that change one key. It sorts the puts.
func disjoint(name string, puts []putAt, deletes []deleteAt) error {
	if len(puts) == 0 || len(puts)+len(deletes) == 1 {
		return nil
	}
	slices.SortFunc(puts, func(a, b putAt) int { return cmp.Or(bytes.Compare(a.key, b.key), cmp.Compare(a.step, b.step)) })
	next := make([]int, len(puts)) // the first put of another step behind each
	for i := len(puts) - 1; i >= 0; i-- {
		switch next[i] = i + 1; {
		case i+1 == len(puts):
		case puts[i].step == puts[i+1].step:
			next[i] = next[i+1]
		case bytes.Equal(puts[i].key, puts[i+1].key):
			return fault.Invalidf(fmt.Sprintf("%s[%d].put", name, puts[i+1].step), nil, "puts the key %q, which another step puts", puts[i].key)
		}
	}
	for _, d := range deletes {
		at, _ := slices.BinarySearchFunc(puts, []byte(d.span.From), func(p putAt, key []byte) int { return bytes.Compare(p.key, key) })
		if at < len(puts) && puts[at].step == d.step {
			at = next[at]
		}
		if at < len(puts) && d.span.Contains(string(puts[at].key)) {
			return fault.Invalidf(fmt.Sprintf("%s[%d].delete", name, d.step), nil, "deletes the key %q, which another step puts", puts[at].key)
		}
	}
	return nil
}

// wellFormed checks a step by itself, and returns its size in bytes.
func (t *txn) wellFormed(step *apiv1.TxnStep) (size int, err error) {
	switch s := step.GetStep().(type) {
	case *apiv1.TxnStep_Put:
		return len(s.Put.GetKey()) + len(s.Put.GetValue()), t.puttable(s.Put)
	case *apiv1.TxnStep_Delete:
		return len(s.Delete.GetKey()) + len(s.Delete.GetRangeEnd()), t.span(s.Delete)
	case *apiv1.TxnStep_Range:
		if order := s.Range.GetOrder(); order < 0 || order > apiv1.TxnRange_VALUE {
			return 0, fault.Invalidf("order", order, "is not known")
		}
		return len(s.Range.GetKey()) + len(s.Range.GetRangeEnd()), t.span(s.Range)
	case *apiv1.TxnStep_Hide:
		return len(s.Hide.GetKey()) + len(s.Hide.GetRangeEnd()), t.span(s.Hide)
	case *apiv1.TxnStep_Txn: // whoever calls looks into it
		return 0, nil
	}
	return 0, fault.Invalidf("step", nil, "is missing: name a put, a deletion, a range or a transaction")
}

// puttable checks a put by itself.
func (t *txn) puttable(p *apiv1.TxnPut) error {
	if err := t.m.limits.key("key", len(p.GetKey())); err != nil {
		return err
	}
	if err := t.m.limits.value("value", p.GetValue()); err != nil {
		return err
	}
	switch {
	case p.GetKeepValue() && len(p.GetValue()) > 0:
		return fault.Invalidf("value", nil, "does not go with keep_value")
	case p.GetKeepLease() && p.GetLease() != 0:
		return fault.Invalidf("lease", nil, "does not go with keep_lease")
	case reserved(string(p.GetKey())) && !mayWrite(t.owner, string(p.GetKey())):
		return fault.Refused(fault.Conflict, "key", "is reserved: use the commands of the directory or of the group")
	}
	return nil
}
