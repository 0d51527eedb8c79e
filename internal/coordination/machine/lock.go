package machine

import (
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/coord/principals"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// claimValue returns the value of a claim's key: the wire form of LockEntry.
func claimValue(c *coord.Claim) []byte {
	b := make([]byte, 0, 16+len(c.Metadata)+len(c.Holder))
	for number, v := range [...]uint64{1: uint64(c.Mode), 2: uint64(c.Permits), 3: uint64(c.Count)} {
		if v != 0 {
			b = protowire.AppendVarint(protowire.AppendTag(b, protowire.Number(number), protowire.VarintType), v)
		}
	}
	if len(c.Metadata) > 0 {
		b = protowire.AppendBytes(protowire.AppendTag(b, 4, protowire.BytesType), c.Metadata)
	}
	if c.Holder != "" {
		b = protowire.AppendString(protowire.AppendTag(b, 5, protowire.BytesType), c.Holder)
	}
	return b
}

// claim puts a lock's key. It keeps a copy of the claim beside the key.
func (m *Machine) claim(c *coord.Claim, key string, lease coord.LeaseID) *coord.KeyValue {
	made := &struct {
		coord.KeyValue
		claim coord.Claim
	}{coord.KeyValue{Key: key, Value: claimValue(c), Lease: lease}, *c}
	kv := &made.KeyValue
	kv.LockClaim = &made.claim
	m.put(kv)
	return kv
}

// lockRequest is what both requests for a lock have in common.
type lockRequest interface {
	GetName() string
	GetLeaseId() int64
	GetMode() apiv1.ShareMode
	GetPermits() uint32
	GetMetadata() []byte
	GetOthers() []string
}

// lock claims a lock for a lease, and waits in its queue or gives up. A lease with a claim on the lock keeps its place and token, and must unlock once more.
func (c *call) lock(m *Machine, r lockRequest, wait bool) error {
	if err := checkLock(r, &m.limits); err != nil {
		return err
	}
	if keeps, ok := r.(interface{ GetStays() bool }); len(r.GetOthers()) > 0 || ok && keeps.GetStays() {
		return c.lockAll(m, r, wait)
	}
	name, lease := r.GetName(), coord.LeaseID(r.GetLeaseId())
	l, err := m.leases.usable(lease, c.owner)
	if err != nil {
		return err
	}
	claim := coord.Claim{Lock: name, Holder: l.Owner, Mode: coord.Mode(r.GetMode()), Permits: r.GetPermits(), Count: 1, Metadata: r.GetMetadata()}
	key := coord.LockKey(name, lease)
	if kv, ok := m.tree.Get(key); ok && kv.LockClaim != nil { // a plain key in this place gives way
		return c.again(m, kv, &claim, r, wait)
	}
	q := m.locks[name]
	if q != nil {
		if err := q.agrees(&claim); err != nil {
			return err
		}
		if !wait && !q.admits(&claim) {
			c.claimed(r, key, 0, false, 0, nil)
			return nil
		}
	}
	if err := claimable(m, l, claim); err != nil {
		return err
	}
	kv := m.claim(&claim, key, lease)
	if q == nil {
		q = &queue{}
		m.locks[name] = q
	}
	q.push(kv)
	m.settle(name)
	c.stands(r, q, kv)
	return nil
}

// lockAll claims several locks for a lease, all or none. All claims of a command have one revision, so those of two commands have the
// same order in every queue, and nobody waits in a circle. A claim that the lease has already stays and counts no more: a repetition
// changes nothing.
func (c *call) lockAll(m *Machine, r lockRequest, wait bool) error {
	lease := coord.LeaseID(r.GetLeaseId())
	l, err := m.leases.usable(lease, c.owner)
	if err != nil {
		return err
	}
	names := append([]string{r.GetName()}, r.GetOthers()...)
	var fresh []coord.Claim
	free, before := true, ""
	for _, name := range names {
		claim := coord.Claim{Lock: name, Holder: l.Owner, Mode: coord.Mode(r.GetMode()), Permits: r.GetPermits(), Count: 1, Metadata: r.GetMetadata()}
		if kv, ok := m.tree.Get(coord.LockKey(name, lease)); ok && kv.LockClaim != nil {
			if kv.LockClaim.Mode != claim.Mode || kv.LockClaim.Permits != claim.Permits {
				return fault.Refused(fault.Conflict, "mode", "the lease claims %q in another mode", name)
			}
			before = name
			continue
		}
		if q := m.locks[name]; q != nil {
			if err := q.agrees(&claim); err != nil {
				return err
			}
			free = free && q.admits(&claim)
		}
		fresh = append(fresh, claim)
	}
	switch {
	case !free && !wait:
		c.claimed(r, coord.LockKey(r.GetName(), lease), 0, false, 0, nil)
		return nil
	case !free && before != "":
		return fault.Refused(fault.Conflict, "others", "the lease has %q already, and would wait for others: give it back first, or do not wait", before)
	}
	if err := claimable(m, l, fresh...); err != nil {
		return err
	}
	slices.SortFunc(fresh, func(a, b coord.Claim) int { // events of a revision come by key
		return strings.Compare(coord.LockKey(a.Lock, lease), coord.LockKey(b.Lock, lease))
	})
	for i := range fresh {
		name := fresh[i].Lock
		if m.locks[name] == nil {
			m.locks[name] = &queue{}
		}
		m.locks[name].push(m.claim(&fresh[i], coord.LockKey(name, lease), lease))
		m.settle(name)
	}
	c.standAll(m, r, names)
	return nil
}

// standAll answers a request for several locks with the places of its claims.
func (c *call) standAll(m *Machine, r lockRequest, names []string) {
	tokens, holds := make([]int64, len(names)), true
	var first *coord.KeyValue
	for i, name := range names {
		kv, _ := m.tree.Get(coord.LockKey(name, coord.LeaseID(r.GetLeaseId())))
		if i == 0 {
			first = kv
		}
		tokens[i], holds = int64(kv.Token()), holds && m.locks[name].holds(kv.Token())
	}
	c.claimed(r, first.Key, first.Token(), holds, first.LockClaim.Count, tokens)
}

// stands answers a request for a lock with the place of its claim.
func (c *call) stands(r lockRequest, q *queue, kv *coord.KeyValue) {
	c.claimed(r, kv.Key, kv.Token(), q.holds(kv.Token()), kv.LockClaim.Count, nil)
}

// claimed answers a request for a lock, or several with their tokens. The token is 0 without a claim.
func (c *call) claimed(r lockRequest, key string, token coord.Token, holds bool, count uint32, tokens []int64) {
	if _, try := r.(*apiv1.TryLockRequest); try {
		made := &struct {
			one  coordv1.Result_TryLock
			lock apiv1.TryLockResponse
		}{}
		made.lock.Header, made.lock.Key, made.lock.FencingToken, made.lock.Acquired, made.lock.Count = c.header, key, int64(token), holds, count
		made.lock.FencingTokens = tokens
		made.one.TryLock, c.answer.Response = &made.lock, &made.one
		return
	}
	made := &struct {
		one  coordv1.Result_Lock
		lock apiv1.LockResponse
	}{}
	made.lock.Header, made.lock.Key, made.lock.FencingToken, made.lock.Acquired, made.lock.Count = c.header, key, int64(token), holds, count
	made.lock.FencingTokens = tokens
	made.one.Lock, c.answer.Response = &made.lock, &made.one
}

func checkLock(r lockRequest, l *limits) error {
	if err := checkName("name", r.GetName(), l); err != nil {
		return err
	}
	others := r.GetOthers()
	if len(others) >= coord.MaxNames {
		return fault.Invalidf("others", len(others), "must be at most %d", coord.MaxNames-1)
	}
	for i, name := range others {
		if err := checkName("others", name, l); err != nil {
			return err
		}
		if name == r.GetName() || slices.Contains(others[:i], name) {
			return fault.Invalidf("others", name, "is named twice")
		}
	}
	switch mode, permits := r.GetMode(), r.GetPermits(); {
	case mode < 0 || mode > apiv1.ShareMode_SHARE_MODE_PERMIT:
		return fault.Invalidf("mode", mode, "is not known")
	case mode == apiv1.ShareMode_SHARE_MODE_PERMIT && permits == 0:
		return fault.Invalidf("permits", 0, "must be above 0")
	case mode != apiv1.ShareMode_SHARE_MODE_PERMIT && permits != 0:
		return fault.Invalidf("permits", permits, "belongs to permits only")
	}
	if most := min(coord.MaxMetadata, int(l.ValueBytes)); len(r.GetMetadata()) > most {
		return tooLarge("metadata", len(r.GetMetadata()), int64(most))
	}
	return nil
}

func checkName(field, name string, l *limits) error {
	switch {
	case name == "":
		return fault.Invalidf(field, nil, "is missing")
	case reserved(name + "/"):
		return fault.Refused(fault.Conflict, field, "use a name outside the directory")
	case len(name) > int(l.KeyBytes)-17:
		return tooLarge(field, len(name), int64(l.KeyBytes)-17)
	}
	return nil
}

// agrees checks that a claim states the same number of permits as the queue.
func (q *queue) agrees(c *coord.Claim) error {
	if c.Mode != coord.Permit {
		return nil
	}
	for _, kv := range q.claims {
		if kv.LockClaim.Mode == coord.Permit { // all permits of the queue agree
			if kv.LockClaim.Permits != c.Permits {
				return fault.Refused(fault.Conflict, "permits", "the lock has %d, not %d", kv.LockClaim.Permits, c.Permits)
			}
			return nil
		}
	}
	return nil
}

// claimable checks the limits for new claims of a lease.
func claimable(m *Machine, l *lease, all ...coord.Claim) error {
	size := int64(0)
	for i := range all {
		c := &all[i]
		if q := m.locks[c.Lock]; q != nil {
			if err := q.room(l.Owner, uint64(m.limits.Queue)); err != nil {
				return err
			}
		}
		size += rawSize(len(c.Lock)+17, 16+len(c.Metadata)+len(c.Holder))
	}
	if len(l.keys)+len(all) > int(m.limits.LeaseKeys) {
		return limitReached("lease", "too many keys on one lease", uint64(m.limits.LeaseKeys))
	}
	has := func(u *Usage) int64 { return int64(u.Claims) }
	most := uint64(m.limits.PerOwner.Claims)
	if err := l.owner.quota("claims", "too many claims of one owner", has, int64(len(all)), most); err != nil {
		return err
	}
	if err := m.limits.roomOf(l.owner, size); err != nil {
		return err
	}
	return room(m, l.owner.total(), len(all), size, claims)
}

// again repeats the claim of a lease.
func (c *call) again(m *Machine, kv *coord.KeyValue, asked *coord.Claim, r lockRequest, wait bool) error {
	claim := *kv.LockClaim
	if claim.Mode != asked.Mode || claim.Permits != asked.Permits {
		return fault.Refused(fault.Conflict, "mode", "the lease claims the lock in another mode")
	}
	q := m.locks[claim.Lock]
	if !wait && !q.holds(kv.Token()) {
		c.stands(r, q, kv)
		return nil
	}
	if claim.Count >= m.limits.Claims {
		return limitReached("name", "too many claims of one lease", uint64(m.limits.Claims))
	}
	claim.Count++
	if len(asked.Metadata) > 0 {
		claim.Metadata = asked.Metadata
	}
	more := int64(len(claim.Metadata) - len(kv.LockClaim.Metadata) + 5)
	l, _ := m.leases.Get(kv.Lease) // not always the caller's quota: see principals.MayUse
	if err := m.limits.roomOf(l.owner, more); err != nil {
		return err
	}
	if err := room(m, l.owner.total(), 0, more, claims); err != nil {
		return err
	}
	c.stands(r, q, m.locks.reclaim(m, &claim, kv))
	return nil
}

// reclaim replaces a claim after a change of count or metadata.
func (t locks) reclaim(m *Machine, c *coord.Claim, kv *coord.KeyValue) *coord.KeyValue {
	next := m.claim(c, kv.Key, kv.Lease)
	t[c.Lock].replace(next)
	return next
}

// unlock gives back one claim of a lease, a holder.
func (c *call) unlock(m *Machine, r *apiv1.UnlockRequest) error {
	token := coord.Token(r.GetFencingToken())
	kv, q, err := m.locks.claimOf(r.GetName(), coord.LeaseID(r.GetLeaseId()), token, c.owner)
	if err != nil {
		return err
	}
	if !q.holds(token) {
		return fault.Refused(fault.Conflict, "token", "still waits for the lock")
	}
	made := &struct {
		one    coordv1.Result_Unlock
		unlock apiv1.UnlockResponse
	}{}
	made.unlock.Header, made.unlock.Count = c.header, giveBack(m, kv)
	made.one.Unlock, c.answer.Response = &made.unlock, &made.one
	return nil
}

// cancel gives back one waiting claim of a lease, or several of one request of which some wait. Claims that all hold stay, and the
// result says so.
func (c *call) cancel(m *Machine, r *coordv1.Cancel, done *coordv1.Done) error {
	lease, others := coord.LeaseID(r.GetLease()), r.GetOthers()
	if len(others) != len(r.GetTokens()) || len(others) >= coord.MaxNames {
		return fault.Invalidf("others", len(others), "must be at most %d, each with a token", coord.MaxNames-1)
	}
	kv, q, err := m.locks.claimOf(r.GetName(), lease, coord.Token(r.GetToken()), c.owner)
	if err != nil {
		return err
	}
	all, granted := []*coord.KeyValue{kv}, q.holds(kv.Token())
	for i, name := range others {
		kv, q, err := m.locks.claimOf(name, lease, coord.Token(r.GetTokens()[i]), c.owner)
		if err != nil || slices.Contains(all, kv) { // given back already
			granted = false
			continue
		}
		all, granted = append(all, kv), granted && q.holds(kv.Token())
	}
	if done.Granted = granted; !granted {
		slices.SortFunc(all, func(a, b *coord.KeyValue) int { return strings.Compare(a.Key, b.Key) })
		for _, kv := range all {
			giveBack(m, kv)
		}
		done.Changed = uint32(len(all))
	}
	return nil
}

// locks are the queues of claims by lock, derived from the keys. The order of the map never matters.
type locks map[string]*queue

// claimOf finds the claim that (lock, lease, token) name, for the lease's owner.
func (t locks) claimOf(name string, id coord.LeaseID, token coord.Token, owner string) (*coord.KeyValue, *queue, error) {
	if q := t[name]; q != nil {
		if i, ok := q.find(token); ok && q.claims[i].Lease == id {
			if !principals.MayUse(q.claims[i].LockClaim.Holder, owner) {
				return nil, nil, fault.Refused(fault.Forbidden, "lease", "belongs to another owner")
			}
			return q.claims[i], q, nil
		}
	}
	return nil, nil, fault.Refused(fault.NotFound, "token", "the lease has no such claim on the lock: it was given back, expired or never made")
}

// giveBack takes one from a claim's count and returns the rest. With the last it takes the claim out of its queue.
func giveBack(m *Machine, kv *coord.KeyValue) (left uint32) {
	if kv.LockClaim.Count > 1 {
		claim := *kv.LockClaim
		claim.Count--
		m.locks.reclaim(m, &claim, kv)
		return claim.Count
	}
	m.remove(kv.Key)
	m.locks[kv.LockClaim.Lock].remove(kv.Token())
	m.settle(kv.LockClaim.Lock)
	return 0
}

// settle grants a lock to the next claims, and drops a lock without claims.
func (m *Machine) settle(name string) {
	q := m.locks[name]
	for kv := q.advance(); kv != nil; kv = q.advance() {
		m.effects.Grants = append(m.effects.Grants, Grant{Lock: name, Lease: kv.Lease, Token: kv.Token()})
	}
	if len(q.claims) == 0 {
		delete(m.locks, name)
	}
}

// LockCount returns the number of locks with claims.
func (m *Machine) LockCount() int { return len(m.locks) }

// Claims gives the number of claims on a lock, those that wait included.
func (m *Machine) Claims(name string) int {
	if q := m.locks[name]; q != nil {
		return len(q.claims)
	}
	return 0
}

// LockNames gives the names with a prefix of the locks that somebody claims, in ascending order.
func (m *Machine) LockNames(prefix string) []string {
	var names []string
	for name := range m.locks {
		if strings.HasPrefix(name, prefix) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Holds reports whether the claim with a token holds its lock, and whether there is one.
func (m *Machine) Holds(name string, token coord.Token) (holds, there bool) {
	q := m.locks[name]
	if q == nil {
		return false, false
	}
	i, there := q.find(token)
	return there && i < q.held, there
}
