package coordination

import (
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/coordination/bootstrap"
	"github.com/blackhole/blackhole/internal/coordination/leader"
	groupv1 "github.com/blackhole/blackhole/proto/blackhole/group/v1"
)

const (
	maxMembers = 64               // of a configuration that is believed
	orphaned   = 30 * time.Second // without a leader until a recovery by any eligible peer is believed
)

// groupView holds the group as trusted peers describe it: its initial membership, its incarnation and its
// members. A later configuration replaces an earlier one, a newer incarnation everything before it. The
// leader is package leader's subject.
type groupView struct {
	network bootstrap.Network
	logger  *slog.Logger
	// belongs reports whether a peer is a member according to this peer's own member, and whether this peer
	// has one.
	belongs func(peer.ID) (in, known bool)
	// leaderless returns the time without a known leader.
	leaderless func() time.Duration

	mu         sync.Mutex
	group      bootstrap.GroupID // zero until the group is known
	membership []byte            // encoded
	recovery   bootstrap.Recovery
	conflict   bool   // two forced recoveries of one number are known, and were logged
	config     uint64 // log index of the configuration; 0: only the bootstrap is known
	members    map[uint64]memberHint
}

// memberHint is a member according to other peers.
type memberHint struct {
	peer  peer.ID
	voter bool
}

// adopt stores the initial membership, and the incarnation of this peer. The first members are the initial voters,
// or the peer that recovered the group.
func (v *groupView) adopt(c bootstrap.Membership, life incarnation) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.group, v.membership, v.recovery = c.GroupID(), c.Encode(), life.recovery
	v.members = map[uint64]memberHint{}
	if !v.recovery.IsZero() {
		v.members[v.recovery.Member] = memberHint{v.recovery.Peer, true}
		return
	}
	for _, voter := range c.Voters {
		v.members[voter.RaftID] = memberHint{voter.Peer, true}
	}
}

// learn applies the description of an eligible peer. It returns the leader that the peer names, if any, or
// false if the description does not count.
func (v *groupView) learn(info *groupv1.GroupInfo) (named leader.Leadership, ok bool) {
	alone := v.leaderless() > orphaned
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.same(info.GetGroupId()) || !v.believe(info.GetRecovery(), alone) {
		return named, false
	}
	if index := info.GetConfigIndex(); index > v.config {
		if members, ok := v.readMembers(info.GetMembers()); ok {
			v.config, v.members = index, members
		}
	}
	return leader.Leadership{
		Incarnation: v.recovery.Incarnation, Term: info.GetTerm(), Peer: v.members[info.GetLeader()].peer,
	}, true
}

// concerns reports whether a question of an eligible peer is about this group and incarnation.
func (v *groupView) concerns(m *groupv1.InfoRequest) bool {
	alone := v.leaderless() > orphaned
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.same(m.GetGroupId()) && v.believe(m.GetRecovery(), alone)
}

// same reports whether the group is known and has this id. Call it with mu held.
func (v *groupView) same(id []byte) bool {
	return !v.group.IsZero() && string(id) == string(v.group[:])
}

// is reports whether this peer's group is known and has this id.
func (v *groupView) is(id []byte) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.same(id)
}

// believe applies an eligible peer's incarnation, and reports whether it is the newest one known. A newer
// one erases the description of the older one. Call it with mu held.
func (v *groupView) believe(succession []byte, alone bool) bool {
	life, err := decodeIncarnation(v.group, succession)
	switch {
	case err != nil || life.recovery.Incarnation < v.recovery.Incarnation:
		return false
	case life.recovery.Incarnation > v.recovery.Incarnation && !v.entitled(life.recovery.Peer, alone):
		return false
	case life.recovery.Incarnation > v.recovery.Incarnation:
		v.logger.Warn("the coordination group was recovered after a disaster", "incarnation", life.recovery.Incarnation, "by", life.recovery.Peer)
		v.recovery, v.config = life.recovery, 0
		v.members = map[uint64]memberHint{life.recovery.Member: {life.recovery.Peer, true}}
		return true
	case string(life.wire()) != string(incarnation{v.group, v.recovery}.wire()):
		if !v.conflict {
			v.conflict = true
			v.logger.Error("the coordination group was recovered twice: clear the coordination directories of one of the two",
				"incarnation", v.recovery.Incarnation, "by", v.recovery.Peer, "and", life.recovery.Peer)
		}
		return false
	}
	return true
}

// entitled reports whether a peer may recover the group: a member may. Any other eligible peer may only
// if no leader was known for long, or else a peer that was replaced during its absence could take a
// living group from its members. Call it with mu held.
func (v *groupView) entitled(p peer.ID, alone bool) bool {
	in, known := v.belongs(p)
	if !known {
		in = v.config == 0 // only the bootstrap is known
		for _, m := range v.members {
			in = in || m.peer == p
		}
	}
	return in || alone && v.network.Eligible(p)
}

func (v *groupView) readMembers(ms []*groupv1.Member) (map[uint64]memberHint, bool) {
	if len(ms) == 0 || len(ms) > maxMembers {
		return nil, false
	}
	members := map[uint64]memberHint{}
	for _, m := range ms {
		p, err := peer.IDFromBytes(m.GetPeer())
		if err != nil || m.GetRaftId() == 0 {
			return nil, false
		}
		members[m.GetRaftId()] = memberHint{p, m.GetRole() != groupv1.Role_ROLE_LEARNER}
	}
	return members, true
}

// incarnation returns the incarnation, and whether a member of it was heard.
func (v *groupView) incarnation() (_ incarnation, heard bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return incarnation{v.group, v.recovery}, v.config > 0
}

// excludes reports whether a configuration later than applied lacks the member id.
func (v *groupView) excludes(id, applied uint64) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	_, in := v.members[id]
	return !in && v.config > applied
}

// names reports whether a peer is a member of the known configuration.
func (v *groupView) names(p peer.ID) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, m := range v.members {
		if m.peer == p {
			return true
		}
	}
	return false
}

// full reports whether the known configuration has so many voters and a learner.
func (v *groupView) full(wanted int) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	voters := 0
	for _, m := range v.members {
		if m.voter {
			voters++
		}
	}
	return voters >= wanted && len(v.members) > voters
}

// member returns the peer of a member.
func (v *groupView) member(id uint64) (peer.ID, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	m, ok := v.members[id]
	return m.peer, ok
}

// peers returns the peers of all members, sorted.
func (v *groupView) peers() []peer.ID {
	v.mu.Lock()
	defer v.mu.Unlock()
	var all []peer.ID
	for _, m := range v.members {
		all = append(all, m.peer)
	}
	slices.Sort(all)
	return all
}

// request is a question about the group.
func (v *groupView) request(candidate uint64) *groupv1.InfoRequest {
	v.mu.Lock()
	defer v.mu.Unlock()
	req := &groupv1.InfoRequest{Candidate: candidate}
	if !v.group.IsZero() {
		req.GroupId, req.Recovery = v.group[:], incarnation{v.group, v.recovery}.wire()
	}
	return req
}

// describe returns the description for other peers, with the known leader; nil while no group is known. If
// this peer's own member is of the incarnation mine, the member fills in the configuration and the leader:
// then own is true and both are missing.
func (v *groupView) describe(known leader.Leadership, mine string) (g *groupv1.GroupInfo, own bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.group.IsZero() {
		return nil, false
	}
	life := incarnation{v.group, v.recovery}
	g = &groupv1.GroupInfo{GroupId: life.group[:], Membership: v.membership, Recovery: life.wire()}
	if mine == life.storageID() {
		return g, true
	}
	g.ConfigIndex, g.Term = v.config, known.Term
	for id, m := range v.members {
		role := groupv1.Role_ROLE_LEARNER
		if m.voter {
			role = groupv1.Role_ROLE_VOTER
		}
		g.Members = append(g.Members, &groupv1.Member{RaftId: id, Peer: []byte(m.peer), Role: role})
		if m.peer == known.Peer {
			g.Leader = id
		}
	}
	return g, false
}

// id returns the group's id in hex; empty while no group is known.
func (v *groupView) id() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.group.IsZero() {
		return ""
	}
	return v.group.String()
}
