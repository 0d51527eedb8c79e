package routing

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	kb "github.com/libp2p/go-libp2p-kbucket"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// searchNetwork is a network with random routing tables.
type searchNetwork struct {
	ids    []peer.ID
	knows  map[peer.ID][]peer.ID
	dead   map[peer.ID]bool
	full   map[peer.ID]bool // without room for the searcher's connection
	random *rand.Rand
}

func newSearchNetwork(seed uint64, n, each int) *searchNetwork {
	h := &searchNetwork{
		knows: make(map[peer.ID][]peer.ID), dead: make(map[peer.ID]bool), full: make(map[peer.ID]bool),
		random: rand.New(rand.NewPCG(seed, 0)),
	}
	for i := range n {
		h.ids = append(h.ids, peer.ID(fmt.Sprintf("peer %d", i)))
	}
	for _, id := range h.ids { // like buckets: all near peers, some far ones
		near := h.closest(string(id), h.ids)
		h.knows[id] = append(slices.Clone(near[1:min(n, each)]), h.some(each)...)
	}
	return h
}

func (h *searchNetwork) some(n int) []peer.ID {
	ids := slices.Clone(h.ids)
	h.random.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
	return ids[:min(n, len(ids))]
}

// closest sorts ids by the XOR distance of their hashes from the key's.
func (h *searchNetwork) closest(key string, ids []peer.ID) []peer.ID {
	target := kb.ConvertKey(key)
	out := slices.Clone(ids)
	slices.SortFunc(out, func(a, b peer.ID) int {
		return bytes.Compare(xor(target, kb.ConvertPeerID(a)), xor(target, kb.ConvertPeerID(b)))
	})
	return slices.Compact(out)
}

// look runs a search with answers after 50 ms and returns its duration.
func (h *searchNetwork) look(s *search, key string) time.Duration {
	type event struct {
		at time.Time
		id peer.ID
	}
	began := time.Unix(0, 0)
	now := began
	var coming []event
	for !s.done() {
		for _, id := range s.next(now) {
			if !h.dead[id] {
				coming = append(coming, event{now.Add(50 * time.Millisecond), id})
			}
		}
		wake, ok := s.nextDeadline(now)
		if len(coming) > 0 && (!ok || !coming[0].at.After(wake)) {
			e := coming[0]
			coming, now = coming[1:], e.at
			if h.full[e.id] {
				s.setResult(e.id, noRoom, now)
				continue
			}
			s.setResult(e.id, replied, now)
			for _, id := range h.closest(key, h.knows[e.id])[:min(Replicas, len(h.knows[e.id]))] {
				s.add(id, false)
			}
			continue
		}
		if !ok {
			break
		}
		now = wake
		s.overdue(now)
	}
	return now.Sub(began)
}

// In any network, a search ends and finds the closest living peers in order, peers without room included. The waits for dead peers
// overlap.
func TestSearchFindsTheClosest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := newSearchNetwork(rapid.Uint64().Draw(t, "seed"), rapid.IntRange(1, 150).Draw(t, "peers"), 30)
		for _, id := range h.some(rapid.IntRange(0, len(h.ids)/3).Draw(t, "dead")) {
			h.dead[id] = true
		}
		for _, id := range h.some(rapid.IntRange(0, len(h.ids)/10).Draw(t, "full")) {
			h.full[id] = !h.dead[id]
		}
		key := rapid.StringN(1, 20, -1).Draw(t, "key")
		s := newSearch(key, "self")
		for _, id := range h.closest(key, h.some(30))[:min(len(h.ids), Replicas)] {
			s.add(id, false)
		}
		if h.look(s, key); s.count(replied) == 0 {
			return
		}
		found, answers, bars := s.found()
		living := slices.DeleteFunc(h.closest(key, h.ids), func(id peer.ID) bool { return h.dead[id] })
		want := living[:min(searchDepth, len(living))]
		if s.count(replied) > len(living)/10 { // the start peers were connected to the others
			require.Equal(t, want, found[:min(len(found), len(want))])
			require.LessOrEqual(t, answers+bars, len(want))
		}
	})
}

// All dead peers share one wait. The second search does not wait for them.
func TestSearchDoesNotWaitForDeadPeers(t *testing.T) {
	h := newSearchNetwork(1, 150, 30)
	for _, id := range h.ids[:50] {
		h.dead[id] = true
	}
	seeds := func(s *search, avoid bool) {
		for _, id := range h.closest("key", h.ids)[:Replicas] {
			s.add(id, avoid && h.dead[id])
		}
	}
	first := newSearch("key", "self")
	seeds(first, false)
	require.LessOrEqual(t, h.look(first, "key"), patienceLeast+200*time.Millisecond)
	second := newSearch("key", "self")
	seeds(second, true)
	for id := range h.dead {
		second.add(id, true)
	}
	require.LessOrEqual(t, h.look(second, "key"), 200*time.Millisecond)
	a, _, _ := first.found()
	b, _, _ := second.found()
	require.Equal(t, a[:searchDepth], b[:searchDepth])
}

// Recently silent peers are asked if no other peer answers.
func TestSearchAsksAvoidedPeersLast(t *testing.T) {
	h := newSearchNetwork(1, 10, 10)
	s := newSearch("key", "self")
	for _, id := range h.ids {
		s.add(id, true)
	}
	h.look(s, "key")
	found, answers, _ := s.found()
	require.Equal(t, h.closest("key", h.ids), found)
	require.Equal(t, 10, answers)
}

// A late answer counts. An answer from an unasked peer does not.
func TestSearchTakesLateAnswers(t *testing.T) {
	now := time.Unix(0, 0)
	s := newSearch("key", "self")
	s.add("a", false)
	s.add("self", false)
	require.False(t, s.setResult("a", replied, now), "an unasked peer")
	require.Equal(t, []peer.ID{"a"}, s.next(now))
	require.Empty(t, s.overdue(now.Add(patienceMost-1)))
	require.Equal(t, []peer.ID{"a"}, s.overdue(now.Add(patienceMost)))
	require.True(t, s.done())
	require.False(t, s.setResult("a", noRoom, now))
	require.True(t, s.setResult("a", replied, now))
	found, answers, _ := s.found()
	require.Equal(t, []peer.ID{"a"}, found)
	require.Equal(t, 1, answers)
	require.False(t, s.setResult("b", replied, now))
}
