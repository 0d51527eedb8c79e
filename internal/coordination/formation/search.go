package formation

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/coordination/bootstrap"
	"github.com/blackhole/blackhole/internal/platform/pause"
	groupv1 "github.com/blackhole/blackhole/proto/blackhole/group/v1"
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
	untrusted int                   // connected peers that do not prove the key of the network
	founding  []bootstrap.Candidate // trusted peers that may found too, and know no group
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

// SearchConfig configures a Search. All fields are required.
type SearchConfig struct {
	Self      peer.ID
	Founder   *bootstrap.Founder
	Connected func() []peer.ID // connected peers that can be asked
	// Trusts returns nil for a peer whose word on the group counts.
	Trusts func(context.Context, peer.ID) error
	// Ask asks a peer for its group and applies its answer; false without one.
	Ask func(context.Context, peer.ID) (*groupv1.InfoResponse, bool)
}

// Search looks for the group of a peer that knows none. It is safe for concurrent use.
type Search struct {
	SearchConfig
	last atomic.Pointer[sighting] // of the last round; nil: none yet
}

// Lacks explains the lack of a group.
func (s *Search) Lacks() string { return s.last.Load().String() }

// Run asks founders and connected peers for the group until it is known, and founds it if it is time. A network can be
// without a group for long. Errors: as bootstrap.Founder.Look; the process must end.
func (s *Search) Run(ctx context.Context) error {
	for wait := looking; ; wait = min(2*wait, lookMost) {
		if _, known := s.Founder.Group(); known {
			return nil
		}
		found := s.look(ctx)
		s.last.Store(found)
		if err := s.Founder.Look(time.Now(), found.founding); err != nil {
			return err
		}
		if _, may := s.Founder.Founding(); may {
			wait = looking
		}
		if !pause.For(ctx, wait) {
			return nil
		}
	}
}

// look asks founders and connected peers for the group, and waits for their answers.
func (s *Search) look(ctx context.Context) *sighting {
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	connected := s.Connected()
	asked := slices.Sorted(slices.Values(append(slices.Clone(s.Founder.Network.Founders), connected...)))
	asked = slices.DeleteFunc(slices.Compact(asked), func(p peer.ID) bool { return p == s.Self })
	var (
		work  sync.WaitGroup
		mu    sync.Mutex
		found = &sighting{connected: len(connected)}
	)
	for _, p := range asked[:min(len(asked), maxSighted)] {
		work.Go(func() {
			if s.Trusts(ctx, p) != nil {
				mu.Lock()
				found.untrusted++
				mu.Unlock()
				return
			}
			resp, ok := s.Ask(ctx, p)
			if id, may := s.Founder.Founding(); ok && may && string(resp.GetFounding()) == string(id[:]) {
				mu.Lock()
				found.founding = append(found.founding, bootstrap.Candidate{Peer: p, Word: resp.GetWord()})
				mu.Unlock()
			}
		})
	}
	work.Wait()
	return found
}
