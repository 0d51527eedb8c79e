package machine_test

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/internal/coordination/machine"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// A lock changes hands: the waiter keeps its first token, and the unlocking command grants it the lock.
func Example() {
	m := machine.New()
	index := uint64(0)
	do := func(op proto.Message) (ops.Result, machine.ApplyEffects) {
		index++
		return coordtest.Apply(m, index, 1, coordtest.Command("alice", op))
	}
	one, _ := do(&apiv1.LeaseGrantRequest{TtlMs: 10_000})
	two, _ := do(&apiv1.LeaseGrantRequest{TtlMs: 10_000})
	holder, _ := do(&apiv1.TryLockRequest{Name: "db", LeaseId: int64(one.Lease)})
	waiter, _ := do(&apiv1.LockRequest{TimeoutMs: -1, Name: "db", LeaseId: int64(two.Lease)})
	fmt.Println(holder.Lock.Granted, waiter.Lock.Granted, waiter.Lock.Position)

	_, effects := do(&apiv1.UnlockRequest{Name: "db", LeaseId: int64(one.Lease), FencingToken: int64(holder.Lock.Token)})
	fmt.Println(effects.Grants[0].Token == waiter.Lock.Token)

	late, _ := do(&apiv1.TxnRequest{Compare: []*apiv1.Compare{coordtest.IfHolds("db", holder.Lock.Token)}, Then: []*apiv1.TxnStep{{Step: &apiv1.TxnStep_Put{Put: &apiv1.TxnPut{Key: []byte("schema"), Value: []byte("7")}}}}})
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
		m.Apply(uint64(i+1), 1, coordtest.Command("", &apiv1.TxnRequest{Then: []*apiv1.TxnStep{{Step: &apiv1.TxnStep_Put{Put: &apiv1.TxnPut{Key: []byte(key)}}}}}))
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
