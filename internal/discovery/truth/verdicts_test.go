package truth

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/protocol"
	"github.com/blackhole/blackhole/internal/platform/probe"
	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// always has the endpoint do the same at each check from now on.
func (s *society) always(o probe.Outcome) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.says, s.probes = &o, nil
}

// Two peers show an offer. It stays, unless its endpoint refuses, is silent or wrong twice. A check that says nothing
// leaves what was known.
func TestOnlyDeadVerdictsHide(t *testing.T) {
	for _, o := range []probe.Outcome{
		{State: probe.Answers},
		{State: probe.Closed},
		{State: probe.Closed, Again: 5 * time.Minute},
		{State: probe.Closed, Passing: true},
		{},
		{Again: 20 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newSociety(t, 2)
			s.live(2, func() {
				time.Sleep(5 * time.Minute)
				s.always(o)
				for range 9 * 60 {
					time.Sleep(time.Second)
					require.Zero(t, s.hidden(s.peers), "%+v", o)
				}
			})
		})
	}
	for _, dead := range []probe.State{probe.Refuses, probe.Silent, probe.Wrong, probe.NoSuchName, probe.Certificate} {
		synctest.Test(t, func(t *testing.T) {
			s := newSociety(t, 2)
			s.live(2, func() {
				time.Sleep(5 * time.Minute)
				s.always(probe.Outcome{State: dead})
				s.until(s.peers, 2)
				s.always(probe.Outcome{})
				time.Sleep(5 * time.Minute)
				require.Equal(t, 2, s.hidden(s.peers), "%s: a check that says nothing revives nothing", dead)
				s.always(probe.Outcome{State: probe.Closed})
				s.until(s.peers, 0)
			})
		})
	}
}

// An endpoint may say for ten minutes that it will soon serve.
func TestSoonEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSociety(t, 1)
		s.live(1, func() {
			s.always(probe.Outcome{State: probe.Closed, Passing: true, Again: 30 * time.Second})
			time.Sleep(probe.MaxWait)
			require.Zero(t, s.hidden(s.peers))
			time.Sleep(3 * time.Minute)
			require.Equal(t, 1, s.hidden(s.peers))
			s.always(probe.Outcome{State: probe.Closed})
			time.Sleep(2 * time.Minute)
			require.Zero(t, s.hidden(s.peers))
		})
	})
}

// Nobody checks an endpoint before the time that it asked for, whoever contradicts, asks or is drawn.
func TestWaitIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSociety(t, 7)
		s.always(probe.Outcome{State: probe.Closed, Again: 8 * time.Minute})
		s.live(7, func() {
			time.Sleep(time.Minute)
			first := s.probed()
			require.NotZero(t, first)
			for _, m := range s.peers[1:4] {
				s.tell(s.peers[0], m, m.network, records.Silent, time.Now())
			}
			time.Sleep(6 * time.Minute)
			require.LessOrEqual(t, s.probed(), len(s.peers), "one check of each peer")
			time.Sleep(10 * time.Minute)
			require.Greater(t, s.probed(), first)
		})
	})
}

// A few others that say "closed" do not take the rank of an endpoint that answers others. None proves a domain with it.
func TestMinorityClosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSociety(t, 7)
		asker := s.peers[6]
		asker.Want([]*records.Record{s.offer, s.claims})
		e, ok := asker.known.Peek(s.offer.Name())
		require.True(t, ok)
		say := func(i int, said, want records.Reachability) {
			t.Helper()
			time.Sleep(time.Second)
			s.tell(asker, s.peers[i], s.peers[i].network, said, time.Now())
			m, dead := asker.verdict(e, time.Now())
			require.False(t, dead)
			require.Equal(t, want, m.State)
		}
		say(0, records.Answers, records.Answers)
		say(1, records.Closed, records.Answers)
		say(2, records.Answers, records.Answers)
		say(3, records.Closed, records.Answers)
		say(4, records.Closed, records.Closed)
		n, _ := domainOf(s.claims)
		for _, by := range s.peers[:5] {
			asker.Hear(protocol.Statement{By: by.id, Findings: []protocol.Finding{{Provider: n.Provider, Record: n.ID, State: records.Closed, CheckedAt: time.Now()}}}, by.network)
		}
		d, ok := asker.known.Peek(n)
		require.True(t, ok)
		require.Empty(t, d.heard)
		require.False(t, slices.ContainsFunc(s.peers, func(m *member) bool { return m.Of(s.claims, &queries.Evidence{}).Domain.State == records.Checked }))
	})
}
