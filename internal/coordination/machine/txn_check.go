package machine

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/blackhole/blackhole/pkg/coord"
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

// check looks at the comparisons and both branches by themselves.
func (t *txn) check() error {
	if len(t.GetCompare())+len(t.GetThen())+len(t.GetElse()) == 0 {
		return fault.Invalidf("then", nil, "is missing")
	}
	left := int64(t.m.limits.TxnBytes)
	if most := uint64(t.m.limits.Changes); uint64(len(t.GetCompare())) > most {
		return limitReached("compare", "too many comparisons in one transaction", most)
	}
	for i, c := range t.GetCompare() {
		err := t.comparable(c)
		if err == nil {
			err = t.fits(&left, len(c.GetKey())+len(c.GetRangeEnd())+len(c.GetValue())+len(c.GetLock()))
		}
		if err != nil {
			return fault.In(fmt.Sprintf("compare[%d]", i), err)
		}
	}
	if err := t.branch("then", t.GetThen(), &left); err != nil {
		return err
	}
	return t.branch("else", t.GetElse(), &left)
}

// fits counts the bytes of a part of the transaction.
func (t *txn) fits(left *int64, size int) error {
	if *left -= int64(size); *left < 0 {
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

// branch validates one branch, taken or not.
func (t *txn) branch(name string, steps []*apiv1.TxnStep, left *int64) error {
	if most := uint64(t.m.limits.Changes); uint64(len(steps)) > most {
		return limitReached(name, "too many steps in one branch of a transaction", most)
	}
	var puts [][]byte
	for i, s := range steps {
		size, err := t.wellFormed(s)
		if err == nil {
			err = t.fits(left, size)
		}
		if err != nil {
			return fault.In(fmt.Sprintf("%s[%d]", name, i), err)
		}
		if p := s.GetPut(); p != nil {
			puts = append(puts, p.GetKey())
		}
	}
	slices.SortFunc(puts, bytes.Compare)
	for i := 1; i < len(puts); i++ {
		if bytes.Equal(puts[i], puts[i-1]) {
			return fault.Invalidf(name, nil, "puts the key %q twice", puts[i])
		}
	}
	for i, s := range steps {
		if s.GetDelete() == nil || len(puts) == 0 {
			continue
		}
		span := spanOf(s.GetDelete())
		if at, _ := slices.BinarySearchFunc(puts, []byte(span.From), bytes.Compare); at < len(puts) && span.Contains(string(puts[at])) {
			return fault.Invalidf(fmt.Sprintf("%s[%d]", name, i), nil, "deletes the key %q, which another step puts", puts[at])
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
	}
	return 0, fault.Invalidf("step", nil, "is missing: name a put, a deletion or a range")
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
	case reserved(string(p.GetKey())) && (t.owner != "" || !strings.HasPrefix(string(p.GetKey()), coord.MembersPrefix)): // members' commands have no owner
		return fault.Refused(fault.Conflict, "key", "is reserved: use the commands of the directory or of the group")
	}
	return nil
}
