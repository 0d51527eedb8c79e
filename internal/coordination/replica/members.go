package replica

import (
	"cmp"
	"encoding/binary"
	"maps"
	"slices"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/internal/coordination/raftlog"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Member is one member of the group. An ID stands for one data folder, a Peer for one key: a peer with a lost
// folder returns under another ID.
type Member struct {
	ID   uint64
	Peer string // peer id, opaque here
}

const (
	maxPeer    = 128 // bytes of a peer id
	maxMembers = 64
)

// encodeMembers writes members by ascending id: id, length of the peer id (unsigned varints), peer id.
func encodeMembers(members []Member) []byte {
	var b []byte
	for _, m := range slices.SortedFunc(slices.Values(members), byID) {
		b = binary.AppendUvarint(b, m.ID)
		b = binary.AppendUvarint(b, uint64(len(m.Peer)))
		b = append(b, m.Peer...)
	}
	return b
}

func byID(a, b Member) int { return cmp.Compare(a.ID, b.ID) }

// decodeMembers decodes encodeMembers. Errors: Invalid.
func decodeMembers(b []byte) ([]Member, error) {
	var members []Member
	for len(b) > 0 {
		id, n := binary.Uvarint(b)
		if n <= 0 {
			return nil, fault.Invalidf("members", nil, "are cut off")
		}
		size, k := binary.Uvarint(b[n:])
		b = b[max(0, n+k):]
		if k <= 0 || size > uint64(len(b)) {
			return nil, fault.Invalidf("members", nil, "are cut off")
		}
		m := Member{ID: id, Peer: string(b[:size])}
		if err := m.validate(); err != nil {
			return nil, err
		}
		if len(members) > 0 && members[len(members)-1].ID >= id {
			return nil, fault.Invalidf("members", id, "are not in ascending order")
		}
		members, b = append(members, m), b[size:]
	}
	return members, nil
}

func (m Member) validate() error {
	switch {
	case m.ID == 0 || m.ID >= 1<<64-2:
		return fault.Invalidf("members.id", m.ID, "must be between 1 and 1<<64-3")
	case m.Peer == "" || len(m.Peer) > maxPeer:
		return fault.Invalidf("members.peer", nil, "must have 1 to %d bytes", maxPeer)
	}
	return nil
}

// Bootstrap begins the log of a new group with its initial voters: all of them write the same first snapshot,
// of index 1 and term 1.
//
// Errors: Invalid; Conflict for a folder with a log or of another group; Internal.
func Bootstrap(s *raftlog.Storage, group string, voters []Member) error {
	const op = "replica.Bootstrap"
	conf := &pb.ConfState{AutoLeave: new(false)}
	for _, v := range slices.SortedFunc(slices.Values(voters), byID) {
		if err := v.validate(); err != nil {
			return fault.Wrap(op, err)
		}
		if slices.Contains(conf.Voters, v.ID) {
			return fault.Wrap(op, fault.Invalidf("members.id", v.ID, "is there twice"))
		}
		conf.Voters = append(conf.Voters, v.ID)
	}
	if len(conf.Voters) == 0 || len(conf.Voters) > maxMembers {
		return fault.Wrap(op, fault.Invalidf("members", len(conf.Voters), "must be 1 to %d", maxMembers))
	}
	one := uint64(1)
	first := &pb.Snapshot{
		Data:     snapshotData(nil, voters),
		Metadata: &pb.SnapshotMetadata{Index: &one, Term: &one, ConfState: conf},
	}
	return fault.Wrap(op, s.Bootstrap(group, first, machine.New().Image()))
}

// membership is the applied configuration with the peers of the members.
type membership struct {
	conf  *pb.ConfState
	peers map[uint64]string
}

func newMembership(snap *pb.Snapshot) (membership, error) {
	r := membership{conf: pb.EnsureConfState(snap.GetMetadata().GetConfState()), peers: make(map[uint64]string)}
	if snap == nil {
		return r, nil
	}
	_, b, err := decodeLeaders(snap.GetData())
	if err != nil {
		return r, err
	}
	members, err := decodeMembers(b)
	for _, m := range members {
		r.peers[m.ID] = m.Peer
	}
	return r, err
}

// change adopts a configuration applied by Raft, and the peers that it named.
func (r *membership) change(conf *pb.ConfState, named []Member) {
	peers := maps.Clone(r.peers)
	for _, m := range named {
		if m.Peer != "" {
			peers[m.ID] = m.Peer
		}
	}
	maps.DeleteFunc(peers, func(id uint64, _ string) bool { return !holds(conf, id) })
	*r = membership{conf: conf, peers: peers}
}

func holds(conf *pb.ConfState, id uint64) bool {
	return slices.Contains(conf.Voters, id) || slices.Contains(conf.Learners, id) ||
		slices.Contains(conf.VotersOutgoing, id) || slices.Contains(conf.LearnersNext, id)
}

func (r *membership) joint() bool { return len(r.conf.VotersOutgoing) > 0 }

// votes reports whether a member votes, in either half of a joint configuration.
func (r *membership) votes(id uint64) bool {
	return slices.Contains(r.conf.Voters, id) || slices.Contains(r.conf.VotersOutgoing, id)
}

func (r *membership) members() []Member {
	all := make([]Member, 0, len(r.peers))
	for id, peer := range r.peers {
		all = append(all, Member{ID: id, Peer: peer})
	}
	slices.SortFunc(all, byID)
	return all
}

// Change is one change of the configuration: the members in Voters vote afterwards, those in Learners follow,
// those in Remove leave. Several at once pass through a joint configuration, which the leader ends by itself.
type Change struct {
	Voters   []Member // Peer is optional for a present learner
	Learners []Member
	Remove   []uint64
}

// validate checks a change against the configuration in force.
func (r *membership) validate(c Change) error {
	named := slices.Concat(c.Voters, c.Learners)
	if len(named)+len(c.Remove) == 0 {
		return fault.Invalidf("change", nil, "is empty")
	}
	seen := make(map[uint64]bool)
	for _, id := range c.Remove {
		if !holds(r.conf, id) {
			return fault.New("", fault.NotFound, "member %x is not in the group", id)
		}
		seen[id] = true
	}
	for _, m := range named {
		m.Peer = cmp.Or(m.Peer, r.peers[m.ID])
		if err := m.validate(); err != nil {
			return err
		}
		if seen[m.ID] {
			return fault.Invalidf("change", m.ID, "names a member twice")
		}
		if known := r.peers[m.ID]; known != "" && known != m.Peer {
			return fault.New("", fault.Conflict, "member %x is peer %s", m.ID, known)
		}
		seen[m.ID] = true
	}
	if len(r.peers)+len(named) > maxMembers {
		return fault.New("", fault.LimitReached, "too many members: at most %d", maxMembers)
	}
	if err := r.oneVote(c); err != nil {
		return err
	}
	return r.keepsVoter(c)
}

// oneVote refuses two votes of one peer. A peer with a lost folder may follow as a learner beside its old
// vote, to replace it.
func (r *membership) oneVote(c Change) error {
	voters := make(map[string]uint64)
	for _, id := range r.conf.Voters {
		learns := slices.ContainsFunc(c.Learners, func(m Member) bool { return m.ID == id })
		if !learns && !slices.Contains(c.Remove, id) {
			voters[r.peers[id]] = id
		}
	}
	for _, m := range c.Voters {
		peer := cmp.Or(m.Peer, r.peers[m.ID])
		if id, ok := voters[peer]; ok && id != m.ID {
			return fault.New("", fault.Exists, "peer %s votes as member %x already", peer, id)
		}
		voters[peer] = m.ID
	}
	return nil
}

func (r *membership) keepsVoter(c Change) error {
	if len(c.Voters) > 0 {
		return nil
	}
	for _, id := range r.conf.Voters {
		learns := slices.ContainsFunc(c.Learners, func(m Member) bool { return m.ID == id })
		if !learns && !slices.Contains(c.Remove, id) {
			return nil
		}
	}
	return fault.Invalidf("change", nil, "leaves no voter")
}

// entry converts the change for Raft. The context holds the proposal's id and the peers.
func (c Change) entry(id uint64) *pb.ConfChangeV2 {
	cc := &pb.ConfChangeV2{Context: binary.BigEndian.AppendUint64(nil, id)}
	add := func(kind pb.ConfChangeType, id uint64) {
		cc.Changes = append(cc.Changes, &pb.ConfChangeSingle{Type: &kind, NodeId: &id})
	}
	var named []Member
	for _, m := range c.Voters {
		add(pb.ConfChangeAddNode, m.ID)
		named = append(named, m)
	}
	for _, m := range c.Learners {
		add(pb.ConfChangeAddLearnerNode, m.ID)
		named = append(named, m)
	}
	for _, id := range c.Remove {
		add(pb.ConfChangeRemoveNode, id)
	}
	named = slices.DeleteFunc(named, func(m Member) bool { return m.Peer == "" })
	cc.Context = append(cc.Context, encodeMembers(named)...)
	return cc
}

// named decodes the context of a change; empty at the end of a joint configuration.
func named(cc *pb.ConfChangeV2) (id uint64, members []Member, err error) {
	b := cc.GetContext()
	if len(b) == 0 {
		return 0, nil, nil
	}
	if len(b) < 8 {
		return 0, nil, fault.Invalidf("context", nil, "is cut off")
	}
	members, err = decodeMembers(b[8:])
	return binary.BigEndian.Uint64(b), members, err
}
