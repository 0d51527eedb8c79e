// Package cli is the command line of blackholed: the commands that start a peer, and the
// commands that call a running peer through package client.
//
// Standard output carries only data, in the format of -o. Progress, warnings and errors go
// to standard error. Exit codes are the table in exit.go. The package does not import the
// daemon: App carries the functions that start one.
package cli

import (
	"context"
	"errors"
	"io"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/blackhole/blackhole/internal/platform/config"
	"github.com/blackhole/blackhole/internal/platform/spelling"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/network"
	"github.com/blackhole/blackhole/pkg/network/invite"
)

// name is the program's name for users; error messages begin with it.
const name = "blackholed"

// App is the program. All fields but Terminal and Superuser are required. Execute does not change them.
type App struct {
	Version string
	Build   Build
	Stdin   io.Reader // read for the file name "-"
	Stdout  io.Writer
	Stderr  io.Writer
	Environ []string // in the form of os.Environ

	Terminal  Terminal // may be zero
	Superuser bool     // the user is root

	// Run runs a peer until ctx ends, and returns nil then.
	Run func(ctx context.Context, c config.Config, r Runner) error
	// Identity loads or creates the identity in a data directory and returns its peer id.
	Identity func(dataDir string) (peerID string, err error)
	// Reclaim makes the suspended offers in the data directory of a stopped peer valid again, and returns their
	// number.
	Reclaim func(dataDir string) (offers int, err error)
	// Join makes a data directory that of a peer of the inviting network.
	Join func(dataDir string, i invite.Invitation) error
	// NetworkKeys returns the keys of the network in a data directory; none for a peer without.
	NetworkKeys func(dataDir string) ([]network.Key, error)
	// Recover makes the stopped peer of a data directory the only voter of its group. With
	// commit false it only describes the result.
	Recover func(dataDir string, commit bool) (Recovery, error)
	// Restore makes the stopped peer of a data directory the only voter of a backup's group. With commit false it only
	// describes the result. after is an incarnation of the group since the backup.
	Restore func(dataDir string, backup io.Reader, after uint64, commit bool) (Restoration, error)
}

// Execute runs the command in args (without the program's name) and returns the exit code.
// The user's interrupt ends ctx.
func (a App) Execute(ctx context.Context, args []string) (exitCode int) {
	if len(args) > 2 && args[0] == guardianArg {
		return guard(args[1:])
	}
	root := a.root()
	root.SetArgs(append([]string{}, args...)) // cobra reads os.Args for nil
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	var child childExit
	if errors.As(err, &child) {
		return int(child)
	}
	if ctx.Err() != nil && fault.KindOf(err) == fault.Canceled {
		err = fault.New("", fault.Canceled, "interrupted")
	}
	report(a.Stderr, cmd, err)
	return exitCodeOf(err)
}

// Commands returns the tree of all commands, for references and manual pages.
func (a App) Commands() *cobra.Command {
	root := a.root()
	each(root, func(_ string, cmd *cobra.Command) {
		cmd.Flags().VisitAll(func(f *pflag.Flag) { *f = *displayed(f) })
	})
	return root
}

func (a App) root() *cobra.Command {
	root := &cobra.Command{
		Use:   name,
		Short: "Decentralised service discovery and coordination",
		Long: "Decentralised service discovery and coordination. One program runs a peer\n" +
			"(" + name + " run) and calls a running peer.\n\n" +
			"Words: an offer is a service for sale, signed by its provider. An instance is\n" +
			"one running copy of an application, and a service is all instances with one\n" +
			"name. A peer is one " + name + ".",
		Example: "  " + name + " run\n  " + name + " offer find --type compute --near berlin --radius 500km\n  " +
			name + " instance find payment\n  " + name + " lock hold backups/nightly -- ./backup.sh",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          unknownCommand,
		RunE:          showHelp,
	}
	root.SetIn(a.Stdin)
	root.SetOut(a.Stdout)
	root.SetErr(a.Stderr)
	root.SetFlagErrorFunc(flagError)
	con := &console{stdin: a.Stdin, stdout: a.Stdout, stderr: a.Stderr, environ: a.Environ, superuser: a.Superuser, terminal: a.Terminal}
	for _, group := range []struct {
		title    string
		commands []*cobra.Command
	}{
		{"This peer:", []*cobra.Command{
			initCommand(con, a.Identity), runCommand(con, a.Run, a.Join), inviteCommand(con, a.NetworkKeys, a.Identity), idCommand(con, a.Identity),
			statusCommand(con), topCommand(con), eventsCommand(con), uiCommand(con), doctorCommand(con), debugCommand(con, a.Version, a.Build), logLevelCommand(con), contextCommand(con), configCommand(con), reclaimCommand(con, a.Reclaim),
		}},
		{"Network:", []*cobra.Command{showCommand(con), offerCommand(con), peerCommand(con)}},
		{"Applications:", []*cobra.Command{serviceCommand(con), instanceCommand(con), dnsCommand(con)}},
		{"Coordination:", []*cobra.Command{lockCommand(con), leaseCommand(con), kvCommand(con), groupCommand(con, a)}},
	} {
		root.AddGroup(&cobra.Group{ID: group.title, Title: group.title})
		for _, c := range group.commands {
			c.GroupID = group.title
			root.AddCommand(c)
		}
	}
	root.AddCommand(versionCommand(con, a.Version, a.Build), manCommand(con, a.Version), outputTopic())
	root.SetUsageFunc(con.usage)
	versionFlag(root, versionText(a.Version, a.Build))
	addExamples(root)
	completeLive(con, root)
	return root
}

// parent is a command with subcommands only.
func parent(cmd *cobra.Command, children ...*cobra.Command) *cobra.Command {
	cmd.Args, cmd.RunE = unknownCommand, showHelp
	cmd.AddCommand(children...)
	return cmd
}

func showHelp(cmd *cobra.Command, _ []string) error { return cmd.Help() }

// unknownCommand refuses the name of an unknown command and suggests similar names.
func unknownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return fault.Invalidf("", args[0], "%q is not a command%s", args[0], spelling.Meant(meantCommands(cmd, args[0])))
}

// noArgs refuses arguments.
func noArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fault.Invalidf("", args[0], "takes no argument, not %q", args[0])
	}
	return nil
}

// oneArg requires exactly one argument.
func oneArg(what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) != 1 {
			return fault.Invalidf(what, nil, "%s", given(len(args)))
		}
		return nil
	}
}

// atMostOne accepts one argument or none.
func atMostOne(what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) > 1 {
			return fault.Invalidf(what, nil, "must be given at most once, not %d times", len(args))
		}
		return nil
	}
}

// someArgs requires at least one argument.
func someArgs(what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) == 0 {
			return fault.Invalidf(what, nil, "must be given at least once")
		}
		return nil
	}
}

// given says what is wrong with an argument that must be given once.
func given(times int) string {
	if times == 0 {
		return "is missing"
	}
	return "must be given once, not " + strconv.Itoa(times) + " times"
}
