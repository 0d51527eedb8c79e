package coordination

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/coordination/member"
	"github.com/blackhole/blackhole/internal/coordination/membership"
	"github.com/blackhole/blackhole/internal/coordination/replica"
	"github.com/blackhole/blackhole/internal/coordination/transport"
	"github.com/blackhole/blackhole/internal/platform/condition"
	"github.com/blackhole/blackhole/internal/platform/strictproto"
	"github.com/blackhole/blackhole/pkg/fault"
	groupv1 "github.com/blackhole/blackhole/proto/blackhole/group/v1"
)

const (
	comparing = time.Minute     // between two comparisons of states
	hashing   = 5 * time.Second // between two looks at the members' hashes
	hashLooks = 4               // for the hashes of one entry
	hashForm  = 1               // of machine.Image.Hash; other forms are not compared
)

// comparer compares the states of the members, and answers for this one.
type comparer struct{ plane *Plane }

// run lets the leader compare the states of all members at one entry, again and again. Raft compares logs
// only: memory or a disk that changes the state of one member shows up nowhere else.
func (c comparer) run() {
	p := c.plane
	for pause(p.life, comparing) {
		var s replica.Status
		l := p.here.Load()
		if l != nil {
			s = l.member.Status()
		}
		if s.Promoted && s.Leads && len(s.Members) > 1 {
			comparison{p, l, s.Members}.run(s.Applied)
		} else {
			p.config.Conditions.Clear(condition.StatesDiffer) // another leader knows now
		}
	}
}

// comparison is one comparison of the members' states at their leader.
type comparison struct {
	plane   *Plane
	here    *local
	members []replica.MemberStatus
}

// run compares at the first empty entry after an index.
func (c comparison) run(after uint64) {
	c.here.member.Checkpoints.Mark()
	var found membership.Agreement
	for range hashLooks {
		if !pause(c.plane.life, hashing) {
			return
		}
		own, ok := c.here.member.Checkpoints.Last()
		if !ok || own.Index <= after {
			continue
		}
		if found = membership.Agree(c.reports(own, "")); found.Missing == 0 || len(found.Odd) > 0 {
			c.judge(own, found)
			return
		}
	}
	if own, ok := c.here.member.Checkpoints.Last(); ok && own.Index > after {
		c.judge(own, found)
	}
}

// reports asks all members for their hash. A member with another hash than agreed, unless that is empty, stops.
func (c comparison) reports(own member.StateHash, agreed string) []membership.Report {
	ctx, cancel := context.WithTimeout(c.plane.life, askTime)
	defer cancel()
	all := make([]membership.Report, len(c.members))
	var wg sync.WaitGroup
	for i, m := range c.members {
		all[i] = membership.Report{Member: m.ID, Voter: m.Voter}
		if m.Peer == c.plane.name {
			all[i].Hash = string(own.Hash[:])
			continue
		}
		wg.Go(func() { all[i].Hash = c.ask(ctx, m, own, agreed) })
	}
	wg.Wait()
	return all
}

// ask returns a member's hash; empty without one.
func (c comparison) ask(ctx context.Context, m replica.MemberStatus, own member.StateHash, agreed string) string {
	to, err := peer.Decode(m.Peer)
	if err != nil {
		return "" // impossible: no such peer was ever added
	}
	group := c.here.incarnation.protocolID()
	question, err := proto.Marshal(&groupv1.StateRequest{
		GroupId: group[:], Index: own.Index, Term: own.Term, Form: hashForm, Agreed: []byte(agreed),
	})
	if err != nil {
		return "" // impossible: it holds no text
	}
	answer, err := c.plane.ask.Ask(ctx, to, transport.State, question)
	said := new(groupv1.StateResponse)
	if err != nil || proto.Unmarshal(answer, said) != nil || len(said.GetHash()) != len(own.Hash) {
		return ""
	}
	return string(said.GetHash())
}

// judge acts on a comparison.
func (c comparison) judge(own member.StateHash, found membership.Agreement) {
	p, log := c.plane, c.plane.config.Logger
	if found.Split {
		p.config.compared("split")
		log.Error("the members of the coordination group have different states, and no majority agrees", "entry", own.Index, "members", c.names(nil))
		p.config.Conditions.Raise(condition.StatesDiffer, "the members %s have different states after log entry %d, and no majority agrees: "+
			"find the right one by its content, and recover the group from it", c.names(nil), own.Index)
		return
	}
	if found.Hash != "" {
		p.config.Conditions.Clear(condition.StatesDiffer)
	}
	switch {
	case len(found.Odd) > 0:
		p.config.compared("odd")
		log.Error("a member of the coordination group has another state than the majority and must stop", "entry", own.Index, "member", c.names(found.Odd))
		c.reports(own, found.Hash)
		comparer{p}.obey(own, found.Hash)
	case found.Missing > 0:
		p.config.compared("missing")
	default:
		p.config.compared("equal")
	}
}

// names returns the peers of some members; nil: all.
func (c comparison) names(ids []uint64) string {
	var names []string
	for _, m := range c.members {
		if ids == nil || slices.Contains(ids, m.ID) {
			names = append(names, m.Peer)
		}
	}
	return strings.Join(names, ", ")
}

// obey stops the member here if its state differs from the one that a majority of the voters has.
func (c comparer) obey(own member.StateHash, agreed string) {
	if agreed == "" || agreed == string(own.Hash[:]) {
		return
	}
	c.plane.failed.stop(fault.New("coordination.compare", fault.Internal,
		"its state after log entry %d differs from the one of a majority of the voters: memory or disk of this host changed it. "+
			"Stop this peer, remove %s, and start it: it comes back as a new member", own.Index, c.plane.disk.Dir()))
}

// answer answers a leader's question for the hash of this member's state.
func (c comparer) answer(_ context.Context, from peer.ID, question []byte) ([]byte, error) {
	const op = "coordination.State"
	m := new(groupv1.StateRequest)
	if proto.Unmarshal(question, m) != nil {
		return nil, fault.New(op, fault.Invalid, "not a question for a state")
	}
	if err := strictproto.Check(m); err != nil {
		return nil, fault.Wrap(op, err)
	}
	if in, _ := c.plane.isMember(from); !in {
		return nil, fault.New(op, fault.Forbidden, "the asker is not a member of the group")
	}
	said := new(groupv1.StateResponse)
	if l := c.plane.here.Load(); l != nil && m.GetForm() == hashForm && l.incarnation.named(m.GetGroupId()) {
		if own, ok := l.member.Checkpoints.At(m.GetIndex(), m.GetTerm()); ok {
			said.Hash = own.Hash[:]
			c.obey(own, string(m.GetAgreed()))
		}
	}
	return proto.Marshal(said)
}
