package tour

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/testnet/await"
	"github.com/blackhole/blackhole/testnet/network"
)

const (
	leaseTTL  = 30 * time.Second
	lastingly = time.Hour // a lease that outlives the restart of everything
	handovers = 20        // of the contended lock
	takeover  = time.Minute
)

// lockHandedOver lets the clients of two peers contend for one lock. Waiters get it in the order
// of arrival, each time with a greater token.
func lockHandedOver(ctx context.Context, t *Tour) (string, error) {
	const name = "tour/contended"
	state, err := group(ctx, t.consumer())
	if err != nil {
		return "", err
	}
	here, there := t.consumer(), t.bystander(state.Leader)
	var sessions [2]*client.Session
	for i, p := range []*network.Peer{here, there} {
		if sessions[i], err = p.Session(ctx, client.TTL(leaseTTL)); err != nil {
			return "", fault.Wrap(p.Name, err)
		}
		defer sessions[i].Close(context.WithoutCancel(ctx))
	}
	held, err := sessions[0].Lock(ctx, name)
	if err != nil {
		return "", err
	}
	began, last := time.Now(), held.Token()
	for i := range handovers {
		next := make(chan error, 1)
		var got *client.Held
		go func() { // ends with ctx at the latest; the caller waits for it
			var err error
			got, err = sessions[(i+1)%2].Lock(ctx, name)
			next <- err
		}()
		if err := t.awaitQueue(ctx, name, 1); err != nil {
			return "", errors.Join(err, held.Unlock(ctx), <-next)
		}
		if err := errors.Join(held.Unlock(ctx), <-next); err != nil {
			return "", err
		}
		if held = got; held.Token() <= last {
			return "", fault.New("tour.lockHandedOver", fault.Conflict, "token %d after %d", held.Token(), last)
		}
		last = held.Token()
	}
	took := time.Since(began)
	return fmt.Sprintf("%d times between clients of %s and %s, last token %d, %v each", handovers, here.Name, there.Name, last,
		(took / handovers).Round(10*time.Microsecond)), held.Unlock(ctx)
}

// awaitQueue waits until n claims wait for a lock.
func (t *Tour) awaitQueue(ctx context.Context, name string, n int) error {
	return await.Until(ctx, callLimit, "a waiter for "+name, func(ctx context.Context) error {
		locks, _, err := ops.Of(t.consumer().Coordination()).Locks(ctx, ops.LockQuery{Name: name})
		if err != nil {
			return err
		}
		if got := len(locks[0].Waiting); got != n {
			return fault.New("tour.awaitQueue", fault.Unavailable, "%d wait, not %d", got, n)
		}
		return nil
	})
}

// leaderKilled kills the leader of the group by SIGKILL under a held lock. The lock stays held
// with the same token, and the next lock is acquired under a new leader.
func leaderKilled(ctx context.Context, t *Tour) (string, error) {
	state, err := t.awaitGroup(ctx, formed, allActive)
	if err != nil {
		return "", err
	}
	t.killed = t.living(state.Leader)
	by := t.bystander(state.Leader)
	session, err := by.Session(ctx, client.TTL(leaseTTL))
	if err != nil {
		return "", fault.Wrap(by.Name, err)
	}
	defer session.Close(context.WithoutCancel(ctx))
	kept, err := session.Lock(ctx, "tour/kept")
	if err != nil {
		return "", err
	}
	began := time.Now()
	t.killed.Kill()
	next, err := t.lockWithin(ctx, session, "tour/next")
	if err != nil {
		return "", err
	}
	took := time.Since(began)
	if next.Token() <= kept.Token() {
		return "", fault.New("tour.leaderKilled", fault.Conflict, "token %d after %d", next.Token(), kept.Token())
	}
	if err := stillHeld(ctx, by, "tour/kept", kept.Token()); err != nil {
		return "", err
	}
	t.Failover = took
	return fmt.Sprintf("%s killed; next lock %v later, token %d; the lock held before is still held by token %d",
			t.killed.Name, took.Round(time.Millisecond), next.Token(), kept.Token()),
		errors.Join(kept.Check(), next.Unlock(ctx), kept.Unlock(ctx))
}

func (t *Tour) lockWithin(ctx context.Context, s *client.Session, name string) (*client.Held, error) {
	ctx, cancel := context.WithTimeout(ctx, takeover)
	defer cancel()
	return s.Lock(ctx, name)
}

// restartAll kills every peer by SIGKILL and starts all again. The same group returns from disk,
// with the held lock, and the directory has the instances of every peer once.
func restartAll(ctx context.Context, t *Tour) (string, error) {
	const name = "tour/lasting"
	before, err := t.awaitGroup(ctx, formed, func(coord.GroupState) error { return nil })
	if err != nil {
		return "", err
	}
	session, err := t.bystander(before.Leader).Session(ctx, client.TTL(lastingly))
	if err != nil {
		return "", err
	}
	claim, err := session.Lock(ctx, name)
	if err != nil {
		return "", err
	}
	began := time.Now()
	if err := t.Network.RestartAll(ctx); err != nil {
		return "", err
	}
	after, err := t.awaitGroup(ctx, revived, func(coord.GroupState) error { return nil })
	if err != nil {
		return "", err
	}
	took := time.Since(began)
	if after.ID != before.ID {
		return "", fault.New("tour.restartAll", fault.Conflict, "group %.8s became %.8s", before.ID, after.ID)
	}
	if err := stillHeld(ctx, t.consumer(), name, claim.Token()); err != nil {
		return "", err
	}
	if err := t.followAll(ctx, resident, present(t.residents...)); err != nil {
		return "", err
	}
	return fmt.Sprintf("all %d peers killed and started in %v; group %.8s, lock still held by token %d, %d instances at every peer after %v",
		len(t.Network.Peers), took.Round(time.Millisecond), after.ID, claim.Token(), len(t.residents), time.Since(began).Round(time.Millisecond)), nil
}

// stillHeld asks a peer whether a lock is held by a token.
func stillHeld(ctx context.Context, p *network.Peer, name string, token client.Token) error {
	locks, _, err := ops.Of(p.Coordination()).Locks(ctx, ops.LockQuery{Name: name})
	switch {
	case err != nil:
		return fault.Wrap(p.Name, err)
	case len(locks[0].Holding) != 1 || locks[0].Holding[0].Token != token:
		return fault.New("tour.stillHeld", fault.Conflict, "%s changed hands: %v", name, locks[0].Holding)
	}
	return nil
}
