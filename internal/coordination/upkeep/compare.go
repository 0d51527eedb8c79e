// Package upkeep keeps the group sound: while its member leads, it changes members, feature level and limits; always, it compares the
// members' states, notices a copy of this member, and watches the room for keys.
package upkeep

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/coordination/member"
	"github.com/blackhole/blackhole/internal/coordination/membership"
	"github.com/blackhole/blackhole/internal/coordination/replica"
	"github.com/blackhole/blackhole/internal/platform/condition"
	"github.com/blackhole/blackhole/internal/platform/pause"
	"github.com/blackhole/blackhole/internal/platform/strictproto"
	"github.com/blackhole/blackhole/pkg/fault"
	groupv1 "github.com/blackhole/blackhole/proto/blackhole/group/v1"
)

const (
	comparing = time.Minute     // between two comparisons of states
	hashing   = 5 * time.Second // between two looks at the members' hashes
	hashLooks = 4               // for the hashes of one entry
	askTime   = 2 * time.Second // for one answer
	hashForm  = 1               // of machine.Image.Hash; other forms are not compared
)

// Comparer compares the states of the members at their leader, and answers for this member. All fields are required.
type Comparer struct {
	Member *member.Member
	Group  [32]byte // its id between members
	// Ask asks a peer for the hash of its state.
	Ask func(ctx context.Context, to peer.ID, question []byte) ([]byte, error)
	// IsMember reports whether a peer is a member according to this peer's log.
	IsMember func(peer.ID) bool
	// Stop ends this peer's member.
	Stop func(error)
	// Dir is the folder of the member.
	Dir string
	// Compared counts a comparison: split, odd, missing or equal.
	Compared func(outcome string)

	Conditions *condition.Set
	Logger     *slog.Logger
}

// Run lets the leader compare the states of all members at one entry, again and again. Raft compares logs
// only: memory or a disk that changes the state of one member shows up nowhere else.
func (c *Comparer) Run(ctx context.Context) {
	defer c.Conditions.Clear(condition.StatesDiffer)
	for pause.For(ctx, comparing) {
		if s := c.Member.Status(); s.Promoted && s.Leads && len(s.Members) > 1 {
			comparison{c, s.Header.Member, s.Members}.run(ctx, s.Applied)
		} else {
			c.Conditions.Clear(condition.StatesDiffer) // another leader knows now
		}
	}
}

// comparison is one comparison of the members' states.
type comparison struct {
	*Comparer
	self    uint64
	members []replica.MemberStatus
}

// run compares at the first empty entry after an index.
func (c comparison) run(ctx context.Context, after uint64) {
	c.Member.Checkpoints.Mark()
	var found membership.Agreement
	for range hashLooks {
		if !pause.For(ctx, hashing) {
			return
		}
		own, ok := c.Member.Checkpoints.Last()
		if !ok || own.Index <= after {
			continue
		}
		if found = membership.Agree(c.reports(ctx, own, "")); found.Missing == 0 || len(found.Odd) > 0 {
			c.conclude(ctx, own, found)
			return
		}
	}
	if own, ok := c.Member.Checkpoints.Last(); ok && own.Index > after {
		c.conclude(ctx, own, found)
	}
}

// reports asks all members for their hash. A member with another hash than agreed, unless that is empty, stops.
func (c comparison) reports(ctx context.Context, own member.StateHash, agreed string) []membership.Report {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	all := make([]membership.Report, len(c.members))
	var wg sync.WaitGroup
	for i, m := range c.members {
		all[i] = membership.Report{Member: m.ID, Voter: m.Voter}
		if m.ID == c.self {
			all[i].Hash = string(own.Hash[:])
			continue
		}
		wg.Go(func() { all[i].Hash = c.hashOf(ctx, m, own, agreed) })
	}
	wg.Wait()
	return all
}

// hashOf returns a member's hash; empty without one.
func (c comparison) hashOf(ctx context.Context, m replica.MemberStatus, own member.StateHash, agreed string) string {
	to, err := peer.Decode(m.Peer)
	if err != nil {
		return "" // impossible: no such peer was ever added
	}
	question, err := proto.Marshal(&groupv1.StateRequest{
		GroupId: c.Group[:], Index: own.Index, Term: own.Term, Form: hashForm, Agreed: []byte(agreed),
	})
	if err != nil {
		return "" // impossible: it holds no text
	}
	answer, err := c.Ask(ctx, to, question)
	said := new(groupv1.StateResponse)
	if err != nil || proto.Unmarshal(answer, said) != nil || len(said.GetHash()) != len(own.Hash) {
		return ""
	}
	return string(said.GetHash())
}

// conclude acts on a comparison.
func (c comparison) conclude(ctx context.Context, own member.StateHash, found membership.Agreement) {
	if found.Split {
		c.Compared("split")
		c.Logger.Error("the members of the coordination group have different states, and no majority agrees", "entry", own.Index, "members", c.names(nil))
		c.Conditions.Raise(condition.StatesDiffer, fault.Problem{
			What:   fmt.Sprintf("the members %s have different states after log entry %d, and no majority agrees", c.names(nil), own.Index),
			Effect: "reads of different members may differ",
			Remedy: "Find the right one by its content (`blackholed kv get --consistency local` at each), and let the others rejoin",
		})
		return
	}
	if found.Hash != "" {
		c.Conditions.Clear(condition.StatesDiffer)
	}
	switch {
	case len(found.Odd) > 0:
		c.Compared("odd")
		c.Logger.Error("a member of the coordination group has another state than the majority and must stop", "entry", own.Index, "member", c.names(found.Odd))
		c.reports(ctx, own, found.Hash)
		c.obey(own, found.Hash)
	case found.Missing > 0:
		c.Compared("missing")
	default:
		c.Compared("equal")
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
func (c *Comparer) obey(own member.StateHash, agreed string) {
	if agreed == "" || agreed == string(own.Hash[:]) {
		return
	}
	c.Stop(fault.New("coordination.compare", fault.Internal,
		"its state after log entry %d differs from the one of a majority of the voters: memory or disk of this host changed it. "+
			"Stop this peer, remove %s, and start it: it comes back as a new member", own.Index, c.Dir))
}

// Answer answers a leader's question for the hash of this member's state.
func (c *Comparer) Answer(_ context.Context, from peer.ID, question []byte) ([]byte, error) {
	const op = "coordination.State"
	m := new(groupv1.StateRequest)
	if proto.Unmarshal(question, m) != nil {
		return nil, fault.New(op, fault.Invalid, "not a question for a state")
	}
	if err := strictproto.Check(m); err != nil {
		return nil, fault.Wrap(op, err)
	}
	if !c.IsMember(from) {
		return nil, fault.New(op, fault.Forbidden, "the asker is not a member of the group")
	}
	said := new(groupv1.StateResponse)
	if m.GetForm() == hashForm && string(m.GetGroupId()) == string(c.Group[:]) {
		if own, ok := c.Member.Checkpoints.At(m.GetIndex(), m.GetTerm()); ok {
			said.Hash = own.Hash[:]
			c.obey(own, string(m.GetAgreed()))
		}
	}
	return proto.Marshal(said)
}
