package coord

import (
	"fmt"
	"math"

	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

func txnRequest(o *Txn) (*apiv1.TxnRequest, error) {
	r := &apiv1.TxnRequest{}
	for i, c := range o.If {
		if err := checkUTF8(fmt.Sprintf("compare[%d].lock", i), c.Lock); err != nil {
			return nil, err
		}
		r.Compare = append(r.Compare, compareMessage(c))
	}
	var err error
	if r.Then, err = stepMessages("then", o.Then); err != nil {
		return nil, err
	}
	r.Else, err = stepMessages("else", o.Else)
	return r, err
}

func compareMessage(c Compare) *apiv1.Compare {
	m := &apiv1.Compare{Target: apiv1.Compare_Target(c.Target), Operator: apiv1.Compare_Operator(c.Operator), Number: c.Number}
	switch c.Target {
	case Holds:
		m.Lock, m.FencingToken = c.Lock, int64(c.Token)
		return m
	case Value:
		m.Value = []byte(c.Value)
	}
	m.Key, m.RangeEnd = c.Span.ends()
	return m
}

func stepMessages(branch string, steps []Step) ([]*apiv1.TxnStep, error) {
	var all []*apiv1.TxnStep
	for i, s := range steps {
		if err := s.Check(); err != nil {
			return nil, fault.In(fmt.Sprintf("%s[%d]", branch, i), err)
		}
		m := &apiv1.TxnStep{}
		switch {
		case s.Put != nil:
			m.Step = &apiv1.TxnStep_Put{Put: &apiv1.TxnPut{
				Key: []byte(s.Put.Key), Value: s.Put.Value, Lease: int64(s.Put.Lease), PrevKv: s.Prev,
				KeepValue: s.Put.KeepValue, KeepLease: s.Put.KeepLease,
			}}
		case s.Delete != nil:
			from, to := s.Delete.ends()
			m.Step = &apiv1.TxnStep_Delete{Delete: &apiv1.TxnDelete{Key: from, RangeEnd: to, PrevKv: s.Prev}}
		default:
			m.Step = &apiv1.TxnStep_Range{Range: readMessage(s.Read)}
		}
		all = append(all, m)
	}
	return all, nil
}

func readMessage(r *Read) *apiv1.TxnRange {
	from, to := r.Span.ends()
	return &apiv1.TxnRange{
		Key: from, RangeEnd: to, Revision: int64(r.At), Limit: uint32(min(max(r.Limit, 0), math.MaxUint32)),
		Order: apiv1.TxnRange_Order(r.Order), Descending: r.Descending, KeysOnly: r.KeysOnly, CountOnly: r.CountOnly,
		MinModRevision: int64(r.MinMod), MaxModRevision: int64(r.MaxMod),
		MinCreateRevision: int64(r.MinCreate), MaxCreateRevision: int64(r.MaxCreate),
	}
}

// ends is Bounds without an end for the span of one key.
func (s Span) ends() (from, to []byte) {
	if s.From != "" && s == Exactly(s.From) {
		return []byte(s.From), nil
	}
	return s.Bounds()
}

// Bounds returns a span in the API's form: first key and end. The end "\x00" means the end of the
// keyspace, as in etcd. See SpanOf.
func (s Span) Bounds() (from, to []byte) {
	switch s.To {
	case "":
		s.To = "\x00"
	case "\x00":
		s = Span{From: "\x01", To: "\x01"} // no key
	}
	return []byte(s.From), []byte(s.To)
}

// SpanOf returns the span of Bounds. No key sorts before "\x00", so "\x00" can mean the end.
func SpanOf(from, to []byte) Span {
	if string(to) == "\x00" {
		return Span{From: string(from)}
	}
	return Span{From: string(from), To: string(to)}
}
