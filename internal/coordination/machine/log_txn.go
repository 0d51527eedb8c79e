package machine

import (
	"fmt"
	"math"

	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

func txnOf(p *apiv1.TxnRequest) coord.Op {
	o := &coord.Txn{}
	for i, c := range p.GetCompare() {
		compare, err := compareOf(c)
		if err != nil {
			return &coord.Malformed{Err: fault.In(fmt.Sprintf("compare[%d]", i), err)}
		}
		o.If = append(o.If, compare)
	}
	var err error
	if o.Then, err = stepsOf(p.GetThen()); err != nil {
		return &coord.Malformed{Err: fault.In("then", err)}
	}
	if o.Else, err = stepsOf(p.GetElse()); err != nil {
		return &coord.Malformed{Err: fault.In("else", err)}
	}
	return o
}

func compareOf(c *apiv1.Compare) (coord.Compare, error) {
	o := coord.Compare{
		Target: coord.Target(number(c.GetTarget())), Operator: coord.Operator(number(c.GetOperator())),
		Number: c.GetNumber(), Value: string(c.GetValue()), Lock: c.GetLock(), Token: coord.Token(c.GetFencingToken()),
	}
	if isLock := o.Target == coord.Holds; !isLock && (o.Lock != "" || o.Token != 0) {
		return o, fault.Invalidf("lock", nil, "goes only with the target HOLDS")
	} else if isLock && (len(c.GetKey())+len(c.GetRangeEnd()) > 0 || o.Number != 0) {
		return o, fault.Invalidf("key", nil, "does not go with the target HOLDS")
	} else if isLock {
		return o, nil
	}
	if o.Target != coord.Value && o.Value != "" {
		return o, fault.Invalidf("value", nil, "goes only with the target VALUE")
	}
	if o.Target == coord.Value && o.Number != 0 {
		return o, fault.Invalidf("number", nil, "does not go with the target VALUE")
	}
	var err error
	o.Span, err = spanOf(c)
	return o, err
}

// number keeps an unknown value of an enumeration unknown in eight bits.
func number[E ~int32](e E) uint8 {
	if e < 0 || e > math.MaxUint8 {
		return math.MaxUint8
	}
	return uint8(e)
}

// ranged is what names a key or a range of keys.
type ranged interface {
	GetKey() []byte
	GetRangeEnd() []byte
}

func spanOf(r ranged) (coord.Span, error) {
	switch {
	case len(r.GetRangeEnd()) > 0:
		return coord.SpanOf(r.GetKey(), r.GetRangeEnd()), nil
	case len(r.GetKey()) == 0:
		return coord.Span{}, fault.Invalidf("key", nil, "is missing")
	}
	return coord.Exactly(string(r.GetKey())), nil
}

func stepsOf(list []*apiv1.TxnStep) (steps []coord.Step, err error) {
	for i, s := range list {
		var step coord.Step
		switch r := s.GetStep().(type) {
		case *apiv1.TxnStep_Put:
			step = coord.Step{Prev: r.Put.GetPrevKv(), Put: &coord.Put{
				Key: string(r.Put.GetKey()), Value: r.Put.GetValue(), Lease: coord.LeaseID(r.Put.GetLease()),
				KeepValue: r.Put.GetKeepValue(), KeepLease: r.Put.GetKeepLease(),
			}}
		case *apiv1.TxnStep_Delete:
			var span coord.Span
			span, err = spanOf(r.Delete)
			step = coord.Step{Prev: r.Delete.GetPrevKv(), Delete: &span}
		case *apiv1.TxnStep_Range:
			step.Read, err = readOf(r.Range)
		default:
			err = fault.Invalidf("step", nil, "is missing: name a put, a deletion or a range")
		}
		if err != nil {
			return nil, fault.In(fmt.Sprintf("[%d]", i), err)
		}
		steps = append(steps, step)
	}
	return steps, nil
}

func readOf(r *apiv1.TxnRange) (*coord.Read, error) {
	span, err := spanOf(r)
	return &coord.Read{
		Query: coord.Query{
			Span: span, At: coord.Revision(r.GetRevision()), Limit: int(r.GetLimit()),
			Order: coord.Order(number(r.GetOrder())), Descending: r.GetDescending(), KeysOnly: r.GetKeysOnly(), CountOnly: r.GetCountOnly(),
		},
		MinMod: coord.Revision(r.GetMinModRevision()), MaxMod: coord.Revision(r.GetMaxModRevision()),
		MinCreate: coord.Revision(r.GetMinCreateRevision()), MaxCreate: coord.Revision(r.GetMaxCreateRevision()),
	}, err
}
