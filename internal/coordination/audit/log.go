// Package audit checks a state machine, or a whole group, against its promises. A checker follows
// from outside, keeps its own simple record, knows nothing about the implementation, and names the
// first broken rule.
//
// Log checks the entries of one log, Leases the times of their ends, Stream a watcher. RELIABILITY.md
// defines the rules:
//
//	L1  the tokens granted on a lock strictly increase
//	L2  a write guarded by an exclusive token is refused once a greater one was accepted
//	L3  grants that exclude each other never overlap in the order of the log
//	L4  a lease does not end by Expire before its time to live has passed since it was last renewed
//	L5  a lease ends by an entry of the log, together with all its keys
//	L6  only its owner uses a lease, and gives its claims back
//	L7  claims are granted in the order of the queue, in the entry that makes room
//	W1  ordered: a watch reports ascending revisions, and keys in order
//	W2  unique: it reports no event twice
//	W3  reliable: it reports every event
//	W4  atomic: the events of a revision come together
//	W5  resumable: from Next it continues at any member, without gap or duplicate
//	W6  bookmarkable: progress follows the delivery
//	E1  a command repeated with its sequence returns its first result and changes nothing
//	K1  a transaction takes the branch of its comparisons, and changes what the steps say
//	R1  events are the difference between the keyspace before and after, at one new revision
//	U1  no command gives an owner more leases, or claims, than its quota
//	I1  only directory commands and the end of a lease change directory entries
//	I2  a batch is complete in its revision, and each of its events is a change
//	I3  only a batch with Adopt or with a later registration changes another owner's entry
//	I4  a generation with a live lease blocks batches of earlier generations, and nothing else does
//	G1  a group accepts nothing between a Dissolve and the next incarnation
//	I6  the latest decision about an entry counts: exactly the puts with an earlier one are skipped
//
// Errors have the kind Internal and the operation "audit." with the rule.
package audit

import (
	"maps"
	"reflect"
	"slices"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/coord/principals"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

func breach(rule, format string, args ...any) error {
	return fault.New("audit."+rule, fault.Internal, format, args...)
}

// Entry is one entry of the log with the effects at a member.
type Entry struct {
	Index   uint64
	Term    uint64
	Command *coordv1.Command
	Result  ops.Result
	Effects machine.ApplyEffects
}

// Log checks L1 to L3, L5 to L7, E1, K1, R1, U1, G1, I1 to I4 and I6 over the entries of a log from its beginning.
// The zero Log is ready.
type Log struct {
	revision  coord.Revision
	keys      map[string]*coord.KeyValue
	leases    map[coord.LeaseID]string // their owners
	owned     map[string]owned         // by owner
	writers   map[string]string        // of keys without a lease
	quota     coord.Quota
	locks     map[string]*account
	begun     map[string]begun          // by owner
	since     map[string]coord.Revision // of entries
	gone      map[string]departure      // of deleted entries
	answered  map[coord.ClientID]answer
	over      uint64 // index of the Dissolve in force
	successor machine.GroupID
}

// account is the known state of one lock.
type account struct {
	claims   map[coord.Token]*coord.KeyValue
	holding  map[coord.Token]coord.Claim
	granted  coord.Token // greatest
	accepted coord.Token // greatest exclusive token that guarded a write
}

// begun is a generation and its lease.
type begun struct {
	generation uint64
	lease      coord.LeaseID
}

// departure is when an owner took an entry out.
type departure struct {
	at    coord.Revision
	owner string
}

// owned counts an owner's leases, claims, and keys without a lease.
type owned struct{ leases, claims, unleased int }

type answer struct {
	sequence uint64
	result   ops.Result
}

// Entry checks the next entry.
func (l *Log) Entry(e Entry) error {
	if l.keys == nil {
		l.keys, l.leases = make(map[string]*coord.KeyValue), make(map[coord.LeaseID]string)
		l.owned, l.quota = make(map[string]owned), coord.DefaultLimits().PerOwner
		l.writers = make(map[string]string)
		l.locks, l.answered = make(map[string]*account), make(map[coord.ClientID]answer)
		l.begun = make(map[string]begun)
		l.since, l.gone = make(map[string]coord.Revision), make(map[string]departure)
	}
	if again, err := l.repeated(e); again || err != nil {
		return err
	}
	if e.Result.Err != nil {
		return l.refused(e)
	}
	if e.Command.GetOpenClient() != nil {
		delete(l.answered, e.Result.Client) // an ended client with the same id is another one
	}
	before, foreseen := l.owned[e.Command.GetOwner()].unleased, l.foresee(e)
	for _, check := range []func(Entry) error{l.lives, l.rights, l.directory, l.events, l.batch, l.grants, l.endings, l.queues, l.quotas} {
		if err := check(e); err != nil {
			return err
		}
	}
	if has := l.owned[e.Command.GetOwner()].unleased; has > before && has > int(l.quota.UnleasedKeys) {
		return breach("U1", "entry %d: %q has %d keys without a lease, at most %d", e.Index, e.Command.GetOwner(), has, l.quota.UnleasedKeys)
	}
	return foreseen.check(e)
}

// repeated reports whether the client sent the entry's command before (E1).
func (l *Log) repeated(e Entry) (bool, error) {
	client, sequence := coord.ClientID(e.Command.GetAttempt().GetClient()), e.Command.GetAttempt().GetSequence()
	if client == 0 {
		return false, nil
	}
	if field := fault.FieldOf(e.Result.Err); e.Result.Err != nil && (field == "client" || field == "sequence") {
		return true, l.nothing("E1", e) // refused early
	}
	seen, ok := l.answered[client]
	if !ok || seen.sequence != sequence {
		l.answered[client] = answer{sequence, e.Result}
		return false, nil
	}
	if !reflect.DeepEqual(remembered(seen.result, e.Result), e.Result) {
		return true, breach("E1", "sequence %d of client %d was answered otherwise before", seen.sequence, client)
	}
	return true, l.nothing("E1", e)
}

// nothing requires an entry without effects.
func (l *Log) nothing(rule string, e Entry) error {
	if n := len(e.Effects.Events) + len(e.Effects.Grants) + len(e.Effects.Granted) + len(e.Effects.Ended); n > 0 {
		return breach(rule, "entry %d was refused or repeated and had %d effects", e.Index, n)
	}
	return nil
}

func (l *Log) lock(name string) *account {
	a := l.locks[name]
	if a == nil {
		a = &account{claims: make(map[coord.Token]*coord.KeyValue), holding: make(map[coord.Token]coord.Claim)}
		l.locks[name] = a
	}
	return a
}

// remembered is the first result as a repetition gives it: large results of a transaction come back without keys.
func remembered(first, again ops.Result) ops.Result {
	if !again.Txn.Forgotten {
		return first
	}
	first.Txn.Forgotten, first.Txn.Steps = true, slices.Clone(first.Txn.Steps)
	for i := range first.Txn.Steps {
		first.Txn.Steps[i].Keys = nil
	}
	return first
}

// lives checks that the group was not dissolved, and follows its end (G1).
func (l *Log) lives(e Entry) error {
	switch r := e.Command.GetRequest().(type) {
	case *coordv1.Command_BumpIncarnation:
		l.over = 0
		return nil
	case *coordv1.Command_Dissolve:
		if l.over == 0 {
			l.over, l.successor = e.Index, machine.GroupID(r.Dissolve.GetSuccessor())
			return nil
		}
	default:
		if l.over == 0 {
			return nil
		}
	}
	return breach("G1", "entry %d was accepted; the group was dissolved at %d", e.Index, l.over)
}

// rights checks that the command was its owner's to give (L6, L2).
func (l *Log) rights(e Entry) error {
	for _, id := range uses(e) {
		if owner, lives := l.leases[id]; lives && !principals.MayUse(owner, e.Command.GetOwner()) {
			return breach("L6", "entry %d: %q used lease %d, which is not its own", e.Index, e.Command.GetOwner(), id)
		}
	}
	switch r := e.Command.GetRequest().(type) {
	case *coordv1.Command_Unlock:
		name, token := r.Unlock.GetName(), coord.Token(r.Unlock.GetFencingToken())
		kv, held := l.lock(name).claims[token], l.lock(name).holding[token]
		if kv == nil || held.Count == 0 || int64(kv.Lease) != r.Unlock.GetLeaseId() || !principals.MayUse(held.Holder, e.Command.GetOwner()) {
			return breach("L6", "entry %d: %q released %q with token %d, which is not its own", e.Index, e.Command.GetOwner(), name, token)
		}
	case *coordv1.Command_Cancel:
		name, token := r.Cancel.GetName(), coord.Token(r.Cancel.GetToken())
		kv := l.lock(name).claims[token]
		if claim, _ := kv.Claim(); kv == nil || int64(kv.Lease) != r.Cancel.GetLease() || !principals.MayUse(claim.Holder, e.Command.GetOwner()) {
			return breach("L6", "entry %d: %q cancelled token %d of %q, which is not its own", e.Index, e.Command.GetOwner(), token, name)
		}
	case *coordv1.Command_Txn:
		var err error
		outcomes(whole(r.Txn), e.Result.Txn.Succeeded, e.Result.Txn.Steps, func(b *apiv1.TxnBranch, succeeded bool) {
			for _, c := range b.GetCompare() {
				if c.GetTarget() == apiv1.Compare_HOLDS && succeeded && err == nil {
					err = l.guarded(e.Index, c.GetLock(), coord.Token(c.GetFencingToken()))
				}
			}
		})
		return err
	}
	return nil
}

func (l *Log) guarded(index uint64, name string, token coord.Token) error {
	a := l.lock(name)
	claim, held := a.holding[token]
	if !held || claim.Mode == coord.Exclusive && token < a.accepted {
		return breach("L2", "entry %d: a transaction with token %d of %q succeeded", index, token, name)
	}
	if claim.Mode == coord.Exclusive {
		a.accepted = token
	}
	return nil
}

// events follows the keyspace (R1).
func (l *Log) events(e Entry) error {
	leaps := e.Command.GetBumpIncarnation() != nil
	want := max(l.revision, coord.FirstRevision)
	if len(e.Effects.Events) > 0 {
		want++
	}
	if e.Result.Revision != want && !(leaps && e.Result.Revision > want) {
		return breach("R1", "entry %d made revision %d out of %d", e.Index, e.Result.Revision, l.revision)
	}
	l.revision = e.Result.Revision
	for i, event := range e.Effects.Events {
		switch {
		case event.Revision != l.revision:
			return breach("R1", "entry %d: an event has revision %d, not %d", e.Index, event.Revision, l.revision)
		case i > 0 && e.Effects.Events[i-1].Key >= event.Key:
			return breach("R1", "entry %d: the event of %q is out of order", e.Index, event.Key)
		case !same(event.Prev, l.keys[event.Key]):
			return breach("R1", "entry %d: %q was not what its event says it was", e.Index, event.Key)
		case event.KV != nil && (event.KV.Key != event.Key || event.KV.ModRevision != l.revision):
			return breach("R1", "entry %d: the event of %q has another version", e.Index, event.Key)
		}
		l.change(event)
		if err := l.written(e, event); err != nil {
			return err
		}
	}
	return nil
}

// written counts keys without a lease for the caller that put them last (U1).
func (l *Log) written(e Entry, event coord.Event) error {
	if writer, ok := l.writers[event.Key]; ok {
		delete(l.writers, event.Key)
		l.wrote(writer, -1)
	}
	if event.KV == nil || event.KV.Lease != 0 || e.Command.GetOwner() == "" {
		return nil
	}
	if event.KV.Writer != e.Command.GetOwner() {
		return breach("U1", "entry %d: %q put %q, which counts for %q", e.Index, e.Command.GetOwner(), event.Key, event.KV.Writer)
	}
	l.writers[event.Key] = e.Command.GetOwner()
	l.wrote(e.Command.GetOwner(), 1)
	return nil
}

func (l *Log) wrote(owner string, n int) {
	o := l.owned[owner]
	o.unleased += n
	l.owned[owner] = o
}

func (l *Log) change(event coord.Event) {
	delete(l.keys, event.Key)
	if claim, ok := event.Prev.Claim(); ok && event.KV == nil {
		l.count(claim.Holder, 0, -1)
		a := l.lock(claim.Lock)
		delete(a.claims, event.Prev.Token())
		delete(a.holding, event.Prev.Token())
	}
	if event.KV == nil {
		return
	}
	l.keys[event.Key] = event.KV
	if claim, ok := event.KV.Claim(); ok {
		a := l.lock(claim.Lock)
		if a.claims[event.KV.Token()] == nil {
			l.count(claim.Holder, 0, 1)
		}
		a.claims[event.KV.Token()] = event.KV
		if _, held := a.holding[event.KV.Token()]; held {
			a.holding[event.KV.Token()] = claim
		}
	}
}

// grants checks who came to hold a lock (L1, L3).
func (l *Log) grants(e Entry) error {
	for _, g := range e.Effects.Grants {
		a := l.lock(g.Lock)
		kv := a.claims[g.Token]
		claim, ok := kv.Claim()
		if !ok || kv.Lease != g.Lease || kv.Key != coord.LockKey(g.Lock, g.Lease) {
			return breach("L7", "entry %d: token %d of %q was granted without a claim", e.Index, g.Token, g.Lock)
		}
		if g.Token <= a.granted {
			return breach("L1", "entry %d: token %d of %q follows %d", e.Index, g.Token, g.Lock, a.granted)
		}
		if !a.compatible(claim) {
			return breach("L3", "entry %d: token %d of %q was granted beside %v", e.Index, g.Token, g.Lock, slices.Sorted(maps.Keys(a.holding)))
		}
		a.granted, a.holding[g.Token] = g.Token, claim
	}
	return nil
}

func (a *account) compatible(c coord.Claim) bool {
	for _, held := range a.holding {
		if held.Mode != c.Mode || c.Mode == coord.Exclusive || c.Mode == coord.Permit && len(a.holding) >= int(min(c.Permits, held.Permits)) {
			return false
		}
	}
	return true
}

// endings checks that leases end by command and with all their keys (L5).
func (l *Log) endings(e Entry) error {
	for _, lease := range e.Effects.Granted {
		l.leases[lease.ID] = lease.Owner
		l.count(lease.Owner, 1, 0)
	}
	for _, id := range e.Effects.Ended {
		var said bool
		switch r := e.Command.GetRequest().(type) {
		case *coordv1.Command_LeaseRevoke:
			said = r.LeaseRevoke.GetId() == int64(id)
		case *coordv1.Command_Expire:
			said = r.Expire.GetTerm() == e.Term &&
				slices.ContainsFunc(r.Expire.GetLeases(), func(r *coordv1.LeaseRef) bool { return r.GetId() == int64(id) })
		case *coordv1.Command_Dissolve:
			said = true
		}
		owner, lived := l.leases[id]
		if !said || !lived {
			return breach("L5", "entry %d: lease %d ended without a word", e.Index, id)
		}
		delete(l.leases, id)
		l.count(owner, -1, 0)
		if l.begun[owner].lease == id {
			delete(l.begun, owner)
		}
	}
	for _, event := range e.Effects.Events {
		if event.KV != nil && event.KV.Lease != 0 && !l.lasts(event.KV.Lease) {
			return breach("L5", "entry %d: %q is bound to lease %d, which is not living", e.Index, event.Key, event.KV.Lease)
		}
	}
	if len(e.Effects.Ended) == 0 {
		return nil
	}
	for key, kv := range l.keys {
		if kv.Lease != 0 && !l.lasts(kv.Lease) {
			return breach("L5", "entry %d: %q outlives its lease %d", e.Index, key, kv.Lease)
		}
	}
	return nil
}

func (l *Log) lasts(id coord.LeaseID) bool {
	_, ok := l.leases[id]
	return ok
}

func (l *Log) count(owner string, leases, claims int) {
	o := l.owned[owner]
	o.leases += leases
	o.claims += claims
	l.owned[owner] = o
}

// quotas checks that an owner stays within its quota after a grant (U1).
func (l *Log) quotas(e Entry) error {
	if r := e.Command.GetConfigure(); r != nil {
		l.quota = coord.LimitsOf(r.GetLimits()).PerOwner
	}
	has := l.owned[e.Command.GetOwner()]
	if len(e.Effects.Granted) > 0 && has.leases > int(l.quota.Leases) {
		return breach("U1", "entry %d: %q has %d leases, at most %d", e.Index, e.Command.GetOwner(), has.leases, l.quota.Leases)
	}
	if locks := e.Command.GetLock() != nil || e.Command.GetTryLock() != nil; locks && has.claims > int(l.quota.Claims) && claimed(e.Effects) {
		return breach("U1", "entry %d: %q has %d claims, at most %d", e.Index, e.Command.GetOwner(), has.claims, l.quota.Claims)
	}
	return nil
}

// claimed reports whether the effects include a new claim.
func claimed(e machine.ApplyEffects) bool {
	return slices.ContainsFunc(e.Events, coord.Event.Creates)
}

// queues checks that claims hold in order, and that every claim that can hold does (L7).
func (l *Log) queues(e Entry) error {
	for _, event := range e.Effects.Events {
		claim, ok := event.KV.Claim()
		if !ok {
			claim, ok = event.Prev.Claim()
		}
		if !ok {
			continue
		}
		if token := l.lock(claim.Lock).outOfTurn(); token != 0 {
			return breach("L7", "entry %d: token %d of %q holds or waits out of turn", e.Index, token, claim.Lock)
		}
	}
	return nil
}

// outOfTurn returns the first claim that holds behind a waiting claim, or waits without a reason.
func (a *account) outOfTurn() coord.Token {
	waits := false
	for _, token := range slices.Sorted(maps.Keys(a.claims)) {
		_, held := a.holding[token]
		claim, _ := a.claims[token].Claim()
		if held && waits || !held && !waits && a.compatible(claim) {
			return token
		}
		waits = waits || !held
	}
	return 0
}
