package publisher_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/agent/directory/publisher"
	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/instance"
)

// words is a town whose applications move from peer to peer and leave, while peers are cut off for longer than their
// leases live, and the last word of each that the group has committed.
type words struct {
	*town
	last map[string]string // by key: the peer at which it registered last; "" when it left
	from map[string]string // by key: the peer at which it left last
	left map[string]bool   // it did, and the group has not heard of that
	port int
}

func newWords(t *testing.T, seed uint64, peers int) *words {
	w := &words{town: newTown(t, seed), last: map[string]string{}, from: map[string]string{}, left: map[string]bool{}}
	w.heed = w.note
	for i := range peers {
		r := w.settle(i)
		r.lost = func(keys []string) { // as its agent does
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

// note takes note of what is committed. What was not when its peer was restarted is said again as if it had been: a
// registration all the same of what nobody knows, or left there.
func (w *words) note(cmd coord.Command, r coord.Result) {
	o, ok := cmd.Op.(*coord.RegisterBatch)
	if !ok || r.Err != nil {
		return
	}
	for _, e := range o.Puts {
		if last, known := w.last[e.Key]; !slices.Contains(r.Foreign, e.Key) && (e.Adopt || !known || last == "" && w.from[e.Key] == cmd.Owner) {
			w.last[e.Key] = cmd.Owner
			delete(w.left, e.Key)
		}
	}
	for key, owner := range w.last {
		if at, _ := w.group.Removed(key); owner != "" && at == r.Revision && r.Changed > 0 {
			w.last[key], w.from[key] = "", owner
			delete(w.left, key)
		}
	}
}

// come has an application register at a peer.
func (w *words) come(r *resident, id string) {
	w.port++
	e := entry(id, w.port)
	r.registry[e.Key] = e
	e.Adopt = true
	r.publish(publisher.Local{Puts: []coord.Entry{e}})
}

// change has an instance of a peer be otherwise.
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

// restart begins another process of a peer that is not cut off: it learns from the group since when its instances are.
func (w *words) restart(r *resident) {
	if !r.cut {
		r.kill()
		w.run(time.Duration(w.rng.IntN(3000)) * ms)
		r.start()
		w.run(2 * time.Second)
	}
}

// leave has an application leave by way of a peer, which adopts it if it is another's.
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

// requireLast holds the directory to the last words. What left and could not say so may be there or not.
func (w *words) requireLast() {
	w.t.Helper()
	want, has := map[string]string{}, map[string]string{}
	page, err := w.group.Range(coord.Query{Span: coord.ServiceSpan(instance.Name{})})
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

// Whoever is back first: an application's last registration that was committed counts, and what left does not come back.
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

// A registration is one however often it is sent, and however the instance changes meanwhile: what follows says since when.
func TestSinceIsKept(t *testing.T) {
	w := newWorld(t, 1)
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
	require.Equal(t, []coord.Entry{{Key: key("a"), Value: entry("a", 81).Value, Since: at}}, last.Puts)

	w.start() // another process does not know, and is told
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

// A registration that gave way to another owner's is none any more: it is tried again as what it was before.
func TestRegistrationGivesWay(t *testing.T) {
	w := newWorld(t, 1)
	w.lead()
	w.run(time.Second)
	take := entry("a", 80)
	take.Adopt = true
	w.pub.Advance(w.now, publisher.Local{Puts: []coord.Entry{take}})
	do := w.pub.Advance(w.now+6*ms, publisher.Tick{}).Do
	require.True(t, do.(publisher.Send).Batch.Puts[0].Adopt)
	step := w.pub.Advance(w.now+7*ms, publisher.PublishDone{Result: coord.Result{Revision: 5, Foreign: []string{take.Key}}})
	require.Equal(t, []string{take.Key}, step.Lost)
	w.run(35 * time.Second)
	require.False(t, w.sent[len(w.sent)-1].Puts[0].Adopt)
}
