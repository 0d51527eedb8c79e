package tour

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/client/fence"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/testnet/await"
	"github.com/blackhole/blackhole/testnet/network"
)

// Time limits of the group.
const (
	formed   = 2 * time.Minute // from the start of the peers to their group
	replaced = 2 * time.Minute // from the end of a voter to its replacement
	revived  = 2 * time.Minute // from the restart of all peers to their group
)

// groupFormed waits until every peer knows the same group of three voters, and its leader.
func groupFormed(ctx context.Context, t *Tour) (string, error) {
	state, err := t.awaitGroup(ctx, formed, func(coord.GroupState) error { return nil })
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("group %.8s of %d voters, %d learners; %s leads in term %d",
		state.ID, len(state.Voters), len(state.Learners), t.nameOf(state.Leader), state.Term), nil
}

// awaitGroup waits until all living peers know one group with all voters, a living leader, and
// the property fits.
func (t *Tour) awaitGroup(ctx context.Context, limit time.Duration, fits func(coord.GroupState) error) (coord.GroupState, error) {
	var agreed coord.GroupState
	err := await.Until(ctx, limit, "one coordination group", func(ctx context.Context) error {
		agreed = coord.GroupState{}
		for _, p := range t.Network.Living() {
			s, err := group(ctx, p)
			switch {
			case err != nil:
				return err
			case s.ID == "" || s.Missing != "":
				return fault.New(p.Name, fault.Unavailable, "%s: %s", s.Phase, s.Missing)
			case len(s.Voters) != min(voters, t.Network.Founding()):
				return fault.New(p.Name, fault.Unavailable, "%d voters", len(s.Voters))
			case t.living(s.Leader) == nil:
				return fault.New(p.Name, fault.Unavailable, "%q leads, which does not run", s.Leader)
			case agreed.ID != "" && (agreed.ID != s.ID || agreed.Leader != s.Leader):
				return fault.New(p.Name, fault.Conflict, "knows group %.8s led by %s, others %.8s led by %s", s.ID, s.Leader, agreed.ID, agreed.Leader)
			}
			if err := fits(s); err != nil {
				return fault.Wrap(p.Name, err)
			}
			agreed = s
		}
		return nil
	})
	return agreed, err
}

// voters is the number of voters with enough founders.
const voters = 3

func group(ctx context.Context, p *network.Peer) (coord.GroupState, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	s, err := p.Coordination().Group(ctx)
	return s, fault.Wrap(p.Name, err)
}

// living returns the running peer with an id, or nil.
func (t *Tour) living(id string) *network.Peer {
	for _, p := range t.Network.Living() {
		if p.ID.String() == id {
			return p
		}
	}
	return nil
}

func (t *Tour) nameOf(id string) string {
	for _, p := range t.Network.Peers {
		if p.ID.String() == id {
			return p.Name
		}
	}
	return id
}

// bystander returns a running peer that does not lead the group.
func (t *Tour) bystander(leader string) *network.Peer {
	all := t.Network.Living()
	slices.Reverse(all) // founders come first
	for _, p := range all {
		if p.ID.String() != leader {
			return p
		}
	}
	return nil
}

// voterReplaced waits until another founder votes in place of the killed leader. Without a spare
// founder the killed peer returns and votes again.
func voterReplaced(ctx context.Context, t *Tour) (string, error) {
	lost := t.killed
	if lost == nil {
		return "", fault.New("tour.voterReplaced", fault.Invalid, "no leader was killed")
	}
	began := time.Now()
	if t.Network.Founding() <= voters {
		if err := t.Network.Restart(ctx, lost); err != nil {
			return "", err
		}
		state, err := t.awaitGroup(ctx, replaced, allActive)
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("nobody to spare: %s restarted, %d voters active again after %v",
			lost.Name, len(state.Voters), time.Since(began).Round(time.Millisecond)), nil
	}
	state, err := t.awaitGroup(ctx, replaced, func(s coord.GroupState) error {
		if slices.ContainsFunc(s.Voters, func(m coord.Member) bool { return m.Peer == lost.ID.String() }) {
			return fault.New("tour.voterReplaced", fault.Unavailable, "%s still votes", lost.Name)
		}
		return allActive(s)
	})
	if err != nil {
		return "", err
	}
	names := make([]string, len(state.Voters))
	for i, m := range state.Voters {
		names[i] = t.nameOf(m.Peer)
	}
	return fmt.Sprintf("%s voted out %v later; now %v vote", lost.Name, time.Since(began).Round(time.Millisecond), names), nil
}

func allActive(s coord.GroupState) error {
	for _, m := range s.Voters {
		if !m.Active {
			return fault.New("tour.allActive", fault.Unavailable, "voter %s is silent", m.Peer)
		}
	}
	return nil
}

const (
	leaseTTL  = 30 * time.Second
	lastingly = time.Hour // a lease that outlives the restart of everything
	handovers = 20        // of the contended lock
	takeover  = time.Minute
)

// lockHandedOver lets the clients of two peers contend for one lock. Waiters get it in the order
// of arrival, each time with a greater token.
func lockHandedOver(ctx context.Context, t *Tour) (string, error) {
	const name = "deploy/web"
	state, err := group(ctx, t.consumer())
	if err != nil {
		return "", err
	}
	here, there := t.consumer(), t.bystander(state.Leader)
	var sessions [2]*client.Session
	for i, p := range []*network.Peer{here, there} {
		if sessions[i], err = p.Locks().Session(ctx, client.TTL(leaseTTL)); err != nil {
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
	session, err := by.Locks().Session(ctx, client.TTL(leaseTTL))
	if err != nil {
		return "", fault.Wrap(by.Name, err)
	}
	defer session.Close(context.WithoutCancel(ctx))
	const lasting, later = "backups/nightly", "backups/weekly"
	kept, err := session.Lock(ctx, lasting)
	if err != nil {
		return "", err
	}
	began := time.Now()
	t.killed.Kill()
	next, err := t.lockWithin(ctx, session, later)
	if err != nil {
		return "", err
	}
	took := time.Since(began)
	if next.Token() <= kept.Token() {
		return "", fault.New("tour.leaderKilled", fault.Conflict, "token %d after %d", next.Token(), kept.Token())
	}
	if err := stillHeld(ctx, by, lasting, kept.Token()); err != nil {
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
// with the held lock, and the directory has the instance of every peer once.
func restartAll(ctx context.Context, t *Tour) (_ string, err error) {
	const name = "backups/monthly"
	demo, err := t.tidy(ctx)
	if err != nil {
		return "", err
	}
	before, err := t.awaitGroup(ctx, formed, func(coord.GroupState) error { return nil })
	if err != nil {
		return "", err
	}
	by := slices.Index(t.Network.Peers, t.bystander(before.Leader))
	session, err := t.Network.Peers[by].Locks().Session(ctx, client.TTL(lastingly))
	if err != nil {
		return "", err
	}
	defer func() { // the session's connection ended with its peer
		err = errors.Join(err, t.Network.Peers[by].Locks().Revoke(context.WithoutCancel(ctx), session.Lease()))
	}()
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
	if err := t.followAll(ctx, network.Demo, present(demo...)); err != nil {
		return "", err
	}
	return fmt.Sprintf("all %d peers killed and started in %v; group %.8s, lock still held by token %d, %d instances at every peer after %v",
		len(t.Network.Peers), took.Round(time.Millisecond), after.ID, claim.Token(), len(demo), time.Since(began).Round(time.Millisecond)), nil
}

// tidy prepares the network that a visitor gets: the killed peers return with their instances, then what the steps left goes, and each
// peer has an instance of the demo, whose ids it returns.
func (t *Tour) tidy(ctx context.Context) (demo []string, err error) {
	for _, p := range t.Network.Peers {
		if !p.Running() {
			if err := t.Network.Restart(ctx, p); err != nil {
				return nil, err
			}
		}
	}
	if err := t.followAll(ctx, resident, present(t.residents...)); err != nil {
		return nil, err
	}
	if err := t.Clear(ctx); err != nil {
		return nil, err
	}
	for _, service := range services() {
		if err := t.followAll(ctx, service, present()); err != nil {
			return nil, err
		}
	}
	for _, p := range t.Network.Peers {
		demo = append(demo, network.DemoAt(p))
	}
	return demo, t.Network.OpenDemo(ctx)
}

// stillHeld asks a peer whether a lock is held by a token.
func stillHeld(ctx context.Context, p *network.Peer, name string, token fence.Token) error {
	locks, _, err := ops.Of(p.Coordination()).Locks(ctx, ops.LockQuery{Name: name})
	switch {
	case err != nil:
		return fault.Wrap(p.Name, err)
	case len(locks[0].Holding) != 1 || locks[0].Holding[0].Token != coord.Token(token):
		return fault.New("tour.stillHeld", fault.Conflict, "%s changed hands: %v", name, locks[0].Holding)
	}
	return nil
}
