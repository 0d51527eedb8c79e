package simulation

import (
	"cmp"
	"fmt"
	"time"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
	"github.com/blackhole/blackhole/testnet/nemesis/history"
)

// patience is a client's limit for one action.
const patience = 8 * time.Second

// behave runs a client's actions until the load ends.
func (c *client) behave(p *proc) {
	deeds := []deed{
		{6, writePlainly}, {3, compareAndSwap}, {6, readRegister},
		{6, lockAndWrite}, {4, tryLock}, {3, share}, {2, several}, {2, bindKeys}, {1, forget},
		{3, publish}, {1, requireInstances},
	}
	switch {
	case c.quiet:
		deeds = []deed{{3, publish}}
	case c.crowded:
		deeds = []deed{{2, lockAndWrite}, {1, share}}
	case c.bold:
		deeds = boldDeeds()
	}
	total := 0
	for _, d := range deeds {
		total += d.weight
	}
	p.sleep(c.between(0, time.Second))
	for !c.calm {
		if c.follow(); c.emptied {
			p.sleep(time.Second)
			continue
		}
		draw := c.rng.IntN(total)
		for _, d := range deeds {
			if draw -= d.weight; draw < 0 {
				d.do(c, p)
				break
			}
		}
		p.sleep(c.between(0, c.idle))
	}
}

func (c *client) anyOf(kind string, n int) string { return fmt.Sprintf("%s/%d", kind, c.rng.IntN(n)) }

// value returns a unique value.
func (c *client) value() string {
	c.written++
	return fmt.Sprintf("%s-%d", c.name, c.written)
}

func put(key, value string, lease coord.LeaseID) *apiv1.TxnStep {
	return coordtest.Put(key, value, lease)
}

// record records an operation since an instant, unless it was never sent.
func (c *client) record(from time.Duration, o history.Op, of call, known bool) {
	if !known && of.client == 0 {
		return
	}
	o.Call, o.Return = from, c.now
	c.history.add(operation{Op: o, call: of, known: known})
}

func writePlainly(c *client, p *proc) {
	key, v, from := c.anyOf("plain", 3), c.value(), c.now
	this, _, ok := c.do(p, &apiv1.TxnRequest{Then: []*apiv1.TxnStep{put(key, v, 0)}}, patience)
	c.record(from, history.Op{Kind: history.Put, Object: key, Value: v}, this, ok)
}

func compareAndSwap(c *client, p *proc) {
	key := c.anyOf("plain", 3)
	kv, ok := c.readKey(p, key)
	if !ok {
		return
	}
	p.sleep(c.between(0, 300*time.Millisecond))
	v, from := c.value(), c.now
	this, _, ok := c.do(p, &apiv1.TxnRequest{Compare: []*apiv1.Compare{coordtest.IfRevision(key, kv.revision)}, Then: []*apiv1.TxnStep{put(key, v, 0)}}, patience)
	c.record(from, history.Op{Kind: history.Swap, Object: key, Value: v, Old: kv.value}, this, ok)
}

// version returns the observation of a read.
type version struct {
	value    string
	revision coord.Revision
}

func (c *client) readKey(p *proc, key string) (version, bool) {
	from := c.now
	got, ok := c.get(p, func(m *machine.Machine) any {
		kv, found := m.Get(key)
		if !found {
			return version{}
		}
		return version{string(kv.Value), kv.ModRevision}
	}, patience)
	if !ok {
		return version{}, false
	}
	v := got.(version)
	c.record(from, history.Op{Kind: history.Read, Object: key, Value: v.value, Outcome: history.OK}, call{}, true)
	return v, true
}

func readRegister(c *client, p *proc) {
	key := c.anyOf("plain", 3)
	if c.chance(0.5) {
		key = "guarded/" + c.anyOf("db", 2)
	}
	c.readKey(p, key)
}

// someLease makes a session with a random, short time to live.
func (c *client) someLease(p *proc) *session {
	return c.lease(p, c.between(c.ttl, 3*c.ttl))
}

// release ends a session: revoked, forgotten at once, or timed out.
func (c *client) release(p *proc, s *session) {
	c.close(s)
	if c.chance(0.6) {
		c.do(p, &apiv1.LeaseRevokeRequest{Id: int64(s.id)}, patience)
	}
}

// acquire waits for a lock until its lease ends or patience does.
func (c *client) acquire(p *proc, s *session, op *apiv1.LockRequest) *belief {
	_, r, ok := c.do(p, op, patience)
	if !ok || r.Err != nil || r.Lock.Token == 0 {
		return nil
	}
	held := &belief{session: s, token: r.Lock.Token, mode: coord.Mode(op.Mode), permits: int(op.Permits)}
	granted := r.Lock.Granted
	for end := c.now + patience; !granted; {
		if !s.lives(c.now) {
			return nil
		}
		if c.now > end {
			_, r, ok := c.do(p, &coordv1.Cancel{Name: op.Name, Lease: int64(s.id), Token: int64(held.token)}, patience)
			if granted = ok && r.Err == nil && r.Lock.Granted; !granted {
				return nil
			}
			break
		}
		p.sleep(c.between(50*time.Millisecond, 400*time.Millisecond))
		if c.chance(0.1) { // a program without patience; the group decides
			c.writeGuarded(p, held, op.Name)
		}
		granted = c.granted(p, op.Name, held.token)
	}
	if !s.lives(c.now) {
		return nil
	}
	held.holding = true
	c.oracle.beliefs.holds(op.Name, held)
	c.figures.grants++
	return held
}

// granted asks whether a claim holds by now.
func (c *client) granted(p *proc, name string, token coord.Token) bool {
	got, ok := c.get(p, func(m *machine.Machine) any {
		info, _ := m.Lock(name)
		for _, kv := range info.Holding {
			if kv.Token() == token {
				return true
			}
		}
		return false
	}, time.Second)
	return ok && got.(bool)
}

// unlock gives a claim back. From its first attempt on the client does not hold it.
func (c *client) unlock(p *proc, held *belief, name string) {
	held.released = true
	_, r, ok := c.do(p, &apiv1.UnlockRequest{Name: name, LeaseId: int64(held.id), FencingToken: int64(held.token)}, patience)
	if ok && r.Err != nil && held.lives(c.now) {
		c.breach("B2", "%s held %q with token %d and cannot unlock: %v", c.name, name, held.token, r.Err)
	}
}

// lockAndWrite works under an exclusive lock: in the group, guarded, and outside of it, fenced.
func lockAndWrite(c *client, p *proc) {
	s := c.someLease(p)
	if s == nil {
		return
	}
	name := c.anyOf("db", 2)
	held := c.acquire(p, s, &apiv1.LockRequest{TimeoutMs: -1, Name: name, LeaseId: int64(s.id)})
	for range c.rng.IntN(4) {
		if held == nil {
			break
		}
		c.writeGuarded(p, held, name)
		c.writeFenced(p, held, name)
		if p.sleep(c.between(0, c.idle)); c.chance(0.1) {
			p.sleep(c.between(0, 2*s.ttl)) // a long pause before further writes
		}
	}
	if held != nil && c.chance(0.8) {
		c.unlock(p, held, name)
	}
	c.release(p, s)
}

func (c *client) writeGuarded(p *proc, held *belief, name string) {
	key, v, from := "guarded/"+name, c.value(), c.now
	believed := held.holding && held.lives(c.now)
	this, r, ok := c.do(p, &apiv1.TxnRequest{Compare: []*apiv1.Compare{coordtest.IfHolds(name, held.token)}, Then: []*apiv1.TxnStep{put(key, v, 0)}}, patience)
	c.record(from, history.Op{Kind: history.Put, Object: key, Value: v}, this, ok)
	if refused := cmp.Or(r.Err, r.Txn.Unmet()); ok && refused != nil && believed && held.lives(c.now) {
		c.breach("B2", "%s holds %q with token %d and cannot write: %v", c.name, name, held.token, refused)
	}
}

// writeFenced writes to an outside resource that checks tokens only.
func (c *client) writeFenced(p *proc, held *belief, name string) {
	v, from := c.value(), c.now
	resource := c.resource(name)
	err := park(p, func(wake func(*error)) {
		c.net.send(c.name, "resource", func() {
			err := resource.write(held.token, v)
			c.net.send("resource", c.name, func() { wake(&err) })
		})
		c.after(attempt, func() { wake(nil) })
	})
	outcome := history.Unknown // a late copy may still arrive
	if err != nil {
		if outcome = history.OK; *err != nil {
			outcome = history.Refused
		}
	}
	object := "resource/" + name
	fenced := history.Op{Kind: history.Fenced, Object: object, Value: v, Token: int64(held.token), Outcome: outcome, Call: from, Return: c.now}
	c.history.add(operation{Op: fenced, known: err != nil})
	c.record(c.now, history.Op{Kind: history.Read, Object: object, Value: resource.value, Outcome: history.OK}, call{}, true)
}

// resource is an outside resource guarded by a lock.
type resource struct {
	fence coord.Fence
	value string
}

func (r *resource) write(token coord.Token, v string) error {
	if err := r.fence.Check(token); err != nil {
		return err
	}
	r.value = v
	return nil
}

// tryLock serves locks with every grant and end in a history.
func tryLock(c *client, p *proc) {
	s := c.someLease(p)
	if s == nil {
		return
	}
	name, from := c.anyOf("try", 2), c.now
	this, r, ok := c.do(p, &apiv1.TryLockRequest{Name: name, LeaseId: int64(s.id)}, patience)
	c.record(from, history.Op{Kind: history.Try, Object: name}, this, ok)
	if ok && r.Lock.Granted && s.lives(c.now) {
		held := &belief{session: s, token: r.Lock.Token}
		c.oracle.beliefs.holds(name, held)
		p.sleep(c.between(0, s.ttl))
		if c.chance(0.7) {
			from, held.released = c.now, true
			this, r, ok = c.do(p, &apiv1.UnlockRequest{Name: name, LeaseId: int64(s.id), FencingToken: int64(held.token)}, patience)
			c.record(from, history.Op{Kind: history.Unlock, Object: name, Token: int64(held.token)}, this, ok)
			c.unlockAgain(p, s, name, held.token)
		}
	}
	c.release(p, s)
}

// several takes two or three locks in one command, in any order, and gives them back together, or ends its wait for all.
func several(c *client, p *proc) {
	s := c.someLease(p)
	if s == nil {
		return
	}
	names := []string{"both/0", "both/1", "both/2"}
	for i := range names {
		j := i + int(c.between(0, time.Duration(len(names)-i-1)))
		names[i], names[j] = names[j], names[i]
	}
	if c.chance(0.5) {
		names = names[:2]
	}
	ask := &apiv1.LockRequest{TimeoutMs: -1, Name: names[0], LeaseId: int64(s.id), Others: names[1:]}
	_, r, ok := c.do(p, ask, patience)
	for end := c.now + patience; ok && r.Err == nil && !r.Lock.Granted && s.lives(c.now); {
		if c.now > end {
			tokens := make([]int64, len(names)-1)
			for i := range tokens {
				tokens[i] = int64(r.Lock.Tokens[i+1])
			}
			_, r, ok = c.do(p, &coordv1.Cancel{
				Name: names[0], Lease: int64(s.id), Token: int64(r.Lock.Token), Others: names[1:], Tokens: tokens,
			}, patience)
			break
		}
		p.sleep(c.between(50*time.Millisecond, 400*time.Millisecond))
		_, r, ok = c.do(p, ask, patience) // a repetition keeps the places
	}
	if ok && r.Err == nil && r.Lock.Granted && len(r.Lock.Tokens) == len(names) && s.lives(c.now) {
		for i, name := range names {
			c.oracle.beliefs.holds(name, &belief{session: s, token: r.Lock.Tokens[i]})
		}
		c.figures.grants++
		p.sleep(c.between(0, s.ttl))
	}
	c.release(p, s)
}

// unlockAgain repeats an unlock with an old token or none, like a faulty program: it must not touch a later
// claim.
func (c *client) unlockAgain(p *proc, s *session, name string, token coord.Token) {
	if c.chance(0.5) || !s.lives(c.now) {
		return
	}
	from := c.now
	this, r, ok := c.do(p, &apiv1.TryLockRequest{Name: name, LeaseId: int64(s.id)}, patience)
	c.record(from, history.Op{Kind: history.Try, Object: name}, this, ok)
	_, r, ok = c.do(p, &apiv1.UnlockRequest{Name: name, LeaseId: int64(s.id), FencingToken: int64(token)}, patience)
	if ok && r.Err == nil {
		c.breach("B2", "%s unlocked %q twice with token %d", c.name, name, token)
	}
}

// share uses the other modes of locks, and repeats claims.
func share(c *client, p *proc) {
	s := c.someLease(p)
	if s == nil {
		return
	}
	op := &apiv1.LockRequest{TimeoutMs: -1, Name: "rw", LeaseId: int64(s.id), Mode: apiv1.ShareMode_SHARE_MODE_SHARED}
	switch c.rng.IntN(4) {
	case 0:
		op.Mode = apiv1.ShareMode_SHARE_MODE_EXCLUSIVE
	case 1, 2:
		op.Name, op.Mode, op.Permits = "permits", apiv1.ShareMode_SHARE_MODE_PERMIT, 2
	}
	if held := c.acquire(p, s, op); held != nil {
		_, r, ok := c.do(p, op, patience)
		if ok && held.lives(c.now) && (r.Err != nil || r.Lock.Token != held.token || r.Lock.Count != 2) {
			c.breach("B2", "claimed again: %+v", r)
		}
		p.sleep(c.between(0, s.ttl))
		held.released = true
		for range c.rng.IntN(3) {
			c.do(p, &apiv1.UnlockRequest{Name: op.Name, LeaseId: int64(s.id), FencingToken: int64(held.token)}, patience)
		}
	}
	c.release(p, s)
}

// bindKeys puts keys that live as long as a lease.
func bindKeys(c *client, p *proc) {
	s := c.someLease(p)
	if s == nil {
		return
	}
	var changes []*apiv1.TxnStep
	for i := range 1 + c.rng.IntN(4) {
		changes = append(changes, put(fmt.Sprintf("bound/%s/%d", c.name, i), c.value(), s.id))
	}
	_, r, ok := c.do(p, &apiv1.TxnRequest{Then: changes}, patience)
	if ok && r.Err != nil && s.lives(c.now) {
		c.breach("B2", "lease %d lives and cannot bind keys: %v", s.id, r.Err)
	}
	p.sleep(c.between(0, 2*s.ttl))
	if c.chance(0.3) {
		c.do(p, &apiv1.TxnRequest{Then: []*apiv1.TxnStep{coordtest.Delete(coord.Under("bound/" + c.name))}}, patience)
	}
	c.release(p, s)
}

// forget continues under another client id.
func forget(c *client, p *proc) {
	if c.id == 0 {
		return
	}
	if _, r, ok := c.do(p, &apiv1.CloseClientRequest{}, patience); ok && r.Err != nil && fault.KindOf(r.Err) != fault.NotFound && !dissolved(r.Err) {
		c.breach("B2", "a client cannot be closed: %v", r.Err)
	}
	c.id = 0
}

// wipe deletes all keys of applications in one transaction, and their requirements.
func (c *client) wipe(p *proc) {
	keys := []string{"plain/0", "plain/1", "plain/2", "guarded/db/0", "guarded/db/1", "guarded/rw", "guarded/permits"}
	steps, from := []*apiv1.TxnStep{coordtest.Delete(coord.Under("bound/"))}, c.now
	for _, key := range keys {
		steps = append(steps, coordtest.Delete(coord.Exactly(key)))
	}
	this, _, ok := c.do(p, &apiv1.TxnRequest{Then: steps}, patience)
	for _, key := range keys {
		c.record(from, history.Op{Kind: history.Put, Object: key}, this, ok)
	}
	for i := range 3 {
		c.do(p, &apiv1.DeleteRequirementRequest{Name: fmt.Sprintf("need-%d", i)}, patience/16)
	}
}
