package coord

import (
	"fmt"
	"math"

	"github.com/blackhole/blackhole/pkg/fault"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

func encodeBatch(o *RegisterBatch) *coordv1.RegisterBatch {
	p := &coordv1.RegisterBatch{Lease: int64(o.Lease), Generation: o.Generation, Puts: make([]*coordv1.Entry, len(o.Puts))}
	for i, e := range o.Puts {
		p.Puts[i] = &coordv1.Entry{Key: []byte(e.Key), Value: e.Value, Adopt: e.Adopt, Since: int64(e.Since)}
	}
	for _, key := range o.Deletes {
		p.Deletes = append(p.Deletes, []byte(key))
	}
	if o.Replace != nil {
		p.Replace = &coordv1.Span{From: []byte(o.Replace.From), To: []byte(o.Replace.To)}
	}
	return p
}

func decodeBatch(p *coordv1.RegisterBatch) *RegisterBatch {
	o := &RegisterBatch{Lease: LeaseID(p.GetLease()), Generation: p.GetGeneration(), Puts: make([]Entry, len(p.GetPuts()))}
	for i, e := range p.GetPuts() {
		o.Puts[i] = Entry{Key: string(e.GetKey()), Value: e.GetValue(), Adopt: e.GetAdopt(), Since: Revision(e.GetSince())}
	}
	for _, key := range p.GetDeletes() {
		o.Deletes = append(o.Deletes, string(key))
	}
	if s := p.GetReplace(); s != nil {
		o.Replace = &Span{From: string(s.GetFrom()), To: string(s.GetTo())}
	}
	return o
}

func decodeSet(p *coordv1.SetRequirement) (Op, error) {
	if p.GetRequirement().GetMin() > MaxRequired {
		return nil, fault.Invalidf("min", p.GetRequirement().GetMin(), "must be at most %d", MaxRequired)
	}
	for i, status := range p.GetRequirement().GetSelector().GetStatuses() {
		if status > math.MaxUint8 {
			return nil, fault.Invalidf(fmt.Sprintf("selector.statuses[%d]", i), status, "is not known")
		}
	}
	return &SetRequirement{Requirement: decodeRequirement(p.GetName(), p.GetRequirement())}, nil
}
