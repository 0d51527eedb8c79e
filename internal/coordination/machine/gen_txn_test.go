package machine_test

import (
	"fmt"

	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/pkg/coord"
)

func (g *generator) txn() coord.Op {
	o := &coord.Txn{}
	for range rapid.SampledFrom([]int{0, 0, 1, 2}).Draw(g.t, "comparisons") {
		o.If = append(o.If, g.compare())
	}
	o.Then = g.steps(rapid.SampledFrom([]int{0, 1, 1, 1, 2, 3}).Draw(g.t, "then"))
	if len(o.If) > 0 {
		o.Else = g.steps(rapid.SampledFrom([]int{0, 0, 1, 2}).Draw(g.t, "else"))
	}
	return o
}

func (g *generator) steps(n int) (steps []coord.Step) {
	for i := range n {
		switch rapid.IntRange(0, 7).Draw(g.t, "step") {
		case 0:
			span := g.span()
			steps = append(steps, coord.Step{Delete: &span, Prev: g.one(2)})
		case 1, 2:
			steps = append(steps, coord.Step{Read: g.read()})
		default:
			steps = append(steps, coord.Step{Put: g.put(i), Prev: g.one(2)})
		}
	}
	return steps
}

func (g *generator) put(i int) *coord.Put {
	p := &coord.Put{Key: g.key(), Value: fmt.Append(nil, "v", i)}
	if g.one(3) {
		p.Lease = g.lease()
	}
	if g.one(8) {
		p.KeepValue, p.Value = true, nil
	}
	if g.one(8) {
		p.KeepLease, p.Lease = true, 0
	}
	return p
}

func (g *generator) read() *coord.Read {
	r := &coord.Read{Query: coord.Query{Span: g.span(), Descending: g.one(2), KeysOnly: g.one(4), CountOnly: g.one(6)}}
	r.Limit = rapid.IntRange(0, 3).Draw(g.t, "limit")
	r.Order = coord.Order(rapid.IntRange(0, 3).Draw(g.t, "order"))
	if g.one(4) {
		r.Span, r.Order = coord.Under("a"), coord.ByValue // the model does not know the values of claims
	}
	if g.one(3) {
		r.At = coord.Revision(rapid.Int64Range(int64(g.m.Compacted()), int64(g.m.Revision())+1).Draw(g.t, "at"))
	}
	for _, bound := range []*coord.Revision{&r.MinMod, &r.MaxMod, &r.MinCreate, &r.MaxCreate} {
		if g.one(6) {
			*bound = coord.Revision(rapid.Int64Range(1, int64(g.m.Revision())).Draw(g.t, "bound"))
		}
	}
	return r
}

func (g *generator) compare() coord.Compare {
	if g.one(3) {
		name, _, token := g.claim()
		return coord.IfHolds(name, token)
	}
	key := g.key()
	c := coord.Compare{Span: coord.Exactly(key), Operator: coord.Operator(rapid.IntRange(0, 3).Draw(g.t, "operator"))}
	kv, ok := g.m.Get(key)
	if !ok {
		kv = &coord.KeyValue{}
	}
	switch c.Target = coord.Target(rapid.IntRange(0, 4).Draw(g.t, "target")); c.Target {
	case coord.Value:
		c.Span, c.Value = coord.Under("a"), rapid.SampledFrom([]string{"", "v0", "v1", "v2"}).Draw(g.t, "value")
		return c
	case coord.ModRevision:
		c.Number = int64(kv.ModRevision)
	case coord.CreateRevision:
		c.Number = int64(kv.CreateRevision)
	case coord.Version:
		c.Number = kv.Version
	case coord.LeaseOf:
		c.Number = int64(kv.Lease)
	}
	if g.one(4) {
		c.Number += rapid.Int64Range(-1, 1).Draw(g.t, "near")
	}
	if g.one(4) {
		c.Span = g.span()
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
