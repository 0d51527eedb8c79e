package machine

import (
	"fmt"
	"slices"
	"strings"

	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

// check looks at the comparisons and both branches by themselves.
func (t *txn) check() error {
	if len(t.If)+len(t.Then)+len(t.Else) == 0 {
		return fault.Invalidf("then", nil, "is missing")
	}
	left := int64(t.m.limits.TxnBytes)
	if most := uint64(t.m.limits.Changes); uint64(len(t.If)) > most {
		return limitReached("compare", "too many comparisons in one transaction", most)
	}
	for i := range t.If {
		c := &t.If[i]
		field := fmt.Sprintf("compare[%d]", i)
		if err := fault.In(field, t.comparable(c)); err != nil {
			return err
		}
		if err := t.fits(field, &left, len(c.Span.From)+len(c.Span.To)+len(c.Value)+len(c.Lock)); err != nil {
			return err
		}
	}
	if err := t.branch("then", t.Then, &left); err != nil {
		return err
	}
	return t.branch("else", t.Else, &left)
}

// fits counts the bytes of a part of the transaction.
func (t *txn) fits(field string, left *int64, size int) error {
	if *left -= int64(size); *left < 0 {
		return fault.Refused(fault.TooLarge, field, "the transaction exceeds %d bytes: split it", t.m.limits.TxnBytes)
	}
	return nil
}

func (t *txn) comparable(c *coord.Compare) error {
	if c.Target > coord.Holds {
		return fault.Invalidf("target", uint8(c.Target), "is not known")
	}
	if c.Operator > coord.Greater {
		return fault.Invalidf("operator", uint8(c.Operator), "is not known")
	}
	if c.Target == coord.Holds {
		if c.Operator != coord.Equal {
			return fault.Invalidf("operator", c.Operator, "must be = for a fencing token")
		}
		return nil
	}
	if c.Target == coord.LeaseOf && (c.Operator == coord.Less || c.Operator == coord.Greater) && c.Number != 0 {
		return fault.Invalidf("operator", c.Operator, "goes only with the lease 0: an order of leases would reveal their ids")
	}
	return t.span(c.Span)
}

// span checks the bounds of a span.
func (t *txn) span(s coord.Span) error {
	if s == coord.Exactly(s.From) {
		return t.m.limits.key("key", s.From)
	}
	if most := int64(t.m.limits.KeyBytes); int64(len(s.From)) > most+1 {
		return tooLarge("key", len(s.From), most)
	} else if int64(len(s.To)) > most+1 {
		return tooLarge("range_end", len(s.To), most)
	}
	return nil
}

// branch checks the steps of a branch, which may be the one that is not taken.
func (t *txn) branch(name string, steps []coord.Step, left *int64) error {
	if most := uint64(t.m.limits.Changes); uint64(len(steps)) > most {
		return limitReached(name, "too many steps in one branch of a transaction", most)
	}
	var puts []string
	for i := range steps {
		field := fmt.Sprintf("%s[%d]", name, i)
		size, err := t.wellFormed(&steps[i])
		if err != nil {
			return fault.In(field, err)
		}
		if err := t.fits(field, left, size); err != nil {
			return err
		}
		if steps[i].Put != nil {
			puts = append(puts, steps[i].Put.Key)
		}
	}
	slices.Sort(puts)
	for i := 1; i < len(puts); i++ {
		if puts[i] == puts[i-1] {
			return fault.Invalidf(name, nil, "puts the key %q twice", puts[i])
		}
	}
	for i, s := range steps {
		if s.Delete == nil {
			continue
		}
		if at, _ := slices.BinarySearch(puts, s.Delete.From); at < len(puts) && s.Delete.Contains(puts[at]) {
			return fault.Invalidf(fmt.Sprintf("%s[%d]", name, i), nil, "deletes the key %q, which another step puts", puts[at])
		}
	}
	return nil
}

// wellFormed checks a step by itself, and returns its size in bytes.
func (t *txn) wellFormed(s *coord.Step) (size int, err error) {
	if err := s.Check(); err != nil {
		return 0, err
	}
	switch {
	case s.Put != nil:
		return len(s.Put.Key) + len(s.Put.Value), t.puttable(s.Put)
	case s.Delete != nil:
		return len(s.Delete.From) + len(s.Delete.To), t.span(*s.Delete)
	case s.Read.Order > coord.ByValue:
		return 0, fault.Invalidf("order", uint8(s.Read.Order), "is not known")
	}
	return len(s.Read.Span.From) + len(s.Read.Span.To), t.span(s.Read.Span)
}

// puttable checks a put by itself.
func (t *txn) puttable(p *coord.Put) error {
	if err := t.m.limits.key("key", p.Key); err != nil {
		return err
	}
	if err := t.m.limits.value("value", p.Value); err != nil {
		return err
	}
	switch {
	case p.KeepValue && len(p.Value) > 0:
		return fault.Invalidf("value", nil, "does not go with keep_value")
	case p.KeepLease && p.Lease != 0:
		return fault.Invalidf("lease", nil, "does not go with keep_lease")
	case reserved(p.Key) && (t.owner != "" || !strings.HasPrefix(p.Key, coord.MembersPrefix)): // members' commands have no owner
		return fault.Refused(fault.Conflict, "key", "is reserved: use the commands of the directory or of the group")
	}
	return nil
}
