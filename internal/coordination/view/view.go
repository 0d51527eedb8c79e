// Package view holds the coordination group as other peers describe it: its id, its incarnation and its members, and what
// peers say of themselves. It asks them. Of this peer's own member it learns by IsMember and Describe alone.
package view

import (
	"context"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/bootstrap"
	"github.com/blackhole/blackhole/internal/coordination/leader"
	"github.com/blackhole/blackhole/internal/coordination/membership"
	"github.com/blackhole/blackhole/internal/platform/identity"
	groupv1 "github.com/blackhole/blackhole/proto/blackhole/group/v1"
)

const (
	maxMembers = 64   // of a configuration that is believed
	maxNames   = 4096 // peers whose claims are kept
	maxURL     = 256  // bytes
)

// Orphaned is the time without a leader until a recovery by any eligible peer is believed.
const Orphaned = 30 * time.Second

// Config configures a View. All fields are required, but for Name and Etcd.
type Config struct {
	Network bootstrap.Network
	Self    peer.ID
	Name    identity.PeerName // of this peer, for others
	Etcd    string            // URL where this peer answers clients of etcd, for others; empty: nowhere
	Levels  coord.Levels      // that this program supports
	Logger  *slog.Logger
	// Ask asks a peer for its description of the group.
	Ask func(ctx context.Context, to peer.ID, question []byte) ([]byte, error)
	// IsMember reports whether a peer is a member according to this peer's log, and whether this peer has a log.
	IsMember func(peer.ID) (in, known bool)
	// Leaderless returns the time without a known leader.
	Leaderless func() time.Duration
}

// View holds the group as trusted peers describe it: its initial membership, its incarnation and its
// members. A later configuration replaces an earlier one, a newer incarnation everything before it. The
// leader is package leader's subject. It is safe for concurrent use.
type View struct {
	Config

	mu         sync.Mutex
	group      bootstrap.GroupID // zero until the group is known
	membership []byte            // encoded
	recovery   bootstrap.Recovery
	conflict   bool   // two forced recoveries of one number are known, and were logged
	config     uint64 // log index of the configuration; 0: only the bootstrap is known
	members    map[uint64]member

	// What peers say of themselves decides nothing; it is shown to operators.
	claims    map[peer.ID]claim
	tolerance membership.Tolerance // as counted last by a leader
	counter   peer.ID              // that leader
	countedAt time.Time
}

// claim is what a peer says of itself.
type claim struct {
	name identity.PeerName
	etcd string // URL
}

// member is a member according to other peers.
type member struct {
	peer  peer.ID
	voter bool
}

// New returns the View of a peer that knows no group.
func New(c Config) *View { return &View{Config: c, claims: map[peer.ID]claim{}} }

// Adopt stores the initial membership, and the incarnation of this peer. The first members are the initial voters,
// or the peer that recovered the group.
func (v *View) Adopt(m bootstrap.Membership, i Incarnation) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.group, v.membership, v.recovery = m.GroupID(), m.Encode(), i.Recovery
	v.members = map[uint64]member{}
	if !v.recovery.IsZero() {
		v.members[v.recovery.Member] = member{v.recovery.Peer, true}
		return
	}
	for _, voter := range m.Voters {
		v.members[voter.RaftID] = member{voter.Peer, true}
	}
}

// Question returns a peer's answer, whose description of the group is nil if it knows none; false without an answer. It offers
// this peer as a member if candidate, its raft id, is above 0. The caller decides whether the answer counts.
func (v *View) Question(ctx context.Context, p peer.ID, candidate uint64) (*groupv1.InfoResponse, bool) {
	b, err := proto.Marshal(v.request(candidate))
	if err != nil {
		return nil, false // impossible: it holds no text
	}
	answer, err := v.Ask(ctx, p, b)
	resp := new(groupv1.InfoResponse)
	if err != nil || proto.Unmarshal(answer, resp) != nil {
		return nil, false
	}
	v.Hear(p, resp)
	if resp.GetVoters() > 0 { // only a leader counts them
		v.mu.Lock()
		v.counter, v.countedAt = p, time.Now()
		v.tolerance = membership.Tolerance{Voters: int(resp.GetVoters()), Active: int(resp.GetVotersActive())}
		v.mu.Unlock()
	}
	return resp, true
}

func (v *View) request(candidate uint64) *groupv1.InfoRequest {
	v.mu.Lock()
	defer v.mu.Unlock()
	req := &groupv1.InfoRequest{
		Candidate: candidate, Levels: &groupv1.Levels{Min: v.Levels.Min, Max: v.Levels.Max}, Name: string(v.Name), EtcdUrl: v.Etcd,
	}
	if !v.group.IsZero() {
		req.GroupId, req.Recovery = v.group[:], v.now().wire()
	}
	return req
}

// Learn applies the description of a trusted peer. It returns the leader that the peer names, if any, or
// false if the description does not count.
func (v *View) Learn(info *groupv1.GroupInfo) (named leader.Leadership, ok bool) {
	orphaned := v.Leaderless() > Orphaned
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.is(info.GetGroupId()) || !v.believe(info.GetRecovery(), orphaned) {
		return named, false
	}
	if index := info.GetConfigIndex(); index > v.config {
		if members, ok := readMembers(info.GetMembers()); ok {
			v.config, v.members = index, members
		}
	}
	return leader.Leadership{
		Incarnation: v.recovery.Incarnation, Term: info.GetTerm(), Peer: v.members[info.GetLeader()].peer,
	}, true
}

// Concerns reports whether a question of an eligible peer is about this group and incarnation. It adopts a newer one.
func (v *View) Concerns(m *groupv1.InfoRequest) bool {
	orphaned := v.Leaderless() > Orphaned
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.is(m.GetGroupId()) && v.believe(m.GetRecovery(), orphaned)
}

// Is reports whether this peer's group is known and has this id.
func (v *View) Is(id []byte) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.is(id)
}

func (v *View) is(id []byte) bool { return !v.group.IsZero() && string(id) == string(v.group[:]) }

func (v *View) now() Incarnation { return Incarnation{v.group, v.recovery} }

// believe applies an eligible peer's incarnation, and reports whether it is the newest one known. A newer
// one erases the description of the older one. Call it with mu held.
func (v *View) believe(recovery []byte, orphaned bool) bool {
	said, err := decodeIncarnation(v.group, recovery)
	newer := said.Recovery.Incarnation > v.recovery.Incarnation
	switch {
	case err != nil || said.Recovery.Incarnation < v.recovery.Incarnation:
		return false
	case newer && !v.mayRecover(said.Recovery.Peer, orphaned):
		return false
	case newer:
		v.Logger.Warn("the coordination group was recovered after a disaster", "incarnation", said.Recovery.Incarnation, "by", said.Recovery.Peer)
		v.recovery, v.config = said.Recovery, 0
		v.members = map[uint64]member{said.Recovery.Member: {said.Recovery.Peer, true}}
		return true
	case said.StorageID() != v.now().StorageID():
		if !v.conflict {
			v.conflict = true
			v.Logger.Error("the coordination group was recovered twice: clear the coordination directories of one of the two",
				"incarnation", v.recovery.Incarnation, "by", v.recovery.Peer, "and", said.Recovery.Peer)
		}
		return false
	}
	return true
}

// mayRecover reports whether a peer may recover the group: a member may. Any other eligible peer may only
// if no leader was known for long, or else a peer that was replaced during its absence could take a
// living group from its members. Call it with mu held.
func (v *View) mayRecover(p peer.ID, orphaned bool) bool {
	in, known := v.IsMember(p)
	return in || !known && (v.config == 0 || v.has(p)) || orphaned && v.Network.Eligible(p) // at 0 only the bootstrap is known
}

func readMembers(ms []*groupv1.Member) (map[uint64]member, bool) {
	if len(ms) == 0 || len(ms) > maxMembers {
		return nil, false
	}
	members := map[uint64]member{}
	for _, m := range ms {
		p, err := peer.IDFromBytes(m.GetPeer())
		if err != nil || m.GetRaftId() == 0 {
			return nil, false
		}
		members[m.GetRaftId()] = member{p, m.GetRole() != groupv1.Role_ROLE_LEARNER}
	}
	return members, true
}

// Incarnation returns the incarnation, and whether a trusted peer has described the group in it.
func (v *View) Incarnation() (_ Incarnation, described bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.now(), v.config > 0
}

// Excludes reports whether a configuration later than applied lacks the member id.
func (v *View) Excludes(id, applied uint64) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	_, in := v.members[id]
	return !in && v.config > applied
}

// Has reports whether a peer is a member of the known configuration.
func (v *View) Has(p peer.ID) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.has(p)
}

func (v *View) has(p peer.ID) bool {
	for _, m := range v.members {
		if m.peer == p {
			return true
		}
	}
	return false
}

// IsFull reports whether the known configuration has so many voters and a learner.
func (v *View) IsFull(wanted int) bool {
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

// Member returns the peer of a member.
func (v *View) Member(id uint64) (peer.ID, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	m, ok := v.members[id]
	return m.peer, ok
}

// Peers returns the peers of all members, sorted.
func (v *View) Peers() []peer.ID {
	v.mu.Lock()
	defer v.mu.Unlock()
	var all []peer.ID
	for _, m := range v.members {
		all = append(all, m.peer)
	}
	slices.Sort(all)
	return all
}

// Describe returns the description for other peers, with the known leader; nil while no group is known. If
// this peer's own member is of the incarnation mine, the member fills in the configuration and the leader:
// then own is true and both are missing.
func (v *View) Describe(known leader.Leadership, mine string) (g *groupv1.GroupInfo, own bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.group.IsZero() {
		return nil, false
	}
	now := v.now()
	g = &groupv1.GroupInfo{GroupId: now.Group[:], Membership: v.membership, Recovery: now.wire()}
	if mine == now.StorageID() {
		return g, true
	}
	g.ConfigIndex, g.Term = v.config, known.Term
	for id, m := range v.members {
		g.Members = append(g.Members, Describe(id, m.peer, m.voter))
		if m.peer == known.Peer {
			g.Leader = id
		}
	}
	return g, false
}

// Describe returns the description of a member for other peers.
func Describe(id uint64, p peer.ID, voter bool) *groupv1.Member {
	role := groupv1.Role_ROLE_LEARNER
	if voter {
		role = groupv1.Role_ROLE_VOTER
	}
	return &groupv1.Member{RaftId: id, Peer: []byte(p), Role: role}
}

// ID returns the group's id in hex; empty while no group is known.
func (v *View) ID() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.group.IsZero() {
		return ""
	}
	return v.group.String()
}

// Hear notes what a peer says of itself. An invalid name counts as none, because it goes to terminals, and so does an invalid URL.
func (v *View) Hear(from peer.ID, said interface {
	GetName() string
	GetEtcdUrl() string
}) {
	c := claim{name: identity.PeerName(said.GetName()), etcd: said.GetEtcdUrl()}
	if c.name.Validate() != nil {
		c.name = ""
	}
	if u, err := url.Parse(c.etcd); err != nil || len(c.etcd) > maxURL || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		c.etcd = ""
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if c == (claim{}) {
		delete(v.claims, from)
	} else if _, known := v.claims[from]; known || len(v.claims) < maxNames {
		v.claims[from] = c
	}
}

// EtcdOf returns where a peer says that it answers clients of etcd; empty: nowhere, or unknown.
func (v *View) EtcdOf(id peer.ID) string {
	if id == v.Self {
		return v.Etcd
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.claims[id].etcd
}

// NameOf returns the name that a peer gives itself; empty if unknown.
func (v *View) NameOf(id peer.ID) string {
	if id == v.Self {
		return string(v.Name)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	return string(v.claims[id].name)
}

// WithName returns a peer's id with its name, for a sentence.
func (v *View) WithName(id string) string {
	if decoded, err := peer.Decode(id); err == nil {
		if name := v.NameOf(decoded); name != "" {
			return id + " (" + name + ")"
		}
	}
	return id
}

// Called names a peer in a sentence, so that commands find it: by its name, or by the end of its id where others have that name.
func (v *View) Called(id string) string {
	const end = 8
	short := "…" + id[max(0, len(id)-end):]
	self, err := peer.Decode(id)
	if err != nil {
		return short
	}
	name := v.NameOf(self)
	if name == "" {
		return short
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	for other, c := range v.claims {
		if string(c.name) == name && other != self {
			return short
		}
	}
	if self != v.Self && string(v.Name) == name {
		return short
	}
	return name
}

// CalledOwner names an owner in a sentence: peers in it by their names.
func (v *View) CalledOwner(owner string) string {
	parts := strings.Split(owner, "~")
	for i, part := range parts {
		if _, err := peer.Decode(part); err == nil {
			parts[i] = v.Called(part)
		}
	}
	return strings.Join(parts, "~")
}

// Tolerance returns the last count of voters by a leader, and when it came; zero if this leader has not answered yet.
func (v *View) Tolerance(leader peer.ID) (membership.Tolerance, time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if leader == "" || v.counter != leader {
		return membership.Tolerance{}, time.Time{}
	}
	return v.tolerance, v.countedAt
}
