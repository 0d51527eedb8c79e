package group

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/internal/cli/command"
	"github.com/blackhole/blackhole/internal/cli/settings"
	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Recovery describes the recovery of a group from the member in one data directory, after
// the majority of its voters was lost for good.
type Recovery struct {
	Group       string          `json:"group_id"`
	Incarnation uint64          `json:"incarnation"` // the new incarnation
	Self        client.Member   `json:"self"`
	Next        uint64          `json:"next_member_id,string"` // new member id of this peer, random each time
	Voters      []client.Member `json:"voters"`                // former voters; Active marks this peer
	Learners    []client.Member `json:"learners"`
	Index       uint64          `json:"last_index"`
	Term        uint64          `json:"last_term"`
	Revision    client.Revision `json:"revision"` // last revision of this peer
	Leases      int             `json:"leases"`
	Locks       int             `json:"locks"`
	Keys        int             `json:"keys"`
	Done        bool            `json:"done"`
}

// recoverFunc is App.Recover.
type recoverFunc func(dataDir string, commit bool) (Recovery, error)

func groupRecover(con *term.Console, recoverGroup recoverFunc) *cobra.Command {
	cmd := &cobra.Command{
		Use: "recover", Short: "Restore the group from this peer after the majority was lost for good", Args: command.NoArgs,
		Long: "Make the stopped peer of a data directory the only voter of its group's next incarnation,\n" +
			"if the majority of the voters is lost for good. Without --yes, only describe the result.\n\n" +
			"Run this without --yes on every survivor first. Then use --yes on one survivor only: the log\n" +
			"with the highest term, and among equal terms the highest index. Commands on lost voters\n" +
			"alone are lost, even answered ones. Revisions and fencing tokens skip all numbers\n" +
			"that lost voters can have used. Watches see that their revision is\n" +
			"compacted; leases start again with their full time to live; locks keep their holders.\n\n" +
			"Copy the data directory first.",
	}
	settings.DataFlag(cmd, "data directory")
	yes := cmd.Flags().Bool("yes", false, "recover the group")
	var f term.Format
	command.Output(cmd, &f)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		dir := settings.DataDir(con, cmd)
		if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) { // recoverGroup would create the directory
			return fault.New("", fault.NotFound, "no data directory %s", dir)
		}
		r, err := recoverGroup(dir, *yes)
		if err != nil {
			return err
		}
		r.Voters, r.Learners = term.Emptied(r.Voters), term.Emptied(r.Learners)
		if err := f.Print(con, term.Document{Value: r, Table: r.table()}); err != nil {
			return err
		}
		if !r.Done {
			con.Say("nothing was changed; use --yes only on the survivor whose log has the highest term and index")
			return nil
		}
		con.Say("done: start this peer, it leads the group alone")
		con.Say("each other former member rejoins after you stop it, remove coordination from its data directory and start it")
		return nil
	}
	return cmd
}

func (r Recovery) table() term.Grid {
	rows := [][]string{
		{"group", r.Group},
		{"incarnation", fmt.Sprintf("%d, after %d", r.Incarnation, r.Incarnation-1)},
		{"only voter", r.Self.Peer},
		{"log ends at", fmt.Sprintf("term %d, index %d", r.Term, r.Index)},
		{"revision", fmt.Sprintf("%d, from then on above %d", r.Revision, r.Revision+1<<40)},
		{"keeps", fmt.Sprintf("%d leases, %d locks, %d keys", r.Leases, r.Locks, r.Keys)},
	}
	for role, members := range [][]client.Member{r.Voters, r.Learners} {
		for _, m := range members {
			what := []string{"voter", "learner"}[role] + " " + fmt.Sprintf("%016x", m.ID)
			if m.Active {
				what += ", which is this peer"
			}
			rows = append(rows, []string{"leaves behind", m.Peer + ", " + what})
		}
	}
	return term.Pairs(rows)
}
