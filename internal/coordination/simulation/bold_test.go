package simulation

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/cryptotest"

	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
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
		o := &apiv1.TxnRequest{}
		for range c.rng.IntN(3) {
			o.Compare = append(o.Compare, c.comparison())
		}
		o.Then, o.Else = c.steps(), c.steps()
		if c.chance(0.3) { // the last steps are one within
			n := c.rng.IntN(len(o.Then))
			within := &apiv1.TxnBranch{Compare: []*apiv1.Compare{c.comparison()}, Then: o.Then[n:]}
			o.Then = append(o.Then[:n:n], &apiv1.TxnStep{Step: &apiv1.TxnStep_Txn{Txn: within}})
		}
		c.do(p, o, patience)
	}
}

// comparison compares a property of a key, or of all keys, with a number near those in use.
func (c *client) comparison() *apiv1.Compare {
	q := &apiv1.Compare{
		Key: []byte(txnKey(c)), Target: apiv1.Compare_Target(c.rng.IntN(int(apiv1.Compare_HOLDS))), Operator: apiv1.Compare_Operator(c.rng.IntN(4)),
	}
	if c.chance(0.2) {
		q.Key, q.RangeEnd = coord.Under("txn/").Bounds()
	}
	var at coord.KeyValue // what the group has at this moment, if the key is there
	if kv, ok := c.oracle.machine.Get(string(q.Key)); ok {
		at = *kv
	}
	near := int64(c.rng.IntN(3) - 1)
	switch q.Target {
	case apiv1.Compare_MOD_REVISION:
		q.Number = max(0, int64(at.ModRevision)+near)
	case apiv1.Compare_CREATE_REVISION:
		q.Number = max(0, int64(at.CreateRevision)+near)
	case apiv1.Compare_VERSION:
		q.Number = max(0, at.Version+near)
	case apiv1.Compare_VALUE:
		q.Value = at.Value
	case apiv1.Compare_LEASE:
		if q.Operator = apiv1.Compare_Operator(c.rng.IntN(2)); c.chance(0.5) {
			q.Number = int64(at.Lease)
		}
	}
	return q
}

// steps puts or deletes some keys, each once.
func (c *client) steps() (steps []*apiv1.TxnStep) {
	leases := slices.Sorted(maps.Keys(c.sessions))
	for i := range 5 {
		key := fmt.Sprintf("txn/%d", i)
		switch c.rng.IntN(6) {
		case 0:
			steps = append(steps, coordtest.Delete(coord.Exactly(key)))
		case 1, 2:
			one := put(key, c.value(), 0)
			if len(leases) > 0 && c.chance(0.5) {
				one.GetPut().Lease = int64(leases[0])
			}
			if _, ok := c.oracle.machine.Get(key); ok && c.chance(0.3) { // it may be gone by then
				one.GetPut().KeepLease, one.GetPut().Lease = true, 0
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
	tries := []proto.Message{
		&apiv1.TxnRequest{Then: []*apiv1.TxnStep{put("bound/"+c.name+"/theirs", c.value(), id)}}, &apiv1.TryLockRequest{Name: "theirs", LeaseId: int64(id)},
		&apiv1.PublishInstancesRequest{LeaseId: int64(id), Generation: 1 << 40, Replace: true, RangeEnd: []byte{0}}, &apiv1.LeaseRevokeRequest{Id: int64(id)},
	}
	for _, key := range c.oracle.machine.LeaseKeys(id) {
		if kv, _ := c.oracle.machine.Get(key); kv.LockClaim != nil {
			tries = append(tries, &apiv1.UnlockRequest{Name: kv.LockClaim.Lock, LeaseId: int64(id), FencingToken: int64(kv.Token())}, &coordv1.Cancel{Name: kv.LockClaim.Lock, Lease: int64(id), Token: int64(kv.Token())})
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
		_, r, ok := c.do(p, &apiv1.LeaseGrantRequest{TtlMs: c.ttl.Milliseconds()}, patience)
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
