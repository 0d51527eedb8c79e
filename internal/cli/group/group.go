// Package group has the commands for operators of the coordination group.
package group

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/internal/cli/command"
	"github.com/blackhole/blackhole/internal/cli/exit"
	"github.com/blackhole/blackhole/internal/cli/remote"
	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/operator"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Command makes the command group.
func Command(con *term.Console, restore restoreFunc) *cobra.Command {
	return command.Parent(&cobra.Command{Use: "group", Short: "Inspect and repair the coordination group"},
		groupStatus(con), groupMembers(con), groupAdd(con), groupRemove(con), groupPromote(con), groupReplace(con),
		groupTransfer(con), groupLeave(con),
		groupBackup(con), groupRestore(con, restore))
}

func groupStatus(con *term.Console) *cobra.Command {
	r := remote.New(con, &cobra.Command{Use: "status", Short: "Show the state of the group", Args: command.NoArgs}, remote.DefaultTimeout)
	return r.Coordinates(func(ctx context.Context, c *operator.Client, _ []string) error {
		s, err := c.Coordination().Group(ctx)
		if err != nil {
			return err
		}
		s.Voters, s.Learners = term.Emptied(s.Voters), term.Emptied(s.Learners)
		rows := [][]string{{"group", term.OrDash(s.ID)}, {"phase", s.Phase}}
		if s.Missing != "" {
			rows = append(rows, []string{"missing", s.Missing})
		}
		for i, id := range s.Removed {
			rows = append(rows, []string{[]string{"kept out", ""}[min(i, 1)], id})
		}
		if s.Missing != "" && len(s.Voters) == 0 { // a client knows the rest from its leader alone
			return r.Print(term.Document{Value: s, Table: term.Pairs(rows)})
		}
		return r.Print(term.Document{Value: s, Table: term.Pairs(append(rows, [][]string{
			{"leader", term.Named(s.Leader, s.NameOf(s.Leader))},
			{"term", strconv.FormatUint(s.Term, 10)},
			{"members", fault.Counted(len(s.Voters), "voter") + ", " + fault.Counted(len(s.Learners), "learner")},
			{"survives", term.OrDash(s.Tolerance)},
			{"revision", strconv.FormatInt(int64(s.Revision), 10)},
			{"feature level", levelText(s)},
			{"incarnation", strconv.FormatUint(s.Incarnation, 10)},
			{"keeps", Keeps(s)},
		}...))})
	})
}

// Keeps counts what a group keeps.
func Keeps(s coord.GroupState) string { return holds(s.Leases, s.Locks, s.Keys) }

func holds(leases, locks, keys int) string {
	return fault.Counted(leases, "lease") + ", " + fault.Counted(locks, "lock") + ", " + fault.Counted(keys, "key")
}

// levelText shows the feature level of a group and the peers that keep it down.
func levelText(s coord.GroupState) string {
	text := strconv.FormatUint(uint64(s.Level), 10)
	for i, h := range s.HeldBackBy {
		if i == 0 {
			text += ", kept down by "
		} else {
			text += ", "
		}
		if h.Levels.Valid() {
			text += fmt.Sprintf("%s (supports %v)", h.Peer, h.Levels)
		} else {
			text += h.Peer + " (not heard by this leader)"
		}
	}
	return text
}

func groupMembers(con *term.Console) *cobra.Command {
	r := remote.New(con, &cobra.Command{Use: "members", Short: "List the members of the group", Args: command.NoArgs}, remote.DefaultTimeout)
	return r.Coordinates(func(ctx context.Context, c *operator.Client, _ []string) error {
		s, err := c.Coordination().Group(ctx)
		if err != nil {
			return err
		}
		var rows [][]string
		for i, m := range slices.Concat(s.Voters, s.Learners) {
			role := "voter"
			if m.Peer == s.Leader {
				role = "leader"
			} else if i >= len(s.Voters) {
				role = "learner"
			}
			rows = append(rows, memberRow(m, role))
		}
		if s.Missing != "" {
			r.Say("warning: nobody leads, and the list may be outdated: %s", s.Missing)
		}
		return r.Print(term.Document{
			Value: map[string]any{"leader": s.Leader, "voters": term.Emptied(s.Voters), "learners": term.Emptied(s.Learners)},
			Items: term.Items(slices.Concat(s.Voters, s.Learners)),
			Table: term.Table([]string{"NAME", "PEER", "MEMBER", "ROLE", "STATE", "LAG", "ADDRESS"}, rows),
		})
	})
}

// memberRow is a member from the leader's view, the only one that knows more than names.
func memberRow(m coord.Member, role string) []string {
	lag, state := "-", "unknown"
	switch {
	case m.Active:
		state = "up"
	case m.Silent > 0:
		state = "DOWN for over " + (time.Duration(m.Silent) * time.Millisecond).Round(time.Second).String()
	}
	if m.Applied > 0 {
		lag = strconv.FormatUint(m.Lag, 10)
	}
	return []string{term.OrDash(m.Name), m.Peer, fmt.Sprintf("%016x", m.ID), role, state, lag, term.OrDash(m.Address)}
}

// order makes a command that changes the members of the group. The arguments are peers, by id, its end or a member's name: that of the
// order, and with two the learner that takes the vote.
func order(con *term.Console, action coord.MemberAction, cmd *cobra.Command, names ...string) *cobra.Command {
	var c coord.MemberChange
	cmd.Args = func(_ *cobra.Command, args []string) error { return command.ExactArgs(args, names) }
	cmd.Flags().BoolVar(&c.DryRun, "dry-run", false, "only say what would happen")
	if action != coord.TransferLeadership {
		cmd.Flags().BoolVar(&c.Force, "force", false, forced(action))
	}
	r := remote.New(con, cmd, remote.DefaultTimeout)
	return r.Coordinates(func(ctx context.Context, p *operator.Client, args []string) error {
		c.Action = action
		for i, to := range []*string{&c.Peer, &c.With}[:len(args)] {
			var err error
			if *to, err = memberOf(ctx, p, args[i]); err != nil {
				return exit.Rename(err, names[i])
			}
		}
		done, err := p.Coordination().ChangeMembers(ctx, c)
		if err != nil {
			return named(err, action, names)
		}
		done.Steps = term.Emptied(done.Steps)
		return r.Print(term.Document{Value: done, Table: outcomeTable(done)})
	})
}

// memberOf returns the peer id that a text stands for among the members of the group; without one the text, which can be the id of
// another peer.
func memberOf(ctx context.Context, p *operator.Client, text string) (id string, err error) {
	g, _ := p.Coordination().Group(ctx) // the order itself says what is wrong
	for _, m := range slices.Concat(g.Voters, g.Learners) {
		if !term.Means(text, m.Peer, m.Name) {
			continue
		}
		if id != "" && id != m.Peer {
			return "", fault.Invalidf("", text, "stands for two members: name one by its whole id")
		}
		id = m.Peer
	}
	return cmp.Or(id, text), nil
}

// forced says what an order does with --force.
func forced(action coord.MemberAction) string {
	switch action {
	case coord.AddMember:
		return "even if the leader cannot connect to the peer"
	case coord.RemoveMember:
		return "even if no majority remains, or the peer is no member"
	case coord.PromoteMember:
		return "even if the new voter is behind, or, without a leader, if writes that only lost voters had are lost"
	}
	return "even if no majority remains, or the new voter is behind"
}

// named gives the fields of the API the names of the command, its arguments and its flags.
func named(err error, action coord.MemberAction, names []string) error {
	switch field := fault.FieldOf(err); {
	case field == "action":
		return exit.Rename(err, "group "+string(action))
	case field == "force":
		return exit.Rename(err, "--force")
	case field == "peer_id" && len(names) > 0:
		return exit.Rename(err, names[0])
	case field == "peer_id":
		return exit.Rename(err, "the running peer")
	case field == "with" && len(names) > 1:
		return exit.Rename(err, names[1])
	}
	return err
}

func outcomeTable(done coord.MemberOutcome) term.Grid {
	var rows [][]string
	verb := "did"
	if !done.Done {
		verb = "would"
	}
	for _, step := range done.Steps {
		rows = append(rows, []string{verb, step})
	}
	if done.Standing != "" {
		rows = append(rows, []string{"keeps", "the peer is " + string(done.Standing)})
	}
	return term.Pairs(append(rows, []string{"survives", done.Before}, []string{"then", done.After}))
}

func groupAdd(con *term.Console) *cobra.Command {
	return order(con, coord.AddMember, &cobra.Command{
		Use: "add PEER", Short: "Make a peer that offers itself a learner of the group",
		Long: "Make a running, eligible peer a learner of the group. It stays a member even if the group\n" +
			"has enough others. A peer that was removed before may be a member again.",
	}, "PEER")
}

func groupRemove(con *term.Console) *cobra.Command {
	return order(con, coord.RemoveMember, &cobra.Command{
		Use: "remove PEER", Short: "Remove a member from the group",
		Long: "Remove a member. The group does not add it again until group add. A leader hands over first.\n" +
			"Refused if the remaining voters that answer are no majority; --force goes on, and then all\n" +
			"writes stop until enough voters answer.",
	}, "PEER")
}

func groupPromote(con *term.Console) *cobra.Command {
	return order(con, coord.PromoteMember, &cobra.Command{
		Use: "promote PEER", Short: "Make a learner a voter",
		Long: "Make a learner that is caught up a voter. An even number of voters survives no more failures than\n" +
			"one voter less.\n\n" +
			"If the majority of the voters is gone for good, nobody can agree on a promotion. Then a surviving\n" +
			"learner or voter goes on alone: name the running peer itself, 30 s after the loss of the leader.\n" +
			"--dry-run says what is lost, --force does it. Refused while a majority answers, or another survivor\n" +
			"has more of the log. Tokens and revisions go on above all that were given out, and a voter that\n" +
			"returns takes no part.",
	}, "PEER")
}

func groupReplace(con *term.Console) *cobra.Command {
	return order(con, coord.ReplaceMember, &cobra.Command{
		Use: "replace VOTER LEARNER", Short: "Give a voter's vote to a learner, in one step",
	}, "VOTER", "LEARNER")
}

func groupTransfer(con *term.Console) *cobra.Command {
	return order(con, coord.TransferLeadership, &cobra.Command{Use: "transfer PEER", Short: "Make another voter the leader"}, "PEER")
}

func groupLeave(con *term.Console) *cobra.Command {
	return order(con, coord.LeaveGroup, &cobra.Command{
		Use: "leave", Short: "Remove the running peer from the group",
		Long: "Remove the running peer from the group. A leader hands over first. The peer stays a client, and\n" +
			"becomes no member until group add.",
	})
}
