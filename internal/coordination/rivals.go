package coordination

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/coordination/bootstrap"
	"github.com/blackhole/blackhole/internal/coordination/membership"
	"github.com/blackhole/blackhole/internal/coordination/merge"
	"github.com/blackhole/blackhole/internal/coordination/transport"
	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	groupv1 "github.com/blackhole/blackhole/proto/blackhole/group/v1"
)

const (
	rivalMemory = time.Minute     // a group is that old at most
	peerMemory  = 5 * time.Minute // so is what a connected peer said of its group: it goes over to another one rarely
	maxRivals   = 8               // other groups that are followed at a time
	maxContacts = 4               // peers of one, that are asked
)

// rivals knows the other groups of the network, by the word of trusted peers.
type rivals struct {
	plane *Plane

	mu    sync.Mutex
	known map[coord.GroupID]*rival
	asked map[peer.ID]allegiance // connected peers that named their group
}

// allegiance is the group that a peer named, and the time of its answer.
type allegiance struct {
	group coord.GroupID
	at    time.Time
}

// rival is another group of the network.
type rival struct {
	certificate bootstrap.Certificate
	contacts    []peer.ID // the leader first, if it is known
	seen        time.Time // a peer of it answered; zero: only hearsay
	hinted      time.Time
	by          peer.ID // the peer that answered
	said        merge.Group
	applied     uint64 // log index of the member that described the group; 0 without a description
	counted     membership.Tolerance
}

func newRivals(p *Plane) *rivals {
	return &rivals{plane: p, known: map[coord.GroupID]*rival{}, asked: map[peer.ID]allegiance{}}
}

// hint notes a trusted peer's description of another group, of any age. Only the answers to look count as present.
func (r *rivals) hint(from peer.ID, info *groupv1.GroupInfo) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if one := r.about(info); one != nil {
		one.hinted = time.Now()
		one.contact(from, info)
	}
}

// about returns the rival of a description, which may be new; nil for this peer's own group, or if the certificate proves
// nothing. Call it with mu held.
func (r *rivals) about(info *groupv1.GroupInfo) *rival {
	id := coord.GroupID(info.GetGroupId())
	if len(id) != coord.GroupIDBytes || !r.plane.view.differs(info.GetGroupId()) {
		return nil
	}
	one, known := r.known[id]
	if known {
		return one
	}
	c, err := r.plane.config.Network.Recognize(info.GetCertificate())
	if err != nil || groupIDOf(c) != id || len(r.known) >= maxRivals {
		return nil
	}
	one = &rival{certificate: c}
	r.known[id] = one
	return one
}

// groupIDOf returns the group of a certificate.
func groupIDOf(c bootstrap.Certificate) coord.GroupID {
	id := c.GroupID()
	return coord.GroupID(id[:])
}

// contact notes the peers of a description to ask: leader, sender, members.
func (o *rival) contact(from peer.ID, info *groupv1.GroupInfo) {
	all := []peer.ID{from}
	for _, m := range info.GetMembers() {
		p, err := peer.IDFromBytes(m.GetPeer())
		switch {
		case err != nil || slices.Contains(all, p) && m.GetRaftId() != info.GetLeader():
		case m.GetRaftId() == info.GetLeader():
			all = append([]peer.ID{p}, slices.DeleteFunc(all, func(o peer.ID) bool { return o == p })...)
		default:
			all = append(all, p)
		}
	}
	for _, p := range o.contacts {
		if !slices.Contains(all, p) {
			all = append(all, p)
		}
	}
	o.contacts = all[:min(len(all), maxContacts)]
}

// look asks peers of the known other groups, and connected peers that did not name their group for a while.
func (r *rivals) look() {
	ctx, cancel := context.WithTimeout(r.plane.life, askTime)
	defer cancel()
	var work sync.WaitGroup
	for _, p := range r.targets() {
		work.Go(func() { _, _ = r.ask(ctx, p) })
	}
	work.Wait()
	r.forget()
}

func (r *rivals) targets() (all []peer.ID) {
	connected := r.plane.ask.ConnectedPeers()
	r.mu.Lock()
	defer r.mu.Unlock()
	for p, said := range r.asked {
		if time.Since(said.at) > peerMemory || !slices.Contains(connected, p) {
			delete(r.asked, p)
		}
	}
	for _, one := range r.known {
		all = append(all, one.contacts...)
	}
	fresh := 0
	for _, p := range connected {
		if _, done := r.asked[p]; !done && fresh < maxAsked {
			all = append(all, p)
			fresh++
		}
	}
	slices.Sort(all)
	return slices.DeleteFunc(slices.Compact(all), func(p peer.ID) bool { return p == r.plane.self })
}

// ask asks one peer for its group. Only the answer of a trusted peer counts.
func (r *rivals) ask(ctx context.Context, p peer.ID) (*groupv1.InfoResponse, error) {
	question, err := proto.Marshal(r.plane.inquiry.request(0))
	if err != nil {
		return nil, fault.As("group.rivals", fault.Internal, err)
	}
	answer, err := r.plane.ask.Ask(ctx, p, transport.Information, question)
	resp := new(groupv1.InfoResponse)
	if err == nil {
		err = proto.Unmarshal(answer, resp)
	}
	if err == nil && resp.GetInfo() != nil {
		err = r.plane.roster.trusts(ctx, p)
	}
	if err != nil {
		return nil, err
	}
	r.plane.inquiry.known.heard(p, resp.GetName())
	r.answered(p, resp)
	return resp, nil
}

// answered notes the present answer of a trusted peer. A peer that has changed its group speaks for the former one no more.
func (r *rivals) answered(from peer.ID, resp *groupv1.InfoResponse) {
	info, now := resp.GetInfo(), time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if info != nil {
		r.asked[from] = allegiance{coord.GroupID(info.GetGroupId()), now}
	}
	one := r.about(info)
	for _, o := range r.known {
		if o != one {
			o.contacts = slices.DeleteFunc(o.contacts, func(p peer.ID) bool { return p == from })
		}
	}
	if one == nil {
		return
	}
	one.seen, one.hinted, one.by = now, now, from
	one.contact(from, info)
	if said, ok := groupOf(info); ok && info.GetApplied() >= one.applied {
		one.said, one.applied = said, max(info.GetApplied(), 1)
	}
	if resp.GetVoters() > 0 {
		one.counted = membership.Tolerance{Voters: int(resp.GetVoters()), Heard: int(resp.GetVotersHeard())}
	}
}

// forget drops groups that nobody speaks for. Their peers are asked again: one that was only silent shows its group anew.
func (r *rivals) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, o := range r.known {
		if len(o.contacts) == 0 || time.Since(o.hinted) > rivalMemory {
			delete(r.known, id)
			maps.DeleteFunc(r.asked, func(_ peer.ID, said allegiance) bool { return said.group == id })
		}
	}
}

// described returns what members of the other groups said.
func (r *rivals) described() (all []merge.Group) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, o := range r.known {
		if o.applied > 0 {
			all = append(all, o.said)
		}
	}
	return all
}

// sighted returns the other groups with a peer that answered, by id. Of an absorbed group silence is the end.
func (r *rivals) sighted(absorbed []coord.GroupID) (ids []coord.GroupID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, o := range r.known {
		memory := rivalMemory
		if slices.Contains(absorbed, id) {
			memory = 2 * rivalInterval
		}
		if time.Since(o.seen) < memory {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// of returns a copy of what is known of a group.
func (r *rivals) of(id coord.GroupID) (rival, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	o, ok := r.known[id]
	if !ok {
		return rival{}, false
	}
	c := *o
	c.contacts = slices.Clone(o.contacts)
	return c, true
}

// confirm asks the leader of a group afresh, and returns what it says. Other sources may be out of date.
// Errors: Unavailable without its answer.
func (r *rivals) confirm(ctx context.Context, id coord.GroupID) (merge.Group, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	o, _ := r.of(id)
	answers := make(chan *groupv1.InfoResponse, len(o.contacts))
	var work sync.WaitGroup
	for _, p := range o.contacts {
		work.Go(func() {
			if resp, err := r.ask(ctx, p); err == nil {
				answers <- resp
			}
		})
	}
	work.Wait()
	close(answers)
	for resp := range answers {
		g, ok := groupOf(resp.GetInfo())
		if ok && resp.GetVoters() > 0 && g.ID == id { // only a leader counts voters
			return g, nil
		}
	}
	return merge.Group{}, fault.New("group.merge", fault.Unavailable, "no leader of group %v answers", id)
}
