package machine_test

import (
	"fmt"

	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/pkg/coord"
)

// A lock changes hands: the waiter keeps its first token, and the unlocking command grants it the lock.
func Example() {
	m := machine.New()
	index := uint64(0)
	do := func(op coord.Op) (coord.Result, machine.ApplyEffects) {
		index++
		return m.Apply(index, 1, message(coord.Command{Owner: "alice", Op: op}))
	}
	one, _ := do(&coord.LeaseGrant{TTL: 10_000})
	two, _ := do(&coord.LeaseGrant{TTL: 10_000})
	holder, _ := do(&coord.Lock{Name: "db", Lease: one.Lease})
	waiter, _ := do(&coord.Lock{Name: "db", Lease: two.Lease, Wait: true})
	fmt.Println(holder.Lock.Granted, waiter.Lock.Granted, waiter.Lock.Position)

	_, effects := do(&coord.Unlock{Name: "db", Lease: one.Lease, Token: holder.Lock.Token})
	fmt.Println(effects.Grants[0].Token == waiter.Lock.Token)

	late, _ := do(&coord.Txn{
		If:   []coord.Compare{coord.IfHolds("db", holder.Lock.Token)},
		Then: []coord.Step{{Put: &coord.Put{Key: "schema", Value: []byte("7")}}},
	})
	fmt.Println(late.Txn.Succeeded, late.Txn.Reason)
	// Output:
	// true false 1
	// true
	// false fencing_token 2 does not hold the lock
}

// A watcher is a revision to go on from.
func ExampleKeyspace_Events() {
	m := machine.New()
	for i, key := range []string{"svc/a", "other", "svc/b"} {
		m.Apply(uint64(i+1), 1, message(coord.Command{Op: &coord.Txn{Then: []coord.Step{{Put: &coord.Put{Key: key}}}}}))
	}
	watch := coord.Watch{Span: coord.Under("svc/"), From: 1}
	batch, err := m.Events(watch)
	for _, e := range batch.Events {
		fmt.Println(e.Revision, e.Key)
	}
	fmt.Println("next", batch.Next, batch.More, err)
	// Output:
	// 2 svc/a
	// 4 svc/b
	// next 5 false <nil>
}
