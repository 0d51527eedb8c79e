package simulation

import (
	"crypto/sha256"
	"reflect"
	"slices"
	"time"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/audit"
	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/internal/coordination/replica"
	"github.com/blackhole/blackhole/pkg/fault"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// skew bounds the difference of two clock rates, half of it on either side of true time.
const skew = 0.05

// promised returns the minimum true time of a time to live on a leader's clock.
func promised(ttl int64) int64 { return int64(float64(ttl) / (1 + skew/2)) }

// oracle is a member that cannot fail: it applies each entry once, at its first application by a member, and
// knows the right answers.
type oracle struct {
	*scheduler
	figures     *figures
	machine     *machine.Machine
	log         audit.Log
	leases      audit.Leases
	truth       audit.Truth
	entries     map[uint64]record
	fates       map[call]ops.Result
	beliefs     *beliefs
	images      map[uint64]*machine.Image // of some indexes, until all members are far beyond
	hashes      map[uint64][sha256.Size]byte
	checkpoints map[uint64][sha256.Size]byte // hashes after empty entries
	leaders     map[uint64]uint64            // term to member
	began       map[uint64]time.Duration     // term: start of its leader's measurements
	born        map[coord.LeaseID]time.Duration
	conf        configuration
	ended       func(coord.LeaseID, []*coord.KeyValue)
	granted     func(machine.Grant) // nil: nobody listens
}

// record is the required content of an index.
type record struct {
	term    uint64
	command [sha256.Size]byte
}

// call is a command of a client.
type call struct {
	client   coord.ClientID
	sequence uint64
}

// every is the distance of the indexes at which members' states are compared.
const every = 8

func newOracle(w *scheduler, f *figures) *oracle {
	return &oracle{
		scheduler: w, figures: f, machine: machine.New(), entries: make(map[uint64]record), fates: make(map[call]ops.Result),
		images: make(map[uint64]*machine.Image), checkpoints: make(map[uint64][sha256.Size]byte), hashes: make(map[uint64][sha256.Size]byte), leaders: make(map[uint64]uint64),
		began: make(map[uint64]time.Duration), born: make(map[coord.LeaseID]time.Duration), beliefs: newBeliefs(w),
	}
}

// applied records a command applied by a member.
func (o *oracle) applied(member string, a replica.Applied) {
	encoded, level, err := later().Encode(a.Command, 0)
	o.must(err)
	this := record{a.Term, sha256.Sum256(encoded)}
	if first, ok := o.entries[a.Index]; ok {
		if first != this {
			o.breach("C1", "%s applied another entry at %d, of term %d, than that of term %d", member, a.Index, a.Term, first.term)
		}
		return
	}
	if last, _ := o.machine.Index(); a.Index <= last {
		o.breach("C1", "%s applied a command at %d, where others had none", member, a.Index)
		return
	}
	if group := o.machine.Level(); level > group {
		o.breach("V1", "%s applied a command of level %d at %d, the group is at %d", member, level, a.Index, group)
	}
	o.entries[a.Index] = this
	o.first(member, a)
}

// first applies an entry for the first time.
func (o *oracle) first(member string, a replica.Applied) {
	before, ttls := o.claims(a.Command)
	applied, effects := o.machine.Apply(a.Index, a.Term, a.Command)
	result, made := coordtest.Outcome(applied), coordtest.Outcome(a.Result)
	if !sameResult(result, made) {
		o.breach("C1", "%s made %+v of entry %d, it is %+v", member, made, a.Index, result)
	}
	entry := audit.Entry{Index: a.Index, Term: a.Term, Command: a.Command, Result: result, Effects: effects}
	entry.Effects.Events, entry.Effects.Grants = slices.Clone(effects.Events), slices.Clone(effects.Grants)
	o.must(o.log.Entry(entry))
	o.truth.Entry(entry)
	for _, g := range effects.Grants {
		if o.granted != nil {
			o.granted(g)
		}
	}
	if a.Command.GetDissolve() != nil && result.Err == nil {
		o.beliefs.over() // an order of the operator, or nobody held anything
	}
	if attempt := a.Command.GetAttempt(); attempt.GetClient() != 0 {
		if this := (call{coord.ClientID(attempt.GetClient()), attempt.GetSequence()}); !o.decided(this) {
			o.fates[this] = result
		}
	}
	for _, l := range effects.Granted {
		o.born[l.ID] = o.now
		o.leases.Granted(coord.Lease{ID: l.ID, TTL: promised(l.TTL)}, o.now)
	}
	for _, id := range effects.Ended {
		if a.Command.GetExpire() != nil {
			o.expired(id, a.Term, ttls[id])
		} else {
			o.leases.Revoked(id)
		}
		o.ended(id, before)
	}
	if a.Index%every == 0 {
		o.images[a.Index] = o.machine.Image()
		delete(o.images, a.Index-every*512)
	}
}

// expired checks that a lease did not time out too early for any observer.
func (o *oracle) expired(id coord.LeaseID, term uint64, ttl int64) {
	o.figures.expired++
	o.must(o.leases.Expired(id, o.now))
	o.beliefs.expired(id)
	if from := max(o.born[id], o.began[term]); o.now < from+time.Duration(promised(ttl))*time.Millisecond {
		o.breach("L4", "lease %d of %d ms expired %v after the leader of term %d began", id, ttl, o.now-from, term)
	}
}

// claims returns the keys of locks bound to leases that a command may end, and their times to live.
func (o *oracle) claims(cmd *coordv1.Command) (claims []*coord.KeyValue, ttls map[coord.LeaseID]int64) {
	var ids []coord.LeaseID
	switch r := cmd.GetRequest().(type) {
	case *coordv1.Command_Expire:
		for _, ref := range r.Expire.GetLeases() {
			ids = append(ids, coord.LeaseID(ref.GetId()))
		}
	case *coordv1.Command_LeaseRevoke:
		ids = append(ids, coord.LeaseID(r.LeaseRevoke.GetId()))
	case *coordv1.Command_Dissolve:
		for _, l := range o.machine.Leases() {
			ids = append(ids, l.ID)
		}
	}
	ttls = make(map[coord.LeaseID]int64)
	for _, id := range ids {
		lease, _ := o.machine.Lease(id)
		ttls[id] = lease.TTL
		for _, key := range o.machine.LeaseKeys(id) {
			if kv, ok := o.machine.Get(key); ok && kv.Token() != 0 {
				claims = append(claims, kv)
			}
		}
	}
	return claims, ttls
}

func sameResult(a, b ops.Result) bool {
	if fault.KindOf(a.Err) != fault.KindOf(b.Err) || fault.FieldOf(a.Err) != fault.FieldOf(b.Err) || fault.Message(a.Err) != fault.Message(b.Err) ||
		!slices.Equal(a.Ended, b.Ended) || !slices.Equal(a.Foreign, b.Foreign) || !slices.Equal(a.Since, b.Since) {
		return false
	}
	for _, r := range []*ops.Result{&a, &b} {
		r.Err, r.Ended, r.Foreign, r.Since = nil, nil, nil, nil
	}
	return reflect.DeepEqual(a, b)
}

// compare compares a member's state with the required one.
func (o *oracle) compare(member string, m *machine.Machine) {
	index, _ := m.Index()
	image := o.images[index]
	if image == nil {
		return
	}
	want, ok := o.hashes[index]
	if !ok {
		want = image.Hash()
		o.hashes[index] = want
	}
	if m.Image().Hash() != want {
		o.breach("C1", "%s has another state at %d", member, index)
	}
}

// checkpoint compares the hashes of members at an empty entry, as leaders do: no fault may make them differ.
func (o *oracle) checkpoint(member string, c *replica.Checkpoint) {
	hash := c.State.Hash()
	if before, ok := o.checkpoints[c.Index]; ok && before != hash {
		o.breach("D6", "%s has another state after the empty entry %d", member, c.Index)
	}
	o.checkpoints[c.Index] = hash
}

// led records the leader of a term.
func (o *oracle) led(term, member uint64) {
	if before, ok := o.leaders[term]; ok && before != member {
		o.breach("C2", "members %x and %x both lead term %d", before, member, term)
	}
	o.leaders[term] = member
}

// promoted records the start of a leader's measurements.
func (o *oracle) promoted(term uint64) {
	if _, ok := o.began[term]; !ok {
		o.began[term] = o.now
	}
}

// decided reports whether a client's command has been applied.
func (o *oracle) decided(c call) bool {
	_, ok := o.fates[c]
	return ok
}

// answered checks an answer to a client.
func (o *oracle) answered(c call, r ops.Result) {
	had, ok := o.fates[c]
	switch {
	case !ok:
		o.breach("C3", "client %d was answered sequence %d before it was applied", c.client, c.sequence)
	case !sameResult(had, r):
		o.breach("C3", "client %d was answered %+v to sequence %d, it is %+v", c.client, r, c.sequence, had)
	}
}

// configuration returns the latest one that any member has applied.
type configuration struct {
	index   uint64
	joint   bool
	members []replica.MemberStatus
}

func (c *configuration) has(id uint64) bool {
	return slices.ContainsFunc(c.members, func(m replica.MemberStatus) bool { return m.ID == id })
}

// configured records a member's applied configuration.
func (o *oracle) configured(s replica.Status) {
	if s.Applied > o.conf.index {
		o.conf = configuration{s.Applied, s.Joint, s.Members}
	}
}
