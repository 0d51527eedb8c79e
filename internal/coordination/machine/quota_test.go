package machine_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/coord/directory"
	"github.com/blackhole/blackhole/internal/contract/coord/principals"
	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// One owner's usage does not limit another, and returned shares are available again.
func TestQuotas(t *testing.T) {
	long := strings.Repeat("x", 300)
	for name, c := range map[string]quotaCase{
		"leases": {
			func(q *coord.Quota) { q.Leases = 3 }, []proto.Message{&apiv1.LeaseGrantRequest{TtlMs: 1}},
			&apiv1.LeaseGrantRequest{TtlMs: 1}, "pool.leases.share", &apiv1.LeaseRevokeRequest{Id: 2},
		},
		"leases, expired": {
			func(q *coord.Quota) { q.Leases = 2 }, nil,
			&apiv1.LeaseGrantRequest{TtlMs: 1}, "pool.leases.share", &coordv1.Expire{Term: 1, Leases: []*coordv1.LeaseRef{{Id: 1, Granted: 1}}},
		},
		"claims that hold": {
			func(q *coord.Quota) { q.Claims = 2 }, []proto.Message{lock("a", 1), lock("a", 1), lock("b", 1)},
			lock("c", 1), "pool.claims.share", unlock("b", 1, 2+2),
		},
		"claims that wait": {
			func(q *coord.Quota) { q.Claims = 2 }, []proto.Message{lock("a", 1), lock("a", 2)},
			lock("c", 1), "pool.claims.share", &coordv1.Cancel{Name: "a", Lease: 2, Token: 3},
		},
		"claims, of an ended lease": {
			func(q *coord.Quota) { q.Claims = 1 }, []proto.Message{lock("a", 2)},
			lock("c", 1), "pool.claims.share", &apiv1.LeaseRevokeRequest{Id: 2},
		},
		"bytes": {
			func(q *coord.Quota) { q.Bytes = 600 }, []proto.Message{write(put("a", "", 1)), write(put("free", long, 0))},
			write(put("b", long, 2)), "pool.bytes.share", write(put("a", "", 0)),
		},
		"bytes, one write": {
			func(q *coord.Quota) { q.Bytes = 700 }, []proto.Message{write(put("a", long, 1)), write(put("a", "", 1), put("b", long, 1), del(coord.Exactly("c")))},
			write(put("c", "", 2)), "pool.bytes.share", write(del(coord.Exactly("b"))),
		},
		"bytes, locks": {
			func(q *coord.Quota) { q.Bytes = 600 }, []proto.Message{write(put("a", long, 1))},
			lock("c", 2), "pool.bytes.share", write(put("a", "", 1)),
		},
		"bytes, a claim again": {
			func(q *coord.Quota) { q.Bytes = 600 }, []proto.Message{write(put("a", "", 1)), lock("c", 2)},
			&apiv1.TryLockRequest{Name: "c", LeaseId: 2, Metadata: []byte(long)}, "pool.bytes.share", write(del(coord.Exactly("a"))),
		},
	} {
		t.Run(name, c.run)
	}
}

// TestUnleasedQuotas: the same for keys without a lease.
func TestUnleasedQuotas(t *testing.T) {
	long := strings.Repeat("x", 300)
	for name, c := range map[string]quotaCase{
		"keys without a lease": {
			func(q *coord.Quota) { q.UnleasedKeys = 2 }, []proto.Message{write(put("a", "", 0), put("b", "", 1), put("c", "", 0)), write(put("a", long, 0))},
			write(put("d", "", 0)), "pool.keys.share", write(del(coord.Exactly("a"))),
		},
		"keys without a lease, bound": {
			func(q *coord.Quota) { q.UnleasedKeys = 1 }, []proto.Message{write(put("a", "", 0))},
			write(put("b", "", 0)), "pool.keys.share", write(put("a", "", 1)),
		},
		"keys without a lease, one write": {
			func(q *coord.Quota) { q.UnleasedKeys = 2 }, []proto.Message{write(put("a", "", 0), put("b", "", 0)), write(del(coord.Exactly("a")), put("c", "", 0))},
			write(put("d", "", 0)), "pool.keys.share", write(del(coord.Exactly("b"))),
		},
		"keys without a lease, released": {
			func(q *coord.Quota) { q.UnleasedKeys = 1 }, []proto.Message{write(put("a", "", 1)), write(put("a", "", 0))},
			write(put("b", "", 0)), "pool.keys.share", write(del(coord.Exactly("a"))),
		},
		"bytes without a lease": {
			func(q *coord.Quota) { q.UnleasedBytes = 700 }, []proto.Message{write(put("a", long, 0), put("b", long, 1))},
			write(put("c", long, 0)), "pool.bytes.share", write(put("a", "", 0)),
		},
		"requirements": {
			func(q *coord.Quota) { q.UnleasedKeys = 1 },
			[]proto.Message{&apiv1.SetRequirementRequest{Name: "r", Min: 1}, &apiv1.SetRequirementRequest{Name: "r", Min: 2}},
			write(put("b", "", 0)), "pool.keys.share", &apiv1.DeleteRequirementRequest{Name: "r"},
		},
	} {
		t.Run(name, c.run)
	}
}

// quotaCase fills one quota of alice. The next command stops, bob has his own quota, and what frees makes room.
type quotaCase struct {
	set   func(*coord.Quota)
	fits  []proto.Message // by alice, with leases 1 and 2
	stops proto.Message
	field string
	frees proto.Message
}

func (c quotaCase) run(t *testing.T) {
	l := newLog()
	l.leases(t, 2)
	limits := l.Limits()
	c.set(&limits.PerOwner)
	l.must(t, &coordv1.Configure{Limits: limits.Message()})
	for _, op := range c.fits {
		l.must(t, op)
	}
	l.refused(t, fault.PoolExhausted, c.field, c.stops)
	id := l.lease(t, bob)
	if o, ok := c.stops.(*apiv1.LockRequest); ok {
		r, _ := l.do(bob, lock(o.Name+"'", id))
		require.NoError(t, r.Err, "bob has his own")
	}
	if o, ok := c.stops.(*apiv1.TxnRequest); ok && o.Then[0].GetPut().Lease == 0 {
		r, _ := l.do(bob, o)
		require.NoError(t, r.Err, "bob has his own")
		r, _ = l.do(bob, write(del(coord.Exactly(string(o.Then[0].GetPut().Key)))))
		require.NoError(t, r.Err)
	}
	l.must(t, c.frees)
	l.must(t, c.stops)
}

// A key without a lease counts for the owner that put it last, also after a snapshot.
func TestUnleasedKeysCountForTheirWriter(t *testing.T) {
	l := newLog()
	size := int64(len("a")+len("1")) + 160
	l.must(t, write(put("a", "1", 0), put("b", "1", 0)))
	require.Equal(t, machine.Usage{UnleasedKeys: 2, UnleasedBytes: 2 * size}, l.Usage(alice))
	r, _ := l.do(bob, write(put("a", "2", 0)))
	require.NoError(t, r.Err)
	for _, m := range []*machine.Machine{l.Machine, restored(t, l.Machine)} {
		require.Equal(t, machine.Usage{UnleasedKeys: 1, UnleasedBytes: size}, m.Usage(alice))
		require.Equal(t, machine.Usage{UnleasedKeys: 1, UnleasedBytes: size}, m.Usage(bob))
	}
	l.must(t, write(del(coord.Span{})))
	require.Zero(t, l.Usage(alice))
	require.Zero(t, l.Usage(bob), "whoever deletes a key frees its writer")
	r, _ = l.do("", write(put("members/x", "1", 0)))
	require.NoError(t, r.Err)
	require.Zero(t, l.Usage(""), "the group's own keys count for nobody")
}

// A flood of ordinary keys from many owners stops before the room that is kept for locks, the directory and the group itself.
func TestReservedRoom(t *testing.T) {
	for name, c := range map[string]struct {
		set   func(*coord.Limits)
		field string
	}{
		"keys":  {func(l *coord.Limits) { l.Keys = 40 }, "pool.keys"},
		"bytes": {func(l *coord.Limits) { l.Bytes = 40 * 165 }, "pool.bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLog()
			l.leases(t, 1)
			limits := l.Limits()
			c.set(&limits)
			l.must(t, &coordv1.Configure{Limits: limits.Message()})
			for i := range 40 {
				if r, _ := l.do(fmt.Sprint("flooder-", i), write(put(fmt.Sprintf("%05d", i), "", 0))); r.Err != nil {
					break
				}
			}
			require.InDelta(t, 1, poolsOf(l)[name].Used, 0.04)
			l.refused(t, fault.PoolExhausted, c.field, write(put("y", "", 0)))
			l.refused(t, fault.PoolExhausted, c.field, write(put("y", "", 1)))
			l.refused(t, fault.PoolExhausted, c.field, &apiv1.SetRequirementRequest{Name: "y", Min: 1})
			l.must(t, write(put("00000", "", 0)))
			l.must(t, lock("y", 1))
			l.must(t, batch(1, 1, entry("n", "s", "a", 1)))
			r, _ := l.do("", write(put("members/x", "", 0)))
			require.NoError(t, r.Err)
			l.must(t, write(del(coord.Exactly("00000")), del(coord.Exactly("00001")), del(coord.Exactly("00002")), del(coord.Exactly("00003")), del(coord.Exactly("00004"))))
			l.must(t, write(put("y", "", 0)))
		})
	}
}

// greedy are owners of the applications of a group, each of which takes all that it can get.
func greedy(n int) (all []string) {
	for i := range n {
		all = append(all, principals.Named(fmt.Sprint("greedy-", i)))
	}
	return all
}

// few are limits that some owners can fill in a test, in the proportions of the default ones.
func few() coord.Limits {
	l := coord.DefaultLimits()
	l.Leases, l.Clients, l.Keys, l.Bytes = 5000, 1000, 20_000, 4_000_000
	l.PerOwner = coord.Quota{Leases: 500, Claims: 400, Clients: 200, Bytes: 250_000, UnleasedKeys: 5000, UnleasedBytes: 1_000_000}
	return l
}

// One owner or five that take all they can of every pool, and peers that do, leave room for the first lease, lock and entry of
// others, and to a peer for its clients. A refusal names the pool. A restart changes nothing.
func TestGreedyOwners(t *testing.T) {
	peers := []string{"peer-0", "peer-1", "peer-2", "peer-3", "peer-4"}
	for name, owners := range map[string][]string{
		"one": greedy(1), "five": greedy(5), "peers": peers, "both": append(greedy(3), peers[:2]...),
	} {
		t.Run(name, func(t *testing.T) {
			l := newLog()
			l.must(t, &coordv1.Configure{Limits: few().Message()})
			for _, owner := range owners {
				takeAll(t, l, owner)
			}
			requireRoom(t, l, "honest")
			l.Machine = restored(t, l.Machine)
			requireRoom(t, l, "new")
		})
	}
}

// Callers without a name at one peer and front have the bounds of one owner together. One of them or three, each of
// which takes all it can of every pool, leave room to another, also after a restart; and what is given back is there
// again.
func TestCallersWithoutNamesShare(t *testing.T) {
	for _, account := range []string{principals.OfFront("etcd", "p"), principals.Anonymous("p")} {
		l := newLog()
		l.must(t, &coordv1.Configure{Limits: few().Message()})
		var callers []string
		for n := range 3 {
			callers = append(callers, principals.From(account, fmt.Sprint("uid:", n)))
			takeAll(t, l, callers[n])
			honest := principals.From(account, fmt.Sprint("192.0.2.", n))
			for range 2 {
				r, _ := l.do(honest, &apiv1.LeaseGrantRequest{TtlMs: 60_000})
				require.NoError(t, r.Err)
				lease := r.Lease
				r, _ = l.do(honest, lock(fmt.Sprint(honest, lease), lease))
				require.NoError(t, r.Err)
				r, _ = l.do(honest, write(put(honest, "x", 0)))
				require.NoError(t, r.Err)
				l.Machine = restored(t, l.Machine)
			}
			l.must(t, write(del(coord.Exactly(honest))))
		}
		sum := machine.Usage{}
		for _, caller := range callers {
			u := l.Usage(caller)
			sum.Leases, sum.Claims, sum.Clients = sum.Leases+u.Leases, sum.Claims+u.Claims, sum.Clients+u.Clients
			sum.Bytes += u.Bytes
			sum.UnleasedKeys += u.UnleasedKeys
			sum.UnleasedBytes += u.UnleasedBytes
		}
		most := few().PerOwner
		require.LessOrEqual(t, sum.Leases, int(most.Leases))
		require.LessOrEqual(t, sum.Claims, int(most.Claims))
		require.LessOrEqual(t, sum.Clients, int(most.Clients))
		require.LessOrEqual(t, sum.Bytes, int64(most.Bytes))
		require.LessOrEqual(t, sum.UnleasedKeys, int(most.UnleasedKeys))
		require.LessOrEqual(t, sum.UnleasedBytes, int64(most.UnleasedBytes))
		require.Greater(t, sum.Leases, int(most.Leases)*9/10)
	}
}

// takeAll takes all that an owner gets: clients, keys and bytes without a lease, leases, and the keys, bytes and claims under them.
func takeAll(t *testing.T, l *log, owner string) {
	t.Helper()
	untilRefused := func(op func(n int) proto.Message) {
		t.Helper()
		for n := range 10_000 {
			r, _ := l.do(owner, op(n))
			if r.Err != nil {
				pool, _ := fault.PoolOf(r.Err)
				require.NotEmpty(t, pool, r.Err)
				return
			}
		}
		t.Fatal("nothing bounds it")
	}
	for range 300 {
		r, _ := l.do(owner, &apiv1.OpenClientRequest{})
		require.NoError(t, r.Err)
	}
	untilRefused(func(n int) proto.Message {
		return write(put(fmt.Sprint(owner, "/large/", n), strings.Repeat("x", 16_000), 0))
	})
	untilRefused(func(n int) proto.Message { return write(put(fmt.Sprint(owner, "/", n), "", 0)) })
	untilRefused(func(n int) proto.Message {
		return &apiv1.SetRequirementRequest{Name: fmt.Sprintf("%x-%d", owner, n), Min: 1}
	})
	first, _ := l.do(owner, &apiv1.LeaseGrantRequest{TtlMs: 1})
	require.NoError(t, first.Err)
	untilRefused(func(int) proto.Message { return &apiv1.LeaseGrantRequest{TtlMs: 1} })
	last := first.Lease
	untilRefused(func(n int) proto.Message {
		return &apiv1.TryLockRequest{Name: fmt.Sprint(owner, "/large/", n), LeaseId: int64(last), Metadata: make([]byte, 16_000)}
	})
	untilRefused(func(n int) proto.Message { return lock(fmt.Sprint(owner, "/", n), last) })
}

// requireRoom requires room for a peer that used nothing before, and for an application of it.
func requireRoom(t *testing.T, l *log, peer string) {
	t.Helper()
	for _, owner := range []string{principals.Anonymous(peer), principals.Named(peer)} {
		r, _ := l.do(owner, &apiv1.LeaseGrantRequest{TtlMs: 60_000})
		require.NoError(t, r.Err)
		r, _ = l.do(owner, lock(owner, r.Lease))
		require.NoError(t, r.Err)
	}
	own, _ := l.do(peer, &apiv1.LeaseGrantRequest{TtlMs: 15_000})
	require.NoError(t, own.Err)
	r, _ := l.do(peer, batch(own.Lease, 1, entry("n", "s", peer, 1)))
	require.NoError(t, r.Err)
	require.Contains(t, keys(t, l, machine.Query{Span: coord.Under(directory.Prefix)}), peer)
	for range 100 { // its clients, none of which a later one displaces
		r, _ := l.do(peer, &apiv1.OpenClientRequest{})
		require.NoError(t, r.Err)
	}
	require.Equal(t, 100, l.Usage(peer).Clients)
}

// The clients of the group: the owner with the most loses its idlest for a new one, and an owner at its bound its own. Those of a peer
// stay when applications open some, also after a restart.
func TestClientsMakeRoom(t *testing.T) {
	l := newLog()
	limits := coord.DefaultLimits()
	limits.Clients, limits.PerOwner.Clients = 12, 6
	l.must(t, &coordv1.Configure{Limits: limits.Message()})
	sequence := uint64(0)
	open := func(owner string, n int) (ids []coord.ClientID) {
		for range n {
			sequence++
			r, _ := l.send(chosen(sequence<<8, coordtest.Command(owner, &apiv1.OpenClientRequest{})))
			require.NoError(t, r.Err)
			ids = append(ids, r.Client)
		}
		return ids
	}
	use := func(id coord.ClientID) error {
		sequence++
		r, _ := l.send(coordtest.Once(id, sequence, coordtest.Command(alice, write(put("a", "", 0)))))
		return r.Err
	}
	const flooder, second = "@flooder", "@second"
	peer := open("peer", 2)
	ids := open(flooder, 6)
	require.NoError(t, use(ids[0]))
	more := open(flooder, 1) // at its bound
	require.ErrorIs(t, use(ids[1]), fault.NotFound, "the idlest")
	require.NoError(t, use(ids[0]))
	require.NoError(t, use(more[0]))

	open(second, 3) // the nine that applications may have
	require.Equal(t, 6, l.Usage(flooder).Clients)
	l.Machine = restored(t, l.Machine)
	first := open("@third", 1)
	require.ErrorIs(t, use(ids[2]), fault.NotFound, "the idlest of the one with the most")
	require.Equal(t, []int{5, 3, 1}, []int{l.Usage(flooder).Clients, l.Usage(second).Clients, l.Usage("@third").Clients})
	for range 50 {
		open(flooder, 1)
		open(second, 1)
	}
	require.NoError(t, use(first[0]))
	require.Equal(t, 9+2, l.Clients())
	for _, id := range peer {
		require.NoError(t, use(id), "of a peer")
	}
	open("peer", 10) // into the reserve, and then at the cost of the greediest
	require.Equal(t, 12, l.Clients())
	require.Equal(t, []int{5, 3, 3, 1}, []int{l.Usage("peer").Clients, l.Usage(flooder).Clients, l.Usage(second).Clients, l.Usage("@third").Clients})
	require.NoError(t, use(first[0]))
}

// naive are the clients without an index: who loses one is found by a look at all.
type naive map[coord.ClientID]*session

func (n naive) makeRoom(owner string, l coord.Limits) {
	count, applications := map[string]int{}, 0
	for _, s := range n {
		if count[s.owner]++; principals.IsApplication(s.owner) {
			applications++
		}
	}
	loses, most := owner, 0
	switch full := len(n) >= int(l.Clients); {
	case count[owner] >= int(l.PerOwner.Clients):
	case principals.IsApplication(owner) && applications >= int(uint64(l.Clients)-l.Kept(uint64(l.Clients))), full:
		for _, name := range slices.Sorted(maps.Keys(count)) {
			enough := principals.IsApplication(owner) && applications >= int(uint64(l.Clients)-l.Kept(uint64(l.Clients)))
			if count[name] > most && (principals.IsApplication(name) || !enough) {
				loses, most = name, count[name]
			}
		}
	default:
		return
	}
	var idlest coord.ClientID
	for id, s := range n {
		if s.owner == loses && (idlest == 0 || s.seen < n[idlest].seen) {
			idlest = id
		}
	}
	delete(n, idlest)
}

// The machine forgets the clients that the naive one forgets, over snapshots too.
func TestClientsMatchNaiveOnes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l, dumb := newLog(), naive{}
		limits := l.Limits()
		limits.Clients, limits.PerOwner.Clients = rapid.Uint32Range(1, 9).Draw(t, "clients"), rapid.Uint32Range(1, 6).Draw(t, "per owner")
		l.do(alice, &coordv1.Configure{Limits: limits.Message()})
		next := uint64(0)
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			id := coord.ClientID(rapid.Uint64Range(1, next+1).Draw(t, "id"))
			switch rapid.IntRange(0, 4).Draw(t, "step") {
			case 0:
				l.Machine, _ = machine.Restore(l.Snapshot())
			case 1, 2:
				owner := rapid.SampledFrom([]string{"@a", "@b", "~c", "p", "q"}).Draw(t, "owner")
				next++
				r, _ := l.send(chosen(next, coordtest.Command(owner, &apiv1.OpenClientRequest{})))
				require.NoError(t, r.Err)
				dumb.makeRoom(owner, limits)
				dumb[r.Client] = &session{owner: owner, seen: l.next}
			case 3:
				r, _ := l.send(coordtest.Once(id, l.next+1, coordtest.Command(alice, write(put("a", "", 0)))))
				require.Equal(t, dumb[id] != nil, r.Err == nil, "%v", r.Err)
				if dumb[id] != nil {
					dumb[id].seen = l.next
				}
			case 4:
				r, _ := l.send(coordtest.Once(id, l.next+1, coordtest.Command(alice, &apiv1.CloseClientRequest{})))
				require.Equal(t, dumb[id] != nil, r.Err == nil, "%v", r.Err)
				delete(dumb, id)
			}
			require.Equal(t, len(dumb), l.Clients())
		}
		for id := coord.ClientID(1); id <= coord.ClientID(next); id++ {
			r, _ := l.send(coordtest.Once(id, l.next+1, coordtest.Command(alice, write(put("a", "", 0)))))
			require.Equal(t, dumb[id] != nil, r.Err == nil, "client %d: %v", id, r.Err)
		}
	})
}

// One owner that waits for a lock with many leases leaves places in its queue to others.
func TestQueueIsShared(t *testing.T) {
	l := newLog()
	limits := l.Limits()
	limits.Queue = 16
	l.must(t, &coordv1.Configure{Limits: limits.Message()})
	for range 12 {
		l.must(t, lock("db", l.lease(t, alice)))
	}
	l.refused(t, fault.PoolExhausted, "pool.queue.share", lock("db", l.lease(t, alice)))
	for _, owner := range []string{bob, "@third", "@fourth"} {
		r, _ := l.do(owner, lock("db", l.lease(t, owner)))
		require.NoError(t, r.Err)
	}
}

// poolsOf returns the pools by name.
func poolsOf(l *log) map[string]machine.Pool {
	all := map[string]machine.Pool{}
	for _, p := range machine.PoolsOf(l.Machine) {
		all[p.Name] = p
	}
	return all
}

// How full each pool is, and the owner with most of it, whatever the order of the map.
func TestPoolsOf(t *testing.T) {
	const first, second = "@first", "@second"
	l := newLog()
	for name, p := range poolsOf(l) {
		require.Equal(t, machine.Pool{Name: name}, p)
	}
	for n, owner := range []string{second, first, second} {
		for _, op := range []proto.Message{
			&apiv1.LeaseGrantRequest{TtlMs: 1}, &apiv1.OpenClientRequest{}, &apiv1.SetRequirementRequest{Name: fmt.Sprint(n), Min: 1}, write(put(fmt.Sprint(n), "", 0)),
		} {
			r, _ := l.do(owner, op)
			require.NoError(t, r.Err)
		}
	}
	limits := l.Limits()
	limits.Keys, limits.Leases, limits.Clients = 16, 4, 8
	l.must(t, &coordv1.Configure{Limits: limits.Message()})
	all := poolsOf(l)
	require.Equal(t, machine.Pool{Name: "keys", Used: 6.0 / 12, Most: second, Has: 4}, all["keys"])
	require.Equal(t, machine.Pool{Name: "leases", Used: 1, Most: second, Has: 2}, all["leases"])
	require.Equal(t, machine.Pool{Name: "clients", Used: 3.0 / 6, Most: second, Has: 2}, all["clients"])
	require.Equal(t, machine.Pool{Name: "requirements", Used: 3.0 / 1024, Most: second, Has: 2}, all["requirements"])
	require.Equal(t, second, all["bytes"].Most)
	l.must(t, &apiv1.LeaseGrantRequest{TtlMs: 1}) // of a peer
	require.InDelta(t, 1, poolsOf(l)["leases"].Used, 0, "a quarter is for it anyway")
}

// A lowered quota takes nothing away. A raised one counts at once.
func TestQuotaIsConfigured(t *testing.T) {
	l := newLog()
	l.leases(t, 3)
	limits := l.Limits()
	limits.PerOwner.Leases = 1
	l.must(t, &coordv1.Configure{Limits: limits.Message()})
	require.Equal(t, 3, l.LeaseCount())
	l.refused(t, fault.PoolExhausted, "pool.leases.share", &apiv1.LeaseGrantRequest{TtlMs: 1})
	limits.PerOwner.Leases = 4
	l.must(t, &coordv1.Configure{Limits: limits.Message()})
	l.must(t, &apiv1.LeaseGrantRequest{TtlMs: 1})
	l.refused(t, fault.PoolExhausted, "pool.leases.share", &apiv1.LeaseGrantRequest{TtlMs: 1})
}

// requireUsage recounts every owner's usage.
func requireUsage(t *rapid.T, dumb *model, m *machine.Machine) {
	want := map[string]machine.Usage{}
	count := func(owner string, f func(*machine.Usage)) {
		u := want[owner]
		f(&u)
		want[owner] = u
	}
	for _, l := range dumb.leases {
		count(l.Owner, func(u *machine.Usage) { u.Leases++ })
	}
	for _, s := range dumb.clients {
		count(s.owner, func(u *machine.Usage) { u.Clients++ })
	}
	page, err := m.Range(machine.Query{})
	require.NoError(t, err)
	for _, kv := range page.Keys {
		if v := dumb.keys()[kv.Key]; v.lease != 0 {
			count(dumb.leases[v.lease].Owner, func(u *machine.Usage) {
				u.Keys++
				u.Bytes += int64(len(kv.Key)+len(kv.Value)) + 160
				if v.lock != "" {
					u.Claims++
				}
			})
		} else if w := v.writer; w != "" {
			count(w, func(u *machine.Usage) {
				u.UnleasedKeys++
				u.UnleasedBytes += int64(len(kv.Key)+len(kv.Value)) + 160
			})
		}
	}
	for _, owner := range []string{alice, bob} {
		require.Equal(t, want[owner], m.Usage(owner))
	}
}

// restored returns the machine of a snapshot.
func restored(t *testing.T, m *machine.Machine) *machine.Machine {
	again, err := machine.Restore(m.Snapshot())
	require.NoError(t, err)
	require.Equal(t, m.StateHash(), again.StateHash())
	return again
}
