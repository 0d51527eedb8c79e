package machine_test

import (
	"bytes"

	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/pkg/coord"
)

// A generator draws commands over a world so small that they meet: five keys, three locks,
// six leases, two owners, three clients.
type generator struct {
	t *rapid.T
	m *machine.Machine
	// wild draws tokens and ids without looking at the state.
	wild bool
}

func (g *generator) one(n int) bool { return rapid.IntRange(0, n-1).Draw(g.t, "one") == 0 }

func (g *generator) command() coord.Command {
	cmd := coord.Command{Owner: alice, Op: g.op()}
	if g.one(8) {
		cmd.Owner = rapid.SampledFrom([]string{bob, coord.AnonymousOwner("p"), coord.AnonymousOwner("q")}).Draw(g.t, "owner")
	}
	if g.one(2) {
		cmd.Client = coord.ClientID(rapid.IntRange(0, 3).Draw(g.t, "client"))
		cmd.Sequence = uint64(rapid.IntRange(0, 12).Draw(g.t, "sequence"))
	}
	return cmd
}

func (g *generator) op() coord.Op {
	switch rapid.IntRange(0, 32).Draw(g.t, "op") {
	case 0, 1, 2, 3, 4:
		return g.txn()
	case 5, 6, 7, 8, 9, 10:
		return g.lock()
	case 11, 12, 13, 14:
		name, lease, token := g.claim()
		return &coord.Unlock{Name: name, Lease: lease, Token: token}
	case 15, 16:
		name, lease, token := g.claim()
		return &coord.Cancel{Name: name, Lease: lease, Token: token}
	case 17, 18, 19:
		return &coord.LeaseGrant{ID: coord.LeaseID(rapid.IntRange(0, 6).Draw(g.t, "id")), TTL: rapid.Int64Range(-1, 20_000).Draw(g.t, "ttl")}
	case 20:
		return &coord.LeaseRevoke{ID: g.lease()}
	case 21:
		return g.expire()
	case 22:
		return &coord.ClientOpen{}
	case 23:
		return &coord.Compact{Revision: coord.Revision(rapid.Int64Range(-1, int64(g.m.Revision())+1).Draw(g.t, "revision"))}
	case 24, 25, 26, 27, 28, 29:
		return g.batch()
	case 30:
		return g.requirement()
	default:
		return g.rare()
	}
}

func (g *generator) rare() coord.Op {
	switch rapid.IntRange(0, 4).Draw(g.t, "rare") {
	case 3:
		return g.merge()
	case 0:
		return &coord.ClientClose{}
	case 1:
		index, _ := g.m.Index()
		return &coord.ClientsExpire{Term: 1, IdleSince: rapid.Uint64Range(0, index).Draw(g.t, "idle since")}
	case 2:
		return &coord.BumpIncarnation{Incarnation: g.m.Incarnation() + rapid.Uint64Range(0, 1).Draw(g.t, "incarnation")}
	default:
		limits := coord.DefaultLimits()
		limits.HistoryEvents = rapid.Uint32Range(0, 40).Draw(g.t, "history")
		return &coord.Configure{Limits: limits}
	}
}

// merge ends the group, seldom, or goes on with it.
func (g *generator) merge() coord.Op {
	id := groupID(byte(rapid.IntRange(1, 3).Draw(g.t, "group")))
	if !machine.StandingOf(g.m).Over.Over() && g.one(2) {
		return &coord.Dissolve{Successor: id, Force: g.one(3)}
	}
	o := &coord.RaiseRevision{To: g.m.Revision() + coord.Revision(rapid.Int64Range(-1, 9).Draw(g.t, "to"))}
	if g.one(2) {
		o.Absorbed = []coord.GroupID{id}
	}
	if !g.one(3) {
		o.Resume = machine.StandingOf(g.m).Over.Index
	}
	return o
}

// groupID is the id of a group whose bytes are all b.
func groupID(b byte) coord.GroupID {
	return coord.GroupID(bytes.Repeat([]byte{b}, coord.GroupIDBytes))
}

// usedKeys returns the keys of a generator's writes and guards.
func usedKeys() []string {
	return []string{"a", "a/b", "b", coord.LockKey("l", 1), "l/x", "c", "directory/n/s/a", "requirements/r"}
}

func (g *generator) key() string {
	return rapid.SampledFrom(usedKeys()).Draw(g.t, "key")
}

func (g *generator) name() string {
	return rapid.SampledFrom([]string{"l", "m", "l/1", "l", "m", "l/1", "directory"}).Draw(g.t, "lock")
}

func (g *generator) lease() coord.LeaseID {
	return coord.LeaseID(rapid.IntRange(0, 7).Draw(g.t, "lease"))
}

func (g *generator) lock() coord.Op {
	o := &coord.Lock{Name: g.name(), Lease: g.lease(), Wait: !g.one(4)}
	o.Mode = rapid.SampledFrom([]coord.Mode{coord.Exclusive, coord.Exclusive, coord.Shared, coord.Permit}).Draw(g.t, "mode")
	if o.Mode == coord.Permit {
		o.Permits = uint32(rapid.SampledFrom([]int{0, 2, 2, 2, 2, 3}).Draw(g.t, "permits"))
	}
	if g.one(3) {
		o.Metadata = rapid.SampledFrom([][]byte{nil, []byte("m1"), []byte("m2")}).Draw(g.t, "metadata") // a log has nil for empty
	}
	return o
}

// claim names a claim that exists, mostly.
func (g *generator) claim() (string, coord.LeaseID, coord.Token) {
	names := g.m.LockNames("")
	if g.wild || len(names) == 0 || g.one(6) {
		return g.name(), g.lease(), coord.Token(rapid.Int64Range(-1, 50).Draw(g.t, "token"))
	}
	info, _ := g.m.Lock(rapid.SampledFrom(names).Draw(g.t, "name"))
	all := append(info.Holding, info.Waiting...)
	kv := all[rapid.IntRange(0, len(all)-1).Draw(g.t, "claim")]
	return info.Name, kv.Lease, kv.Token()
}

func (g *generator) expire() coord.Op {
	o := &coord.Expire{Term: 1}
	if g.one(5) {
		o.Term = 2
	}
	for range rapid.IntRange(0, 3).Draw(g.t, "leases") {
		id := g.lease()
		lease, _ := g.m.Lease(id)
		o.Leases = append(o.Leases, coord.LeaseRef{ID: id, Granted: lease.Granted})
	}
	return o
}

// entry returns mostly one of four instances of two services.
func (g *generator) entry() coord.Entry {
	service, id := rapid.SampledFrom([]string{"s", "t"}).Draw(g.t, "service"), rapid.SampledFrom([]string{"a", "b"}).Draw(g.t, "id")
	e := entry("n", service, id, rapid.IntRange(1, 3).Draw(g.t, "port"))
	if g.one(2) {
		e.Since = coord.Revision(rapid.Int64Range(0, int64(g.m.Revision())+2).Draw(g.t, "since"))
		if g.one(20) {
			e.Since = -1
		}
	}
	e.Principal = rapid.SampledFrom([]string{"", "", "@web", "@pay"}).Draw(g.t, "principal")
	if e.Adopt = g.one(6); g.one(30) {
		e.Key = rapid.SampledFrom([]string{"directory/n/s", "directory/n/s/", "directory/n/s/c", "a"}).Draw(g.t, "bad")
	}
	return e
}

func (g *generator) batch() coord.Op {
	o := &coord.RegisterBatch{Lease: g.lease(), Generation: rapid.SampledFrom([]uint64{0, 1, 1, 2, 2, 2, 2, 3, 3, 3}).Draw(g.t, "generation")}
	for range rapid.SampledFrom([]int{0, 1, 1, 2, 3}).Draw(g.t, "puts") {
		o.Puts = append(o.Puts, g.entry())
	}
	for range rapid.SampledFrom([]int{0, 0, 1}).Draw(g.t, "deletes") {
		o.Deletes = append(o.Deletes, g.entry().Key)
	}
	if g.one(4) {
		o.Replace = &coord.Span{}
		if g.one(2) {
			*o.Replace = coord.ServiceSpan("n", "s")
		}
	}
	return o
}

// published returns a command of one of two owners about a few entries, each owner with its lease.
func (g *generator) published() coord.Command {
	n := rapid.IntRange(1, 2).Draw(g.t, "owner")
	cmd := coord.Command{Owner: []string{alice, bob}[n-1]}
	id := coord.LeaseID(n)
	switch _, ok := g.m.Lease(id); {
	case !ok:
		cmd.Op = &coord.LeaseGrant{ID: id, TTL: 5000}
	case g.one(8):
		cmd.Op = &coord.LeaseRevoke{ID: id}
	default:
		o := g.batch().(*coord.RegisterBatch)
		o.Lease, o.Generation = id, 1
		for i, e := range o.Puts { // around known revisions
			at, _ := g.m.Removed(e.Key)
			since := max(at, g.m.Since(e.Key))
			o.Puts[i].Since = coord.Revision(rapid.Int64Range(max(0, int64(since)-1), int64(since)+1).Draw(g.t, "near"))
		}
		cmd.Op = o
	}
	return cmd
}

func (g *generator) requirement() coord.Op {
	name := rapid.SampledFrom([]string{"r", "r", "q", "no/name"}).Draw(g.t, "name")
	if g.one(3) {
		return &coord.DeleteRequirement{Name: name}
	}
	return &coord.SetRequirement{Requirement: coord.Requirement{
		Name: name, Min: rapid.IntRange(0, 2).Draw(g.t, "min"), Question: rapid.SampledFrom([][]byte{{}, []byte("\x0a\x01s")}).Draw(g.t, "question"),
	}}
}
