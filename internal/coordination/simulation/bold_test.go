package simulation

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/cryptotest"

	"github.com/blackhole/blackhole/pkg/coord"
)

// boldLeases is the quota of leases of a bold client.
const boldLeases = 4

// deed is something that a client does, with its weight among all.
type deed struct {
	weight int
	do     func(*client, *proc)
}

// boldDeeds are the deeds of bold clients: they use every kind of comparison, reach their quotas, and try forbidden requests.
func boldDeeds() []deed {
	return []deed{{6, transact}, {4, trespass}, {2, hoard}, {3, publish}, {2, bindKeys}, {5, lockAndWrite}}
}

// TestBold plays bold clients. The audit checks what comes of it.
func TestBold(t *testing.T) {
	n, from, d := campaign(t, few, virtual)
	var all figures
	for seed := from; seed < from+n; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			cryptotest.SetGlobalRandom(t, uint64(seed))
			c := newBold(uint64(seed))
			playCluster(t, uint64(seed), c, d)
			all.add(c.figures)
		})
	}
	t.Logf("%+v", all)
}

func newBold(seed uint64) *cluster {
	w := newScheduler(seed)
	c := &cluster{scheduler: w, net: newNetwork(w), resources: make(map[string]*resource), group: groupName}
	c.draw()
	c.bold = true
	c.begin()
	return c
}

func txnKey(c *client) string { return c.anyOf("txn", 5) }

// transact compares some keys, and changes them in either branch. The audit works out what must happen. Half the time it
// has a lease, for some of the keys.
func transact(c *client, p *proc) {
	if c.chance(0.5) {
		if s := c.someLease(p); s != nil {
			defer c.release(p, s)
		}
	}
	for range 1 + c.rng.IntN(3) {
		o := &coord.Txn{}
		for range c.rng.IntN(3) {
			o.If = append(o.If, c.comparison())
		}
		o.Then, o.Else = c.steps(), c.steps()
		c.do(p, o, patience)
	}
}

// comparison compares a property of a key, or of all keys, with a number near those in use.
func (c *client) comparison() coord.Compare {
	q := coord.Compare{Span: coord.Exactly(txnKey(c)), Target: coord.Target(c.rng.IntN(int(coord.Holds))), Operator: coord.Operator(c.rng.IntN(4))}
	if c.chance(0.2) {
		q.Span = coord.Under("txn/")
	}
	var at coord.KeyValue // what the group has at this moment, if the key is there
	if kv, ok := c.oracle.machine.Get(q.Span.From); ok {
		at = *kv
	}
	near := int64(c.rng.IntN(3) - 1)
	switch q.Target {
	case coord.ModRevision:
		q.Number = max(0, int64(at.ModRevision)+near)
	case coord.CreateRevision:
		q.Number = max(0, int64(at.CreateRevision)+near)
	case coord.Version:
		q.Number = max(0, at.Version+near)
	case coord.Value:
		q.Value = string(at.Value)
	case coord.LeaseOf:
		if q.Operator = coord.Operator(c.rng.IntN(2)); c.chance(0.5) {
			q.Number = int64(at.Lease)
		}
	}
	return q
}

// steps puts or deletes some keys, each once.
func (c *client) steps() (steps []coord.Step) {
	leases := slices.Sorted(maps.Keys(c.sessions))
	for i := range 5 {
		key := fmt.Sprintf("txn/%d", i)
		switch c.rng.IntN(6) {
		case 0:
			span := coord.Exactly(key)
			steps = append(steps, coord.Step{Delete: &span})
		case 1, 2:
			one := put(key, c.value(), 0)
			if len(leases) > 0 && c.chance(0.5) {
				one.Put.Lease = leases[0]
			}
			if _, ok := c.oracle.machine.Get(key); ok && c.chance(0.3) { // it may be gone by then
				one.Put.KeepLease, one.Put.Lease = true, 0
			}
			steps = append(steps, one)
		}
	}
	if len(steps) == 0 {
		steps = append(steps, put(txnKey(c), c.value(), 0))
	}
	return steps
}

// trespass uses the lease of another client in every way. None may succeed.
func trespass(c *client, p *proc) {
	var foreign []coord.LeaseID
	for _, l := range c.oracle.machine.Leases() {
		if l.Owner != c.name {
			foreign = append(foreign, l.ID)
		}
	}
	if len(foreign) == 0 {
		return
	}
	id := foreign[c.rng.IntN(len(foreign))]
	answer, ok := c.ask(p, request{keep: []coord.LeaseID{id}}, attempt)
	if ok && len(answer.kept) == 1 && answer.kept[0].TTL != 0 {
		c.breach("L6", "%s renewed lease %d of another client", c.name, id)
	}
	tries := []coord.Op{
		&coord.Txn{Then: []coord.Step{put("bound/"+c.name+"/theirs", c.value(), id)}}, &coord.Lock{Name: "theirs", Lease: id},
		&coord.RegisterBatch{Lease: id, Generation: 1 << 40, Replace: &coord.Span{}}, &coord.LeaseRevoke{ID: id},
	}
	for _, key := range c.oracle.machine.LeaseKeys(id) {
		if kv, _ := c.oracle.machine.Get(key); kv.LockClaim != nil {
			tries = append(tries, &coord.Unlock{Name: kv.LockClaim.Lock, Lease: id, Token: kv.Token()}, &coord.Cancel{Name: kv.LockClaim.Lock, Lease: id, Token: kv.Token()})
		}
	}
	try := tries[c.rng.IntN(len(tries))]
	if _, r, ok := c.do(p, try, patience); ok && r.Err == nil {
		c.breach("L6", "%s used lease %d of another client: %+v", c.name, id, try)
	}
}

// hoard asks for more leases than a client may have. It renews them once, at about the time of their end, and then lets them expire.
func hoard(c *client, p *proc) {
	var all []coord.LeaseID
	for range boldLeases + 2 {
		_, r, ok := c.do(p, &coord.LeaseGrant{TTL: c.ttl.Milliseconds()}, patience)
		if !ok || r.Err != nil {
			break
		}
		all = append(all, r.Lease)
	}
	if len(all) > 0 {
		p.sleep(c.between(c.ttl/2, 2*c.ttl))
		c.ask(p, request{keep: all}, attempt)
	}
}
