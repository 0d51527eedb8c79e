package coordination

import (
	crand "crypto/rand"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/coordination/bootstrap"
	"github.com/blackhole/blackhole/internal/coordination/leader"
	"github.com/blackhole/blackhole/internal/coordination/pause"
	"github.com/blackhole/blackhole/internal/coordination/replica"
	"github.com/blackhole/blackhole/pkg/fault"
)

// enter waits for the group and starts this peer's part in the group.
func (p *Plane) enter() {
	select {
	case <-p.founder.Founded():
	case <-p.life.Done():
		return
	}
	group, _ := p.founder.Group()
	life, err := p.lineage(group.GroupID())
	if err != nil {
		p.failed.fatal(fault.Wrap("coordination.enter", err))
		return
	}
	p.view.adopt(group, life)
	p.routing.Advance(leader.Needed{})
	if p.disk == nil || p.outlived.Load() {
		return // a client
	}
	if err := p.join(group); err != nil {
		p.failed.stop(fault.Wrap("coordination.enter", err))
	}
}

// incarnation returns the incarnation of the disk. A peer that learned of a newer incarnation earlier is a
// member no longer.
func (p *Plane) lineage(group bootstrap.GroupID) (incarnation, error) {
	kept, err := bootstrap.LoadRecovery(p.config.FS, p.config.Dir)
	if err != nil {
		return incarnation{}, err
	}
	life := incarnation{group: group}
	if kept.Group == group {
		life.recovery = kept
	}
	if p.disk == nil || p.disk.Group() == "" {
		return life, nil
	}
	had, err := incarnationOf(p.disk.Group())
	switch {
	case err != nil:
		return incarnation{}, err
	case had.group != group:
		return incarnation{}, fault.New("", fault.Conflict, "the data directory belongs to group %v, not %v", had.group, group)
	case had.recovery.Incarnation >= life.recovery.Incarnation:
		return had, nil
	}
	p.outlived.Store(true)
	p.logOutlived(life.recovery, had.recovery.Incarnation)
	return life, nil
}

// join starts this peer as a member. An initial voter with its first disk, which has the raft id of the initial membership,
// begins the log like all other initial voters. Any other peer waits for the incarnation from a member, and then for the state from the
// leader.
func (p *Plane) join(group bootstrap.Membership) error {
	life, _ := p.view.incarnation()
	switch {
	case p.disk.Group() != "" && p.disk.HasSnapshot():
	case life.recovery.IsZero() && isInitialVoter(group, p.self, p.disk.Member()):
		if err := replica.Bootstrap(p.disk, life.storageID(), initialVoters(group)); err != nil {
			return err
		}
	case p.disk.Group() == "":
		var ok bool
		if life, ok = p.awaitIncarnation(); !ok {
			return nil
		}
		if err := p.disk.Bind(life.storageID()); err != nil {
			return err
		}
	}
	l, err := startLocal(p, life)
	if err != nil {
		return err
	}
	p.here.Store(l)
	p.routing.Wake()
	p.config.Logger.Info("takes part in the coordination group", "group", life.group, "incarnation", life.recovery.Incarnation, "member", fmt.Sprintf("%016x", p.disk.Member()))
	return nil
}

// awaitIncarnation asks until a member describes the incarnation.
func (p *Plane) awaitIncarnation() (incarnation, bool) {
	for wait := reconcileInterval; ; wait = min(2*wait, offering) {
		p.inquiry.askAll(0)
		if life, heard := p.view.incarnation(); heard {
			return life, true
		}
		if !pause.For(p.life, wait) {
			return incarnation{}, false
		}
	}
}

func isInitialVoter(c bootstrap.Membership, self peer.ID, member uint64) bool {
	v, ok := c.Voter(self)
	return ok && v.RaftID == member
}

// initialVoters converts the voters of an initial membership.
func initialVoters(c bootstrap.Membership) []replica.Member {
	voters := make([]replica.Member, len(c.Voters))
	for i, v := range c.Voters {
		voters[i] = replica.Member{ID: v.RaftID, Peer: v.Peer.String()}
	}
	return voters
}

// newRand returns a source of jitter.
func newRand() *rand.Rand {
	var seed [16]byte
	_, _ = crand.Read(seed[:]) // never fails
	return rand.New(rand.NewPCG(binary.LittleEndian.Uint64(seed[:8]), binary.LittleEndian.Uint64(seed[8:])))
}

// jitter draws from [0, 1), for many goroutines.
func jitter() func() float64 {
	random := newRand()
	var mu sync.Mutex
	return func() float64 {
		mu.Lock()
		defer mu.Unlock()
		return random.Float64()
	}
}
