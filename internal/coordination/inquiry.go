package coordination

import (
	"bytes"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/coordination/bootstrap"
	"github.com/blackhole/blackhole/internal/coordination/formation"
	"github.com/blackhole/blackhole/internal/coordination/leader"
	"github.com/blackhole/blackhole/internal/coordination/transport"
	"github.com/blackhole/blackhole/pkg/fault"
	groupv1 "github.com/blackhole/blackhole/proto/blackhole/group/v1"
)

const (
	askTime  = 2 * time.Second // for one answer
	maxAsked = 16              // peers at a time
)

// inquiry asks peers about the group, and answers their questions.
type inquiry struct {
	plane *Plane

	sighted atomic.Pointer[sighting] // last round of the search; nil: none yet

	mu   sync.Mutex
	open map[peer.ID]bool // peers that askSoon asks

	known  acquaintances
	merger *formation.Merger
}

// peers returns the peers to ask: members, also those of this peer's own log, founders, and connected peers while these may
// know more. A member that was away learns from the log's members that the group went on without it.
func (q *inquiry) peers() []peer.ID {
	all := append(q.plane.view.peers(), q.plane.config.Network.Founders...)
	if l := q.plane.here.Load(); l != nil {
		for _, m := range l.member.Status().Members {
			if id, err := peer.Decode(m.Peer); err == nil {
				all = append(all, id)
			}
		}
	}
	if q.plane.ID() == "" || q.plane.config.Network.Mode == bootstrap.Unlisted && q.plane.routing.Leaderless() > 0 {
		all = append(all, q.plane.ask.ConnectedPeers()...)
	}
	seen := map[peer.ID]bool{q.plane.self: true}
	all = slices.DeleteFunc(all, func(p peer.ID) bool {
		before := seen[p]
		seen[p] = true
		return before
	})
	return all[:min(len(all), maxAsked)]
}

// ask asks one peer, and offers it this peer as a member if candidate, its raft id, is above 0. It returns
// the leader that the peer names, or false if its answer does not count.
func (q *inquiry) ask(ctx context.Context, p peer.ID, candidate uint64) (leader.Leadership, bool) {
	resp, ok := q.question(ctx, p, candidate)
	if !ok {
		return leader.Leadership{}, false
	}
	return q.learn(ctx, p, resp.GetInfo())
}

// question returns a peer's answer, whose description of the group is nil if it knows none; false without an answer. See ask for candidate.
func (q *inquiry) question(ctx context.Context, p peer.ID, candidate uint64) (*groupv1.InfoResponse, bool) {
	b, err := proto.Marshal(q.request(candidate))
	if err != nil {
		return nil, false // impossible: it holds no text
	}
	answer, err := q.plane.ask.Ask(ctx, p, transport.Information, b)
	resp := new(groupv1.InfoResponse)
	if err != nil || proto.Unmarshal(answer, resp) != nil {
		return nil, false
	}
	q.known.heard(p, resp.GetName())
	q.known.count(p, resp)
	return resp, true
}

// trusted returns the answer of a trusted peer, of whatever group.
func (q *inquiry) trusted(ctx context.Context, p peer.ID) (*groupv1.InfoResponse, error) {
	resp, ok := q.question(ctx, p, 0)
	if !ok {
		return nil, fault.New("coordination.ask", fault.Unavailable, "peer %v does not answer", p)
	}
	if resp.GetInfo() == nil {
		return resp, nil
	}
	return resp, q.plane.roster.trusts(ctx, p)
}

// request is a question of this peer. See ask for candidate.
func (q *inquiry) request(candidate uint64) *groupv1.InfoRequest {
	req, own := q.plane.view.request(candidate), q.plane.levels.own()
	req.Levels = &groupv1.Levels{Min: own.Min, Max: own.Max}
	req.Name = string(q.plane.config.Self.Name)
	return req
}

// learn applies a peer's description of the group; nil for none. Only the word of a trusted peer counts, but the membership of
// the listed founders proves itself.
func (q *inquiry) learn(ctx context.Context, from peer.ID, info *groupv1.GroupInfo) (leader.Leadership, bool) {
	if info == nil {
		return leader.Leadership{}, false
	}
	trusted := q.plane.roster.trusts(ctx, from) == nil
	if m := info.GetMembership(); len(m) > 0 && !q.plane.view.is(info.GetGroupId()) {
		_ = q.plane.founder.Offer(m, trusted) // the founder verifies it
	}
	if !trusted {
		return leader.Leadership{}, false
	}
	q.merger.Hint(from, info)
	said, ok := q.plane.view.learn(info)
	if ok {
		q.plane.levels.read(info.GetLevel())
	}
	return said, ok
}

// announced applies an announcement.
func (q *inquiry) announced(from peer.ID, info *groupv1.GroupInfo) {
	ctx, cancel := context.WithTimeout(q.plane.life, askTime)
	defer cancel()
	if said, ok := q.learn(ctx, from, info); ok {
		q.plane.routing.Advance(leader.Heard{From: from, Leadership: said})
	}
}

// published applies a description from the DHT, which can be a day old: a leader of no later term than the known
// one is only a hint. A signer that is not trusted yet is asked itself.
func (q *inquiry) published(from peer.ID, info *groupv1.GroupInfo) {
	ctx, cancel := context.WithTimeout(q.plane.life, askTime)
	defer cancel()
	said, ok := q.learn(ctx, from, info)
	if !ok {
		q.askSoon(from)
		return
	}
	if known := q.plane.routing.Known(); said.Incarnation == known.Incarnation && said.Term <= known.Term {
		from = ""
	}
	q.plane.routing.Advance(leader.Heard{From: from, Leadership: said})
}

// askAll asks all peers at once and waits for their answers. See ask for candidate.
func (q *inquiry) askAll(candidate uint64) {
	ctx, cancel := context.WithTimeout(q.plane.life, askTime)
	defer cancel()
	var wg sync.WaitGroup
	for _, p := range q.peers() {
		wg.Go(func() { q.askNow(ctx, p, candidate) })
	}
	wg.Wait()
}

func (q *inquiry) askNow(ctx context.Context, p peer.ID, candidate uint64) {
	if said, ok := q.ask(ctx, p, candidate); ok {
		q.plane.routing.Advance(leader.Heard{From: p, Leadership: said})
	}
}

// askSoon asks a peer that knows members unknown to this peer, or the other way round. It does not wait for
// the answer.
func (q *inquiry) askSoon(at peer.ID) {
	p := q.plane
	if !q.begin(at) {
		return
	}
	started := p.life.start(func() {
		defer q.end(at)
		ctx, cancel := context.WithTimeout(p.life, askTime)
		defer cancel()
		q.askNow(ctx, at, 0)
		if l := p.here.Load(); l != nil {
			l.wire.Recheck()
		}
	})
	if !started {
		q.end(at)
	}
}

// askMembersSoon asks all peers that may be members. This is the only contact between members of two
// incarnations.
func (q *inquiry) askMembersSoon() {
	for _, at := range q.peers() {
		q.askSoon(at)
	}
}

// begin notes a question to a peer; false when one is open, or too many are.
func (q *inquiry) begin(at peer.ID) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.open[at] || len(q.open) >= maxMembers {
		return false
	}
	q.open[at] = true
	return true
}

func (q *inquiry) end(at peer.ID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.open, at)
}

// answer answers a peer's question, and notes a peer that is ready to be a member.
func (q *inquiry) answer(ctx context.Context, from peer.ID, req []byte) ([]byte, error) {
	m := new(groupv1.InfoRequest)
	if proto.Unmarshal(req, m) != nil {
		return nil, fault.New("coordination.answer", fault.Invalid, "not a request for information")
	}
	supports := transport.LevelsOf(m.GetLevels())
	q.plane.levels.hear(from, supports)
	q.known.heard(from, m.GetName())
	if m.GetCandidate() != 0 && q.plane.roster.admits(ctx, from) && q.plane.view.concerns(m) {
		if group := q.plane.levels.group(); group == 0 || supports.Supports(group) {
			q.plane.roster.candidates.add(from, m.GetCandidate(), prefixOf(q.plane.config.Host, from))
		} else {
			q.plane.levels.refused(from, fault.New("", fault.Unsupported, "the group is at feature level %d, the peer supports %v", group, supports))
		}
	}
	resp := &groupv1.InfoResponse{Info: q.info(), Name: string(q.plane.config.Self.Name)}
	if resp.Info != nil && bytes.Equal(resp.Info.GetGroupId(), m.GetGroupId()) {
		resp.Info.Membership = nil // the asker has it, and asks every few seconds
	}
	if id, may := q.plane.founder.Founding(); may {
		resp.Founding = id[:]
	}
	left, _ := q.plane.founder.Left()
	for _, id := range left {
		resp.Left = append(resp.Left, id[:])
	}
	if l := q.plane.here.Load(); l != nil {
		s := l.member.Status()
		resp.LastTerm, resp.LastIndex = s.LastTerm, s.LastIndex
		if s.Leads {
			t := q.tolerance()
			resp.Voters, resp.VotersHeard = uint32(t.Voters), uint32(t.Heard)
		}
	}
	return proto.Marshal(resp)
}

// info describes the group for other peers; nil while no group is known.
func (q *inquiry) info() *groupv1.GroupInfo {
	l, mine := q.plane.here.Load(), ""
	if l != nil {
		mine = l.incarnation.storageID()
	}
	g, own := q.plane.view.describe(q.plane.routing.Known(), mine)
	if own {
		l.inform(g)
	}
	return g
}
