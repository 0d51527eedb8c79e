// Package group has the commands for operators of the coordination group.
package group

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/internal/cli/command"
	"github.com/blackhole/blackhole/internal/cli/remote"
	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/coord"
)

// Command makes the command group.
func Command(con *term.Console, restore restoreFunc, recoverGroup recoverFunc) *cobra.Command {
	return command.Parent(&cobra.Command{Use: "group", Short: "Inspect and repair the coordination group"},
		groupStatus(con), groupMembers(con), groupAdd(con), groupRemove(con), groupPromote(con), groupReplace(con),
		groupTransfer(con), groupLeave(con), groupJoin(con), groupResume(con),
		groupBackup(con), groupRestore(con, restore), groupRecover(con, recoverGroup))
}

func groupStatus(con *term.Console) *cobra.Command {
	r := remote.New(con, &cobra.Command{Use: "status", Short: "Show the state of the group", Args: command.NoArgs}, remote.DefaultTimeout)
	return r.Coordinates(func(ctx context.Context, c *client.Client, _ []string) error {
		s, err := c.Coordination().Group(ctx)
		if err != nil {
			return err
		}
		s.Voters, s.Learners = term.Emptied(s.Voters), term.Emptied(s.Learners)
		rows := [][]string{{"group", term.OrDash(s.ID)}, {"phase", s.Phase}}
		if s.Missing != "" {
			rows = append(rows, []string{"missing", s.Missing})
		}
		return r.Print(term.Document{Value: s, Table: term.Pairs(append(rows, [][]string{
			{"leader", term.Named(s.Leader, s.NameOf(s.Leader))},
			{"term", strconv.FormatUint(s.Term, 10)},
			{"members", term.Counted(len(s.Voters), "voter") + ", " + term.Counted(len(s.Learners), "learner")},
			{"survives", term.OrDash(s.Tolerance)},
			{"revision", strconv.FormatInt(int64(s.Revision), 10)},
			{"feature level", levelText(s)},
			{"incarnation", strconv.FormatUint(s.Incarnation, 10)},
			{"keeps", Keeps(s)},
		}...))})
	})
}

// Keeps counts what a group keeps.
func Keeps(s coord.GroupState) string {
	return term.Counted(s.Leases, "lease") + ", " + term.Counted(s.Locks, "lock") + ", " + term.Counted(s.Keys, "key")
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
			text += h.Peer + " (not heard of)"
		}
	}
	return text
}

// memberView is the JSON form of a member.
type memberView struct {
	client.Member
	Role string `json:"role"`
}

func groupMembers(con *term.Console) *cobra.Command {
	r := remote.New(con, &cobra.Command{Use: "members", Short: "List the members of the group", Args: command.NoArgs}, remote.DefaultTimeout)
	return r.Coordinates(func(ctx context.Context, c *client.Client, _ []string) error {
		s, err := c.Coordination().Group(ctx)
		if err != nil {
			return err
		}
		var views []memberView
		for _, m := range s.Voters {
			role := "voter"
			if m.Peer == s.Leader {
				role = "leader"
			}
			views = append(views, memberView{m, role})
		}
		for _, m := range s.Learners {
			views = append(views, memberView{m, "learner"})
		}
		return r.Print(term.List("members", views, []string{"NAME", "PEER", "MEMBER", "ROLE", "LAG", "SILENT", "ADDRESS"}, (*memberView).row))
	})
}

func (m *memberView) row() []string {
	lag, silent := "-", "unknown"
	if m.Applied > 0 { // from the leader's view
		lag, silent = strconv.FormatUint(m.Lag, 10), "-"
		if !m.Active {
			silent = (time.Duration(m.Silent) * time.Millisecond).Round(time.Second).String()
		}
	}
	return []string{term.OrDash(m.Name), m.Peer, fmt.Sprintf("%016x", m.ID), m.Role, lag, silent, term.OrDash(m.Address)}
}
