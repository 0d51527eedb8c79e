package truth

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/ask"
	"github.com/blackhole/blackhole/internal/discovery/protocol"
	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// checks counts the checks of the domain since the last set.
func (s *society) checks() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, host := range s.targets {
		if host == s.claims.Domain() {
			n++
		}
	}
	s.targets = nil
	return n
}

// name has the domain name the provider, or not.
func (s *society) name(named bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.named = named
}

// All who show an offer know whether its domain names the provider, and cost the domain at most a check a minute. Three of the five witnesses
// that lie prove no claim, and refute none.
func TestDomainIsCheckedOnceForAll(t *testing.T) {
	for _, lie := range []records.Reachability{"", records.Answers, records.Refuses} {
		synctest.Test(t, func(t *testing.T) {
			s := newSociety(t, 15)
			s.offer = s.claims
			honest := s.peers[ask.Witnesses:]
			for _, m := range s.peers[:3] {
				m.lies = lie
			}
			claimed := func(state records.Reachability) {
				for _, m := range honest {
					d := m.Of(s.claims, &queries.Evidence{}).Domain
					require.Equal(t, state, d.State, "%q", lie)
					require.Equal(t, state == records.Claimed, d.Detail != "", "%q", lie)
				}
			}
			s.live(len(honest), func() {
				for _, named := range []bool{false, true, false} {
					s.name(named)
					time.Sleep(6 * time.Minute)
					claimed(map[bool]records.Reachability{true: records.Checked, false: records.Claimed}[named])
					if s.checks(); lie == "" {
						time.Sleep(10 * time.Minute)
						n := s.checks()
						t.Logf("%d consumers, named %v: %d checks in 10 minutes", len(honest), named, n)
						require.LessOrEqual(t, n, 10+1)
					}
				}
			})
		})
	}
}

// Others prove a claim as a quorum of networks. One that found the opposite disputes it, and an own check beats all of them. Without a word
// the claim is one. A question for checked domains takes an own check alone.
func TestQuorumProvesADomain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSociety(t, 8)
		asker := s.peers[7]
		require.Nil(t, asker.Of(s.offer, &queries.Evidence{}).Domain)
		require.Equal(t, records.Claimed, asker.Of(s.claims, &queries.Evidence{}).Domain.State)
		asker.Want([]*records.Record{s.claims})
		require.Equal(t, records.Claimed, asker.Of(s.claims, &queries.Evidence{}).Domain.State)
		n, ok := domainOf(s.claims)
		require.True(t, ok)
		say := func(by, from int, state records.Reachability) {
			f := protocol.Finding{Provider: n.Provider, Record: n.ID, State: state, CheckedAt: time.Now()}
			asker.Hear(protocol.Statement{By: s.peers[by].id, Findings: []protocol.Finding{f}}, s.peers[from].network)
		}
		for by := range 4 {
			say(by, by/2, records.Answers)
		}
		require.Equal(t, records.Claimed, asker.Of(s.claims, &queries.Evidence{}).Domain.State, "four measurers in two networks")
		say(4, 4, records.Answers)
		require.Equal(t, records.Checked, asker.Of(s.claims, &queries.Evidence{}).Domain.State)
		require.Equal(t, 5, asker.Of(s.claims, &queries.Evidence{}).Domain.Peers)

		asker.work(1) // the question
		time.Sleep(2 * endpointTick)
		require.Empty(t, asker.work(1), "the quorum spares an own check")
		say(5, 5, records.Refuses)
		require.Equal(t, records.Claimed, asker.Of(s.claims, &queries.Evidence{}).Domain.State, "disputed")
		time.Sleep(time.Millisecond)
		say(5, 5, records.Answers)
		require.Equal(t, records.Checked, asker.Of(s.claims, &queries.Evidence{}).Domain.State)
		plan, err := queries.Compile(query.Query{Type: "relay", Domain: queries.AnyDomain}, queries.Defaults{})
		require.NoError(t, err)
		require.Equal(t, NotYet, asker.NotChecked(plan, s.claims))
		asker.act()
		require.Contains(t, asker.NotChecked(plan, s.claims), "refuses")
		s.name(true)
		time.Sleep(proofAgain)
		require.Contains(t, asker.NotChecked(plan, s.claims), "refuses")
		asker.Want([]*records.Record{s.claims})
		asker.act() // the question
		time.Sleep(2 * endpointTick)
		asker.act()
		require.Empty(t, asker.NotChecked(plan, s.claims))
		s.name(false)
		time.Sleep(endpointStands)
		require.Equal(t, NotYet, asker.NotChecked(plan, s.claims))
		asker.Want([]*records.Record{s.claims})
		for range 3 {
			asker.act()
			time.Sleep(2 * endpointTick)
		}
		d := asker.Of(s.claims, &queries.Evidence{}).Domain
		require.Equal(t, records.Claimed, d.State, "an own check contradicts them")
		require.Contains(t, d.Detail, "refuses")
		require.Zero(t, d.Peers)
		require.False(t, slices.Contains(s.targets, "a.net"))
	})
}
