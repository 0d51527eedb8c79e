package group

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/internal/cli/command"
	"github.com/blackhole/blackhole/internal/cli/exit"
	"github.com/blackhole/blackhole/internal/cli/file"
	"github.com/blackhole/blackhole/internal/cli/remote"
	"github.com/blackhole/blackhole/internal/cli/settings"
	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/operator"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Restoration describes a group restored from a backup.
type Restoration struct {
	Group       string         `json:"group_id"`
	Incarnation uint64         `json:"incarnation"` // the new incarnation
	Taken       time.Time      `json:"taken"`
	Revision    coord.Revision `json:"revision"` // in the backup
	From        coord.Revision `json:"from"`     // later revisions and fencing tokens are above it
	Leases      int            `json:"leases"`
	Locks       int            `json:"locks"`
	Keys        int            `json:"keys"`
	Peer        string         `json:"only_voter"`
	Done        bool           `json:"done"`
}

// restoreFunc is App.Restore. after is an incarnation of the group since the backup; 0: none is known.
type restoreFunc func(dataDir string, backup io.Reader, after uint64, commit bool) (Restoration, error)

// backupTime bounds a backup: 1 GiB over a slow line.
const backupTime = 10 * time.Minute

func groupBackup(con *term.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use: "backup FILE", Short: "Write a consistent snapshot of the running group to a file", Args: command.OneArg("FILE"),
		Long: "Write keys, leases, locks, the directory and what operators decided on members to a file, as of one\n" +
			"moment after the call. The file appears only when it is complete. It has all values of keys, and\n" +
			"neither the identity of a peer nor the key of the network. FILE - is standard output; a device or pipe\n" +
			"is written into.",
	}
	r := remote.New(con, cmd, backupTime)
	return r.Coordinates(func(ctx context.Context, c *operator.Client, args []string) error {
		size, err := file.Write(con, args[0], func(w io.Writer) error { return c.Coordination().Backup(ctx, w) })
		if err != nil || args[0] == "-" {
			return err
		}
		return r.Print(term.Document{Value: map[string]any{"file": args[0], "bytes": size}, Table: term.Plain(fmt.Sprintf("%d bytes\n", size))})
	})
}

func groupRestore(con *term.Console, restore restoreFunc) *cobra.Command {
	cmd := &cobra.Command{
		Use: "restore FILE", Short: "Found the group again from a backup, on a stopped peer", Args: command.OneArg("FILE"),
		Long: "Make the stopped peer of a data directory the only voter of the group's next incarnation, with the\n" +
			"state of a backup, of standard input for FILE -. Without --yes, only describe the result.\n\n" +
			"Everything after the backup is lost. Revisions and fencing tokens continue above all that were given\n" +
			"out since; leases start with their full time to live. Other members of the old incarnation take no\n" +
			"part until their directory coordination is removed.\n\n" +
			"Stop all members first. If the group was recovered or restored since the backup, and this directory\n" +
			"does not know it, say so with --after INCARNATION; group status shows it.",
	}
	settings.DataFlag(cmd, "data directory")
	yes := cmd.Flags().Bool("yes", false, "restore the group")
	after := cmd.Flags().Uint64("after", 0, "highest incarnation of the group since the backup")
	var f term.Format
	command.Output(cmd, &f)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		backup, err := file.Open(con, "FILE", args[0])
		if err != nil {
			return err
		}
		defer func() { _ = backup.Close() }()
		r, err := restore(settings.DataDir(con, cmd), backup, *after, *yes)
		switch fault.FieldOf(err) {
		case "file":
			return exit.Rename(err, "FILE")
		case "after":
			return exit.Rename(err, "--after")
		}
		if err != nil {
			return err
		}
		if err := f.Print(con, term.Document{Value: r, Table: r.table()}); err != nil {
			return err
		}
		if !r.Done {
			con.Say("nothing was changed; with --yes, everything since the backup is lost")
			return nil
		}
		con.Say("done: start this peer, it leads the group alone")
		con.Say("each other former member rejoins after you stop it, remove coordination from its data directory and start it")
		return nil
	}
	return cmd
}

func (r Restoration) table() term.Grid {
	return term.Pairs([][]string{
		{"group", r.Group},
		{"taken", r.Taken.UTC().Format(time.RFC3339)},
		{"incarnation", strconv.FormatUint(r.Incarnation, 10)},
		{"only voter", r.Peer},
		{"revision", fmt.Sprintf("%d, from then on above %d", r.Revision, r.From)},
		{"keeps", holds(r.Leases, r.Locks, r.Keys)},
	})
}
