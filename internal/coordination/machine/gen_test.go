package machine_test

import (
	"bytes"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/coord/directory"
	"github.com/blackhole/blackhole/internal/contract/coord/principals"
	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	"github.com/blackhole/blackhole/internal/coordination/machine"
	agentv1 "github.com/blackhole/blackhole/proto/blackhole/agent/v1"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
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

func (g *generator) command() *coordv1.Command {
	cmd := coordtest.Command(alice, g.op())
	if g.one(8) {
		cmd.Owner = rapid.SampledFrom([]string{bob, principals.Anonymous("p"), principals.Anonymous("q")}).Draw(g.t, "owner")
	}
	if g.one(2) {
		coordtest.Once(coord.ClientID(rapid.IntRange(0, 3).Draw(g.t, "client")), uint64(rapid.IntRange(0, 12).Draw(g.t, "sequence")), cmd)
	}
	return cmd
}

func (g *generator) op() proto.Message {
	switch rapid.IntRange(0, 32).Draw(g.t, "op") {
	case 0, 1, 2, 3, 4:
		return g.txn()
	case 5, 6, 7, 8, 9, 10:
		return g.lock()
	case 11, 12, 13, 14:
		name, lease, token := g.claim()
		return &apiv1.UnlockRequest{Name: name, LeaseId: int64(lease), FencingToken: int64(token)}
	case 15, 16:
		name, lease, token := g.claim()
		return &coordv1.Cancel{Name: name, Lease: int64(lease), Token: int64(token)}
	case 17, 18, 19:
		return &apiv1.LeaseGrantRequest{Id: int64(rapid.IntRange(0, 6).Draw(g.t, "id")), TtlMs: rapid.Int64Range(-1, 20_000).Draw(g.t, "ttl")}
	case 20:
		return &apiv1.LeaseRevokeRequest{Id: int64(g.lease())}
	case 21:
		return g.expire()
	case 22:
		return &apiv1.OpenClientRequest{}
	case 23:
		return &coordv1.Compact{Revision: int64(rapid.Int64Range(-1, int64(g.m.Revision())+1).Draw(g.t, "revision"))}
	case 24, 25, 26, 27, 28, 29:
		return g.batch()
	case 30:
		return g.requirement()
	default:
		return g.rare()
	}
}

func (g *generator) rare() proto.Message {
	switch rapid.IntRange(0, 5).Draw(g.t, "rare") {
	case 3:
		return g.merge()
	case 4:
		return &coordv1.SetAddresses{Multiaddrs: rapid.SliceOfN(rapid.SliceOfN(rapid.Byte(), 0, 3), 0, 3).Draw(g.t, "addresses")}
	case 0:
		return &apiv1.CloseClientRequest{}
	case 1:
		index, _ := g.m.Index()
		return &coordv1.ClientsExpire{Term: 1, IdleSince: rapid.Uint64Range(0, index).Draw(g.t, "idle since")}
	case 2:
		return &coordv1.BumpIncarnation{Incarnation: g.m.Incarnation() + rapid.Uint64Range(0, 1).Draw(g.t, "incarnation")}
	default:
		limits := coord.DefaultLimits()
		limits.HistoryEvents = rapid.Uint32Range(0, 40).Draw(g.t, "history")
		return &coordv1.Configure{Limits: limits.Message()}
	}
}

// merge ends the group, seldom.
func (g *generator) merge() proto.Message {
	id := groupID(byte(rapid.IntRange(1, 3).Draw(g.t, "group")))
	return &coordv1.Dissolve{Successor: []byte(id), Reached: int64(g.m.Revision()) + rapid.Int64Range(-1, 9).Draw(g.t, "reached")}
}

// groupID is the id of a group whose bytes are all b.
func groupID(b byte) machine.GroupID {
	return machine.GroupID(bytes.Repeat([]byte{b}, machine.GroupIDBytes))
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

func (g *generator) lock() proto.Message {
	o := &apiv1.LockRequest{TimeoutMs: -1, Name: g.name(), LeaseId: int64(g.lease())}
	wait := !g.one(4)
	o.Mode = rapid.SampledFrom([]apiv1.ShareMode{
		apiv1.ShareMode_SHARE_MODE_EXCLUSIVE, apiv1.ShareMode_SHARE_MODE_EXCLUSIVE, apiv1.ShareMode_SHARE_MODE_SHARED, apiv1.ShareMode_SHARE_MODE_PERMIT,
	}).Draw(g.t, "mode")
	if o.Mode == apiv1.ShareMode_SHARE_MODE_PERMIT {
		o.Permits = uint32(rapid.SampledFrom([]int{0, 2, 2, 2, 2, 3}).Draw(g.t, "permits"))
	}
	if g.one(3) {
		o.Metadata = rapid.SampledFrom([][]byte{nil, []byte("m1"), []byte("m2")}).Draw(g.t, "metadata") // a log has nil for empty
	}
	if !wait {
		return &apiv1.TryLockRequest{Name: o.Name, LeaseId: o.LeaseId, Mode: o.Mode, Permits: o.Permits, Metadata: o.Metadata}
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

func (g *generator) expire() proto.Message {
	o := &coordv1.Expire{Term: 1}
	if g.one(5) {
		o.Term = 2
	}
	for range rapid.IntRange(0, 3).Draw(g.t, "leases") {
		id := g.lease()
		lease, _ := g.m.Lease(id)
		o.Leases = append(o.Leases, &coordv1.LeaseRef{Id: int64(id), Granted: lease.Granted})
	}
	return o
}

// entry returns mostly one of four instances of two services.
func (g *generator) entry() *apiv1.DirectoryEntry {
	service, id := rapid.SampledFrom([]string{"s", "t"}).Draw(g.t, "service"), rapid.SampledFrom([]string{"a", "b"}).Draw(g.t, "id")
	e := entry("n", service, id, rapid.IntRange(1, 3).Draw(g.t, "port"))
	if g.one(2) {
		e.Since = rapid.Int64Range(0, int64(g.m.Revision())+2).Draw(g.t, "since")
		if g.one(20) {
			e.Since = -1
		}
	}
	e.Principal = rapid.SampledFrom([]string{"", "", "@web", "@pay"}).Draw(g.t, "principal")
	if e.Adopt = g.one(6); g.one(30) {
		e.Key = []byte(rapid.SampledFrom([]string{"directory/n/s", "directory/n/s/", "directory/n/s/c", "a"}).Draw(g.t, "bad"))
	}
	return e
}

func (g *generator) batch() proto.Message {
	o := &apiv1.PublishInstancesRequest{LeaseId: int64(g.lease()), Generation: rapid.SampledFrom([]uint64{0, 1, 1, 2, 2, 2, 2, 3, 3, 3}).Draw(g.t, "generation")}
	for range rapid.SampledFrom([]int{0, 1, 1, 2, 3}).Draw(g.t, "puts") {
		o.Puts = append(o.Puts, g.entry())
	}
	for range rapid.SampledFrom([]int{0, 0, 1}).Draw(g.t, "deletes") {
		o.Deletes = append(o.Deletes, g.entry().Key)
	}
	if g.one(4) {
		var span coord.Span
		if g.one(2) {
			span = directory.Span("n", "s")
		}
		o.Replace = true
		o.Key, o.RangeEnd = span.Bounds()
	}
	return o
}

// published returns a command of one of two owners about a few entries, each owner with its lease.
func (g *generator) published() *coordv1.Command {
	n := rapid.IntRange(1, 2).Draw(g.t, "owner")
	owner, id := []string{alice, bob}[n-1], coord.LeaseID(n)
	switch _, ok := g.m.Lease(id); {
	case !ok:
		return coordtest.Command(owner, &apiv1.LeaseGrantRequest{Id: int64(id), TtlMs: 5000})
	case g.one(8):
		return coordtest.Command(owner, &apiv1.LeaseRevokeRequest{Id: int64(id)})
	default:
		o := g.batch().(*apiv1.PublishInstancesRequest)
		o.LeaseId, o.Generation = int64(id), 1
		for i, e := range o.Puts { // around known revisions
			at, _ := g.m.Removed(string(e.Key))
			since := max(at, g.m.Since(string(e.Key)))
			o.Puts[i].Since = rapid.Int64Range(max(0, int64(since)-1), int64(since)+1).Draw(g.t, "near")
		}
		return coordtest.Command(owner, o)
	}
}

func (g *generator) requirement() proto.Message {
	name := rapid.SampledFrom([]string{"r", "r", "q", "no/name"}).Draw(g.t, "name")
	if g.one(3) {
		return &apiv1.DeleteRequirementRequest{Name: name}
	}
	return &apiv1.SetRequirementRequest{
		Name: name, Min: rapid.Uint32Range(0, 2).Draw(g.t, "min"),
		Query: &agentv1.DiscoverRequest{ServiceName: rapid.SampledFrom([]string{"", "s"}).Draw(g.t, "question")},
	}
}
