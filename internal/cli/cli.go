// Package cli is the command line of blackholed: the commands that start a peer, and the
// commands that call a running peer through package client. Its parts have a package for each subject.
//
// Standard output carries only data, in the format of -o. Progress, warnings and errors go
// to standard error. Exit codes are the table in package exit. The package does not import the
// daemon: App carries the functions that start one.
package cli

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/blackhole/blackhole/internal/cli/command"
	"github.com/blackhole/blackhole/internal/cli/coordination"
	"github.com/blackhole/blackhole/internal/cli/doctor"
	"github.com/blackhole/blackhole/internal/cli/exit"
	"github.com/blackhole/blackhole/internal/cli/group"
	"github.com/blackhole/blackhole/internal/cli/guard"
	"github.com/blackhole/blackhole/internal/cli/offer"
	"github.com/blackhole/blackhole/internal/cli/peer"
	"github.com/blackhole/blackhole/internal/cli/remote"
	"github.com/blackhole/blackhole/internal/cli/sell"
	"github.com/blackhole/blackhole/internal/cli/service"
	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/internal/platform/config"
	"github.com/blackhole/blackhole/internal/platform/identity"
	"github.com/blackhole/blackhole/internal/platform/invite"
	"github.com/blackhole/blackhole/pkg/fault"
)

// App is the program. All fields but Terminal, Clock and Superuser are required. Execute does not change them.
type App struct {
	Version string
	Build   Build
	Stdin   io.Reader // read for the file name "-"
	Stdout  io.Writer
	Stderr  io.Writer
	Environ []string // in the form of os.Environ

	Terminal  term.Terminal    // may be zero
	Clock     func() time.Time // nil: that of the machine
	Superuser bool             // the user is root

	// Run runs a peer until ctx ends, and returns nil then.
	Run func(ctx context.Context, c config.Config, r Runner) error
	// Identity loads or creates the identity in a data directory and returns its peer id.
	Identity func(dataDir string) (peerID string, err error)
	// Reclaim makes the suspended offers in the data directory of a stopped peer valid again, and returns their
	// number.
	Reclaim func(dataDir string) (offers int, err error)
	// Examine reads what a start with these settings would read, and changes nothing. It returns what would fail, or the process that
	// runs on the data directory.
	Examine func(c config.Config, now time.Time) (runs *fault.Problem, found []fault.Problem)
	// Join makes a data directory that of a peer of the inviting network.
	Join func(dataDir string, i invite.Invitation) error
	// NetworkKeys returns the keys of the network in a data directory; none for a peer without.
	NetworkKeys func(dataDir string) ([]identity.Key, error)
	// Restore makes the stopped peer of a data directory the only voter of a backup's group. With commit false it only
	// describes the result. after is an incarnation of the group since the backup.
	Restore func(dataDir string, backup io.Reader, after uint64, commit bool) (group.Restoration, error)
}

// Execute runs the command in args (without the program's name) and returns the exit code.
// The user's interrupt ends ctx; its cause is an exit.Signal.
func (a App) Execute(ctx context.Context, args []string) (exitCode int) {
	if len(args) > 2 && args[0] == guard.Arg {
		return guard.Main(args[1:])
	}
	root := a.root()
	root.SetArgs(append([]string{}, args...)) // cobra reads os.Args for nil
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exit.OK
	}
	var child exit.Child
	if errors.As(err, &child) {
		return int(child)
	}
	if ctx.Err() != nil && fault.KindOf(err) == fault.Canceled {
		err = exit.Interrupted(ctx)
	}
	report(a.Stderr, cmd, err)
	return exit.CodeOf(err)
}

// Commands returns the tree of all commands, for references and manual pages.
func (a App) Commands() *cobra.Command {
	root := a.root()
	command.Each(root, func(_ string, cmd *cobra.Command) {
		cmd.Flags().VisitAll(func(f *pflag.Flag) { *f = *command.Displayed(f) })
	})
	return root
}

func (a App) root() *cobra.Command {
	root := &cobra.Command{
		Use:   command.Program,
		Short: "Decentralised service discovery and coordination",
		Long: "Decentralised service discovery and coordination. One program runs a peer\n" +
			"(" + command.Program + " run) and calls a running peer.\n\n" +
			"Words: an offer is a service for sale, signed by its provider. An instance is\n" +
			"one running copy of an application, and a service is all instances with one\n" +
			"name. A peer is one " + command.Program + ".",
		Example: "  " + command.Program + " run\n  " + command.Program + " offer find --type compute --near berlin --radius 500km\n  " +
			command.Program + " instance find payment\n  " + command.Program + " lock hold backups/nightly -- ./backup.sh",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          command.UnknownCommand,
		RunE:          command.ShowHelp,
	}
	root.SetIn(a.Stdin)
	root.SetOut(a.Stdout)
	root.SetErr(a.Stderr)
	root.SetFlagErrorFunc(command.FlagError)
	con := &term.Console{Stdin: a.Stdin, Stdout: a.Stdout, Stderr: a.Stderr, Environ: a.Environ, Superuser: a.Superuser, Terminal: a.Terminal, Clock: a.Clock}
	for _, section := range []struct {
		title    string
		commands []*cobra.Command
	}{
		{"This peer:", []*cobra.Command{
			initCommand(con, a.Identity), runCommand(con, a.Run, a.Join), peer.Invite(con, a.NetworkKeys, a.Identity), idCommand(con, a.Identity),
			peer.Status(con), peer.Top(con), peer.Events(con), peer.UI(con), doctor.Command(con, a.Examine), doctor.Debug(con, a.Examine, versionText(a.Version, a.Build)), peer.LogLevel(con), remote.ContextCommand(con),
			command.Parent(&cobra.Command{Use: "config", Short: "Inspect settings"}, configShowCommand(con)), reclaimCommand(con, a.Reclaim),
		}},
		{"Network:", []*cobra.Command{peer.Show(con), sell.Command(con), offer.Command(con), offer.Connect(con), offer.ARD(con), peer.Command(con)}},
		{"Applications:", []*cobra.Command{service.Command(con), service.InstanceCommand(con), service.Sync(con), mcpCommand(con)}},
		{"Coordination:", []*cobra.Command{coordination.Lock(con), coordination.Guard(con), coordination.Lease(con), coordination.KV(con), group.Command(con, a.Restore)}},
	} {
		root.AddGroup(&cobra.Group{ID: section.title, Title: section.title})
		for _, c := range section.commands {
			c.GroupID = section.title
			root.AddCommand(c)
		}
	}
	root.AddCommand(versionCommand(con, a.Version, a.Build), command.Man(con, a.Version), command.OutputTopic())
	root.SetUsageFunc(func(cmd *cobra.Command) error { return command.Usage(con, cmd) })
	versionFlag(root, versionText(a.Version, a.Build))
	command.Elsewhere(root, map[string]string{
		"stop":   "interrupt the peer that runs, or end its service (`systemctl stop blackholed`)",
		"reload": "send SIGHUP to the peer that runs (`systemctl reload blackholed`)",
	})
	command.AddExamples(root)
	completeLive(con, root)
	completeBash(con, root)
	return root
}
