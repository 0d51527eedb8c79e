package coordination

import (
	"cmp"
	"context"
	"io"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/answer"
	"github.com/blackhole/blackhole/internal/coordination/bootstrap"
	"github.com/blackhole/blackhole/internal/coordination/formation"
	"github.com/blackhole/blackhole/internal/coordination/leader"
	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/internal/coordination/member"
	"github.com/blackhole/blackhole/internal/coordination/membership"
	"github.com/blackhole/blackhole/internal/coordination/replica"
	"github.com/blackhole/blackhole/internal/coordination/routing"
	"github.com/blackhole/blackhole/internal/coordination/transport"
	"github.com/blackhole/blackhole/internal/coordination/upkeep"
	"github.com/blackhole/blackhole/internal/coordination/view"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
	groupv1 "github.com/blackhole/blackhole/proto/blackhole/group/v1"
)

const (
	progress   = 10 * time.Second // between two progress marks of a quiet watch
	cleaningUp = 5 * time.Second  // to give back the claim of a caller that is gone
)

// local is the contract at this member. It forwards nothing: operations of the leader fail with Unavailable at
// other members. Other peers call it, so a call passes two peers at most.
type local struct {
	host        host.Host
	first       bootstrap.Membership // the initial one
	incarnation view.Incarnation
	view        *view.View
	member      *member.Member
	transport   *transport.Transport
	group       *formation.Member
	merger      *formation.Merger
	levels      *upkeep.Levels
	membership  *upkeep.Membership
	comparer    *upkeep.Comparer
	claimTimes  claimTimes
	answers     answer.State

	missing   func() string               // explains the lack of a leader
	tolerance func() membership.Tolerance // of the group, now
	committed func(time.Duration)         // receives the time from a proposal to its result
	now       func() time.Time
	logger    *slog.Logger

	life context.Context // ends with the member
	end  context.CancelFunc
	once sync.Once
}

// startLocal starts this peer's member on its disk.
func (p *plane) startLocal(first bootstrap.Membership, now view.Incarnation) (l *local, err error) {
	c, id := p.config, p.disk.Member()
	l = &local{
		host: c.Host, first: first, incarnation: now, view: p.view, merger: p.merger, levels: &upkeep.Levels{Logger: c.Logger},
		claimTimes: claimTimes{at: map[string]claimTime{}, lost: c.LocksLost}, missing: p.missing, tolerance: p.tolerance, now: c.Now, logger: c.Logger,
		committed: c.Metrics.Committed,
	}
	l.life, l.end = context.WithCancel(p.life)
	l.transport = transport.New(transport.Config{
		Host: c.Host, Network: c.Network.Name, Group: now.ProtocolID(), Member: id,
		Process: rand.Uint64(), Lookup: l.lookup, Known: p.knows, Snapshots: p.disk,
		Stranger:   func(from peer.ID, _ uint64) { p.askSoon(from) },
		Refused:    (&upkeep.Copies{Now: c.Now, Ask: p.askSoon, Member: id, Stop: p.failed.stop}).Refused,
		WrongLevel: l.levels.Refused,
		Levels:     func() (coord.Levels, uint32) { return c.Replica.Levels(), l.level() },
		Metrics:    c.Metrics, Logger: c.Logger, Jitter: rand.Float64,
	})
	r := c.Replica
	r.Storage, r.Applied, r.Logger = p.disk, l.claimTimes.applied, c.Logger
	if l.member, err = member.Start(member.Config{Replica: r, Transport: l.transport, Fatal: p.failed.stop}); err != nil {
		return nil, err
	}
	l.answers = answer.State{
		View: l.member.View, Keys: l.member.Keyspace,
		Remaining: func(id coord.LeaseID) int64 {
			left, _ := l.member.Remaining(id)
			return max(left, 0).Milliseconds()
		},
		Age: func(kv *coord.KeyValue) time.Duration { return l.claimTimes.age(kv.Key) },
	}
	l.group = &formation.Member{Member: l.member, Group: machine.GroupID(now.Group[:]), Apply: l.apply}
	l.membership = upkeep.NewMembership(upkeep.MembershipConfig{
		Host: c.Host, Member: l.member, Levels: l.levels, LevelsOf: l.transport.Levels, Supported: c.Replica.Levels(),
		Apply: l.apply,
		Start: p.life.start, Voters: c.Voters, Replace: c.Replace, Limits: c.Limits, Dial: c.Policy.Dial, Keeps: p.roster.Keeps,
		IsOver: func() bool { return l.group.Summary().Over.Over() }, WithName: p.view.WithName, Logger: c.Logger,
	})
	l.comparer = &upkeep.Comparer{
		Member: l.member, Group: now.ProtocolID(), IsMember: func(id peer.ID) bool { in, _ := p.isMember(id); return in },
		Ask: func(ctx context.Context, to peer.ID, question []byte) ([]byte, error) {
			return p.exchange.Ask(ctx, to, transport.State, question)
		},
		Stop: p.failed.stop, Dir: p.disk.Dir(), Compared: c.Metrics.Compared, Conditions: c.Conditions, Logger: c.Logger,
	}
	l.transport.Start(l.member)
	return l, nil
}

func (l *local) close(ctx context.Context) (err error) {
	l.once.Do(func() {
		err = l.member.Close(ctx)
		l.end()
		if e := l.transport.Close(); err == nil {
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
	return l.view.Member(id)
}

// level returns the feature level of the group as applied here; 0 before this member has a state.
func (l *local) level() uint32 {
	if l.member == nil {
		return 0
	}
	return l.member.Status().Level
}

// Changed implements routing.Member.
func (l *local) Changed() <-chan struct{} { return l.member.Changed() }

// Leads implements routing.Member.
func (l *local) Leads() bool { return l.member.Status().Leads }

// Belongs reports whether this member is listed and its group has a leader. Calls of others wait for another member.
func (l *local) Belongs() bool { return l.member.Status().Leader.ID != 0 && l.Listed() }

// silent names the voters whose members this leader does not hear, and whether the peer of the first one is connected; another member
// knows none.
func (l *local) silent() (names []string, runs bool) {
	s := l.member.Status()
	for _, m := range s.Members {
		if s.Leads && m.Voter && !m.Active {
			if id, err := peer.Decode(m.Peer); err == nil && len(names) == 0 {
				runs = l.host.Network().Connectedness(id) == network.Connected
			}
			names = append(names, l.view.Called(m.Peer))
		}
	}
	return names, runs
}

// Listed implements routing.Member. It reports whether this member's configuration contains it, and whether other
// peers know no later one without it. A removed member, or a learner, gets no other notice of its removal.
func (l *local) Listed() bool {
	s := l.member.Status()
	return slices.ContainsFunc(s.Members, func(m replica.MemberStatus) bool { return m.ID == s.Header.Member }) && !l.view.Excludes(s.Header.Member, s.Applied)
}

// votes reports whether a member votes in its own configuration.
func votes(s replica.Status) bool {
	return slices.ContainsFunc(s.Members, func(m replica.MemberStatus) bool { return m.ID == s.Header.Member && m.Voter })
}

// Belief returns the leader according to this member, for package leader.
func (l *local) Belief() (b leader.Member) {
	s := l.member.Status()
	b.Votes = votes(s)
	if p, err := peer.Decode(s.Leader.Peer); err == nil && s.Leader.ID != 0 {
		b.Leadership = leader.Leadership{Incarnation: l.incarnation.Recovery.Incarnation, Term: s.Header.Term, Peer: p}
	}
	return b
}

// inform adds this member's configuration and leader to a description.
func (l *local) inform(g *groupv1.GroupInfo) {
	s := l.member.Status()
	g.ConfigIndex, g.Applied, g.Term = s.Applied, s.Applied, s.Header.Term
	g.Leader, g.Revision, g.Level = s.Leader.ID, int64(s.Header.Revision), s.Level
	said := l.group.Summary()
	g.Standing = said.Encode()
	if said.Over.Over() {
		g.Revision = int64(said.Over.Final)
	}
	for _, m := range s.Members {
		if id, err := peer.Decode(m.Peer); err == nil { // otherwise impossible: no such peer was ever added
			g.Members = append(g.Members, view.Describe(m.ID, id, m.Voter))
		}
	}
}

// ChangeMembers implements coord.Admin at the leader.
func (l *local) ChangeMembers(ctx context.Context, c coord.MemberChange) (done coord.MemberOutcome, err error) {
	done, err = l.membership.Change(ctx, c)
	return done, fault.Wrap("coordination.ChangeMembers", err)
}

// Backup implements coord.Admin at this member. The image contains all writes answered before the call.
func (l *local) Backup(ctx context.Context, w io.Writer) error {
	if _, err := l.barrier(ctx); err != nil {
		return err
	}
	image := l.member.Image()
	err := formation.WriteBackup(w, image, l.first.GroupID().String(), l.first.Encode(), l.host.ID().String(), l.now())
	if err == nil {
		l.logger.Info("wrote a backup of the group", "revision", image.Revision())
	}
	return fault.Wrap("coordination.Backup", err)
}

// Execute implements coord.Service.
func (l *local) Execute(ctx context.Context, cmd *coordv1.Command) (*coordv1.Result, error) {
	switch r := cmd.GetRequest().(type) {
	case *coordv1.Command_KeepAlive:
		ids, err := coord.Renewed(r.KeepAlive)
		if err != nil {
			return nil, fault.Wrap("coordination.Execute", err)
		}
		renewals, h, err := l.member.KeepAlive(ctx, cmd.GetOwner(), ids)
		if err != nil {
			return nil, err
		}
		return answer.KeepAlive(renewals, h), nil
	case *coordv1.Command_Lock:
		if err := answer.CheckWait(r.Lock); err != nil {
			return nil, fault.Wrap("coordination.Execute", err)
		}
		if r.Lock.GetTimeoutMs() != 0 {
			return l.lock(ctx, cmd, r.Lock)
		}
	}
	return l.propose(ctx, cmd)
}

// propose executes a command of the log.
func (l *local) propose(ctx context.Context, cmd *coordv1.Command) (*coordv1.Result, error) {
	start := time.Now()
	result, h, err := l.member.Propose(ctx, cmd)
	if err == nil {
		l.committed(time.Since(start))
	}
	return l.answered(result, h, err)
}

// answered returns the answer of a result in the name of this member.
func (l *local) answered(r machine.Result, h coord.Header, err error) (*coordv1.Result, error) {
	if err == nil {
		err = r.Err
	}
	if err != nil {
		return nil, l.levels.Explain(err)
	}
	r.Sign(h)
	return r.Answer, nil
}

// apply executes a command of the members.
func (l *local) apply(ctx context.Context, cmd *coordv1.Command) error {
	_, err := l.propose(ctx, cmd)
	return err
}

// lock claims a lock and waits until the claim holds.
func (l *local) lock(ctx context.Context, cmd *coordv1.Command, r *apiv1.LockRequest) (*coordv1.Result, error) {
	result, err := l.claim(ctx, cmd, r)
	lock := result.GetLock()
	if err != nil || lock.GetAcquired() {
		return result, err
	}
	claims := answer.Claims(r, lock)
	waiting, stop := ctx, context.CancelFunc(func() {})
	if wait := answer.Wait(r); wait >= 0 {
		waiting, stop = context.WithTimeout(ctx, wait)
	}
	defer stop()
	for _, claim := range claims {
		held, at, err := l.member.Granted(waiting, claim.Lock, claim.Lease, claim.Token)
		switch {
		case err == nil && held:
			lock.Header = answer.Header(at)
		case err == nil:
			return nil, l.gone(claim)
		case waiting.Err() == nil:
			return nil, err
		case r.GetStays() && ctx.Err() != nil:
			return nil, err
		case r.GetStays():
			return result, nil
		default:
			return l.yield(ctx, cmd.GetOwner(), claims, result, err)
		}
	}
	lock.Acquired = true
	return result, nil
}

// claim makes a claim. A claim that must wait shares the log write of another command: during a handover,
// claims at the end of the queue would otherwise delay the unlock of the next holder at the disk.
func (l *local) claim(ctx context.Context, cmd *coordv1.Command, r *apiv1.LockRequest) (*coordv1.Result, error) {
	taken := false
	if wait := answer.Wait(r); wait < 0 || wait > 50*member.Linger {
		l.member.View(func(m *machine.Machine) { taken = m.Claims(r.GetName()) > 0 })
	}
	if !taken {
		return l.propose(ctx, cmd)
	}
	return l.answered(l.member.ProposePiggyback(ctx, cmd))
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

// yield gives back claims after a timeout. They may all hold meanwhile: then the caller gets them. Claims
// that hold stay though its caller is gone: the caller may have repeated the command through another peer, and know
// that it holds. Whoever repeats the command last releases the claim, or the end of the lease does.
func (l *local) yield(ctx context.Context, owner string, claims []machine.Grant, result *coordv1.Result, cause error) (*coordv1.Result, error) {
	work, stop := context.WithTimeout(l.life, cleaningUp)
	defer stop()
	gone, lock := ctx.Err() != nil, result.GetLock()
	cancel := &coordv1.Cancel{Name: claims[0].Lock, Lease: int64(claims[0].Lease), Token: int64(claims[0].Token)}
	for _, c := range claims[1:] {
		cancel.Others, cancel.Tokens = append(cancel.Others, c.Lock), append(cancel.Tokens, int64(c.Token))
	}
	back, err := l.propose(work, &coordv1.Command{Owner: owner, Request: &coordv1.Command_Cancel{Cancel: cancel}})
	switch {
	case gone:
		return nil, cause
	case err != nil && fault.KindOf(err) != fault.NotFound:
		return nil, err
	case err == nil:
		lock.Header = back.GetDone().GetHeader()
	}
	if lock.Acquired = back.GetDone().GetGranted(); !lock.GetAcquired() {
		lock.FencingToken, lock.FencingTokens, lock.Count = 0, nil, 0
	}
	return result, nil
}

// claimTimes holds the times at which this member applied the claims on locks.
type claimTimes struct {
	lost func(locks []string) // hears the locks whose holder's lease expired; nil: nobody

	mu sync.Mutex
	at map[string]claimTime // by key, one for each claim
}

type claimTime struct {
	made  time.Time
	waits bool
}

// applied tracks the claims of a command.
func (b *claimTimes) applied(a replica.Applied) {
	if lost := b.track(a); len(lost) > 0 && b.lost != nil && a.Command.GetExpire() != nil {
		b.lost(lost)
	}
}

// track returns the locks of the holding claims that ended. A claim of a snapshot counts as one that holds.
func (b *claimTimes) track(a replica.Applied) (lost []string) {
	if len(a.Effects.Events) == 0 && len(a.Effects.Grants) == 0 {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range a.Effects.Events {
		if ended, claimed := e.Prev.Claim(); e.Deletes() && claimed && !b.at[e.Key].waits {
			lost = append(lost, ended.Lock)
		}
		switch _, claim := e.KV.Claim(); {
		case e.Deletes():
			delete(b.at, e.Key)
		case claim && e.Creates():
			b.at[e.Key] = claimTime{time.Now(), true}
		}
	}
	for _, g := range a.Effects.Grants {
		if t, ok := b.at[coord.LockKey(g.Lock, g.Lease)]; ok {
			b.at[coord.LockKey(g.Lock, g.Lease)] = claimTime{t.made, false}
		}
	}
	return lost
}

func (b *claimTimes) age(key string) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if t, ok := b.at[key]; ok {
		return max(time.Since(t.made), 1)
	}
	return 0
}

// barrier returns a header after which this member's state contains all answered writes. Errors: Unavailable
// if no leader confirms it in time.
func (l *local) barrier(ctx context.Context) (coord.Header, error) {
	bounded, cancel := context.WithTimeout(ctx, routing.Patience/2) // the rest is for other members: see routing.Router.AtMember
	defer cancel()
	h, err := l.member.Barrier(bounded)
	if err != nil && ctx.Err() == nil && bounded.Err() != nil {
		return h, fault.New("coordination.barrier", fault.Unavailable, "no_quorum: %s", l.missing())
	}
	return h, err
}

// Read implements coord.Service.
func (l *local) Read(ctx context.Context, q *coordv1.Question) (_ *coordv1.Answer, err error) {
	if !answer.IsLocal(q) {
		if _, err = l.barrier(ctx); err != nil {
			return nil, err
		}
	}
	if answer.AboutLeases(q) && !l.Leads() {
		return nil, fault.New("coordination.Read", fault.Unavailable, "another member leads")
	}
	a, err := l.answers.Read(q)
	return a, fault.Wrap("coordination.Read", err)
}

func absent(field, what string) error {
	return &fault.Error{Op: "coordination", Kind: fault.NotFound, Field: field, Err: fault.New("", fault.NotFound, "%s", what).Err}
}

// Watch implements coord.Service.
func (l *local) Watch(ctx context.Context, r *apiv1.WatchKeysRequest, send func(*apiv1.WatchKeysResponse) error) error {
	h, err := l.barrier(ctx)
	if err != nil {
		return err
	}
	w := answer.Watch(r)
	w.From = cmp.Or(w.From, h.Revision+1)
	l.member.View(func(m *machine.Machine) {
		first := w
		first.Limit = 1
		_, err = m.Events(first) // report an impossible start first
	})
	if err != nil {
		return err
	}
	mark := r.GetMark()
	for b := (coord.Batch{Next: w.From}); ; {
		if err := send(answer.Events(b, h)); err != nil {
			return err
		}
		if b, err = l.events(ctx, w, mark); err != nil {
			return err
		}
		w.From = b.Next
		if len(b.Events) == 0 { // a progress mark: only members of the group may send it
			mark = false
			h, err = l.barrier(ctx)
		} else {
			h = l.header(b.Next - 1)
		}
		if err != nil {
			return err
		}
	}
}

// events waits for the next events of a watch, or for the time of a progress mark: now, or after some silence.
func (l *local) events(ctx context.Context, w coord.Watch, now bool) (b coord.Batch, err error) {
	bounded, cancel := context.WithTimeout(ctx, progress)
	defer cancel()
	for {
		l.member.View(func(m *machine.Machine) { b, err = m.Events(w) })
		if err != nil || len(b.Events) > 0 {
			return b, err
		}
		if w.From = b.Next; b.More {
			continue
		}
		if now {
			return b, nil
		}
		w.From, err = l.member.Await(bounded, w.Span, w.From)
		switch {
		case err == nil:
		case ctx.Err() == nil && bounded.Err() != nil:
			now = true // a last look
		default:
			return b, err
		}
	}
}

// header returns this member's header, at revision or later.
func (l *local) header(revision coord.Revision) coord.Header {
	h := l.member.Status().Header
	h.Revision = max(l.member.Revision(), revision)
	return h
}
