// Package coordtest tests users of package coord's contract: Solo, a coordination plane in one
// process, and the suite for every implementation of the contract.
package coordtest

import (
	"context"
	"sync"
	"time"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/answer"
	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// How a Solo names itself.
const (
	GroupID = "736f6c6f2d67726f7570000000000000000000000000000000000000000000ff" // of its GroupState
	Peer    = "solo"                                                             // the leader and only voter
	groupID = 0x736f6c6f2d67726f
	member  = 7
	term    = 3
)

// Progress is the interval of marks on a Solo's watch without events.
const Progress = 10 * time.Second

// Config configures a Solo.
type Config struct {
	// Now and After are the clock: set both, or neither for one that only Advance moves. After calls f
	// after d, never before its own return, unless stop runs first.
	Now   func() time.Time
	After func(d time.Duration, f func()) (stop func() bool)
	// Limits of the machine; zero: coord.DefaultLimits.
	Limits coord.Limits
}

// Solo is a coordination plane without a group: one machine behind a mutex. It implements
// coord.Service and coord.Admin, starts no goroutine and needs no Close.
type Solo struct {
	Config
	clock *Clock // nil with a clock from the Config

	mu      sync.Mutex // guards what follows
	machine *machine.Machine
	leases  lessor
	made    map[string]time.Time     // start of each claim, by key
	waits   map[string]chan struct{} // closed when the claim holds or ends, by key
	changed chan struct{}            // closed when the revision moves on
	granted uint64                   // leases
	missing string                   // reason of the outage; "" while serving
	alarm   time.Time                // when leases are looked at next; zero: never
	silence func() bool              // stops the alarm
}

var (
	_ coord.Service = (*Solo)(nil)
	_ coord.Admin   = (*Solo)(nil)
)

// New makes a Solo.
func New(c Config) *Solo {
	s := &Solo{
		Config: c, machine: machine.New(), changed: make(chan struct{}),
		leases: newLessor(),
		made:   make(map[string]time.Time), waits: make(map[string]chan struct{}),
		silence: func() bool { return false },
	}
	if c.Now == nil {
		s.clock = &Clock{}
		s.Now, s.After = s.clock.Now, s.clock.After
	}
	if c.Limits != (coord.Limits{}) {
		s.machine.Apply(1, term, &coordv1.Command{Request: &coordv1.Command_Configure{Configure: &coordv1.Configure{Limits: c.Limits.Message()}}})
	}
	return s
}

// Advance moves its own clock on.
func (s *Solo) Advance(d time.Duration) { s.clock.Advance(d) }

// Halt simulates an outage: until Resume every call is Unavailable, and no lease ends.
func (s *Solo) Halt(missing string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.missing = missing
	for key := range s.waits {
		s.wake(key)
	}
}

// Resume ends Halt. As after a change of leaders, every lease gets its full time again.
func (s *Solo) Resume() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.missing = ""
	for _, l := range s.machine.Leases() {
		s.leases.granted(s.Now(), l)
	}
	s.arm()
}

// Execute implements coord.Service.
func (s *Solo) Execute(ctx context.Context, m *coordv1.Command) (*coordv1.Result, error) {
	const op = "coordtest.Execute"
	if m.GetKeepAlive() != nil {
		return s.keepAlive(ctx, m)
	}
	if lock := m.GetLock(); lock != nil {
		if err := answer.CheckWait(lock); err != nil {
			return nil, fault.Wrap(op, err)
		}
		if lock.GetTimeoutMs() != 0 {
			result, err := s.acquire(ctx, m, answer.Wait(lock))
			return result, fault.Wrap(op, err)
		}
	}
	s.mu.Lock()
	if err := s.serves(ctx); err != nil {
		s.mu.Unlock()
		return nil, fault.Wrap(op, err)
	}
	result := s.apply(m)
	s.mu.Unlock()
	return result.Answer, fault.Wrap(op, result.Err)
}

func (s *Solo) keepAlive(ctx context.Context, m *coordv1.Command) (*coordv1.Result, error) {
	const op = "coordtest.KeepAlive"
	ids, err := coord.Renewed(m.GetKeepAlive())
	if err != nil {
		return nil, fault.Wrap(op, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.serves(ctx); err != nil {
		return nil, fault.Wrap(op, err)
	}
	now, renewals := s.Now(), make([]machine.Renewal, len(ids))
	for i, id := range ids {
		renewals[i] = machine.Renewal{ID: id, TTL: s.leases.renew(now, m.GetOwner(), id)}
		if renewals[i].TTL > 0 {
			renewals[i].Published = s.machine.Publication(id)
		}
	}
	return answer.KeepAlive(renewals, s.header()), nil
}

// acquire makes a claim and waits until it holds.
func (s *Solo) acquire(ctx context.Context, cmd *coordv1.Command, wait time.Duration) (*coordv1.Result, error) {
	result, settled, late, err := s.queue(ctx, cmd, wait)
	if err != nil {
		return result, err
	}
	defer late.stop()
	if result.GetLock().GetAcquired() && ctx.Err() == nil {
		return result, nil
	}
	for _, one := range settled {
		select {
		case <-one:
		case <-late.passed:
		case <-ctx.Done():
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.settle(ctx, cmd, result)
}

// patience is a timer.
type patience struct {
	passed chan struct{}
	stop   func() bool
}

// queue makes the claims of a command and returns a channel for the end of each. The time to wait starts with the claims.
func (s *Solo) queue(ctx context.Context, cmd *coordv1.Command, wait time.Duration) (*coordv1.Result, []<-chan struct{}, patience, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	late := patience{make(chan struct{}), func() bool { return false }}
	if err := s.serves(ctx); err != nil {
		return nil, nil, late, err
	}
	result := s.apply(cmd)
	if result.Err != nil {
		return nil, nil, late, result.Err
	}
	if result.Answer.GetLock().GetAcquired() {
		return result.Answer, nil, late, nil
	}
	var all []<-chan struct{}
	for _, c := range answer.Claims(cmd.GetLock(), result.Answer.GetLock()) {
		key := coord.LockKey(c.Lock, c.Lease)
		settled := s.waits[key]
		if settled == nil {
			settled = make(chan struct{})
			if _, holds, found := s.claim(c); found && !holds {
				s.waits[key] = settled
			} else {
				close(settled)
			}
		}
		all = append(all, settled)
	}
	if wait >= 0 {
		late.stop = s.After(wait, func() { close(late.passed) })
	}
	return result.Answer, all, late, nil
}

// claim finds the present version of a claim.
func (s *Solo) claim(c machine.Grant) (kv *coord.KeyValue, holds, found bool) {
	info, _ := s.machine.Lock(c.Lock)
	for _, kv := range info.Holding {
		if kv.Token() == c.Token {
			return kv, true, true
		}
	}
	for _, kv := range info.Waiting {
		if kv.Token() == c.Token {
			return kv, false, true
		}
	}
	return nil, false, false
}

// settle returns the result of claims after the wait, and gives unwanted ones back.
func (s *Solo) settle(ctx context.Context, cmd *coordv1.Command, result *coordv1.Result) (*coordv1.Result, error) {
	if s.missing != "" {
		return nil, unavailable(s.missing)
	}
	lock, given := cmd.GetLock(), result.GetLock()
	claims, all, found := answer.Claims(lock, given), true, true
	for _, c := range claims {
		_, holds, there := s.claim(c)
		all, found = all && holds, found && there
	}
	if all && ctx.Err() == nil {
		kv, _, _ := s.claim(claims[0])
		claim, _ := kv.Claim()
		given.Header, given.Acquired, given.Count = answer.Header(s.header()), true, claim.Count
		return result, nil
	}
	if _, lives := s.machine.Lease(coord.LeaseID(lock.GetLeaseId())); !lives {
		return nil, gone("lease", "ended while it waited")
	}
	if !found {
		return nil, gone("token", "was given back while it waited")
	}
	if lock.GetStays() {
		return result, ctx.Err()
	}
	for _, c := range claims {
		if _, holds, _ := s.claim(c); holds {
			s.apply(&coordv1.Command{Owner: cmd.GetOwner(), Request: &coordv1.Command_Unlock{
				Unlock: &apiv1.UnlockRequest{Name: c.Lock, LeaseId: int64(c.Lease), FencingToken: int64(c.Token)},
			}})
		} else {
			s.apply(&coordv1.Command{Owner: cmd.GetOwner(), Request: &coordv1.Command_Cancel{
				Cancel: &coordv1.Cancel{Name: c.Lock, Lease: int64(c.Lease), Token: int64(c.Token)},
			}})
		}
	}
	given.Header, given.Acquired, given.FencingToken, given.FencingTokens, given.Count = answer.Header(s.header()), false, 0, nil, 0
	return result, ctx.Err()
}

// serves says why a call cannot be answered.
func (s *Solo) serves(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.missing != "" {
		return unavailable(s.missing)
	}
	return nil
}

func unavailable(missing string) error { return fault.New("", fault.Unavailable, "%s", missing) }

func (s *Solo) header() coord.Header {
	return coord.Header{Group: groupID, Member: member, Revision: s.machine.Revision(), Term: term}
}

// apply executes a command as the next log entry, and informs waiters.
func (s *Solo) apply(cmd *coordv1.Command) machine.Result {
	before, now := s.machine.Revision(), s.Now()
	index, _ := s.machine.Index()
	if cmd.GetLeaseGrant() != nil { // ids in order, for the eyes of a test
		s.granted++
		cmd.Random = s.granted
	}
	result, effects := s.machine.Apply(index+1, term, cmd)
	for _, id := range effects.Ended {
		s.leases.ended(id)
	}
	for _, l := range effects.Granted {
		s.leases.granted(now, l)
	}
	for _, e := range effects.Events {
		if e.Deletes() && e.Prev.Token() != 0 {
			delete(s.made, e.Key)
			s.wake(e.Key)
		} else if e.Creates() && e.KV.Token() != 0 {
			s.made[e.Key] = now
		}
	}
	for _, g := range effects.Grants {
		s.wake(coord.LockKey(g.Lock, g.Lease))
	}
	if s.machine.Revision() != before {
		close(s.changed)
		s.changed = make(chan struct{})
	}
	if len(effects.Granted) > 0 {
		s.arm()
	}
	result.Sign(s.header())
	return result
}

func (s *Solo) wake(key string) {
	if c := s.waits[key]; c != nil {
		close(c)
		delete(s.waits, key)
	}
}

// arm sets the alarm for the first lease to end.
func (s *Solo) arm() {
	first := s.leases.first()
	if first == nil || !s.alarm.IsZero() && !first.at.Before(s.alarm) {
		return
	}
	s.silence()
	s.alarm = first.at
	s.silence = s.After(first.at.Sub(s.Now()), s.ring)
}

// ring ends the leases whose time has passed.
func (s *Solo) ring() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.alarm = time.Time{}
	if s.missing != "" {
		return
	}
	now := s.Now()
	for refs := s.leases.due(now); len(refs) > 0; refs = s.leases.due(now) {
		s.apply(&coordv1.Command{Request: &coordv1.Command_Expire{Expire: &coordv1.Expire{Term: term, Leases: refs}}})
	}
	s.arm()
}
