package coordination

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/coordination/answer"
	"github.com/blackhole/blackhole/internal/coordination/leader"
	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/internal/coordination/member"
	"github.com/blackhole/blackhole/internal/coordination/membership"
	"github.com/blackhole/blackhole/internal/coordination/replica"
	"github.com/blackhole/blackhole/internal/coordination/transport"
	"github.com/blackhole/blackhole/internal/coordination/upkeep"
	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
	groupv1 "github.com/blackhole/blackhole/proto/blackhole/group/v1"
)

// local is the contract at this member. It forwards nothing: operations of the leader fail with Unavailable at
// other members. Other peers call it, so a call passes two peers at most.
type local struct {
	plane       *Plane
	incarnation incarnation
	member      *member.Member
	wire        *transport.Transport
	claimTimes  claimTimes
	led         atomic.Pointer[namedPeer]           // last leader decoded; nil at first
	observed    atomic.Pointer[[]membership.Member] // by the reconciler here; nil while this peer does not lead
	summary     summary
	once        sync.Once
}

// startLocal starts this peer's member on its disk.
func startLocal(p *Plane, life incarnation) (*local, error) {
	l := &local{plane: p, incarnation: life, claimTimes: claimTimes{at: map[string]time.Time{}}}
	var err error
	l.wire, err = transport.New(transport.Config{
		Host: p.config.Host, Network: p.config.Network.Name, Group: life.protocolID(), Member: p.disk.Member(),
		Process: newRand().Uint64(), Lookup: l.lookup, Known: p.knows, Info: p.inquiry.info, Snapshots: p.disk,
		Stranger:   func(from peer.ID, _ uint64) { p.inquiry.askSoon(from) },
		Refused:    (&upkeep.Copies{Now: p.config.Now, Greet: p.inquiry.askSoon, Member: p.disk.Member, Stop: p.failed.stop}).Refused,
		WrongLevel: p.levels.refused,
		Levels:     func() (coord.Levels, uint32) { return p.levels.own(), l.level() },
		Recorder:   p.config.Recorder, Logger: p.config.Logger, Jitter: jitter(),
	})
	if err != nil {
		return nil, err
	}
	c := p.config.Replica
	c.Storage, c.Applied, c.Logger = p.disk, l.claimTimes.applied, p.config.Logger
	l.member, err = member.Start(member.Config{Replica: c, Transport: l.wire, Fatal: p.failed.stop, Logger: p.config.Logger})
	if err != nil {
		return nil, err
	}
	l.wire.Start(l.member)
	return l, nil
}

func (l *local) close(ctx context.Context) (err error) {
	l.once.Do(func() {
		err = l.member.Close(ctx)
		if e := l.wire.Close(); err == nil {
			err = e
		}
	})
	return err
}

// lookup returns the peer of a member for the transport: from the applied log, or for a joining or unknown
// member from the word of eligible peers.
func (l *local) lookup(id uint64) (peer.ID, bool) {
	if l.member != nil {
		if s, ok := l.member.Peer(id); ok {
			p, err := peer.Decode(s)
			return p, err == nil
		}
	}
	return l.plane.view.member(id)
}

// Changed implements routing.Member.
func (l *local) Changed() <-chan struct{} { return l.member.Changed() }

// Leads implements routing.Member.
func (l *local) Leads() bool { return l.member.Status().Leads }

// Belief returns the leader according to this member, for package leader.
func (l *local) Belief() (b leader.Member) {
	s := l.member.Status()
	b.Votes = slices.ContainsFunc(s.Members, func(m replica.MemberStatus) bool { return m.ID == s.Header.Member && m.Voter })
	if s.Leader.ID == 0 {
		return b
	}
	last := l.led.Load()
	if last == nil || last.name != s.Leader.Peer {
		p, err := peer.Decode(s.Leader.Peer)
		if err != nil {
			return b
		}
		last = &namedPeer{s.Leader.Peer, p}
		l.led.Store(last)
	}
	b.Leadership = leader.Leadership{Incarnation: l.incarnation.recovery.Incarnation, Term: s.Header.Term, Peer: last.id}
	return b
}

// namedPeer caches a decoded peer id.
type namedPeer struct {
	name string
	id   peer.ID
}

// inform adds this member's configuration and leader to a description.
func (l *local) inform(g *groupv1.GroupInfo) {
	s := l.member.Status()
	g.ConfigIndex, g.Applied, g.Term = s.Applied, s.Applied, s.Header.Term
	g.Leader, g.Revision, g.Level = s.Leader.ID, int64(s.Header.Revision), l.level()
	l.summary.fill(l, g)
	for _, m := range s.Members {
		id, err := peer.Decode(m.Peer)
		if err != nil {
			continue // impossible: no such peer was ever added
		}
		role := groupv1.Role_ROLE_LEARNER
		if m.Voter {
			role = groupv1.Role_ROLE_VOTER
		}
		g.Members = append(g.Members, &groupv1.Member{RaftId: m.ID, Peer: []byte(id), Role: role})
	}
}

// Execute implements coord.Service.
func (l *local) Execute(ctx context.Context, cmd *coordv1.Command) (*coordv1.Result, error) {
	switch r := cmd.GetRequest().(type) {
	case *coordv1.Command_KeepAlive:
		ids, err := coord.Renewed(r.KeepAlive)
		if err != nil {
			return nil, fault.Wrap("group.Execute", err)
		}
		renewals, h, err := l.member.KeepAlive(ctx, cmd.GetOwner(), ids)
		if err != nil {
			return nil, err
		}
		return answer.KeepAlive(renewals, h), nil
	case *coordv1.Command_Lock:
		if err := answer.CheckWait(r.Lock); err != nil {
			return nil, fault.Wrap("group.Execute", err)
		}
		result, h, err := l.lock(ctx, cmd, r.Lock)
		if err != nil {
			return nil, err
		}
		return answer.Result(cmd, result, h), nil
	}
	result, h, err := l.propose(ctx, cmd)
	if err != nil {
		return nil, err
	}
	return answer.Result(cmd, result, h), nil
}

// propose executes a command of the log.
func (l *local) propose(ctx context.Context, cmd *coordv1.Command) (coord.Result, coord.Header, error) {
	start := time.Now()
	result, h, err := l.member.Propose(ctx, cmd)
	if err == nil {
		l.plane.config.committed(time.Since(start))
		err, h.Revision = result.Err, result.Revision
	}
	return result, h, l.plane.levels.explain(err)
}

// Apply executes an operation of the members.
func (l *local) Apply(ctx context.Context, op coord.Op) error {
	cmd, err := coord.Message(coord.Command{Op: op})
	if err == nil {
		_, _, err = l.propose(ctx, cmd)
	}
	return err
}

// lock claims a lock and waits until the claim holds.
func (l *local) lock(ctx context.Context, cmd *coordv1.Command, r *apiv1.LockRequest) (coord.Result, coord.Header, error) {
	if r.GetTimeoutMs() == 0 {
		return l.propose(ctx, answer.TryLock(cmd))
	}
	result, h, err := l.claim(ctx, cmd, r)
	if err != nil || result.Lock.Granted {
		return result, h, err
	}
	claim := machine.Grant{Lock: r.GetName(), Lease: coord.LeaseID(r.GetLeaseId()), Token: result.Lock.Token}
	waiting, stop := ctx, context.CancelFunc(func() {})
	if wait := answer.Wait(r); wait >= 0 {
		waiting, stop = context.WithTimeout(ctx, wait)
	}
	defer stop()
	held, at, err := l.member.Granted(waiting, claim.Lock, claim.Lease, claim.Token)
	switch {
	case err == nil && held:
		result.Lock.Granted, result.Revision = true, at.Revision
		return result, at, nil
	case err == nil:
		return coord.Result{}, at, l.gone(claim)
	case waiting.Err() == nil:
		return coord.Result{}, at, err
	}
	return l.yield(ctx, cmd.GetOwner(), claim, result, err)
}

// claim makes a claim. A claim that must wait shares the log write of another command: during a handover,
// claims at the end of the queue would otherwise delay the unlock of the next holder at the disk.
func (l *local) claim(ctx context.Context, cmd *coordv1.Command, r *apiv1.LockRequest) (coord.Result, coord.Header, error) {
	taken := false
	if wait := answer.Wait(r); wait < 0 || wait > 50*member.Linger {
		l.member.View(func(m *machine.Machine) { taken = m.Claims(r.GetName()) > 0 })
	}
	if !taken {
		return l.propose(ctx, cmd)
	}
	result, h, err := l.member.ProposePiggyback(ctx, cmd)
	if err == nil {
		err, h.Revision = result.Err, result.Revision
	}
	return result, h, l.plane.levels.explain(err)
}

// gone explains a vanished claim.
func (l *local) gone(c machine.Grant) error {
	lives := false
	l.member.View(func(m *machine.Machine) { _, lives = m.Lease(c.Lease) })
	if !lives {
		return absent("lease", "the lease ended while its claim waited")
	}
	return absent("token", "the claim was given back")
}

// yield gives back a claim after a timeout. The claim may hold the lock meanwhile: then the caller gets it. A claim
// that holds stays though its caller is gone: the caller may have repeated the command through another peer, and know
// that it holds. Whoever repeats the command last releases the claim, or the end of the lease does.
func (l *local) yield(ctx context.Context, owner string, c machine.Grant, result coord.Result, cause error) (coord.Result, coord.Header, error) {
	work, stop := context.WithTimeout(l.plane.life, cleaningUp)
	defer stop()
	gone := ctx.Err() != nil
	back, h, err := l.propose(work, &coordv1.Command{Owner: owner, Request: &coordv1.Command_Cancel{
		Cancel: &coordv1.Cancel{Name: c.Lock, Lease: int64(c.Lease), Token: int64(c.Token)},
	}})
	switch {
	case gone:
		return coord.Result{}, h, cause
	case err == nil && back.Lock.Granted:
		result.Lock.Granted, result.Revision = true, h.Revision
		return result, h, nil
	case err != nil && fault.KindOf(err) != fault.NotFound:
		return coord.Result{}, h, err
	}
	return coord.Result{Revision: back.Revision, Lock: coord.LockResult{Key: result.Lock.Key}}, h, nil
}

// claimTimes holds the times at which this member applied the claims on locks.
type claimTimes struct {
	mu sync.Mutex
	at map[string]time.Time // by key, one for each claim
}

// applied tracks the claims of a command.
func (b *claimTimes) applied(a replica.Applied) {
	if len(a.Effects.Events) == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range a.Effects.Events {
		switch _, claim := e.KV.Claim(); {
		case e.Deletes():
			delete(b.at, e.Key)
		case claim && e.Creates():
			b.at[e.Key] = time.Now()
		}
	}
}

func (b *claimTimes) age(key string) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if at, ok := b.at[key]; ok {
		return max(time.Since(at), 1)
	}
	return 0
}
