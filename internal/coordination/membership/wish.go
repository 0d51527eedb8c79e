package membership

import (
	"fmt"
	"slices"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Plan is the next step of an operator's wish.
type Plan struct {
	// Change is the step; zero if the wish needs none but Standing. A wish that begins with a transfer of the leadership
	// goes on at the next leader.
	Change Change
	// Standing is the decision that outlives this leader: Decide neither adds a barred peer again nor removes a
	// wanted one. Empty: none.
	Standing coord.Standing
	// Before and After count the voters around the step.
	Before, After Tolerance
}

// Plan returns the next step of a wish, from the same knowledge as Decide. A wish is no vote against the rules: a step
// needs a majority before it, and after it too unless Force is set. Errors: Invalid; NotFound; Exists; Conflict;
// Unavailable while another change is under way.
func (c Config) Plan(s State, w coord.MemberChange) (Plan, error) {
	p := Plan{Before: c.tolerance(s.Members)}
	p.After = p.Before
	switch {
	case s.Changing:
		return p, fault.New("", fault.Unavailable, "another change of the group is under way")
	case !p.Before.Quorate():
		return p, fault.New("", fault.Conflict, "%s: no change can be agreed; start the missing voters; if they are gone for good, a survivor promotes itself", p.Before)
	}
	v := c.view(s)
	rules := map[coord.MemberAction]func(*view, coord.MemberChange, *Plan) error{
		coord.AddMember: c.planAdd, coord.RemoveMember: c.planRemove, coord.PromoteMember: c.planPromote,
		coord.ReplaceMember: c.planReplace, coord.TransferLeadership: c.planTransfer,
	}
	rule, ok := rules[w.Action]
	if !ok {
		return p, fault.Invalidf("action", string(w.Action), "must be add, remove, promote, replace, transfer or leave")
	}
	if err := rule(v, w, &p); err != nil {
		return p, err
	}
	if w.Force || p.After.Quorate() {
		return p, nil
	}
	return p, fault.Refused(fault.Conflict, "peer_id",
		"then %s: all writes would stop until enough of the voters answer; force goes on", p.After)
}

// tolerance counts the voters as Decide sees them: silence of Contact is a failure.
func (c Config) tolerance(members []Member) Tolerance {
	progress := make([]Progress, len(members))
	for i, m := range members {
		progress[i] = Progress{Voter: m.Voter, Active: c.lives(m)}
	}
	return ToleranceOf(progress)
}

// find returns the member of a peer, a voter first: a peer with a lost disk can have two.
func (v *view) find(peer string) (Member, bool) {
	is := func(m Member) bool { return m.Name == peer }
	for _, list := range [][]Member{v.voters, v.learners} {
		if i := slices.IndexFunc(list, is); i >= 0 {
			return list[i], true
		}
	}
	return Member{}, false
}

func (c Config) planAdd(v *view, w coord.MemberChange, p *Plan) error {
	if _, in := v.find(w.Peer); in {
		return fault.Refused(fault.Exists, "peer_id", "is a member already")
	}
	i := slices.IndexFunc(v.Candidates, func(one Peer) bool { return one.Name == w.Peer })
	if i < 0 {
		return fault.Refused(fault.NotFound, "peer_id",
			"does not offer itself as a member: start that peer, let it be eligible (coordination.founders, coordination.members), and let others connect to it")
	}
	if why := v.Unreached[v.Candidates[i].ID]; why != "" && !w.Force {
		return fault.Refused(fault.Conflict, "peer_id", "offers itself, but %s; force goes on", why)
	}
	p.Change, p.Standing = Change{Add: v.Candidates[i]}, coord.Wanted
	return nil
}

func (c Config) planRemove(v *view, w coord.MemberChange, p *Plan) error {
	m, in := v.find(w.Peer)
	p.Standing = coord.Barred
	switch {
	case !in && (w.Force || slices.ContainsFunc(v.Candidates, func(one Peer) bool { return one.Name == w.Peer })):
		return nil // it only offers itself, or may do so later: the decision keeps it out
	case !in:
		return fault.Refused(fault.NotFound, "peer_id", "is no member of the group; force keeps it out should it come")
	case !m.Voter:
		p.Change = Change{Remove: m.ID}
		return nil
	case len(v.voters) == 1:
		return fault.Refused(fault.Conflict, "peer_id", "is the only voter: promote another member first")
	case m.ID == v.Leader:
		return c.planHandOver(v, p)
	}
	p.Change, p.After = Change{Remove: m.ID}, c.without(p.After, m)
	return nil
}

// without returns the count after the removal of a voter.
func (c Config) without(t Tolerance, m Member) Tolerance {
	t.Voters--
	if c.lives(m) {
		t.Active--
	}
	return t
}

// planHandOver is the step before a change that takes the leader's vote.
func (c Config) planHandOver(v *view, p *Plan) error {
	change, ok := c.handOver(v)
	if !ok {
		return fault.Refused(fault.Conflict, "peer_id", "leads, and no other voter is ready to take over")
	}
	p.Change = change
	return nil
}

// fit refuses a learner that would count for the quorum before it can contribute.
func (c Config) fit(field string, m Member, force bool) error {
	switch {
	case force:
		return nil
	case !c.lives(m):
		return fault.Refused(fault.Conflict, field, "is silent for %v: it would be a missing vote; force goes on", m.Unseen)
	case !m.CaughtUp:
		return fault.Refused(fault.Conflict, field, "lacks entries of the log: wait until its lag is 0; force goes on")
	}
	return nil
}

func (c Config) planPromote(v *view, w coord.MemberChange, p *Plan) error {
	m, in := v.find(w.Peer)
	switch {
	case !in:
		return fault.Refused(fault.NotFound, "peer_id", "is no member of the group: add it first")
	case m.Voter:
		return fault.Refused(fault.Exists, "peer_id", "is a voter already")
	case m.Barred:
		return fault.Refused(fault.Conflict, "peer_id", "may be no member: add it first")
	}
	p.Change, p.After.Voters = Change{Promote: []uint64{m.ID}}, p.After.Voters+1
	if c.lives(m) {
		p.After.Active++
	}
	return c.fit("peer_id", m, w.Force)
}

func (c Config) planReplace(v *view, w coord.MemberChange, p *Plan) error {
	from, voter := v.find(w.Peer)
	to, in := v.find(w.With)
	switch {
	case !voter || !from.Voter:
		return fault.Refused(fault.NotFound, "peer_id", "is no voter of the group")
	case !in || to.Voter:
		return fault.Refused(fault.NotFound, "with", "must be a learner of the group: add it first")
	case to.Barred:
		return fault.Refused(fault.Conflict, "with", "may be no member: add it first")
	case from.ID == v.Leader:
		return c.planHandOver(v, p)
	}
	p.Change, p.After = Change{Promote: []uint64{to.ID}, Remove: from.ID}, c.without(p.After, from)
	p.After.Voters++
	if c.lives(to) {
		p.After.Active++
	}
	return c.fit("with", to, w.Force)
}

func (c Config) planTransfer(v *view, w coord.MemberChange, p *Plan) error {
	m, in := v.find(w.Peer)
	switch {
	case !in || !m.Voter:
		return fault.Refused(fault.NotFound, "peer_id", "is no voter of the group")
	case m.ID == v.Leader:
		return fault.Refused(fault.Exists, "peer_id", "leads already")
	case !c.lives(m):
		return fault.Refused(fault.Conflict, "peer_id", "is silent for %v", m.Unseen)
	}
	p.Change = Change{Transfer: m.ID}
	return nil
}

// Steps says what a change does, one sentence for each part.
func (s State) Steps(c Change) (steps []string) {
	name := func(id uint64) string {
		for _, m := range s.Members {
			if m.ID == id {
				return m.Name
			}
		}
		return fmt.Sprintf("%016x", id)
	}
	if c.Transfer != 0 {
		steps = append(steps, "hand the leadership to "+name(c.Transfer))
	}
	if c.Add.ID != 0 {
		steps = append(steps, "make "+c.Add.Name+" a learner")
	}
	for _, id := range c.Promote {
		steps = append(steps, "make "+name(id)+" a voter")
	}
	if c.Remove != 0 {
		steps = append(steps, "remove "+name(c.Remove))
	}
	return steps
}
