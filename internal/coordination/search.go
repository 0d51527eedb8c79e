package coordination

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/coordination/leader"
	"github.com/blackhole/blackhole/internal/coordination/pause"
)

const (
	looking  = 250 * time.Millisecond // between the first two rounds of the search
	lookMost = 2 * time.Second        // between later rounds
	lookTime = time.Second            // for the answers of one round

	maxSighted = 64 // peers of one round
)

// sighting is the result of one round of the search for the group.
type sighting struct {
	connected int
	untrusted int       // connected peers that do not prove the key of the network
	founding  []peer.ID // trusted peers that may found too, and know no group
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
	return fmt.Sprintf("%s; none of %d connected peers with the key shows one: start a peer of the group, or found one at a peer without bootstrap addresses", text, s.connected-s.untrusted)
}

// search asks founders and connected peers for the group until it is known, and founds it if it is time. A network can be
// without a group for long.
func (q *inquiry) search() {
	founder := q.plane.founder
	for wait := looking; ; wait = min(2*wait, lookMost) {
		if _, known := founder.Group(); known {
			return
		}
		s := q.look()
		q.sighted.Store(s)
		if err := founder.Look(time.Now(), s.founding); err != nil {
			q.plane.failed.fatal(err)
			return
		}
		if _, may := founder.Founding(); may {
			wait = looking
		}
		if !pause.For(q.plane.life, wait) {
			return
		}
	}
}

// look asks founders and connected peers for the group, and waits for their answers.
func (q *inquiry) look() *sighting {
	ctx, cancel := context.WithTimeout(q.plane.life, lookTime)
	defer cancel()
	connected := q.plane.ask.ConnectedPeers()
	asked := slices.Sorted(slices.Values(append(slices.Clone(q.plane.config.Network.Founders), connected...)))
	asked = slices.DeleteFunc(slices.Compact(asked), func(p peer.ID) bool { return p == q.plane.self })
	var (
		work sync.WaitGroup
		mu   sync.Mutex
		s    = &sighting{connected: len(connected)}
	)
	for _, p := range asked[:min(len(asked), maxSighted)] {
		work.Go(func() {
			if q.plane.roster.trusts(ctx, p) != nil {
				mu.Lock()
				s.untrusted++
				mu.Unlock()
				return
			}
			resp, ok := q.question(ctx, p, 0)
			if !ok {
				return
			}
			if said, counts := q.learn(ctx, p, resp.GetInfo()); counts {
				q.plane.routing.Advance(leader.Heard{From: p, Leadership: said})
			}
			if id, may := q.plane.founder.Founding(); may && string(resp.GetFounding()) == string(id[:]) {
				mu.Lock()
				s.founding = append(s.founding, p)
				mu.Unlock()
			}
		})
	}
	work.Wait()
	return s
}
