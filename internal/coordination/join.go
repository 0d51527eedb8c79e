package coordination

import (
	"context"
	crand "crypto/rand"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/coordination/bootstrap"
	"github.com/blackhole/blackhole/internal/coordination/leader"
	"github.com/blackhole/blackhole/internal/coordination/replica"
	"github.com/blackhole/blackhole/internal/coordination/transport"
	"github.com/blackhole/blackhole/internal/platform/strictproto"
	"github.com/blackhole/blackhole/pkg/fault"
	groupv1 "github.com/blackhole/blackhole/proto/blackhole/group/v1"
)

// bootstrapTransport sends the messages of the group bootstrap.
type bootstrapTransport struct{ *transport.Exchange }

// Send implements bootstrap.Transport.
func (m bootstrapTransport) Send(to peer.ID, msg *groupv1.BootstrapMessage) {
	if b, err := proto.Marshal(msg); err == nil { // it holds no invalid text
		m.Exchange.Send(to, transport.Bootstrap, b)
	}
}

// receive applies a message of the group bootstrap; answers are messages of their own. Without founders only messages
// of trusted peers count.
func receive(f *bootstrap.Founder, r *roster) transport.AskHandler {
	const op = "group.receive"
	return func(ctx context.Context, from peer.ID, req []byte) ([]byte, error) {
		m := new(groupv1.BootstrapMessage)
		if len(req) > bootstrap.MaxMessageBytes || proto.Unmarshal(req, m) != nil {
			return nil, fault.New(op, fault.Invalid, "not a message of a group bootstrap")
		}
		if err := strictproto.Check(m); err != nil { // of a later version: an agreement on what this peer cannot read is none
			return nil, fault.Wrap(op, err)
		}
		vouched := slices.Contains(r.config.Network.Founders, from)
		if r.config.Network.Mode == bootstrap.Unlisted {
			if err := r.trusts(ctx, from); err != nil {
				return nil, fault.Wrap(op, err)
			}
			vouched = true
		}
		f.Deliver(from, m, vouched)
		return nil, nil
	}
}

// enter waits for the group's certificate and starts this peer's part in the group.
func (p *Plane) enter() {
	certificate, ok := p.awaitCertificate()
	if !ok {
		return
	}
	life, err := p.lineage(certificate.GroupID())
	if err != nil {
		p.failed.fatal(fault.Wrap("group.enter", err))
		return
	}
	p.view.adopt(certificate, life)
	p.finder.advance(leader.Needed{})
	if p.disk == nil || p.outlived.Load() {
		return // a client
	}
	if err := p.join(certificate); err != nil {
		p.failed.stop(fault.Wrap("group.enter", err))
	}
}

func (p *Plane) awaitCertificate() (bootstrap.Certificate, bool) {
	select {
	case <-p.founder.Founded():
		return p.founder.Certificate()
	case <-p.life.Done():
		return bootstrap.Certificate{}, false
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

// join starts this peer as a member. An initial voter with its original disk begins the log like all other
// initial voters. Any other peer waits for the incarnation from a member, and then for the state from the
// leader.
func (p *Plane) join(c bootstrap.Certificate) error {
	life, _ := p.view.incarnation()
	switch {
	case p.disk.Group() != "" && p.disk.HasSnapshot():
	case life.recovery.IsZero() && isInitialVoter(c.Membership, p.self, p.disk.Member()):
		if err := replica.Bootstrap(p.disk, life.storageID(), initialVoters(c.Membership)); err != nil {
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
	p.finder.wake()
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
		if !pause(p.life, wait) {
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

// pause waits for d. It returns false if ctx ends earlier.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
