package coordination

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"golang.org/x/sync/singleflight"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/coordination/announce"
	"github.com/blackhole/blackhole/internal/coordination/bootstrap"
	"github.com/blackhole/blackhole/pkg/fault"
	groupv1 "github.com/blackhole/blackhole/proto/blackhole/group/v1"
)

const (
	askTime  = 2 * time.Second // for one answer
	maxAsked = 16              // peers at a time
)

// seeker knows what is said of the group: who is in it, and who leads. What an eligible peer says
// of a higher term, or a later configuration, replaces what was said before.
type seeker struct {
	plane  *Plane
	board  *announce.Board // nil when there is none
	flight singleflight.Group

	mu      sync.Mutex
	group   bootstrap.GroupID // zero until it is known
	began   bootstrap.Succession
	dry     time.Time // since when nobody that was asked knew who leads; zero: somebody did
	doubled bool      // two successions of one number are known, and were complained of
	proof   []byte    // the certificate, encoded
	term    uint64
	lead    peer.ID // in term; "" when nobody is known
	config  uint64
	members map[uint64]told
	doubted leadership       // that this peer's own member believed in when it did not answer
	reign   reign            // of the last leader known
	news    chan struct{}    // closed when lead is known anew
	looking map[peer.ID]bool // who is being asked without anybody waiting
}

// reign is what lasts until another leader is known: calls to a leader that is cut off, and does not
// answer, are given up then.
type reign struct {
	context.Context
	of  peer.ID
	end context.CancelFunc
}

// leadership is who leads in a term, as a member believes.
type leadership struct {
	term uint64
	peer peer.ID
}

// told is a member as others tell of it.
type told struct {
	peer  peer.ID
	voter bool
}

func newSeeker(p *Plane) *seeker {
	s := &seeker{plane: p, members: map[uint64]told{}, news: make(chan struct{}), looking: map[peer.ID]bool{}}
	if p.Values != nil && (p.Network.Mode == bootstrap.Home || len(p.Network.Founders) > 1) { // or else the founder leads, or nobody
		s.board = announce.NewBoard(p.Values, p.Network, p.Key, time.Now)
	}
	return s
}

// found takes in the certificate, and the incarnation that this peer is of. The charter's voters are
// the first members.
func (s *seeker) found(c bootstrap.Certificate, life lineage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.group, s.proof, s.began = c.GroupID(), c.Encode(), life.began
	if !s.began.IsZero() {
		s.members[s.began.Member] = told{s.began.Peer, true}
	} else {
		for _, v := range c.Charter.Voters {
			s.members[v.RaftID] = told{v.Peer, true}
		}
	}
}

// leader gives the peer that leads. A member waits for what Raft tells it, others ask.
func (s *seeker) leader(ctx context.Context, l *local) (peer.ID, error) {
	believed, ok := l.believed()
	s.mu.Lock()
	at, group, doubted := s.lead, s.group, s.doubted
	s.mu.Unlock()
	if ok && believed != doubted {
		s.learnOwn(believed)
		return believed.peer, nil
	}
	if at != "" && (l == nil || at != s.plane.self) {
		return at, nil
	}
	if group.IsZero() {
		return "", fault.New("group.leader", fault.Unavailable, "no group is known yet")
	}
	news := s.awaited()
	result := s.flight.DoChan("leader", s.asked)
	select {
	case <-ctx.Done():
		return "", fault.Wrap("group.leader", ctx.Err())
	case <-result:
	case <-news: // who does not answer need not be waited for
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lead == "" {
		return "", fault.New("group.leader", fault.Unavailable, "nobody leads the group")
	}
	return s.lead, nil
}

// awaited is closed when it is known anew who leads.
func (s *seeker) awaited() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.news
}

// hear takes in who leads, if that is newer than what is known. The caller holds mu.
func (s *seeker) hear(l leadership) {
	if l.term < s.term || l.term == s.term && s.lead != "" {
		return
	}
	s.term, s.lead = l.term, l.peer
	close(s.news)
	s.news = make(chan struct{})
	if s.reign.of == l.peer {
		return
	}
	if s.reign.end != nil {
		s.reign.end()
	}
	s.reign = reign{of: l.peer}
	s.reign.Context, s.reign.end = context.WithCancel(s.plane.life)
}

func (s *seeker) incarnation() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.began.Incarnation
}

// learnOwn takes in what this peer's own member believes.
func (s *seeker) learnOwn(l leadership) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l != s.doubted {
		s.hear(l)
	}
}

// during gives a context that also ends when another peer than the one named is known to lead.
func (s *seeker) during(ctx context.Context, at peer.ID) (context.Context, context.CancelFunc) {
	s.mu.Lock()
	now := s.reign
	s.mu.Unlock()
	bounded, cancel := context.WithCancel(ctx)
	if now.of == "" {
		return bounded, cancel
	}
	if now.of != at {
		cancel()
		return bounded, cancel
	}
	stop := context.AfterFunc(now.Context, cancel)
	return bounded, func() { stop(); cancel() }
}

// doubt forgets who leads: it did not answer as a leader does. What this peer's own member believes
// counts again when it changes: one that does not vote, or was removed and not told, believes in
// its last leader for ever.
func (s *seeker) doubt(l *local) {
	believed, _ := l.believed()
	s.mu.Lock()
	s.lead, s.doubted = "", believed
	s.mu.Unlock()
}

// removed reports whether a member is in no configuration later than what it has applied.
func (s *seeker) removed(id, applied uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, in := s.members[id]
	return !in && s.config > applied
}

// member gives the peer of a member that the group is said to have.
func (s *seeker) member(id uint64) (peer.ID, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, ok := s.members[id]
	return m.peer, ok
}

// begin notes that a peer is about to be asked; false when it is being asked, or too many are.
func (s *seeker) begin(at peer.ID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.looking[at] || len(s.looking) >= maxMembers {
		return false
	}
	s.looking[at] = true
	return true
}

func (s *seeker) end(at peer.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.looking, at)
}

// refresh asks who leads, together with whoever asks already.
func (s *seeker) refresh() { _, _, _ = s.flight.Do("leader", s.asked) }

func (s *seeker) asked() (any, error) {
	s.round(0)
	return nil, nil
}

// round asks those who may know, all at once, and takes in what they say. It tells them of this peer
// if that is ready to be a member, under an id above 0.
func (s *seeker) round(candidate uint64) {
	ctx, cancel := context.WithTimeout(s.plane.life, askTime)
	defer cancel()
	var wg sync.WaitGroup
	for _, p := range s.knowing() {
		wg.Go(func() { s.consult(ctx, p, candidate) })
	}
	wg.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drought(s.lead != "")
}

// knowing are the peers to ask: members, those that may be, and in a network where any may be,
// the neighbours.
func (s *seeker) knowing() []peer.ID {
	s.mu.Lock()
	var all []peer.ID
	for _, m := range s.members {
		all = append(all, m.peer)
	}
	s.mu.Unlock()
	slices.Sort(all)
	all = append(all, s.plane.Network.Founders...)
	if s.plane.Network.Mode == bootstrap.Home {
		all = append(all, s.plane.ask.Neighbours()...)
	}
	seen := map[peer.ID]bool{s.plane.self: true}
	all = slices.DeleteFunc(all, func(p peer.ID) bool {
		before := seen[p]
		seen[p] = true
		return before
	})
	return all[:min(len(all), maxAsked)]
}

// consult asks one peer, and tells it if this one is ready to be a member.
func (s *seeker) consult(ctx context.Context, p peer.ID, candidate uint64) {
	if info, err := s.ask(ctx, p, candidate); err == nil && info != nil { // otherwise others are asked too
		s.learn(p, info)
	}
}

// learn takes in what a peer says of the group. Of another group only the certificate counts, which
// proves itself; and only who may be a member is believed.
func (s *seeker) learn(from peer.ID, info *groupv1.GroupInfo) {
	if c := info.GetCertificate(); len(c) > 0 {
		_ = s.plane.founder.Offer(c) // it is checked, counted and dropped when it proves nothing
	}
	if !s.plane.Network.Eligible(from) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.group.IsZero() || string(info.GetGroupId()) != string(s.group[:]) || !s.believe(info.GetSuccession()) {
		return
	}
	if index := info.GetConfigIndex(); index > s.config {
		if members, ok := s.readMembers(info.GetMembers()); ok {
			s.config, s.members = index, members
		}
	}
	if m, ok := s.members[info.GetLeader()]; ok {
		s.hear(leadership{info.GetTerm(), m.peer})
	}
}

// believe takes in what an eligible peer says of the incarnation, and reports whether the peer speaks of the
// newest one known. What is known of an older one is forgotten. Call it with mu held.
func (s *seeker) believe(succession []byte) bool {
	life, err := readLife(s.group, succession)
	switch {
	case err != nil || life.began.Incarnation < s.began.Incarnation:
		return false
	case life.began.Incarnation > s.began.Incarnation && !s.entitled(life.began.Peer):
		return false
	case life.began.Incarnation > s.began.Incarnation:
		s.plane.Logger.Warn("the coordination group was recovered after a disaster", "incarnation", life.began.Incarnation, "by", life.began.Peer)
		s.began, s.config, s.term, s.lead = life.began, 0, 0, ""
		s.members = map[uint64]told{life.began.Member: {life.began.Peer, true}}
		return true
	case string(life.wire()) != string(lineage{s.group, s.began}.wire()):
		if !s.doubled {
			s.doubled = true
			s.plane.Logger.Error("the coordination group was recovered twice: clear the coordination directories of one of the two",
				"incarnation", s.began.Incarnation, "by", s.began.Peer, "and", life.began.Peer)
		}
		return false
	}
	return true
}

// heard takes in what the question of an eligible peer tells of it, and reports whether it is of the
// incarnation known here.
func (s *seeker) heard(m *groupv1.InfoRequest) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.group.IsZero() || string(m.GetGroupId()) != string(s.group[:]) {
		return false
	}
	return s.believe(m.GetSuccession())
}

// life gives the incarnation known, and whether a member of it was heard.
func (s *seeker) life() (lineage, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return lineage{s.group, s.began}, s.config > 0
}

// maxMembers bounds a configuration that is believed.
const maxMembers = 64

func (s *seeker) readMembers(ms []*groupv1.Member) (map[uint64]told, bool) {
	if len(ms) == 0 || len(ms) > maxMembers {
		return nil, false
	}
	members := map[uint64]told{}
	for _, m := range ms {
		p, err := peer.IDFromBytes(m.GetPeer())
		if err != nil || m.GetRaftId() == 0 || !s.plane.Network.Eligible(p) {
			return nil, false
		}
		members[m.GetRaftId()] = told{p, m.GetRole() != groupv1.Role_ROLE_LEARNER}
	}
	return members, true
}

// inform answers who asks for the group, and notes who is ready to be a member.
func (p *Plane) inform(_ context.Context, from peer.ID, req []byte) ([]byte, error) {
	m := new(groupv1.InfoRequest)
	if proto.Unmarshal(req, m) != nil {
		return nil, fault.New("group.inform", fault.Invalid, "is no request for information")
	}
	if p.Network.Eligible(from) && p.seeker.heard(m) && m.GetCandidate() != 0 {
		p.candidates.add(from, m.GetCandidate())
	}
	return proto.Marshal(&groupv1.InfoResponse{Info: p.info()})
}

// info is what this peer knows of the group; nil while that is nothing.
func (p *Plane) info() *groupv1.GroupInfo {
	p.seeker.mu.Lock()
	defer p.seeker.mu.Unlock()
	if p.seeker.group.IsZero() {
		return nil
	}
	life := lineage{p.seeker.group, p.seeker.began}
	g := &groupv1.GroupInfo{GroupId: life.group[:], Certificate: p.seeker.proof, Succession: life.wire()}
	if l := p.here.Load(); l != nil && l.life.folder() == life.folder() {
		l.inform(g)
		return g
	}
	g.ConfigIndex, g.Term = p.seeker.config, p.seeker.term
	for id, m := range p.seeker.members {
		role := groupv1.Role_ROLE_LEARNER
		if m.voter {
			role = groupv1.Role_ROLE_VOTER
		}
		g.Members = append(g.Members, &groupv1.Member{RaftId: id, Peer: []byte(m.peer), Role: role})
		if m.peer == p.seeker.lead {
			g.Leader = id
		}
	}
	return g
}
