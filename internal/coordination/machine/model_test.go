package machine_test

import (
	"maps"
	"slices"
	"strings"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/coord/directory"
	"github.com/blackhole/blackhole/internal/contract/coord/principals"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
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

	over      uint64 // index of the Dissolve
	successor machine.GroupID
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
	writer         string // or the owner of the lease
	principal      string // of an entry
}

type session struct {
	owner    string
	seen     uint64
	sequence uint64
	kind     fault.Kind
	done     bool
	answer   ops.LockResult
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
func (m *model) apply(index uint64, cmd *coordv1.Command) (fault.Kind, bool, ops.LockResult) {
	m.index, m.foreign, m.kept, m.text = index, nil, nil, ""
	sequence := cmd.GetAttempt().GetSequence()
	if clientOf(cmd) == 0 {
		return m.execute(cmd)
	}
	s := m.clients[clientOf(cmd)]
	switch {
	case s == nil:
		return fault.NotFound, true, ops.LockResult{}
	case sequence == 0:
		return fault.Invalid, true, ops.LockResult{}
	case sequence < s.sequence:
		return fault.Conflict, true, ops.LockResult{}
	}
	s.seen = index
	if sequence > s.sequence {
		s.kind, s.done, s.answer = m.execute(cmd)
		s.sequence, s.foreign, s.kept, s.text = sequence, m.foreign, m.kept, m.text
	}
	m.foreign, m.kept, m.text = s.foreign, s.kept, s.text
	return s.kind, s.done, s.answer
}

func clientOf(cmd *coordv1.Command) coord.ClientID {
	return coord.ClientID(cmd.GetAttempt().GetClient())
}

func (m *model) execute(cmd *coordv1.Command) (kind fault.Kind, refused bool, answer ops.LockResult) {
	next, before := maps.Clone(m.keys()), m.now
	if m.over != 0 && cmd.GetBumpIncarnation() == nil {
		m.stamp(cmd, true, before)
		return fault.Unavailable, true, answer
	}
	switch o := cmd.GetRequest().(type) {
	case *coordv1.Command_Txn:
		kind, refused = m.txn(next, o.Txn, cmd.Owner)
	case *coordv1.Command_Lock:
		kind, refused, answer = m.lock(next, o.Lock, o.Lock.TimeoutMs != 0, cmd.Owner)
	case *coordv1.Command_TryLock:
		r := o.TryLock
		asked := &apiv1.LockRequest{TimeoutMs: -1, Name: r.Name, LeaseId: r.LeaseId, Mode: r.Mode, Permits: r.Permits, Metadata: r.Metadata}
		kind, refused, answer = m.lock(next, asked, false, cmd.Owner)
	case *coordv1.Command_Unlock:
		kind, refused, answer = m.giveBack(next, o.Unlock, cmd.Owner, true)
		answer = ops.LockResult{Granted: answer.Count > 0, Count: answer.Count}
	case *coordv1.Command_Cancel:
		r := &apiv1.UnlockRequest{Name: o.Cancel.Name, LeaseId: o.Cancel.Lease, FencingToken: o.Cancel.Token}
		kind, refused, answer = m.giveBack(next, r, cmd.Owner, false)
		answer = ops.LockResult{Granted: answer.Granted}
	case *coordv1.Command_PublishInstances:
		kind, refused = m.batch(next, o.PublishInstances, cmd.Owner)
	case *coordv1.Command_SetRequirement:
		kind, refused = m.set(next, o.SetRequirement, cmd.Owner)
	case *coordv1.Command_DeleteRequirement:
		_, found := next["requirements/"+o.DeleteRequirement.Name]
		kind, refused = fault.NotFound, !found
		delete(next, "requirements/"+o.DeleteRequirement.Name)
	case *coordv1.Command_LeaseRevoke:
		id := coord.LeaseID(o.LeaseRevoke.Id)
		kind, refused = m.usable(id, cmd.Owner)
		if !refused {
			m.end(next, id)
		}
	case *coordv1.Command_Expire:
		if o.Expire.Term != 1 {
			return fault.Conflict, true, answer
		}
		for _, ref := range o.Expire.Leases {
			id := coord.LeaseID(ref.Id)
			if l, ok := m.leases[id]; ok && l.Granted == ref.Granted {
				m.end(next, id)
			}
		}
	case *coordv1.Command_Dissolve:
		kind, refused = m.dissolve(next, o.Dissolve)
	case *coordv1.Command_BumpIncarnation:
		if o.BumpIncarnation.Incarnation != m.life+1 {
			return fault.Conflict, true, answer
		}
		m.life++
		m.over = 0
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

func (m *model) administer(cmd *coordv1.Command) (fault.Kind, bool) {
	switch o := cmd.GetRequest().(type) {
	case *coordv1.Command_LeaseGrant:
		return m.grant(o.LeaseGrant, cmd.Owner)
	case *coordv1.Command_OpenClient:
		id := coord.ClientID(1)
		for m.clients[id] != nil {
			id++
		}
		m.clients[id] = &session{owner: cmd.Owner, seen: m.index}
	case *coordv1.Command_CloseClient:
		if clientOf(cmd) == 0 {
			return fault.Invalid, true
		}
		delete(m.clients, clientOf(cmd))
	case *coordv1.Command_ClientsExpire:
		maps.DeleteFunc(m.clients, func(_ coord.ClientID, s *session) bool { return s.seen < o.ClientsExpire.IdleSince })
	case *coordv1.Command_Compact:
		at := coord.Revision(o.Compact.Revision)
		return fault.Invalid, at < 0 || at > m.now
	case *coordv1.Command_Configure:
		return fault.Invalid, o.Configure.Limits.HistoryEvents == 0
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

func (m *model) dissolve(keys map[string]version, o *coordv1.Dissolve) (fault.Kind, bool) {
	successor, reached := machine.GroupID(o.Successor), coord.Revision(o.Reached)
	if reached < m.now {
		return fault.Conflict, true
	}
	for key, v := range keys {
		if v.lock != "" || !strings.HasPrefix(key, directory.Prefix) {
			return fault.Conflict, true
		}
	}
	for _, l := range m.leases {
		if principals.IsNamed(l.Owner) || principals.IsAnonymous(l.Owner) { // an application's
			return fault.Conflict, true
		}
	}
	for _, id := range slices.Collect(maps.Keys(m.leases)) {
		m.end(keys, id)
	}
	m.over, m.successor = m.index, successor
	return 0, false
}

func (m *model) grant(o *apiv1.LeaseGrantRequest, owner string) (fault.Kind, bool) {
	if o.TtlMs <= 0 {
		return fault.Invalid, true
	}
	id := coord.LeaseID(o.Id)
	if _, taken := m.leases[id]; taken {
		return fault.Exists, true
	}
	for taken := id == 0; taken; _, taken = m.leases[id] {
		id++
	}
	m.leases[id] = coord.Lease{ID: id, TTL: max(o.TtlMs, 2000), Owner: owner, Granted: m.index}
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
	if prev, ok := m.keys()[key]; ok && (v.lock == "") == (prev.lock == "") {
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

func (m *model) lock(keys map[string]version, o *apiv1.LockRequest, wait bool, owner string) (fault.Kind, bool, ops.LockResult) {
	var answer ops.LockResult
	lease, mode := coord.LeaseID(o.LeaseId), coord.Mode(o.Mode)
	if o.Name == "directory" {
		return fault.Conflict, true, answer
	}
	if mode == coord.Permit && o.Permits == 0 {
		return fault.Invalid, true, answer
	}
	if kind, no := m.usable(lease, owner); no {
		return kind, true, answer
	}
	key := coord.LockKey(o.Name, lease)
	claim := version{lock: o.Name, holder: m.leases[lease].Owner, lease: lease, mode: mode, permits: o.Permits, count: 1, metadata: string(o.Metadata)}
	before, held := m.queue(keys, o.Name)
	old, there := keys[key]
	if old.lock != "" {
		switch {
		case old.mode != mode || old.permits != o.Permits:
			return fault.Conflict, true, answer
		}
		claim.count = old.count + 1
		if len(o.Metadata) == 0 {
			claim.metadata = old.metadata
		}
		if at := slices.Index(before, old); !wait && at >= held {
			return 0, false, m.stand(keys, key)
		}
	}
	for _, v := range before {
		if mode == coord.Permit && v.mode == coord.Permit && v.permits != o.Permits {
			return fault.Conflict, true, answer
		}
	}
	m.put(keys, key, claim)
	answer = m.stand(keys, key)
	if !wait && !answer.Granted {
		answer.Token, answer.Count = 0, 0
		if delete(keys, key); there { // a plain key stays
			keys[key] = old
		}
	}
	return 0, false, answer
}

func (m *model) stand(keys map[string]version, key string) ops.LockResult {
	v := keys[key]
	queue, held := m.queue(keys, v.lock)
	i := slices.Index(queue, v)
	return ops.LockResult{Key: key, Token: coord.Token(v.create), Granted: i < held, Count: v.count}
}

// giveBack is Unlock for a holding claim and Cancel for a waiting one.
func (m *model) giveBack(keys map[string]version, o *apiv1.UnlockRequest, owner string, holding bool) (fault.Kind, bool, ops.LockResult) {
	key := coord.LockKey(o.Name, coord.LeaseID(o.LeaseId))
	v, ok := keys[key]
	if !ok || v.lock != o.Name || v.create != coord.Revision(o.FencingToken) {
		return fault.NotFound, true, ops.LockResult{}
	}
	if !sameHand(v.holder, owner) {
		return fault.Forbidden, true, ops.LockResult{}
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
	return 0, false, ops.LockResult{Key: key, Token: coord.Token(o.FencingToken)}
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
