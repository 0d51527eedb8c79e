package publisher_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/agent/directory/publisher"
	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/coord/directory"
	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/internal/coordination/machine"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// cluster is a group and peers that follow its leader and publish their entries:
// the scenes of the design document "Service Discovery Race Condition", played
// by the real state machines in virtual time.
type cluster struct {
	t      *testing.T
	rng    *rand.Rand
	now    time.Duration
	queue  []arrival
	group  *machine.Machine
	index  uint64
	ends   map[coord.LeaseID]time.Duration
	term   uint64
	leader string // "" during an election
	peers  []*resident
	enough []time.Duration                        // times at which service web came to have two instances
	heed   func(*coordv1.Command, machine.Result) // nil: none
}

func newCluster(t *testing.T, seed uint64) *cluster {
	return &cluster{
		t: t, rng: rand.New(rand.NewPCG(seed, 3)), group: machine.New(), ends: map[coord.LeaseID]time.Duration{},
	}
}

func (w *cluster) after(d time.Duration, f func()) { w.queue = append(w.queue, arrival{w.now + d, f}) }

func (w *cluster) run(d time.Duration) {
	for end := w.now + d; ; {
		first := -1
		for i, a := range w.queue {
			if a.at <= end && (first < 0 || a.at < w.queue[first].at) {
				first = i
			}
		}
		if first < 0 {
			w.now = end
			return
		}
		a := w.queue[first]
		w.queue = slices.Delete(w.queue, first, first+1)
		w.now = max(w.now, a.at)
		a.what()
	}
}

// elect makes a leader. Peers learn of it a little later.
func (w *cluster) elect(leader string) {
	w.term++
	term := w.term
	w.leader = leader
	for id := range w.ends { // a new leader extends all leases
		l, _ := w.group.Lease(id)
		w.ends[id] = w.now + time.Duration(l.TTL)*ms
	}
	w.expire(term)
}

// depose removes the leader.
func (w *cluster) depose() { w.leader = "" }

// expire ends leases during a term.
func (w *cluster) expire(term uint64) {
	if w.leader == "" || w.term != term {
		return
	}
	for _, id := range slices.Sorted(maps.Keys(w.ends)) {
		if l, _ := w.group.Lease(id); w.ends[id] <= w.now {
			w.log(expire(l))
		}
	}
	w.after(100*ms, func() { w.expire(term) })
}

func (w *cluster) apply(cmd ops.Command) ops.Result {
	m, err := ops.Message(cmd)
	require.NoError(w.t, err)
	return coordtest.Outcome(w.log(m))
}

func (w *cluster) log(m *coordv1.Command) machine.Result {
	w.index++
	before := w.available()
	r, e := w.group.Apply(w.index, 1, m)
	for _, l := range e.Granted {
		w.ends[l.ID] = w.now + time.Duration(l.TTL)*ms
	}
	for _, id := range e.Ended {
		delete(w.ends, id)
	}
	if before < 2 && w.available() >= 2 {
		w.enough = append(w.enough, w.now)
	}
	if w.heed != nil {
		w.heed(m, r)
	}
	return r
}

// available counts the instances of service web.
func (w *cluster) available() int {
	page, err := w.group.Range(machine.Query{Span: directory.Span("default", "web")})
	require.NoError(w.t, err)
	return len(page.Keys)
}

// resident is a peer.
type resident struct {
	*cluster
	name     string
	id       coord.LeaseID
	life     uint32
	up       bool
	cut      bool
	registry map[string]directory.Entry
	lost     func(keys []string) // nil: ignored
	known    uint64              // term of the leader known here; 0: none
	pub      *publisher.Publisher

	publishes time.Duration // time of the publisher's alarm
}

func (w *cluster) settle(i int) *resident {
	r := &resident{cluster: w, name: fmt.Sprint("peer-", i), id: coord.LeaseID(1000 + i), registry: map[string]directory.Entry{}}
	w.peers = append(w.peers, r)
	return r
}

// start starts a process.
func (r *resident) start() {
	r.life++
	r.up, r.known, r.publishes = true, 0, 0
	r.pub = publisher.New(publisher.Config{Lease: r.id, Incarnation: r.life, Jitter: r.rng.Float64})
	r.follow()
}

// kill ends the process without a message.
func (r *resident) kill() { r.life, r.up = r.life+1, false }

// later schedules an event of this process.
func (r *resident) later(d time.Duration, f func()) {
	life := r.life
	r.after(d, func() {
		if r.life == life && r.up {
			f()
		}
	})
}

func (r *resident) register(entries ...directory.Entry) {
	for _, e := range entries {
		r.registry[e.Key] = e
	}
	if r.up {
		r.publish(publisher.Local{Puts: entries})
	}
}

// follow observes the leader, again and again.
func (r *resident) follow() {
	var term uint64
	if r.leader != "" && !r.cut {
		term = r.term
	}
	if term != r.known {
		r.known = term
		r.publish(publisher.Leader{Term: term})
	}
	r.later(time.Duration(100+r.rng.IntN(200))*ms, r.follow)
}

// alarm sets the single alarm of a kind; 0 clears it.
func (r *resident) alarm(set *time.Duration, at time.Duration, f func()) {
	if *set == at {
		return
	}
	if *set = at; at == 0 {
		return
	}
	r.later(at-r.now, func() {
		if *set == at {
			*set = 0
			f()
		}
	})
}

func (w *cluster) delay() time.Duration { return time.Duration(1+w.rng.IntN(4)) * ms }

func (r *resident) publish(e publisher.Event) {
	step := r.pub.Advance(r.now, e)
	if r.lost != nil && len(step.Lost) > 0 {
		r.later(0, func() { r.lost(step.Lost) })
	}
	switch do := step.Do.(type) {
	case publisher.Resync:
		all := slices.Collect(maps.Values(r.registry))
		r.later(0, func() { r.publish(publisher.Listed{Entries: all}) })
	case publisher.Grant:
		r.call(func() publisher.Event {
			res := r.apply(ops.Command{Owner: r.name, Op: &ops.LeaseGrant{ID: do.Lease, TTL: do.TTL.Milliseconds()}})
			return publisher.LeaseGranted{Lease: res.Lease, TTL: time.Duration(res.TTL) * ms, Err: res.Err}
		}, publisher.LeaseGranted{Err: errGone})
	case publisher.Renew:
		r.call(func() publisher.Event {
			answer := &apiv1.LeaseKeepAliveResponse{}
			if l, ok := r.group.Lease(do.Lease); ok && l.Owner == r.name {
				r.ends[l.ID] = r.now + time.Duration(l.TTL)*ms
				answer = renewed(r.group, l)
			}
			return publisher.Renewed{Answer: answer}
		}, publisher.Renewed{Err: errGone})
	case publisher.Send:
		r.call(func() publisher.Event {
			res := r.log(coord.CommandOf(r.name, do.Batch))
			return publisher.PublishDone{Answer: res.Answer.GetPublishInstances(), Err: res.Err}
		}, publisher.PublishDone{Err: errGone})
	}
	r.alarm(&r.publishes, step.Wake, func() { r.publish(publisher.Tick{}) })
}

// call calls the known leader. The answer may be lost.
func (r *resident) call(do func() publisher.Event, failed publisher.Event) {
	to := r.known
	r.later(r.delay(), func() {
		answer, done := failed, !r.cut && r.leader != "" && to == r.term
		if done {
			answer = do()
		}
		r.later(r.delay(), func() {
			if !done || r.cut {
				answer = failed
			}
			r.publish(answer)
		})
	})
}

// requireComplete checks that the directory has each running instance once.
func (w *cluster) requireComplete() {
	w.t.Helper()
	want, has := map[string]string{}, map[string]string{}
	for _, r := range w.peers {
		for key, e := range r.registry {
			if r.up {
				want[key] = fmt.Sprintf("%s:%x", r.name, e.Value)
			}
		}
	}
	page, err := w.group.Range(machine.Query{Span: directory.Span("", "")})
	require.NoError(w.t, err)
	for _, kv := range page.Keys {
		l, _ := w.group.Lease(kv.Lease)
		has[kv.Key] = fmt.Sprintf("%s:%x", l.Owner, kv.Value)
	}
	require.Equal(w.t, want, has)
}

// TestScenes plays the scenarios of the design: a start during an election, a
// start with a leader, a late registration, and a change of leader, which keeps
// the directory.
func TestScenes(t *testing.T) {
	w := newCluster(t, 1)
	one, two := w.settle(1), w.settle(2)
	one.register(entry("abc123", 80))
	one.start()
	w.run(3 * time.Second)
	require.Zero(t, w.group.Publication(one.id), "nobody leads, and nothing is lost")

	w.elect("c2")
	w.run(1100 * ms)
	w.requireComplete()
	require.Equal(t, 1, w.available())

	two.start()
	w.run(100 * ms) // with a leader
	two.register(entry("late", 80))
	w.run(40 * ms)
	w.requireComplete()
	require.Len(t, w.enough, 1)

	w.depose()
	w.run(1500 * ms)
	before := w.group.Revision()
	w.elect("c3")
	w.run(time.Second)
	require.Equal(t, before, w.group.Revision(), "the directory is inherited, and nothing is sent again")
	for _, r := range w.peers {
		require.Equal(t, w.term, r.known)
		require.Less(t, w.now-r.pub.State().Verified, time.Second)
	}
	require.Equal(t, 2, w.available())
}

// TestAnyOrderOfStarts starts, kills, restarts and cuts eight peers in any
// order under changing leaders: in the end the directory has each instance
// once.
func TestAnyOrderOfStarts(t *testing.T) {
	for seed := range uint64(50) {
		w := newCluster(t, seed)
		for i := range 8 {
			r := w.settle(i)
			for k := range 1 + w.rng.IntN(3) {
				r.registry[key(fmt.Sprint(i, "-", k))] = entry(fmt.Sprint(i, "-", k), 80)
			}
			w.after(time.Duration(w.rng.IntN(4000))*ms, r.start)
		}
		w.after(time.Duration(w.rng.IntN(6000))*ms, func() { w.elect("c1") })
		w.run(6 * time.Second)
		for range w.rng.IntN(12) {
			r := w.peers[w.rng.IntN(8)]
			switch w.rng.IntN(6) {
			case 0:
				w.depose()
			case 1:
				w.elect([]string{"c1", "c2", "c3"}[w.rng.IntN(3)])
			case 2:
				r.kill()
			case 3:
				r.start()
			case 4:
				r.cut = !r.cut
			case 5:
				r.register(entry(fmt.Sprint(r.name, "-", w.rng.IntN(3)), w.rng.IntN(100)))
			}
			w.run(time.Duration(w.rng.IntN(9000)) * ms)
		}
		for _, r := range w.peers {
			r.cut = false
			if !r.up {
				r.start()
			}
		}
		w.elect("c2")
		w.run(8 * time.Second)
		w.requireComplete()
		before := w.group.Revision()
		w.run(time.Minute)
		w.requireComplete()
		require.Equal(t, before, w.group.Revision())
	}
}
