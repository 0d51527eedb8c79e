package group

import (
	"context"
	crand "crypto/rand"
	"encoding/binary"
	"math/rand/v2"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/group/founding"
	"github.com/blackhole/blackhole/internal/group/link"
	"github.com/blackhole/blackhole/internal/group/replica"
	"github.com/blackhole/blackhole/pkg/fault"
	groupv1 "github.com/blackhole/blackhole/proto/blackhole/group/v1"
)

// messenger carries the messages of the founding.
type messenger struct{ *link.Exchange }

// Send implements founding.Messenger.
func (m messenger) Send(to peer.ID, msg *groupv1.Founding) {
	if b, err := proto.Marshal(msg); err == nil { // it holds no invalid text
		m.Exchange.Send(to, link.Founding, b)
	}
}

// hearFounding takes in a message of the founding; answers are messages of their own.
func (p *Plane) hearFounding(_ context.Context, from peer.ID, req []byte) ([]byte, error) {
	m := new(groupv1.Founding)
	if len(req) > founding.MaxMessageBytes || proto.Unmarshal(req, m) != nil {
		return nil, fault.New("group.hearFounding", fault.Invalid, "is no message of a founding")
	}
	p.founder.Deliver(from, m)
	return nil, nil
}

// enter waits for the group to be founded or found, and begins this peer's part in it.
func (p *Plane) enter() {
	certificate, ok := p.awaitCertificate()
	if !ok {
		return
	}
	p.seeker.found(certificate)
	if p.disk == nil {
		return // it is a client
	}
	if err := p.join(certificate); err != nil {
		p.fatal(fault.Wrap("group.enter", err))
	}
}

func (p *Plane) awaitCertificate() (founding.Certificate, bool) {
	select {
	case <-p.founder.Founded():
		return p.founder.Certificate()
	case <-p.life.Done():
		return founding.Certificate{}, false
	}
}

// join starts this peer as a member. A founder that is in the charter with the disk it has begins
// the log, the same as all others; another waits to be sent the state.
func (p *Plane) join(c founding.Certificate) error {
	id := c.GroupID()
	group := string(id[:])
	switch had := p.disk.Group(); {
	case had != "" && had != group:
		return fault.New("group.join", fault.Conflict, "the data directory belongs to group %x, not %v", had, id)
	case p.disk.Founded():
	case charterHas(c.Charter, p.self, p.disk.Member()):
		if err := replica.Found(p.disk, group, chartered(c.Charter)); err != nil {
			return err
		}
	default:
		if err := p.disk.Bind(group); err != nil {
			return err
		}
	}
	l, err := startLocal(p, id)
	if err != nil {
		return err
	}
	p.here.Store(l)
	p.Logger.Info("takes part in the coordination group", "group", id, "member", p.disk.Member())
	return nil
}

func charterHas(c founding.Charter, self peer.ID, member uint64) bool {
	v, ok := c.Voter(self)
	return ok && v.RaftID == member
}

// chartered are the voters that a charter names.
func chartered(c founding.Charter) []replica.Member {
	voters := make([]replica.Member, len(c.Voters))
	for i, v := range c.Voters {
		voters[i] = replica.Member{ID: v.RaftID, Peer: v.Peer.String()}
	}
	return voters
}

// newRand is a source of jitter.
func newRand() *rand.Rand {
	var seed [16]byte
	_, _ = crand.Read(seed[:]) // it never fails
	return rand.New(rand.NewPCG(binary.LittleEndian.Uint64(seed[:8]), binary.LittleEndian.Uint64(seed[8:])))
}

// pause waits, and says whether the wait was not cut short.
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
