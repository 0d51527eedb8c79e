package publisher_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/internal/agent/directory/publisher"
	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/coord/directory"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/internal/coordination/machine"
)

// A new leader receives all waiting registrations at once, in one command.
func TestPullOnLeader(t *testing.T) {
	w := newFixture(t, 1)
	for i := range 1000 {
		w.register(entry(fmt.Sprint(i), 80))
	}
	w.deregister(key("7"))
	w.run(time.Minute)
	require.Empty(t, w.asked)
	require.Zero(t, w.pub.State().Waiting-999)
	_, ok := w.pub.Committed(key("1"))
	require.False(t, ok)

	w.lead()
	w.run(50 * ms)
	require.Equal(t, w.mine(), w.directory())
	require.Equal(t, map[string]int{"grant": 1, "pull": 1, "send": 1}, w.asked)
	require.Equal(t, coord.Revision(2), w.group.Revision())
	at, ok := w.pub.Committed(key("1"))
	require.True(t, ok)
	require.Equal(t, coord.Revision(2), at)

	w.run(time.Minute)
	require.Equal(t, 1, w.asked["send"], "the digest says that it is as it should be")
	require.InDelta(t, 12, w.asked["renew"], 1)
	require.Equal(t, w.mine(), w.directory())
}

// With a leader, changes leave at once; changes during a request leave together.
func TestChangesAreGathered(t *testing.T) {
	w := newFixture(t, 1)
	w.lead()
	w.run(time.Second)
	sends := w.asked["send"]
	for i := range 5 {
		w.register(entry(fmt.Sprint(i), 80))
		w.run(ms / 2)
	}
	w.deregister(key("3"))
	w.run(20 * ms)
	require.Equal(t, w.mine(), w.directory())
	require.Equal(t, sends+2, w.asked["send"])
	w.register(entry("x", 80))
	w.run(2 * 4 * ms)
	_, ok := w.pub.Committed(key("x"))
	require.True(t, ok)
	before := w.group.Revision()
	w.deregister(key("x"))
	w.run(20 * ms)
	at, ok := w.pub.Committed(key("x"))
	require.True(t, ok)
	require.Equal(t, before+1, at, "it is gone")
}

// A new leader inherits the directory: no entry is sent again.
func TestLeaderChanges(t *testing.T) {
	w := newFixture(t, 1)
	w.register(entry("a", 80))
	w.lead()
	w.run(time.Second)
	sends, renews := w.asked["send"], w.asked["renew"]
	w.step(publisher.Leader{})
	w.run(2 * time.Second)
	require.Equal(t, renews, w.asked["renew"])
	w.lead()
	w.run(20 * ms)
	require.Equal(t, renews+1, w.asked["renew"], "it is asked at once")
	require.Equal(t, sends, w.asked["send"])
	require.Equal(t, w.now/time.Second, w.pub.State().Verified/time.Second)
}

// Registrations beyond one command go span by span, without a gap for correct
// entries.
func TestManyAreRegisteredInSpans(t *testing.T) {
	w := newFixture(t, 1)
	for i := range 3500 {
		w.register(entry(fmt.Sprint(i), 80))
	}
	w.lead()
	w.run(time.Second)
	require.Len(t, w.sent, 4)
	require.Equal(t, w.mine(), w.directory())
	before := w.group.Revision()

	w.start() // a new process finds its lease and the entries of the previous one
	w.lead()
	w.run(time.Second)
	require.Equal(t, before, w.group.Revision(), "nothing has changed, and nobody hears of it")
	require.Equal(t, uint32(w.group.Publication(home).Generation>>32), w.life)
	w.run(time.Minute)
	require.Equal(t, before, w.group.Revision(), "the lease lives on")
	w.deregister(key("3000"))
	w.run(time.Second)
	require.Equal(t, w.mine(), w.directory())
}

// A late commit of a batch with an unknown result undoes no later change.
func TestLateBatch(t *testing.T) {
	w := newFixture(t, 1)
	w.lead()
	w.run(time.Second)
	for _, d := range []time.Duration{time.Second, 3 * time.Second} { // before and after the next keepalive
		w.hold = 2 * d
		w.register(entry("a", 80))
		w.run(20 * ms)
		require.Zero(t, w.hold, "it is on its way")
		require.Error(t, w.pub.State().Problem)
		w.register(entry("a", 81))
		w.run(d)
		require.Equal(t, w.mine(), w.directory())
		before := w.group.Revision()
		w.run(2 * d)
		require.Equal(t, before, w.group.Revision())
	}
}

// A change during a list of all entries survives the possibly older list.
func TestChangesWhilePulling(t *testing.T) {
	for wait := range 20 * ms / ms {
		w := newFixture(t, uint64(wait))
		w.register(entry("a", 80), entry("b", 80))
		w.lead()
		w.run(wait * ms)
		w.deregister(key("a"))
		w.register(entry("b", 81), entry("c", 80))
		w.deregister(key("c"))
		w.register(entry("d", 80))
		w.run(time.Second)
		require.Equal(t, w.mine(), w.directory(), "after %d ms", wait)
	}
}

// Changes during a batch leave with the next one.
func TestChangesMeanwhile(t *testing.T) {
	w := newFixture(t, 1)
	w.lead()
	w.run(time.Second)
	w.register(entry("a", 80))
	w.run(5 * ms) // it is sent
	w.deregister(key("a"))
	w.run(5 * ms)
	w.register(entry("a", 81))
	w.run(3 * ms)
	w.register(entry("a", 82))
	w.run(40 * ms)
	require.Equal(t, w.mine(), w.directory())
	w.deregister(key("a"))
	w.run(5 * ms) // it is sent
	w.register(entry("a", 83))
	w.run(40 * ms)
	require.Equal(t, w.mine(), w.directory())

	other := w.apply(ops.Command{Owner: "other", Op: &ops.LeaseGrant{TTL: 1e6}}).Lease
	take := entry("a", 90)
	take.Adopt = true
	w.apply(ops.Command{Owner: "other", Op: &ops.RegisterBatch{Lease: other, Generation: 1, Puts: []directory.Entry{take}}})
	w.register(entry("a", 84))
	w.run(5 * ms)    // to be skipped
	w.register(take) // but now the application registers here
	w.register(entry("a", 85))
	w.run(40 * ms)
	require.Equal(t, w.mine(), w.directory())
}

// saved is a backup of a group.
func saved(m *machine.Machine) []byte {
	var b bytes.Buffer
	_, _ = m.Image().WriteTo(&b) // a Buffer never fails
	return b.Bytes()
}

// Entries missing in a restored backup return within one round of keepalives.
func TestGroupIsRestored(t *testing.T) {
	w := newFixture(t, 1)
	w.register(entry("a", 80))
	w.lead()
	w.run(time.Second)
	backup := saved(w.group)
	w.register(entry("b", 80))
	w.deregister(key("a"))
	w.run(time.Second)
	require.Equal(t, w.mine(), w.directory())
	var err error
	w.group, err = machine.Current().RestoreFrom(bytes.NewReader(backup))
	require.NoError(t, err)
	w.index, _ = w.group.Index()
	require.NotEqual(t, w.mine(), w.directory())
	w.run(6 * time.Second)
	require.Equal(t, w.mine(), w.directory())
}

// The end of a lease ends all entries; a new lease gets all of them again.
func TestLeaseIsLost(t *testing.T) {
	w := newFixture(t, 1)
	w.register(entry("a", 80))
	w.lead()
	w.run(time.Second)
	w.step(publisher.Leader{})
	w.run(20 * time.Second)
	require.Empty(t, w.directory())
	w.step(publisher.Leader{Term: w.term})
	w.run(9 * ms) // it is told
	_, ok := w.pub.Committed(key("a"))
	require.False(t, ok)
	w.register(entry("b", 80))
	w.run(time.Second)
	require.Equal(t, w.mine(), w.directory())
	require.Equal(t, 2, w.asked["grant"])

	// Another owner may have the id.
	w = newFixture(t, 1)
	w.apply(ops.Command{Owner: "stranger", Op: &ops.LeaseGrant{ID: home, TTL: 1e6}})
	w.register(entry("a", 80))
	w.lead()
	w.run(2 * time.Second)
	require.Equal(t, w.mine(), w.directory())
	require.NotEqual(t, home, w.pub.State().Lease)
}

// A peer drops a moved application and takes it back after a new registration.
func TestEntriesOfOthers(t *testing.T) {
	w := newFixture(t, 1)
	other := w.apply(ops.Command{Owner: "other", Op: &ops.LeaseGrant{TTL: 1e6}}).Lease
	take := entry("a", 81)
	take.Adopt = true
	w.register(entry("a", 80), entry("b", 80))
	w.lead()
	w.run(time.Second)
	r := w.apply(ops.Command{Owner: "other", Op: &ops.RegisterBatch{Lease: other, Generation: 1, Puts: []directory.Entry{take}}})
	require.NoError(t, r.Err)
	w.run(6 * time.Second)
	require.Equal(t, []string{take.Key}, w.lost)
	require.Equal(t, 1, w.pub.State().Foreign)
	require.Len(t, w.directory(), 2)
	sends := w.asked["send"]
	w.run(20 * time.Second)
	require.Equal(t, sends, w.asked["send"], "its digest is right without it")
	_, ok := w.pub.Committed(take.Key)
	require.False(t, ok)

	w.register(take)
	w.run(time.Second)
	require.Equal(t, w.mine(), w.directory())
	require.Zero(t, w.pub.State().Foreign)

	// The same without a leader at that time, followed by a resync.
	next := newFixture(t, 1)
	other = next.apply(ops.Command{Owner: "other", Op: &ops.LeaseGrant{TTL: 1e6}}).Lease
	next.apply(ops.Command{Owner: "other", Op: &ops.RegisterBatch{Lease: other, Generation: 1, Puts: []directory.Entry{entry("a", 80)}}})
	next.register(take)
	next.lead()
	next.run(time.Second)
	require.Equal(t, next.mine(), next.directory())
}

// The end of an owner frees its entries.
func TestEntriesOfTheDead(t *testing.T) {
	w := newFixture(t, 1)
	w.register(entry("b", 80))
	w.lead()
	w.run(time.Second)
	other := w.apply(ops.Command{Owner: "other", Op: &ops.LeaseGrant{TTL: 1e6}}).Lease
	w.apply(ops.Command{Owner: "other", Op: &ops.RegisterBatch{Lease: other, Generation: 1, Puts: []directory.Entry{{Key: key("b"), Value: entry("b", 9).Value, Adopt: true}}}})
	w.run(6 * time.Second)
	require.Equal(t, 1, w.pub.State().Foreign)
	w.apply(ops.Command{Owner: "other", Op: &ops.LeaseRevoke{ID: other}})
	w.run(31 * time.Second)
	require.Equal(t, w.mine(), w.directory())
	w.deregister(key("b"))
	w.run(time.Second)
	require.Equal(t, w.mine(), w.directory())
}

// Without room for all, the fitting entries are present and the others block
// nothing.
func TestNoRoomForAll(t *testing.T) {
	w := newFixture(t, 1)
	limits := w.group.Limits()
	limits.LeaseKeys = 20
	done := w.apply(ops.Command{Op: &ops.Configure{Limits: limits}})
	require.NoError(t, done.Err)
	for i := range 50 {
		w.register(entry(fmt.Sprintf("%02d", i), 80))
	}
	w.lead()
	w.run(10 * time.Second)
	require.Len(t, w.directory(), 20)
	require.Equal(t, 30, w.pub.State().Rejected)
	sends := w.asked["send"]
	w.run(time.Minute)
	require.LessOrEqual(t, w.asked["send"]-sends, 3, "one entry each half minute looks for room")
	w.deregister(key("03"))
	w.register(entry("04", 81), entry("49", 81))
	w.run(10 * time.Second)
	require.Len(t, w.directory(), 20)
	for _, id := range []string{"04", "49"} {
		require.Equal(t, w.mine()[key(id)], w.directory()[key(id)])
	}
	limits.LeaseKeys = 100
	require.NoError(t, w.apply(ops.Command{Op: &ops.Configure{Limits: limits}}).Err)
	w.run(40 * time.Second)
	require.Equal(t, w.mine(), w.directory(), "all find room")
	require.Zero(t, w.pub.State().Rejected)
}

// A rejected entry does not block others.
func TestEntryIsRefused(t *testing.T) {
	w := newFixture(t, 1)
	bad := directory.Entry{Key: key("bad"), Value: make([]byte, directory.MaxEntry+1)}
	w.register(entry("a", 80), bad, entry("c", 80))
	w.lead()
	w.run(time.Second)
	require.Equal(t, []string{bad.Key}, w.refused)
	require.Len(t, w.directory(), 2)
	require.Equal(t, 1, w.pub.State().Rejected)
	sends := w.asked["send"]
	w.run(time.Minute)
	require.Equal(t, sends, w.asked["send"])
	w.register(entry("bad", 80))
	w.register(directory.Entry{Key: "nowhere", Value: []byte("x")})
	w.run(time.Second)
	w.deregister("nowhere")
	w.run(time.Second)
	require.Equal(t, w.mine(), w.directory())
}

// A later process of the peer stays undisturbed, and its entries end with it.
func TestAnotherProcess(t *testing.T) {
	w := newFixture(t, 1)
	w.register(entry("a", 80))
	w.lead()
	w.run(time.Second)
	r := w.apply(ops.Command{Owner: peer, Op: &ops.RegisterBatch{Lease: home, Generation: 9 << 32, Puts: []directory.Entry{entry("z", 1)}}})
	require.NoError(t, r.Err)
	w.run(6 * time.Second)
	require.True(t, w.pub.State().Superseded)
	require.Error(t, w.pub.State().Problem)
	renews := w.asked["renew"]
	w.run(5 * time.Second)
	require.Equal(t, renews, w.asked["renew"])
	require.Contains(t, w.directory(), key("z"))
	w.run(20 * time.Second)
	require.Equal(t, w.mine(), w.directory())
	require.False(t, w.pub.State().Superseded)
}

// After losses, delays, repetitions and crashes, a quiet network leads to a
// correct directory within one round of keepalives, and to silence afterwards.
func TestDirectoryComesToBeRight(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newFixture(t, rapid.Uint64().Draw(t, "seed"))
		other := w.apply(ops.Command{Owner: "other", Op: &ops.LeaseGrant{TTL: 1e9}}).Lease
		w.faulty = true
		var backup []byte
		here := map[string]bool{} // keys registered here last
		for i := range rapid.IntRange(1, 40).Draw(t, "deeds") {
			switch rapid.IntRange(0, 13).Draw(t, "deed") {
			case 0, 1:
				w.lead()
			case 2:
				w.step(publisher.Leader{})
			case 3:
				w.start()
				clear(here)
			case 4:
				backup = saved(w.group)
			case 5:
				clear(here)
				if backup != nil {
					w.group, _ = machine.Current().RestoreFrom(bytes.NewReader(backup))
					clear(w.ends)
					for _, l := range w.group.Leases() {
						w.ends[l.ID] = w.now + time.Duration(l.TTL)*ms
					}
				}
			case 6:
				e := entry(fmt.Sprint(w.rng.IntN(6)), 99)
				e.Adopt = true
				w.apply(ops.Command{Owner: "other", Op: &ops.RegisterBatch{Lease: other, Generation: 1, Puts: []directory.Entry{e}}})
				delete(here, e.Key)
			case 7:
				e := entry(fmt.Sprint(w.rng.IntN(6)), i)
				e.Adopt = true
				w.register(e)
				here[e.Key] = true
			case 8, 9:
				gone := key(fmt.Sprint(w.rng.IntN(6)))
				w.deregister(gone)
				delete(here, gone)
			default:
				w.register(entry(fmt.Sprint(w.rng.IntN(6)), w.rng.IntN(5)))
			}
			w.run(time.Duration(rapid.SampledFrom([]int{0, 1, 6, 100, 6000, 20_000}).Draw(t, "while")) * ms)
		}
		w.faulty = false
		if rapid.Bool().Draw(t, "gone") {
			w.apply(ops.Command{Owner: "other", Op: &ops.LeaseRevoke{ID: other}})
		}
		w.lead()
		w.run(115 * time.Second) // late messages arrive, superseded processes return, foreign entries are tried twice
		want, has := w.mine(), w.directory()
		for key, who := range has {
			if strings.HasPrefix(who, "other:") && !(here[key] && want[key] != "") {
				want[key] = who // a new registration
			}
		}
		require.Equal(t, want, has)
		if w.pub.State().Waiting > 0 { // a retry of a foreign entry is in progress
			w.run(100 * ms)
		}
		require.Zero(t, w.pub.State().Waiting)
		before := w.group.Revision()
		w.run(time.Minute)
		require.Equal(t, before, w.group.Revision())
		require.LessOrEqual(t, w.now-w.pub.State().Verified, 6*time.Second)
	})
}

func BenchmarkAdvance(b *testing.B) {
	p := publisher.New(publisher.Config{Jitter: rand.Float64})
	p.Advance(0, publisher.Leader{Term: 1})
	p.Advance(0, publisher.LeaseGranted{Lease: 1, TTL: time.Hour})
	p.Advance(0, publisher.Listed{})
	p.Advance(0, publisher.PublishDone{})
	one, two := entry("a", 1), entry("a", 2)
	for i := 0; b.Loop(); i++ {
		e := one
		if i%2 == 0 {
			e = two
		}
		if p.Advance(time.Duration(i), publisher.Local{Puts: []directory.Entry{e}}).Do == nil {
			b.Fatal()
		}
		p.Advance(time.Duration(i), publisher.PublishDone{})
	}
}
