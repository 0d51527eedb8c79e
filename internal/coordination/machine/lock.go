package machine

import (
	"slices"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
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

func (o *lockOp) run(m *Machine, c *call) error {
	if err := o.check(&m.limits); err != nil {
		return err
	}
	l, err := m.leases.usable(o.Lease, c.owner)
	if err != nil {
		return err
	}
	key := coord.LockKey(o.Name, o.Lease)
	if kv, ok := m.tree.Get(key); ok {
		return o.again(m, kv, c)
	}
	claim := coord.Claim{Lock: o.Name, Holder: l.Owner, Mode: o.Mode, Permits: o.Permits, Count: 1, Metadata: o.Metadata}
	q := m.locks[o.Name]
	if q != nil {
		if err := q.agrees(&claim); err != nil {
			return err
		}
		if !o.Wait && !q.admits(&claim) {
			c.result.Lock = coord.LockResult{Key: key, Predecessor: q.claims[len(q.claims)-1].Key}
			return nil
		}
	}
	if err := o.claimable(m, &claim, l, q); err != nil {
		return err
	}
	kv := m.claim(&claim, key, o.Lease)
	if q == nil {
		q = &queue{}
		m.locks[o.Name] = q
	}
	q.push(kv)
	m.settle(o.Name)
	c.result.Lock, c.result.Changed = q.stand(kv), 1
	return nil
}

func (o *lockOp) check(l *limits) error {
	switch {
	case o.Name == "":
		return fault.Invalidf("name", nil, "is missing")
	case !utf8.ValidString(o.Name):
		return fault.Invalidf("name", nil, "must be UTF-8")
	case reserved(o.Name + "/"):
		return fault.Refused(fault.Conflict, "name", "use a name outside the directory")
	case len(o.Name) > int(l.KeyBytes)-17:
		return tooLarge("name", len(o.Name), int64(l.KeyBytes)-17)
	case o.Mode > coord.Permit:
		return fault.Invalidf("mode", o.Mode, "is not known")
	case o.Mode == coord.Permit && o.Permits == 0:
		return fault.Invalidf("permits", 0, "must be above 0")
	case o.Mode != coord.Permit && o.Permits != 0:
		return fault.Invalidf("permits", o.Permits, "belongs to permits only")
	}
	if most := min(coord.MaxMetadata, int(l.ValueBytes)); len(o.Metadata) > most {
		return tooLarge("metadata", len(o.Metadata), int64(most))
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

// claimable checks the limits for a new claim.
func (o *lockOp) claimable(m *Machine, c *coord.Claim, l *lease, q *queue) error {
	if q != nil && len(q.claims) >= int(m.limits.Queue) {
		return limitReached("name", "too many claims on one lock", uint64(m.limits.Queue))
	}
	if len(l.keys) >= int(m.limits.LeaseKeys) {
		return limitReached("lease", "too many keys on one lease", uint64(m.limits.LeaseKeys))
	}
	if most := m.limits.PerOwner.Claims; l.owner.Claims >= int(most) {
		return limitReached("per_owner.claims", "too many claims of one owner", uint64(most))
	}
	size := rawSize(len(c.Lock)+17, 16+len(c.Metadata)+len(c.Holder))
	if err := m.limits.roomOf(l.owner, size); err != nil {
		return err
	}
	return room(m, 1, size, false)
}

// again repeats the claim of a lease.
func (o *lockOp) again(m *Machine, kv *coord.KeyValue, c *call) error {
	if kv.LockClaim == nil {
		return fault.Refused(fault.Exists, "name", "a plain key is in the place of the claim")
	}
	claim := *kv.LockClaim
	if claim.Mode != o.Mode || claim.Permits != o.Permits {
		return fault.Refused(fault.Conflict, "mode", "the lease claims the lock in another mode")
	}
	q := m.locks[o.Name]
	if !o.Wait && !q.holds(kv.Token()) {
		c.result.Lock = q.stand(kv)
		return nil
	}
	if claim.Count >= m.limits.Claims {
		return limitReached("name", "too many claims of one lease", uint64(m.limits.Claims))
	}
	claim.Count++
	if len(o.Metadata) > 0 {
		claim.Metadata = o.Metadata
	}
	more := int64(len(claim.Metadata) - len(kv.LockClaim.Metadata) + 5)
	l, _ := m.leases.Get(kv.Lease) // not always the caller's quota: see coord.MayUse
	if err := m.limits.roomOf(l.owner, more); err != nil {
		return err
	}
	if err := room(m, 0, more, false); err != nil {
		return err
	}
	c.result.Lock, c.result.Changed = q.stand(m.locks.reclaim(m, &claim, kv)), 1
	return nil
}

// reclaim replaces a claim after a change of count or metadata.
func (t locks) reclaim(m *Machine, c *coord.Claim, kv *coord.KeyValue) *coord.KeyValue {
	next := m.claim(c, kv.Key, kv.Lease)
	t[c.Lock].replace(next)
	return next
}

func (o *unlockOp) run(m *Machine, c *call) error {
	kv, q, err := m.locks.claimOf(o.Name, o.Lease, o.Token, c.owner)
	if err != nil {
		return err
	}
	if !q.holds(o.Token) {
		return fault.Refused(fault.Conflict, "token", "still waits for the lock")
	}
	c.giveBack(m, kv)
	return nil
}

func (o *cancelOp) run(m *Machine, c *call) error {
	kv, q, err := m.locks.claimOf(o.Name, o.Lease, o.Token, c.owner)
	if err != nil {
		return err
	}
	if q.holds(o.Token) {
		c.result.Lock = q.stand(kv)
		return nil
	}
	c.giveBack(m, kv)
	return nil
}

// locks are the queues of claims by lock, derived from the keys. The order of the map never matters.
type locks map[string]*queue

// claimOf finds the claim that (lock, lease, token) name, for the lease's owner.
func (t locks) claimOf(name string, id coord.LeaseID, token coord.Token, owner string) (*coord.KeyValue, *queue, error) {
	if q := t[name]; q != nil {
		if i, ok := q.find(token); ok && q.claims[i].Lease == id {
			if !coord.MayUse(q.claims[i].LockClaim.Holder, owner) {
				return nil, nil, fault.Refused(fault.Forbidden, "lease", "belongs to another owner")
			}
			return q.claims[i], q, nil
		}
	}
	return nil, nil, fault.Refused(fault.NotFound, "token", "the lease has no such claim on the lock: it was given back, expired or never made")
}

// giveBack takes one from a claim's count, and with the last the claim out of its queue.
func (c *call) giveBack(m *Machine, kv *coord.KeyValue) {
	c.result.Changed = 1
	if kv.LockClaim.Count > 1 {
		claim := *kv.LockClaim
		claim.Count--
		c.result.Lock = m.locks[claim.Lock].stand(m.locks.reclaim(m, &claim, kv))
		return
	}
	c.result.Lock = coord.LockResult{Key: kv.Key, Token: kv.Token()}
	m.remove(kv.Key)
	m.locks[kv.LockClaim.Lock].remove(kv.Token())
	m.settle(kv.LockClaim.Lock)
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

// stand returns the result of a claim's place.
func (q *queue) stand(kv *coord.KeyValue) coord.LockResult {
	r := coord.LockResult{Key: kv.Key, Token: kv.Token(), Count: kv.LockClaim.Count}
	i, _ := q.find(r.Token)
	if r.Granted = i < q.held; !r.Granted {
		r.Position = i - q.held + 1
	}
	if i > 0 {
		r.Predecessor = q.claims[i-1].Key
	}
	return r
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

// ClaimResult returns the present place of the claim with a token, or false.
func (m *Machine) ClaimResult(name string, token coord.Token) (coord.LockResult, bool) {
	q := m.locks[name]
	if q == nil {
		return coord.LockResult{}, false
	}
	i, ok := q.find(token)
	if !ok {
		return coord.LockResult{}, false
	}
	return q.stand(q.claims[i]), true
}
