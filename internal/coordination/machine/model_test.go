package machine_test

import (
	"maps"
	"slices"
	"strings"

	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

// model is the naive version: it copies the whole keyspace for each revision, walks over everything, and
// has no index, no history and no limits.
type model struct {
	states  map[coord.Revision]map[string]version
	now     coord.Revision
	leases  map[coord.LeaseID]coord.Lease
	clients map[coord.ClientID]*session
	index   uint64
	life    uint64
	begun   map[string]begun // by owner
	foreign []string         // of the last command
	kept    []coord.Revision // of its puts
	text    string           // of its transaction
	since   map[string]coord.Revision
	gone    map[string]gone // by key

	over     uint64 // index of the Dissolve
	absorbed []coord.GroupID
}

// removals is when an owner took an entry out.
type gone struct {
	at    coord.Revision
	owner string
}

// begun is a generation and its lease.
type begun struct {
	generation uint64
	lease      coord.LeaseID
}

type version struct {
	value          string
	create, mod    coord.Revision
	version        int64
	lease          coord.LeaseID
	lock, holder   string // of a claim
	mode           coord.Mode
	permits, count uint32
	metadata       string
	writer         string // without a lease
	principal      string // of an entry
}

type session struct {
	owner    string
	seen     uint64
	sequence uint64
	kind     fault.Kind
	done     bool
	answer   coord.LockResult
	foreign  []string
	kept     []coord.Revision
	text     string
}

func newModel() *model {
	return &model{
		now: coord.FirstRevision, states: map[coord.Revision]map[string]version{coord.FirstRevision: {}}, leases: map[coord.LeaseID]coord.Lease{},
		clients: map[coord.ClientID]*session{}, begun: map[string]begun{}, since: map[string]coord.Revision{}, gone: map[string]gone{},
	}
}

func (m *model) keys() map[string]version { return m.states[m.now] }

// apply returns the kind of refusal, or false, and the lock result.
func (m *model) apply(index uint64, cmd coord.Command) (fault.Kind, bool, coord.LockResult) {
	m.index, m.foreign, m.kept, m.text = index, nil, nil, ""
	if cmd.Client == 0 {
		return m.execute(cmd)
	}
	s := m.clients[cmd.Client]
	switch {
	case s == nil:
		return fault.NotFound, true, coord.LockResult{}
	case cmd.Sequence == 0:
		return fault.Invalid, true, coord.LockResult{}
	case cmd.Sequence < s.sequence:
		return fault.Conflict, true, coord.LockResult{}
	}
	s.seen = index
	if cmd.Sequence > s.sequence {
		s.kind, s.done, s.answer = m.execute(cmd)
		s.sequence, s.foreign, s.kept, s.text = cmd.Sequence, m.foreign, m.kept, m.text
	}
	m.foreign, m.kept, m.text = s.foreign, s.kept, s.text
	return s.kind, s.done, s.answer
}

func (m *model) execute(cmd coord.Command) (kind fault.Kind, refused bool, answer coord.LockResult) {
	next, before := maps.Clone(m.keys()), m.now
	if raise, ok := cmd.Op.(*coord.RaiseRevision); m.over != 0 && (!ok || raise.Resume != m.over) {
		m.stamp(cmd, true, before)
		return fault.Unavailable, true, answer
	}
	switch o := cmd.Op.(type) {
	case *coord.Txn:
		kind, refused = m.txn(next, o, cmd.Owner)
	case *coord.Lock:
		kind, refused, answer = m.lock(next, o, cmd.Owner)
	case *coord.Unlock:
		kind, refused, answer = m.giveBack(next, *o, cmd.Owner, true)
	case *coord.Cancel:
		kind, refused, answer = m.giveBack(next, coord.Unlock(*o), cmd.Owner, false)
	case *coord.RegisterBatch:
		kind, refused = m.batch(next, o, cmd.Owner)
	case *coord.SetRequirement:
		kind, refused = m.set(next, o, cmd.Owner)
	case *coord.DeleteRequirement:
		_, found := next["requirements/"+o.Name]
		kind, refused = fault.NotFound, !found
		delete(next, "requirements/"+o.Name)
	case *coord.LeaseRevoke:
		kind, refused = m.usable(o.ID, cmd.Owner)
		if !refused {
			m.end(next, o.ID)
		}
	case *coord.Expire:
		if o.Term != 1 {
			return fault.Conflict, true, answer
		}
		for _, ref := range o.Leases {
			if l, ok := m.leases[ref.ID]; ok && l.Granted == ref.Granted {
				m.end(next, ref.ID)
			}
		}
	case *coord.Dissolve:
		kind, refused = m.dissolve(next, o)
	case *coord.RaiseRevision:
		kind, refused = m.raise(next, o)
	case *coord.BumpIncarnation:
		if o.Incarnation != m.life+1 {
			return fault.Conflict, true, answer
		}
		m.life++
		m.leap(next, m.now+1<<40)
	default:
		kind, refused = m.administer(cmd)
		next = maps.Clone(m.keys())
	}
	if !refused && !maps.Equal(next, m.keys()) {
		m.now++
		m.states[m.now] = next
	}
	m.stamp(cmd, refused, before)
	return kind, refused, answer
}

func (m *model) administer(cmd coord.Command) (fault.Kind, bool) {
	switch o := cmd.Op.(type) {
	case *coord.LeaseGrant:
		return m.grant(o, cmd.Owner)
	case *coord.ClientOpen:
		id := coord.ClientID(1)
		for m.clients[id] != nil {
			id++
		}
		m.clients[id] = &session{owner: cmd.Owner, seen: m.index}
	case *coord.ClientClose:
		if cmd.Client == 0 {
			return fault.Invalid, true
		}
		delete(m.clients, cmd.Client)
	case *coord.ClientsExpire:
		maps.DeleteFunc(m.clients, func(_ coord.ClientID, s *session) bool { return s.seen < o.IdleSince })
	case *coord.Compact:
		return fault.Invalid, o.Revision < 0 || o.Revision > m.now
	case *coord.Configure:
		return fault.Invalid, o.Limits.HistoryEvents == 0
	}
	return 0, false
}

func (m *model) raise(keys map[string]version, o *coord.RaiseRevision) (fault.Kind, bool) {
	if o.Resume != m.over {
		return fault.Conflict, true
	}
	known := func(g coord.GroupID) bool { return slices.Contains(m.absorbed, g) }
	first := slices.ContainsFunc(o.Absorbed, func(g coord.GroupID) bool { return !known(g) })
	m.over, m.absorbed = 0, append(m.absorbed, o.Absorbed...)
	if first || o.To > m.now {
		m.leap(keys, max(o.To, m.now+1))
	}
	return 0, false
}

// leap ends the claims that wait, because they would hold with tokens of before.
func (m *model) leap(keys map[string]version, to coord.Revision) {
	m.states[to] = m.keys()
	m.now = to
	for _, name := range m.names() {
		queue, held := m.queue(keys, name)
		for _, v := range queue[held:] {
			delete(keys, coord.LockKey(v.lock, v.lease))
		}
	}
}

func (m *model) dissolve(keys map[string]version, o *coord.Dissolve) (fault.Kind, bool) {
	if slices.Contains(m.absorbed, o.Successor) {
		return fault.Conflict, true
	}
	if !o.Force {
		for key, v := range keys {
			if v.lock != "" || !strings.HasPrefix(key, coord.DirectoryPrefix) {
				return fault.Conflict, true
			}
		}
		for _, l := range m.leases {
			if coord.IsNamed(l.Owner) || coord.IsAnonymous(l.Owner) { // an application's
				return fault.Conflict, true
			}
		}
	}
	for _, id := range slices.Collect(maps.Keys(m.leases)) {
		m.end(keys, id)
	}
	m.over = m.index
	return 0, false
}

func (m *model) grant(o *coord.LeaseGrant, owner string) (fault.Kind, bool) {
	if o.TTL <= 0 {
		return fault.Invalid, true
	}
	id := o.ID
	if _, taken := m.leases[id]; taken {
		return fault.Exists, true
	}
	for taken := id == 0; taken; _, taken = m.leases[id] {
		id++
	}
	m.leases[id] = coord.Lease{ID: id, TTL: max(o.TTL, 5000), Owner: owner, Granted: m.index}
	return 0, false
}

func (m *model) usable(id coord.LeaseID, owner string) (fault.Kind, bool) {
	l, ok := m.leases[id]
	if !ok {
		return fault.NotFound, true
	}
	return fault.Forbidden, !sameHand(l.Owner, owner)
}

// sameHand: callers without a name are one hand, and others only themselves.
func sameHand(owner, caller string) bool {
	return owner == caller || owner[0] == '~' && caller[0] == '~'
}

func (m *model) end(keys map[string]version, id coord.LeaseID) {
	delete(m.leases, id)
	maps.DeleteFunc(m.begun, func(_ string, b begun) bool { return b.lease == id })
	maps.DeleteFunc(keys, func(_ string, v version) bool { return v.lease == id })
}

func (m *model) put(keys map[string]version, key string, v version) {
	v.mod, v.create, v.version = m.now+1, m.now+1, 1
	if prev, ok := m.keys()[key]; ok {
		v.create, v.version = prev.create, prev.version+1
	}
	keys[key] = v
}

// queue returns the claims on a lock in order and the number of holders: every claim compatible with
// all earlier ones, up to the first incompatible one.
func (m *model) queue(keys map[string]version, name string) ([]version, int) {
	var queue []version
	for _, v := range keys {
		if v.lock == name {
			queue = append(queue, v)
		}
	}
	slices.SortFunc(queue, func(a, b version) int { return int(a.create - b.create) })
	for i, v := range queue {
		for _, before := range queue[:i] {
			if v.mode != before.mode || v.mode == coord.Exclusive || v.mode == coord.Permit && i >= int(v.permits) {
				return queue, i
			}
		}
	}
	return queue, len(queue)
}

func (m *model) lock(keys map[string]version, o *coord.Lock, owner string) (fault.Kind, bool, coord.LockResult) {
	var answer coord.LockResult
	if o.Name == "directory" {
		return fault.Conflict, true, answer
	}
	if o.Mode == coord.Permit && o.Permits == 0 {
		return fault.Invalid, true, answer
	}
	if kind, no := m.usable(o.Lease, owner); no {
		return kind, true, answer
	}
	key := coord.LockKey(o.Name, o.Lease)
	claim := version{lock: o.Name, holder: m.leases[o.Lease].Owner, lease: o.Lease, mode: o.Mode, permits: o.Permits, count: 1, metadata: string(o.Metadata)}
	before, held := m.queue(keys, o.Name)
	if old, ok := keys[key]; ok {
		switch {
		case old.lock == "":
			return fault.Exists, true, answer
		case old.mode != o.Mode || old.permits != o.Permits:
			return fault.Conflict, true, answer
		}
		claim.count = old.count + 1
		if len(o.Metadata) == 0 {
			claim.metadata = old.metadata
		}
		if at := slices.Index(before, old); !o.Wait && at >= held {
			return 0, false, m.stand(keys, key)
		}
	}
	for _, v := range before {
		if o.Mode == coord.Permit && v.mode == coord.Permit && v.permits != o.Permits {
			return fault.Conflict, true, answer
		}
	}
	m.put(keys, key, claim)
	answer = m.stand(keys, key)
	if !o.Wait && !answer.Granted {
		answer.Token, answer.Position, answer.Count = 0, 0, 0
		delete(keys, key)
	}
	return 0, false, answer
}

func (m *model) stand(keys map[string]version, key string) coord.LockResult {
	v := keys[key]
	queue, held := m.queue(keys, v.lock)
	i := slices.Index(queue, v)
	r := coord.LockResult{Key: key, Token: coord.Token(v.create), Granted: i < held, Count: v.count}
	if !r.Granted {
		r.Position = i - held + 1
	}
	if i > 0 {
		r.Predecessor = coord.LockKey(v.lock, queue[i-1].lease)
	}
	return r
}

// giveBack is Unlock for a holding claim and Cancel for a waiting one.
func (m *model) giveBack(keys map[string]version, o coord.Unlock, owner string, holding bool) (fault.Kind, bool, coord.LockResult) {
	key := coord.LockKey(o.Name, o.Lease)
	v, ok := keys[key]
	if !ok || v.lock != o.Name || v.create != coord.Revision(o.Token) {
		return fault.NotFound, true, coord.LockResult{}
	}
	if !sameHand(v.holder, owner) {
		return fault.Forbidden, true, coord.LockResult{}
	}
	if stands := m.stand(keys, key); stands.Granted != holding {
		return fault.Conflict, holding, stands
	}
	if v.count > 1 {
		v.count--
		m.put(keys, key, v)
		return 0, false, m.stand(keys, key)
	}
	delete(keys, key)
	return 0, false, coord.LockResult{Key: key, Token: o.Token}
}

// names returns the locks with claims.
func (m *model) names() []string {
	set := map[string]bool{}
	for _, v := range m.keys() {
		if v.lock != "" {
			set[v.lock] = true
		}
	}
	return slices.SortedFunc(maps.Keys(set), strings.Compare)
}
