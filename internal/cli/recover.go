package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/internal/platform/config"
	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Recovery is what it means to go on with what the member of a data directory has, when the
// majority of its group is lost for good.
type Recovery struct {
	Group       string          `json:"group_id"`
	Incarnation uint64          `json:"incarnation"` // that begins
	Self        client.Member   `json:"self"`
	Next        uint64          `json:"next_member_id,string"` // of this peer; drawn anew each time
	Voters      []client.Member `json:"voters"`                // left behind; Active is this one
	Learners    []client.Member `json:"learners"`
	Index       uint64          `json:"last_index"`
	Term        uint64          `json:"last_term"`
	Revision    client.Revision `json:"revision"` // the last one here
	Leases      int             `json:"leases"`
	Locks       int             `json:"locks"`
	Keys        int             `json:"keys"`
	Done        bool            `json:"done"`
}

func (a App) groupRecover() *cobra.Command {
	cmd := &cobra.Command{
		Use: "recover", Short: "Go on with what this peer has, when the majority is lost for good", Args: noArgs,
		Long: "Make the stopped peer of a data directory the only voter of its group's next incarnation,\n" +
			"when the majority of the voters is lost and will not come back. Without --yes it says what\n" +
			"that would mean, and changes nothing.\n\n" +
			"Look on every survivor first, and do it on one only: the one whose log ends at the highest\n" +
			"term, and among those at the highest index. What only the lost ones had is lost: commands that\n" +
			"were answered since. Revisions and fencing tokens leap ahead by more than those can have been,\n" +
			"so that none is given twice; watches are told that their place is compacted; leases have\n" +
			"their whole time again; who held a lock, holds it.\n\n" +
			"Keep a copy of the data directory before.",
	}
	cmd.Flags().String("data", "", "data directory (default "+config.Default().Data+")")
	yes := cmd.Flags().Bool("yes", false, "do it")
	var f format
	outputFlag(cmd, &f)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		dir := a.dataDir(cmd)
		if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) { // to ask must not create
			return fault.New("", fault.NotFound, "no data directory %s", dir)
		}
		r, err := a.Recover(dir, *yes)
		if err != nil {
			return err
		}
		r.Voters, r.Learners = emptied(r.Voters), emptied(r.Learners)
		if err := f.print(a.Stdout, document{value: r, table: r.table()}); err != nil {
			return err
		}
		a.advise(r)
		return nil
	}
	return cmd
}

func (r Recovery) table() string {
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
			what := []string{"voter", "learner"}[role] + " " + strconv.FormatUint(m.ID, 16)
			if m.Active {
				what += ", which is this peer"
			}
			rows = append(rows, []string{"leaves behind", m.Peer + ", " + what})
		}
	}
	return pairs(rows)
}

// advise says what is to be done next.
func (a App) advise(r Recovery) {
	if !r.Done {
		a.say("nothing was changed; --yes does it, on the survivor whose log ends at the highest term and index only")
		return
	}
	a.say("done: start this peer, it leads the group alone")
	a.say("every other former member takes part again when it is stopped, coordination is removed from its data directory, and it is started")
}
