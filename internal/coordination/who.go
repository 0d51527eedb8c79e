package coordination

import (
	"context"

	"github.com/libp2p/go-libp2p/core/peer"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/coordination/transport"
	"github.com/blackhole/blackhole/pkg/fault"
	groupv1 "github.com/blackhole/blackhole/proto/blackhole/group/v1"
)

// Acquaintances are the peers that may know who leads: members, those that may be, and this one.
func (p *Plane) Acquaintances() []string {
	all := []string{p.name}
	for _, id := range p.seeker.knowing() {
		all = append(all, id.String())
	}
	return all
}

// Who asks a peer which term it is in and who leads, "" for nobody it knows. Errors: Invalid for what is no peer id;
// Unavailable when it does not answer or knows nothing of the group; Timeout, Canceled.
func (p *Plane) Who(ctx context.Context, at string) (term uint64, leader string, err error) {
	const op = "group.Who"
	if at == p.name {
		return p.told(op, p.info())
	}
	id, err := peer.Decode(at)
	if err != nil {
		return 0, "", fault.Wrap(op, fault.Invalidf("peer", at, "is no peer id: %w", err))
	}
	info, err := p.seeker.ask(ctx, id, 0)
	if err != nil {
		return 0, "", fault.As(op, fault.Unavailable, err)
	}
	p.seeker.learn(id, info)
	return p.told(op, info)
}

// told reads who leads out of what a peer says.
func (p *Plane) told(op string, info *groupv1.GroupInfo) (term uint64, leader string, err error) {
	p.seeker.mu.Lock()
	defer p.seeker.mu.Unlock()
	if info == nil || string(info.GetGroupId()) != string(p.seeker.group[:]) {
		return 0, "", fault.New(op, fault.Unavailable, "it knows nothing of the group")
	}
	for _, m := range info.GetMembers() {
		if m.GetRaftId() == info.GetLeader() {
			id, err := peer.IDFromBytes(m.GetPeer())
			if err != nil {
				return 0, "", fault.As(op, fault.Unavailable, err)
			}
			return info.GetTerm(), id.String(), nil
		}
	}
	return info.GetTerm(), "", nil
}

// ask asks one peer, and tells it if this one is ready to be a member.
func (s *seeker) ask(ctx context.Context, p peer.ID, candidate uint64) (*groupv1.GroupInfo, error) {
	s.mu.Lock()
	req := &groupv1.InfoRequest{Candidate: candidate}
	if !s.group.IsZero() {
		req.GroupId = s.group[:]
		req.Succession = lineage{s.group, s.began}.wire()
	}
	s.mu.Unlock()
	b, err := proto.Marshal(req)
	if err != nil {
		return nil, err // it holds no text
	}
	answer, err := s.plane.ask.Ask(ctx, p, transport.Information, b)
	if err != nil {
		return nil, err
	}
	resp := new(groupv1.InfoResponse)
	if err := proto.Unmarshal(answer, resp); err != nil {
		return nil, err
	}
	return resp.GetInfo(), nil
}
