package coordination

import (
	"context"
	"fmt"
	"sync"
	"time"
)

const (
	looking  = 250 * time.Millisecond // between the first two rounds of the search
	lookMost = 2 * time.Second        // between later rounds
	lookTime = time.Second            // for the answers of one round
)

// sighting is the result of one round of the search for the group.
type sighting struct {
	connected int
	untrusted int // connected peers that do not prove the key of the network
}

// String explains the lack of a group.
func (s *sighting) String() string {
	text := "no group is known: this peer joined a network and founds none"
	switch {
	case s == nil || s.connected == 0:
		return text + "; it is connected to no peer"
	case s.untrusted == s.connected:
		return fmt.Sprintf("%s; none of %d connected peers proves the key of the network: join with an invitation (blackholed invite, run --join)", text, s.connected)
	}
	return fmt.Sprintf("%s; none of %d connected peers with the key shows one: start a peer of the group, or found one with coordination.expect 1 at one peer", text, s.connected-s.untrusted)
}

// search asks connected peers for the group until it is known. A network can be without a group for long.
func (q *inquiry) search() {
	for wait := looking; ; wait = min(2*wait, lookMost) {
		if _, known := q.plane.founder.Certificate(); known || !pause(q.plane.life, wait) {
			return
		}
		q.sighted.Store(q.look())
	}
}

// look asks connected peers for the group, and waits for their answers.
func (q *inquiry) look() *sighting {
	ctx, cancel := context.WithTimeout(q.plane.life, lookTime)
	defer cancel()
	connected := q.plane.ask.ConnectedPeers()
	connected = connected[:min(len(connected), maxAsked)]
	var (
		work sync.WaitGroup
		mu   sync.Mutex
		s    = &sighting{connected: len(connected)}
	)
	for _, p := range connected {
		work.Go(func() {
			if q.plane.roster.trusts(ctx, p) != nil {
				mu.Lock()
				s.untrusted++
				mu.Unlock()
				return
			}
			q.consult(ctx, p, 0)
		})
	}
	work.Wait()
	return s
}
