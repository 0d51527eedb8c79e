package recent_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/internal/daemon/recent"
	"github.com/blackhole/blackhole/internal/platform/condition"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
	"github.com/blackhole/blackhole/pkg/records"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// peer is a peer whose states a test sets, in virtual time.
type peer struct {
	t      *testing.T
	memory *recent.Memory
	last   time.Time // of the notes that the test has seen

	mu         sync.Mutex // guards the fields below; the test holds it except while it rests
	group      coord.GroupState
	conditions []condition.Condition
	peers      []string
	offers     []*records.Record
	removed    []instances.Removal
}

// state returns a source that reads a field.
func state[T any](p *peer, field *T) func() T {
	return func() T {
		p.mu.Lock()
		defer p.mu.Unlock()
		return *field
	}
}

func inBubble(t *testing.T, test func(p *peer)) {
	synctest.Test(t, func(t *testing.T) {
		p := &peer{t: t, memory: recent.New(time.Now), peers: []string{"id-1", "id-3"}}
		voters := []coord.Member{{Peer: "id-1", Name: "peer-1"}, {Peer: "id-2", Name: "peer-2"}, {Peer: "id-3", Name: "peer-3"}}
		p.group = coord.GroupState{ID: "g", Phase: "member", Leader: "id-1", Term: 3, Voters: voters, Tolerance: "3 of 3 voters: one failure"}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		p.mu.Lock()
		go func() {
			defer close(done)
			recent.NewWatch(p.memory, recent.Sources{
				Self: "id-2", Group: state(p, &p.group), Conditions: state(p, &p.conditions), Peers: state(p, &p.peers), Offers: state(p, &p.offers),
				Removed: state(p, &p.removed),
			}, time.Now).Run(ctx)
		}()
		defer func() { p.mu.Unlock(); cancel(); <-done }()
		p.says("peer: this peer started: it remembers nothing before", "leader: peer-1 leads the group in term 3")
		test(p)
	})
}

// rest lets the watch look for a while.
func (p *peer) rest(d time.Duration) {
	p.mu.Unlock()
	<-time.After(d)
	synctest.Wait()
	p.mu.Lock()
}

// says lets two looks pass and checks the new notes.
func (p *peer) says(want ...string) {
	p.t.Helper()
	p.rest(2 * time.Second)
	var got []string
	notes, _ := p.memory.Since(p.last)
	for _, n := range notes {
		got, p.last = append(got, n.Kind+": "+n.Text), n.At
	}
	require.Equal(p.t, want, got)
}

func TestLeaders(t *testing.T) {
	inBubble(t, func(p *peer) {
		p.says()
		p.group.Leader = "" // an election: the condition no_quorum tells of a long one
		p.peers = []string{"id-3"}
		p.says("peer: connections lost: peer-1; 1 remain")
		p.group.Leader, p.group.Term = "id-2", 4
		p.says("leader: peer-2 leads: peer-1 is silent")
		p.group.Leader, p.group.Term = "id-3", 5
		p.says("leader: peer-3 leads: this peer led before and lost or gave up the lead")
		p.group.Term = 6
		p.says("leader: peer-3 leads again, in term 6")
		p.group.Leader, p.group.Term = "id-2", 7
		p.says("leader: peer-2 leads: peer-3 led before; its connection is open still")
		p.group.Leader, p.group.Term, p.group.Voters, p.group.Tolerance = "id-3", 8, p.group.Voters[1:], "2 of 2 voters: no failure"
		p.says("leader: peer-3 leads: this peer led before and lost or gave up the lead", "voters: peer-1 is no voter any more: 2 voters left")
		p.group.Voters = append(p.group.Voters, coord.Member{Peer: "id-4", Name: "peer-4"})
		p.group.Tolerance = "3 of 3 voters: one failure"
		p.says("voters: peer-4 became a voter, of 3")
	})
}

func TestConditions(t *testing.T) {
	inBubble(t, func(p *peer) {
		p.conditions = []condition.Condition{{Name: condition.NoQuorum, Problem: fault.Problem{What: "peer-1 and peer-3 are silent", Since: time.Now()}}, {Name: condition.Isolated, Problem: fault.Problem{What: "no connection", Since: time.Now()}}}
		p.says("quorum: the quorum is lost: peer-1 and peer-3 are silent", "condition: isolated began: no connection")
		p.says()
		p.rest(time.Minute + time.Second/2) // between two looks
		p.conditions = nil
		p.says("condition: isolated ended after 1m5s", "quorum: the quorum is back after 1m5s")
		p.conditions = []condition.Condition{{Name: condition.NoReserve, Problem: fault.Problem{What: "2 of 3 voters answer", Since: time.Now()}}}
		p.says("condition: no_reserve began: 2 of 3 voters answer")
		p.conditions = []condition.Condition{{Name: condition.NoQuorum, Problem: fault.Problem{What: "peer-3 is silent too", Since: time.Now()}}}
		p.says("quorum: the quorum is lost: peer-3 is silent too", "condition: no_reserve got worse after 3s: it is no_quorum now")
	})
}

func TestEndedInstances(t *testing.T) {
	inBubble(t, func(p *peer) {
		end := func(id, cause string) instances.Removal {
			at := time.Now()
			return instances.Removal{Instance: &instance.Instance{Key: instance.Key{Namespace: "default", Service: "api", ID: id}}, At: at, Cause: cause}
		}
		p.removed = []instances.Removal{end("api-2", "no heartbeat came for 30s"), end("api-1", "deregistered")} // the last end first
		p.says("instance: default/api/api-1 is removed: deregistered", "instance: default/api/api-2 is removed: no heartbeat came for 30s")
		p.says()
		p.removed = []instances.Removal{end("api-2", "deregistered"), p.removed[1]} // it returned and ended again
		p.says("instance: default/api/api-2 is removed: deregistered")
		p.removed = nil
		for n := range 1000 {
			p.removed = append(p.removed, end(fmt.Sprint("bulk-", n), "deregistered"))
		}
		p.rest(2 * time.Second)
		notes, _ := p.memory.Since(p.last)
		require.Len(t, notes, 21, "a mass does not push everything else out")
		require.Equal(t, "980 more instances ended: GET /v1/removed has them", notes[20].Text)
	})
}

// TestSince: a note tells when something happened apart from when the peer learned of it.
func TestSince(t *testing.T) {
	inBubble(t, func(p *peer) {
		happened := time.Now().UTC()
		p.rest(time.Minute)
		p.removed = []instances.Removal{{Instance: &instance.Instance{Key: instance.Key{Namespace: "default", Service: "api", ID: "a"}}, At: happened, Cause: "deregistered"}}
		p.conditions = []condition.Condition{{Name: condition.NoReserve, Problem: fault.Problem{What: "2 of 3 voters answer", Since: time.Now()}}}
		from := p.last
		p.says("condition: no_reserve began: 2 of 3 voters answer", "instance: default/api/a is removed: deregistered")
		notes, _ := p.memory.Since(from)
		require.Equal(t, []time.Time{{}, happened}, []time.Time{notes[0].Since, notes[1].Since})
		require.GreaterOrEqual(t, notes[1].At.Sub(happened), time.Minute)
	})
}

func TestOffers(t *testing.T) {
	inBubble(t, func(p *peer) {
		key, _, err := crypto.GenerateEd25519Key(rand.Reader)
		require.NoError(t, err)
		offer := func(id string, paused *records.Pause) *records.Record {
			o, err := records.ParseOffer(fmt.Appendf(nil, `{"id":%q,"metadata":{"type":"bandwidth"},"capabilities":{"bandwidth":{"upload_mbps":1,"download_mbps":1}}}`, id))
			require.NoError(t, err)
			r, err := records.Sign("test", key, o, records.Stamp{Sequence: 1, Issued: time.Now(), Expires: time.Now().Add(time.Hour), Paused: paused})
			require.NoError(t, err)
			return r
		}
		p.offers = []*records.Record{offer("b", nil), offer("a", nil)}
		p.says()
		pause := &records.Pause{Since: time.Now()}
		p.offers = []*records.Record{offer("b", pause), offer("a", pause), offer("new", pause)}
		p.says("offer: offer a is not served: paused by its provider", "offer: offer b is not served: paused by its provider")
		p.offers = []*records.Record{offer("b", pause), offer("a", nil)}
		p.says("offer: offer a is served again", "offer: offer new is gone: it was withdrawn or has expired")
		p.says()
		p.offers = nil
		for n := range 30 {
			p.offers = append(p.offers, offer(fmt.Sprintf("bulk-%02d", n), nil))
		}
		p.says("offer: offer a is gone: it was withdrawn or has expired", "offer: offer b is gone: it was withdrawn or has expired")
		p.offers = nil
		p.rest(2 * time.Second)
		notes, _ := p.memory.Since(p.last)
		require.Len(t, notes, 21)
		require.Equal(t, "10 more offers changed", notes[20].Text)
	})
}

func TestLostPeers(t *testing.T) {
	inBubble(t, func(p *peer) {
		p.peers = []string{"id-1"}
		p.says("peer: connections lost: peer-3; 1 remain")
		p.peers = []string{"id-1", "id-7-long-enough"}
		p.says()
		p.peers = []string{"id-1"}
		p.says() // within a minute of the last such note
		p.peers = nil
		p.says("peer: connections lost: peer-1, …g-enough; 0 remain")
		p.says()
	})
}

func TestLostLocks(t *testing.T) {
	m := recent.New(time.Now)
	m.LocksLost([]string{"old"})
	notes, _ := m.Since(time.Time{})
	require.Empty(t, notes, "the repeated log of an earlier process is no news")
	inBubble(t, func(p *peer) {
		p.memory.LocksLost([]string{"nightly"})
		p.memory.LocksLost([]string{"a", "b", "c", "d", "e", "f"})
		p.says("lock: lock nightly is lost: the lease of its holder expired", "lock: 6 locks are lost: the lease of their holder expired: a, b, c, d, e and 1 more")
	})
}

func TestGrants(t *testing.T) {
	m := recent.New(time.Now)
	g := &api.Grant{Token: 7, Key: "test/id-1/gpu", ProviderId: "id-1", ConsumerId: "id-2", Units: 2, TtlMs: 60_000, State: api.Grant_STATE_ACTIVE}
	m.Grant(true, g)
	m.Grant(false, g)
	for _, state := range []api.Grant_State{api.Grant_STATE_HELD, api.Grant_STATE_EXPIRED, api.Grant_STATE_RELEASED, api.Grant_STATE_REVOKED} {
		g.State = state
		m.Grant(true, g)
	}
	g.Reason = "maintenance"
	m.Grant(false, g)
	var got []string
	notes, _ := m.Since(time.Time{})
	for _, n := range notes {
		require.Equal(t, []string{"grant", "7"}, []string{n.Kind, n.Subject})
		got = append(got, n.Text)
	}
	require.Equal(t, []string{
		"2 units of gpu granted to id-2 for 1m0s", "2 units of gpu taken from id-1 for 1m0s", "2 units of gpu granted to id-2, held until it is confirmed",
		"2 units of gpu granted to id-2: expired",
		"2 units of gpu granted to id-2: given back", "2 units of gpu granted to id-2: revoked", "2 units of gpu taken from id-1: revoked (maintenance)",
	}, got)
}

// TestShares: notes that strangers cause push no others out.
func TestShares(t *testing.T) {
	m := recent.New(time.Now)
	for n := range 50 {
		m.Note("leader", "", "%d", n)
		m.Note("offer", "", "%d", n)
	}
	for range 10 * recent.MaxNotes {
		m.Grant(true, &api.Grant{Token: 7, Key: "test/id-1/gpu", Units: 2, State: api.Grant_STATE_REVOKED, Reason: strings.Repeat("x", 200)})
	}
	notes, _ := m.Since(time.Time{})
	counts := map[string]int{}
	for i, n := range notes {
		counts[n.Kind]++
		require.True(t, i == 0 || n.At.After(notes[i-1].At))
	}
	require.Equal(t, 50, counts["leader"])
	require.Equal(t, 50, counts["offer"])
	require.Greater(t, counts["grant"], 300)
}

// TestBounds: a memory has the last notes of an hour, within bounds of their number and bytes, and readers can continue.
func TestBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := recent.New(time.Now)
		_, changed := m.Since(time.Now())
		for n := range 3 * recent.MaxNotes {
			m.Note("lock", "", "%d", n)
		}
		<-changed
		notes, _ := m.Since(time.Time{})
		require.Len(t, notes, recent.MaxNotes)
		require.Equal(t, "1499", notes[len(notes)-1].Text)
		rest, _ := m.Since(notes[10].At)
		require.Equal(t, notes[11:], rest, "notes of one instant have different times")

		m = recent.New(time.Now)
		_, changed = m.Since(time.Time{})
		for range recent.MaxNotes {
			m.Note("condition", "", "%s", strings.Repeat("ü", 10_000))
		}
		<-changed
		notes, _ = m.Since(time.Time{})
		total := 0
		for _, n := range notes {
			require.True(t, strings.HasSuffix(n.Text, "ü…"))
			total += len(n.Text)
		}
		require.LessOrEqual(t, total, 128<<10)
		require.Greater(t, total, 100<<10)

		<-time.After(time.Hour + time.Second)
		notes, _ = m.Since(time.Time{})
		require.Empty(t, notes)
	})
}

// TestSuspension: a process that did not run for a while remembers that, and each other second leaves no note.
func TestSuspension(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory, ahead := recent.New(time.Now), time.Duration(0)
		var mu sync.Mutex
		now := func() time.Time {
			mu.Lock()
			defer mu.Unlock()
			return time.Now().Add(ahead)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			none := recent.Sources{
				Conditions: func() []condition.Condition { return nil }, Peers: func() []string { return nil },
				Offers: func() []*records.Record { return nil },
			}
			recent.NewWatch(memory, none, now).Run(ctx)
		}()
		time.Sleep(time.Minute)
		mu.Lock()
		ahead = 20 * time.Second
		mu.Unlock()
		time.Sleep(time.Minute)
		cancel()
		<-done
		notes, _ := memory.Since(time.Time{})
		require.Len(t, notes, 2)
		require.Equal(t, recent.Suspended, notes[1].Subject)
		require.Contains(t, notes[1].Text, "did not run for 21s")
	})
}
