package publisher_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/agent/directory/publisher"
	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/coord/directory"
	"github.com/blackhole/blackhole/internal/coordination/answer"
	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/pkg/fault"
	agentv1 "github.com/blackhole/blackhole/proto/blackhole/agent/v1"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

const (
	ms   = time.Millisecond
	peer = "peer"
	home = coord.LeaseID(77)
)

func key(id string) string {
	return directory.Key("default", "web", id)
}

func entry(id string, port int) directory.Entry {
	value, err := proto.Marshal(&agentv1.Instance{Namespace: "default", ServiceName: "web", Id: id, Host: "10.0.0.1", Port: int32(port)})
	if err != nil {
		panic(err)
	}
	return directory.Entry{Key: key(id), Value: value}
}

// fixture is a registry, its Publisher, and a group behind a faulty network.
type fixture struct {
	t     require.TestingT
	rng   *rand.Rand
	now   time.Duration
	group *machine.Machine
	index uint64
	ends  map[coord.LeaseID]time.Duration // on the leader's clock

	registry map[string]directory.Entry
	pub      *publisher.Publisher
	life     uint32
	wake     time.Duration
	queue    []arrival
	lost     []string
	refused  []string
	settled  int

	term   uint64
	faulty bool
	hold   time.Duration // delay of the next command, beyond its timeout
	sent   []*apiv1.PublishInstancesRequest
	asked  map[string]int // requests by kind
}

type arrival struct {
	at   time.Duration
	what func()
}

func newFixture(t require.TestingT, seed uint64) *fixture {
	w := &fixture{
		t: t, rng: rand.New(rand.NewPCG(seed, 7)), group: machine.New(), ends: map[coord.LeaseID]time.Duration{},
		registry: map[string]directory.Entry{}, asked: map[string]int{},
	}
	w.start()
	return w
}

// start starts a new process of the peer.
func (w *fixture) start() {
	w.life++
	life := w.life
	w.pub = publisher.New(publisher.Config{Lease: home, Incarnation: life, Jitter: w.rng.Float64})
	w.wake = 0
	w.step(publisher.Leader{})
}

// later schedules an event of this process.
func (w *fixture) later(d time.Duration, f func()) {
	life := w.life
	w.queue = append(w.queue, arrival{w.now + d, func() {
		if life == w.life {
			f()
		}
	}})
}

func (w *fixture) step(e publisher.Event) {
	s := w.pub.Advance(w.now, e)
	w.wake = s.Wake
	w.lost = append(w.lost, s.Lost...)
	w.refused = append(w.refused, slices.Collect(maps.Keys(s.Rejected))...)
	if s.Settled {
		w.settled++
	}
	switch do := s.Do.(type) {
	case nil:
	case publisher.Resync:
		w.asked["pull"]++
		all := slices.Collect(maps.Values(w.registry))
		w.later(w.delay(), func() { w.step(publisher.Listed{Entries: all}) })
	case publisher.Grant:
		w.asked["grant"]++
		w.request(&apiv1.LeaseGrantRequest{Id: int64(do.Lease), TtlMs: do.TTL.Milliseconds()}, func(r *coordv1.Result, err error) publisher.Event {
			got := r.GetLeaseGrant()
			return publisher.LeaseGranted{Lease: coord.LeaseID(got.GetId()), TTL: time.Duration(got.GetTtlMs()) * ms, Err: err}
		})
	case publisher.Renew:
		w.asked["renew"]++
		w.keepAlive(do.Lease)
	case publisher.Send:
		w.asked["send"]++
		w.sent = append(w.sent, do.Batch)
		w.request(do.Batch, func(r *coordv1.Result, err error) publisher.Event {
			return publisher.PublishDone{Answer: r.GetPublishInstances(), Err: err}
		})
	}
}

func (w *fixture) delay() time.Duration { return time.Duration(1+w.rng.IntN(4)) * ms }

var errGone = fault.New("test", fault.Unavailable, "nobody leads")

// request sends a command. The network may lose it, lose its answer, or delay
// it for long.
func (w *fixture) request(request proto.Message, answer func(*coordv1.Result, error) publisher.Event) {
	cmd := coord.CommandOf(peer, request)
	if late := w.hold; late > 0 {
		w.hold = 0
		w.queue = append(w.queue, arrival{w.now + late, func() { w.log(cmd) }})
		w.later(w.delay(), func() { w.step(answer(nil, errGone)) })
		return
	}
	if w.faulty && w.rng.IntN(4) == 0 {
		if w.rng.IntN(2) == 0 { // from any process, long after its timeout
			w.queue = append(w.queue, arrival{w.now + time.Duration(w.rng.IntN(8000))*ms, func() { w.log(cmd) }})
		}
		w.later(w.delay(), func() { w.step(answer(nil, errGone)) })
		return
	}
	w.later(w.delay(), func() {
		r := w.log(cmd)
		w.later(w.delay(), func() { w.step(answer(r.Answer, r.Err)) })
	})
}

func (w *fixture) apply(cmd ops.Command) ops.Result {
	m, err := ops.Message(cmd)
	if err != nil {
		return ops.Result{Err: err}
	}
	return coordtest.Outcome(w.log(m))
}

// expire is the command that ends a lease.
func expire(l coord.Lease) *coordv1.Command {
	refs := []*coordv1.LeaseRef{{Id: int64(l.ID), Granted: l.Granted}}
	return &coordv1.Command{Request: &coordv1.Command_Expire{Expire: &coordv1.Expire{Term: 1, Leases: refs}}}
}

// log applies the next entry of the log.
func (w *fixture) log(m *coordv1.Command) machine.Result {
	w.index++
	r, e := w.group.Apply(w.index, 1, m)
	for _, l := range e.Granted {
		w.ends[l.ID] = w.now + time.Duration(l.TTL)*ms
	}
	for _, id := range e.Ended {
		delete(w.ends, id)
	}
	return r
}

func (w *fixture) keepAlive(id coord.LeaseID) {
	if w.faulty && w.rng.IntN(4) == 0 {
		w.later(w.delay(), func() { w.step(publisher.Renewed{Err: errGone}) })
		return
	}
	w.later(w.delay(), func() {
		answer := &apiv1.LeaseKeepAliveResponse{}
		if l, ok := w.group.Lease(id); ok && l.Owner == peer {
			w.ends[id] = w.now + time.Duration(l.TTL)*ms
			answer = renewed(w.group, l)
		}
		w.later(w.delay(), func() { w.step(publisher.Renewed{Answer: answer}) })
	})
}

// renewed answers a keepalive of a lease.
func renewed(m *machine.Machine, l coord.Lease) *apiv1.LeaseKeepAliveResponse {
	return answer.KeepAlive([]machine.Renewal{{ID: l.ID, TTL: l.TTL, Published: m.Publication(l.ID)}}, coord.Header{}).GetKeepAlive()
}

// run lets time pass: deliveries, alarms and ends of leases.
func (w *fixture) run(d time.Duration) {
	for end, busy := w.now+d, 0; ; busy++ {
		require.Less(w.t, busy, 100_000, "it goes round and round")
		at, do := end+1, func() {}
		if w.wake > 0 {
			at, do = w.wake, func() { w.step(publisher.Tick{}) }
		}
		for id, ends := range w.ends {
			if ends < at {
				l, _ := w.group.Lease(id)
				at, do = ends, func() {
					w.log(expire(l))
				}
			}
		}
		first := -1
		for i, a := range w.queue {
			if a.at < at || first < 0 && a.at == at {
				first, at = i, a.at
			}
		}
		if at > end {
			w.now = end
			return
		}
		w.now = max(w.now, at)
		if first >= 0 {
			do = w.queue[first].what
			w.queue = slices.Delete(w.queue, first, first+1)
		}
		do()
	}
}

// register changes the registry and informs the Publisher.
func (w *fixture) register(entries ...directory.Entry) {
	for _, e := range entries {
		kept := e
		kept.Adopt = false
		w.registry[e.Key] = kept
	}
	w.step(publisher.Local{Puts: entries})
}

func (w *fixture) deregister(keys ...string) {
	for _, key := range keys {
		delete(w.registry, key)
	}
	w.step(publisher.Local{Deletes: keys})
}

func (w *fixture) lead() {
	w.term++
	w.step(publisher.Leader{Term: w.term})
}

// directory returns the entries of the group with their owners.
func (w *fixture) directory() map[string]string {
	all := map[string]string{}
	page, err := w.group.Range(machine.Query{Span: coord.Under(directory.Prefix)})
	require.NoError(w.t, err)
	for _, kv := range page.Keys {
		l, _ := w.group.Lease(kv.Lease)
		all[kv.Key] = fmt.Sprintf("%s:%x", l.Owner, kv.Value)
	}
	return all
}

// mine returns the entries the directory should have of this peer.
func (w *fixture) mine() map[string]string {
	all := map[string]string{}
	for key, e := range w.registry {
		all[key] = fmt.Sprintf("%s:%x", peer, e.Value)
	}
	return all
}
