package coordination

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/coordination/leader"
	"github.com/blackhole/blackhole/internal/coordination/membership"
	"github.com/blackhole/blackhole/internal/coordination/transport"
	"github.com/blackhole/blackhole/internal/coordination/upkeep"
	"github.com/blackhole/blackhole/internal/platform/condition"
	"github.com/blackhole/blackhole/pkg/fault"
	groupv1 "github.com/blackhole/blackhole/proto/blackhole/group/v1"
)

const (
	askTime  = 2 * time.Second // for one answer
	maxAsked = 16              // peers at a time
	maxOpen  = 64              // questions of askSoon
)

// peers returns the peers to ask: members, also those of this peer's own log, founders, and connected peers while these may
// know more. A member that was away learns from the log's members that the group went on without it.
func (p *plane) peers() []peer.ID {
	all := append(p.view.Peers(), p.config.Network.Founders...)
	if l := p.here.Load(); l != nil {
		for _, m := range l.member.Status().Members {
			if id, err := peer.Decode(m.Peer); err == nil {
				all = append(all, id)
			}
		}
	}
	if p.view.ID() == "" || !p.config.Network.Listed() && p.routing.Leaderless() > 0 {
		all = append(all, p.exchange.ConnectedPeers()...)
	}
	asked, seen := all[:0], map[peer.ID]bool{p.self: true}
	for _, id := range all {
		if !seen[id] && len(asked) < maxAsked {
			seen[id] = true
			asked = append(asked, id)
		}
	}
	return asked
}

// ask asks one peer, and offers it this peer as a member if candidate, its raft id, is above 0. It returns
// the leader that the peer names, or false if its answer does not count.
func (p *plane) ask(ctx context.Context, at peer.ID, candidate uint64) (leader.Leadership, bool) {
	resp, ok := p.view.Question(ctx, at, candidate)
	if !ok {
		return leader.Leadership{}, false
	}
	return p.learn(ctx, at, resp.GetInfo())
}

// askTrusted returns the answer of a trusted peer, of whatever group.
func (p *plane) askTrusted(ctx context.Context, at peer.ID) (*groupv1.InfoResponse, error) {
	resp, ok := p.view.Question(ctx, at, 0)
	if !ok {
		return nil, fault.New("coordination.ask", fault.Unavailable, "peer %v does not answer", at)
	}
	if resp.GetInfo() == nil {
		return resp, nil
	}
	return resp, p.roster.Trusts(ctx, at)
}

// askNow asks a peer and applies its answer; false without one. See ask for candidate.
func (p *plane) askNow(ctx context.Context, at peer.ID, candidate uint64) (*groupv1.InfoResponse, bool) {
	resp, ok := p.view.Question(ctx, at, candidate)
	if ok {
		p.apply(ctx, at, resp.GetInfo())
		if resp.GetVoters() > 0 && p.roster.Trusts(ctx, at) == nil {
			p.removed.Store(resp.GetRemoved())
		}
	}
	return resp, ok
}

// askAll asks all peers at once and waits for their answers. See ask for candidate.
func (p *plane) askAll(candidate uint64) {
	ctx, cancel := context.WithTimeout(p.life, askTime)
	defer cancel()
	var wg sync.WaitGroup
	for _, at := range p.peers() {
		wg.Go(func() { p.askNow(ctx, at, candidate) })
	}
	wg.Wait()
}

// askSoon asks a peer that knows members unknown to this peer, or the other way round, unless it is being asked. It does not wait
// for the answer.
func (p *plane) askSoon(at peer.ID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open[at] || len(p.open) >= maxOpen {
		return
	}
	p.open[at] = p.life.start(func() {
		ctx, cancel := context.WithTimeout(p.life, askTime)
		defer cancel()
		p.askNow(ctx, at, 0)
		if l := p.here.Load(); l != nil {
			l.transport.Recheck()
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.open, at)
	})
}

// learn applies a peer's description of the group; nil for none. Only the word of a trusted peer counts, but the membership of
// the listed founders proves itself.
func (p *plane) learn(ctx context.Context, from peer.ID, info *groupv1.GroupInfo) (leader.Leadership, bool) {
	if info == nil {
		return leader.Leadership{}, false
	}
	trusted := p.roster.Trusts(ctx, from) == nil
	if m := info.GetMembership(); len(m) > 0 && !p.view.Is(info.GetGroupId()) {
		_ = p.founder.Offer(m, trusted) // the founder verifies it
	}
	if !trusted {
		return leader.Leadership{}, false
	}
	p.merger.Hint(from, info)
	named, ok := p.view.Learn(info)
	if level := info.GetLevel(); ok && level != 0 {
		if own := p.config.Replica.Levels(); own.Supports(level) {
			p.config.Conditions.Clear(condition.FeatureLevel)
		} else {
			p.config.Conditions.Raise(condition.FeatureLevel, fault.Problem{
				What:   fmt.Sprintf("the coordination group is at feature level %d, and this program supports %v", level, own),
				Effect: "this peer takes no part in the group", Remedy: "Run the version of its members: the column AGENT of `blackholed peer ls`",
			})
		}
	}
	return named, ok
}

// apply applies a peer's present description of the group, with the leader that it names.
func (p *plane) apply(ctx context.Context, from peer.ID, info *groupv1.GroupInfo) {
	if named, ok := p.learn(ctx, from, info); ok {
		p.routing.Advance(leader.Claim{From: from, Leadership: named})
	}
}

// published applies a description from the DHT, which can be a day old and of this peer itself: the leader that it names is asked. A
// signer that is not trusted yet is asked itself.
func (p *plane) published(from peer.ID, info *groupv1.GroupInfo) {
	ctx, cancel := context.WithTimeout(p.life, askTime)
	defer cancel()
	named, ok := p.learn(ctx, from, info)
	if !ok {
		p.askSoon(from)
		return
	}
	p.routing.Advance(leader.Claim{Leadership: named})
}

// answer answers a peer's question, and notes a peer that is ready to be a member.
func (p *plane) answer(ctx context.Context, from peer.ID, req []byte) ([]byte, error) {
	m := new(groupv1.InfoRequest)
	if proto.Unmarshal(req, m) != nil {
		return nil, fault.New("coordination.answer", fault.Invalid, "not a request for information")
	}
	p.view.Hear(from, m)
	isCandidate := m.GetCandidate() != 0 && p.roster.Admits(ctx, from) && p.view.Concerns(m)
	resp := &groupv1.InfoResponse{Info: p.info(), Name: string(p.config.Name), EtcdUrl: p.view.EtcdOf(p.self)}
	if resp.Info != nil && bytes.Equal(resp.Info.GetGroupId(), m.GetGroupId()) {
		resp.Info.Membership = nil // the asker has it, and asks every few seconds
	}
	if id, may := p.founder.Founding(); may {
		resp.Founding, resp.Word = id[:], p.founder.Word()
	}
	left, _ := p.founder.Left()
	for _, id := range left {
		resp.Left = append(resp.Left, id[:])
	}
	if l := p.here.Load(); l != nil {
		theirs := transport.LevelsOf(m.GetLevels())
		l.levels.Asked(from, theirs, p.roster.IsClient(from))
		if isCandidate {
			l.membership.Offered(from, m.GetCandidate(), theirs)
		}
		s := l.member.Status()
		resp.LastTerm, resp.LastIndex = s.LastTerm, s.LastIndex
		if s.Leads {
			t := membership.ToleranceOf(upkeep.ProgressOf(s))
			resp.Voters, resp.VotersActive = uint32(t.Voters), uint32(t.Active)
			resp.Removed = l.membership.KeepsOut(from)
		}
	}
	return proto.Marshal(resp)
}

// info describes the group for other peers; nil while no group is known.
func (p *plane) info() *groupv1.GroupInfo {
	l, mine := p.here.Load(), ""
	if l != nil {
		mine = l.incarnation.StorageID()
	}
	g, own := p.view.Describe(p.routing.Known(), mine)
	if own {
		l.inform(g)
	}
	return g
}

// tolerance counts the voters: at the leader now, elsewhere as the leader answered last, some 10 s ago at most.
func (p *plane) tolerance() membership.Tolerance {
	t, _ := p.tally()
	return t
}

// counted is tolerance while a leader is known, and the time of the count.
func (p *plane) counted() (membership.Tolerance, time.Time) {
	if _, name, _ := p.routing.Leading(); name == "" {
		return membership.Tolerance{}, time.Time{}
	}
	return p.tally()
}

func (p *plane) tally() (membership.Tolerance, time.Time) {
	if l := p.here.Load(); l != nil {
		if s := l.member.Status(); s.Leads {
			return membership.ToleranceOf(upkeep.ProgressOf(s)), time.Now()
		}
	}
	return p.view.Tolerance(p.routing.Known().Peer)
}
