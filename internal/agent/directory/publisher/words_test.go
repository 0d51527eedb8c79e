package publisher_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/agent/directory/publisher"
	"github.com/blackhole/blackhole/internal/contract/coord/directory"
	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	"github.com/blackhole/blackhole/internal/coordination/machine"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// words is a cluster with applications that move between peers and leave, while
// peers are cut off beyond the end of their leases. It records the last
// committed decision about each key.
type words struct {
	*cluster
	last map[string]string // by key: the peer of the last registration; "" after a deregistration
	from map[string]string // by key: the peer of the last deregistration
	left map[string]bool   // keys with a deregistration not committed yet
	port int
}

func newWords(t *testing.T, seed uint64, peers int) *words {
	w := &words{cluster: newCluster(t, seed), last: map[string]string{}, from: map[string]string{}, left: map[string]bool{}}
	w.heed = w.note
	for i := range peers {
		r := w.settle(i)
		r.lost = func(keys []string) { // like the agent
			for _, key := range keys {
				if _, done := r.pub.Committed(key); !done && r.pub.State().Foreign > 0 {
					r.deregister(key)
				}
			}
		}
		r.start()
	}
	w.elect("c1")
	w.run(3 * time.Second)
	return w
}

// note records a commit. A restarted peer repeats uncommitted registrations as
// if they were committed: without a later decision such a put is a
// registration.
func (w *words) note(cmd *coordv1.Command, result machine.Result) {
	o, r := cmd.GetPublishInstances(), coordtest.Outcome(result)
	if o == nil || r.Err != nil {
		return
	}
	for _, e := range o.GetPuts() {
		key := string(e.GetKey())
		if last, known := w.last[key]; !slices.Contains(r.Foreign, key) && (e.GetAdopt() || !known || last == "" && w.from[key] == cmd.GetOwner()) {
			w.last[key] = cmd.GetOwner()
			delete(w.left, key)
		}
	}
	for key, owner := range w.last {
		if at, _ := w.group.Removed(key); owner != "" && at == r.Revision && r.Changed > 0 {
			w.last[key], w.from[key] = "", owner
			delete(w.left, key)
		}
	}
}

// come registers an application at a peer.
func (w *words) come(r *resident, id string) {
	w.port++
	e := entry(id, w.port)
	r.registry[e.Key] = e
	e.Adopt = true
	r.publish(publisher.Local{Puts: []directory.Entry{e}})
}

// change changes an instance of a peer.
func (w *words) change(r *resident, id string) {
	if _, ok := r.registry[key(id)]; ok {
		w.port++
		r.register(entry(id, w.port))
	}
}

func (r *resident) deregister(key string) {
	delete(r.registry, key)
	r.publish(publisher.Local{Deletes: []string{key}})
}

// restart starts another process of a connected peer, which learns registration
// revisions from the group.
func (w *words) restart(r *resident) {
	if !r.cut {
		r.kill()
		w.run(time.Duration(w.rng.IntN(3000)) * ms)
		r.start()
		w.run(2 * time.Second)
	}
}

// leave deregisters an application through a peer, which adopts a foreign
// instance first.
func (w *words) leave(r *resident, id string) {
	if _, ok := r.registry[key(id)]; !ok {
		w.come(r, id)
		w.run(50 * ms)
	}
	if _, done := r.pub.Committed(key(id)); done && w.last[key(id)] == r.name {
		w.left[key(id)] = true
		r.deregister(key(id))
	}
}

// requireLast compares the directory with the last decisions. A deregistration
// without a commit allows both.
func (w *words) requireLast() {
	w.t.Helper()
	want, has := map[string]string{}, map[string]string{}
	page, err := w.group.Range(machine.Query{Span: directory.Span("", "")})
	require.NoError(w.t, err)
	for _, kv := range page.Keys {
		l, _ := w.group.Lease(kv.Lease)
		has[kv.Key] = fmt.Sprintf("%s:%x", l.Owner, kv.Value)
	}
	for _, key := range slices.Sorted(maps.Keys(w.last)) {
		for _, r := range w.peers {
			if r.name == w.last[key] {
				want[key] = fmt.Sprintf("%s:%x", r.name, r.registry[key].Value)
			}
		}
		if w.left[key] {
			delete(want, key)
			delete(has, key)
		}
	}
	require.Equal(w.t, want, has)
}

// TestLastWordOfApplications checks that the last committed registration wins
// in any order of return, and that deregistered instances stay away.
func TestLastWordOfApplications(t *testing.T) {
	for seed := range uint64(100) {
		w := newWords(t, seed, 3)
		for range 15 + w.rng.IntN(15) {
			r, id := w.peers[w.rng.IntN(len(w.peers))], fmt.Sprint(w.rng.IntN(4))
			switch w.rng.IntN(10) {
			case 0, 1, 2:
				w.come(r, id)
			case 3:
				w.leave(r, id)
			case 4:
				w.change(r, id)
			case 5:
				w.elect([]string{"c1", "c2", "c3"}[w.rng.IntN(3)])
			case 6:
				w.restart(r)
			default:
				r.cut = !r.cut
			}
			w.run([]time.Duration{0, 5 * ms, 100 * ms, time.Second, 7 * time.Second, 25 * time.Second}[w.rng.IntN(6)])
		}
		for _, n := range w.rng.Perm(len(w.peers)) { // in any order
			w.peers[n].cut = false
			w.run(time.Duration(w.rng.IntN(3000)) * ms)
		}
		w.elect("c2")
		w.run(40 * time.Second)
		w.requireLast()
		before := w.group.Revision()
		w.run(2 * time.Minute)
		require.Equal(t, before, w.group.Revision(), "and it stays so")
	}
}

// TestSinceIsKept checks that repeated sends and changes of an instance keep
// the revision of its registration.
func TestSinceIsKept(t *testing.T) {
	w := newFixture(t, 1)
	w.lead()
	w.run(time.Second)
	take := entry("a", 80)
	take.Adopt = true
	w.register(take, entry("b", 80))
	w.run(5 * ms)              // it is sent
	w.register(entry("a", 81)) // it changes
	w.run(time.Second)
	at := w.group.Since(key("a"))
	require.Equal(t, w.group.Revision()-1, at)
	last := w.sent[len(w.sent)-1]
	require.Len(t, last.GetPuts(), 1)
	sent := last.GetPuts()[0]
	require.Equal(t, []any{key("a"), entry("a", 81).Value, int64(at)}, []any{string(sent.GetKey()), sent.GetValue(), sent.GetSince()})

	w.start() // a new process learns the revision from the group
	w.lead()
	w.run(time.Second)
	require.Zero(t, w.sent[len(w.sent)-1].Puts[0].Since)
	w.step(publisher.Leader{})
	w.run(20 * time.Second) // the lease ends
	require.Empty(t, w.directory())
	w.lead()
	w.run(time.Second)
	require.Equal(t, w.mine(), w.directory())
	require.Equal(t, at, w.group.Since(key("a")))
	require.Zero(t, w.group.Since(key("b")), "of which nobody said that it was one")
}

// TestRegistrationGivesWay checks that a registration that yielded to another
// owner is retried only as a repetition.
func TestRegistrationGivesWay(t *testing.T) {
	w := newFixture(t, 1)
	w.lead()
	w.run(time.Second)
	take := entry("a", 80)
	take.Adopt = true
	do := w.pub.Advance(w.now, publisher.Local{Puts: []directory.Entry{take}}).Do
	require.True(t, do.(publisher.Send).Batch.Puts[0].Adopt)
	step := w.pub.Advance(w.now+7*ms, publisher.PublishDone{Answer: &apiv1.PublishInstancesResponse{Header: &apiv1.Header{Revision: 5}, Foreign: [][]byte{[]byte(take.Key)}}})
	require.Equal(t, []string{take.Key}, step.Lost)
	w.run(35 * time.Second)
	require.False(t, w.sent[len(w.sent)-1].Puts[0].Adopt)
}
