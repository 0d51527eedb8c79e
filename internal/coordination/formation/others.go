package formation

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/coordination/bootstrap"
	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/pkg/fault"
	groupv1 "github.com/blackhole/blackhole/proto/blackhole/group/v1"
)

const (
	interval     = 5 * time.Second // between two looks for other groups
	groupMemory  = time.Minute     // a group is that old at most
	peerMemory   = 5 * time.Minute // so is what a connected peer said of its group: it goes over to another one rarely
	askTime      = 2 * time.Second // for one answer
	maxGroups    = 8               // other groups that are followed at a time
	maxContacts  = 4               // peers of one, that are asked
	maxFormer    = 64              // groups whose peers went over to one
	maxNewlyMet  = 16              // connected peers that are asked for their group at a time
	maxLeftByOne = 16              // groups that one peer says it left
)

// others knows the other groups of the network, by the word of trusted peers.
type others struct {
	Config

	mu    sync.Mutex
	known map[machine.GroupID]*other
	asked map[peer.ID]allegiance // connected peers that named their group
	// apart are connected peers of another group that do not prove the key of this peer's network, with the times of their answers.
	apart map[peer.ID]time.Time
}

// allegiance is the group that a peer named, and the time of its answer.
type allegiance struct {
	group machine.GroupID
	at    time.Time
}

// other is another group of the network.
type other struct {
	membership bootstrap.Membership
	contacts   []peer.ID             // the leader first, if it is known
	spoke      map[peer.ID]time.Time // when its peers answered; none: only hearsay
	hinted     time.Time
	said       Group
	former     []machine.GroupID
	applied    uint64 // log index of the member that described the group; 0 without a description
}

// seen returns the last peer of it that answered, and when; zeros for none.
func (o *other) seen() (by peer.ID, at time.Time) {
	for p, when := range o.spoke {
		if when.After(at) || when.Equal(at) && p < by {
			by, at = p, when
		}
	}
	return by, at
}

// describe returns the latest description.
func (o *other) describe() Group {
	g := o.said
	g.Listed, g.Former = o.membership.Listed(), slices.Clone(o.former)
	return g
}

// hint notes a trusted peer's description of another group, of any age. Only answers to questions of this peer count as present.
func (r *others) hint(from peer.ID, info *groupv1.GroupInfo) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if one := r.about(info); one != nil {
		one.hinted = time.Now()
		one.contact(r.Self, from, info)
	}
}

// about returns the group of a description, which may be new; nil for this peer's own group, without one, beyond
// maxGroups, or if the membership is not the one of its group. Call it with mu held.
func (r *others) about(info *groupv1.GroupInfo) *other {
	id := machine.GroupID(info.GetGroupId())
	own, exists := r.Group()
	if !exists || len(id) != machine.GroupIDBytes || id == idOf(own) {
		return nil
	}
	one, known := r.known[id]
	if known {
		return one
	}
	m, err := r.Network.Recognize(info.GetMembership())
	if err != nil || idOf(m) != id || len(r.known) >= maxGroups {
		return nil
	}
	one = &other{membership: m, spoke: make(map[peer.ID]time.Time)}
	r.known[id] = one
	return one
}

// idOf returns the id of the group that began with a membership.
func idOf(m bootstrap.Membership) machine.GroupID {
	id := m.GroupID()
	return machine.GroupID(id[:])
}

// contact notes the peers of a description to ask: leader, sender, members.
func (o *other) contact(self, from peer.ID, info *groupv1.GroupInfo) {
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
	all = slices.DeleteFunc(all, func(p peer.ID) bool { return p == self }) // it is of another group now
	o.contacts = all[:min(len(all), maxContacts)]
}

// look asks peers of the known other groups, and connected peers that did not name their group for a while.
func (r *others) look(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	var work sync.WaitGroup
	for _, p := range r.targets() {
		work.Go(func() { _, _ = r.question(ctx, p) })
	}
	work.Wait()
	r.forget()
}

func (r *others) targets() (all []peer.ID) {
	connected := r.Connected()
	r.mu.Lock()
	defer r.mu.Unlock()
	for p, said := range r.asked {
		if time.Since(said.at) > peerMemory || !slices.Contains(connected, p) {
			delete(r.asked, p)
		}
	}
	maps.DeleteFunc(r.apart, func(p peer.ID, at time.Time) bool {
		return time.Since(at) > groupMemory || !slices.Contains(connected, p)
	})
	for _, one := range r.known {
		all = append(all, one.contacts...)
	}
	fresh := 0
	for _, p := range connected {
		if _, done := r.asked[p]; !done && fresh < maxNewlyMet {
			all = append(all, p)
			fresh++
		}
	}
	slices.Sort(all)
	return slices.DeleteFunc(slices.Compact(all), func(p peer.ID) bool { return p == r.Self })
}

// question asks one peer for its group, and notes the answer.
func (r *others) question(ctx context.Context, p peer.ID) (*groupv1.InfoResponse, error) {
	resp, err := r.Ask(ctx, p)
	switch {
	case err == nil:
		r.answered(p, resp)
	case fault.KindOf(err) == fault.Forbidden && resp.GetInfo() != nil:
		r.mu.Lock()
		defer r.mu.Unlock()
		if own, exists := r.Group(); exists && machine.GroupID(resp.GetInfo().GetGroupId()) != idOf(own) {
			r.apart[p] = time.Now()
		}
	}
	return resp, err
}

// strangers returns the connected peers of other groups that do not prove the key, while no connected peer proves it.
func (r *others) strangers() []peer.ID {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.asked) > 0 {
		return nil
	}
	return slices.Sorted(maps.Keys(r.apart))
}

// answered notes the present answer of a trusted peer. A peer that has changed its group speaks for the former one no more.
func (r *others) answered(from peer.ID, resp *groupv1.InfoResponse) {
	info, now := resp.GetInfo(), time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if info != nil {
		r.asked[from] = allegiance{machine.GroupID(info.GetGroupId()), now}
	}
	one := r.about(info)
	for _, o := range r.known {
		if o != one {
			o.contacts = slices.DeleteFunc(o.contacts, func(p peer.ID) bool { return p == from })
			delete(o.spoke, from)
		}
	}
	if one == nil {
		return
	}
	one.spoke[from], one.hinted = now, now
	one.contact(r.Self, from, info)
	one.followed(resp.GetLeft())
	if said, ok := decodeGroup(info); ok && info.GetApplied() >= one.applied {
		one.said, one.applied = said, max(info.GetApplied(), 1)
	}
}

// followed notes the groups from which a peer went over to this one.
func (o *other) followed(left [][]byte) {
	for _, b := range left[:min(len(left), maxLeftByOne)] {
		if id := machine.GroupID(b); len(b) == machine.GroupIDBytes && !slices.Contains(o.former, id) && len(o.former) < maxFormer {
			o.former = append(o.former, id)
		}
	}
}

// forget drops groups that nobody speaks for. Their peers are asked again: one that was only silent shows its group anew.
func (r *others) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, o := range r.known {
		maps.DeleteFunc(o.spoke, func(_ peer.ID, at time.Time) bool { return time.Since(at) > groupMemory })
		if len(o.contacts) == 0 || time.Since(o.hinted) > groupMemory {
			delete(r.known, id)
			maps.DeleteFunc(r.asked, func(_ peer.ID, said allegiance) bool { return said.group == id })
		}
	}
}

// described returns what members of the other groups said.
func (r *others) described() (all []Group) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, o := range r.known {
		if o.applied > 0 {
			all = append(all, o.describe())
		}
	}
	return all
}

// sighted returns the other groups with a peer that answered, by id. Of a group that ended silence is the end.
func (r *others) sighted() (ids []machine.GroupID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, o := range r.known {
		memory := groupMemory
		if o.said.Over.Over() {
			memory = 2 * interval
		}
		if _, at := o.seen(); time.Since(at) < memory {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// of returns a copy of what is known of a group.
func (r *others) of(id machine.GroupID) (other, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	o, ok := r.known[id]
	if !ok {
		return other{}, false
	}
	c := *o
	c.contacts, c.spoke = slices.Clone(o.contacts), maps.Clone(o.spoke)
	return c, true
}

// confirm asks the leader of a group afresh, and returns what it says. Other sources may be out of date.
// Errors: Unavailable without its answer.
func (r *others) confirm(ctx context.Context, id machine.GroupID) (Group, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	o, _ := r.of(id)
	answers := make(chan *groupv1.InfoResponse, len(o.contacts))
	var work sync.WaitGroup
	for _, p := range o.contacts {
		work.Go(func() {
			if resp, err := r.question(ctx, p); err == nil {
				answers <- resp
			}
		})
	}
	work.Wait()
	close(answers)
	for resp := range answers {
		g, ok := decodeGroup(resp.GetInfo())
		if ok && resp.GetVoters() > 0 && g.ID == id { // only a leader counts voters
			o, _ := r.of(id)
			o.said = g
			return o.describe(), nil
		}
	}
	return Group{}, fault.New("formation.confirm", fault.Unavailable, "no leader of group %v answers", id)
}
