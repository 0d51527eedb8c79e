package machine_test

import (
	"fmt"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

func (g *generator) txn() proto.Message {
	o := g.branches(2)
	return &apiv1.TxnRequest{Compare: o.Compare, Then: o.Then, Else: o.Else}
}

// branches is a transaction with others within it, up to a depth.
func (g *generator) branches(depth int) *apiv1.TxnBranch {
	o := &apiv1.TxnBranch{}
	for range rapid.SampledFrom([]int{0, 0, 1, 2}).Draw(g.t, "comparisons") {
		o.Compare = append(o.Compare, g.compare())
	}
	o.Then = g.steps(depth, rapid.SampledFrom([]int{0, 1, 1, 1, 2, 3}).Draw(g.t, "then"))
	if len(o.Compare) > 0 {
		o.Else = g.steps(depth, rapid.SampledFrom([]int{0, 0, 1, 2}).Draw(g.t, "else"))
	}
	return o
}

func (g *generator) steps(depth, n int) (steps []*apiv1.TxnStep) {
	for i := range n {
		if depth > 0 && g.one(5) {
			steps = append(steps, nested(g.branches(depth-1)))
			continue
		}
		switch rapid.IntRange(0, 7).Draw(g.t, "step") {
		case 0:
			s := coordtest.Delete(g.span())
			s.GetDelete().PrevKv = g.one(2)
			steps = append(steps, s)
		case 1, 2:
			steps = append(steps, &apiv1.TxnStep{Step: &apiv1.TxnStep_Range{Range: g.read()}})
		default:
			p := g.put(i)
			p.PrevKv = g.one(2)
			steps = append(steps, &apiv1.TxnStep{Step: &apiv1.TxnStep_Put{Put: p}})
		}
	}
	return steps
}

func (g *generator) put(i int) *apiv1.TxnPut {
	p := &apiv1.TxnPut{Key: []byte(g.key()), Value: fmt.Append(nil, "v", i)}
	if g.one(3) {
		p.Lease = int64(g.lease())
	}
	if g.one(8) {
		p.KeepValue, p.Value = true, nil
	}
	if g.one(8) {
		p.KeepLease, p.Lease = true, 0
	}
	return p
}

func (g *generator) read() *apiv1.TxnRange {
	r := &apiv1.TxnRange{Descending: g.one(2), KeysOnly: g.one(4), CountOnly: g.one(6)}
	r.Key, r.RangeEnd = coordtest.Ends(g.span())
	r.Limit = rapid.Uint32Range(0, 3).Draw(g.t, "limit")
	r.Order = apiv1.TxnRange_Order(rapid.Int32Range(0, 3).Draw(g.t, "order"))
	if g.one(4) {
		r.Order = apiv1.TxnRange_VALUE
		r.Key, r.RangeEnd = coordtest.Ends(coord.Under("a")) // the model does not know the values of claims
	}
	if g.one(3) {
		r.Revision = rapid.Int64Range(int64(g.m.Compacted()), int64(g.m.Revision())+1).Draw(g.t, "at")
	}
	for _, bound := range []*int64{&r.MinModRevision, &r.MaxModRevision, &r.MinCreateRevision, &r.MaxCreateRevision} {
		if g.one(6) {
			*bound = rapid.Int64Range(1, int64(g.m.Revision())).Draw(g.t, "bound")
		}
	}
	return r
}

func (g *generator) compare() *apiv1.Compare {
	if g.one(3) {
		name, _, token := g.claim()
		return coordtest.IfHolds(name, token)
	}
	key := g.key()
	c := &apiv1.Compare{Key: []byte(key), Operator: apiv1.Compare_Operator(rapid.Int32Range(0, 3).Draw(g.t, "operator"))}
	kv, ok := g.m.Get(key)
	if !ok {
		kv = &coord.KeyValue{}
	}
	switch c.Target = apiv1.Compare_Target(rapid.Int32Range(0, 4).Draw(g.t, "target")); c.Target {
	case apiv1.Compare_VALUE:
		c.Key, c.RangeEnd = coordtest.Ends(coord.Under("a"))
		c.Value = []byte(rapid.SampledFrom([]string{"", "v0", "v1", "v2"}).Draw(g.t, "value"))
		return c
	case apiv1.Compare_MOD_REVISION:
		c.Number = int64(kv.ModRevision)
	case apiv1.Compare_CREATE_REVISION:
		c.Number = int64(kv.CreateRevision)
	case apiv1.Compare_VERSION:
		c.Number = kv.Version
	case apiv1.Compare_LEASE:
		c.Number = int64(kv.Lease)
	}
	if g.one(4) {
		c.Number += rapid.Int64Range(-1, 1).Draw(g.t, "near")
	}
	if g.one(4) {
		c.Key, c.RangeEnd = coordtest.Ends(g.span())
	}
	return c
}

func (g *generator) span() coord.Span {
	switch rapid.IntRange(0, 5).Draw(g.t, "span") {
	case 0:
		return coord.Under(g.key())
	case 1:
		return coord.Span{From: g.key(), To: g.key()}
	case 2:
		return coord.Span{From: g.key()}
	default:
		return coord.Exactly(g.key())
	}
}
