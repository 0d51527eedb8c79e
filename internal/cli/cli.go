// Package cli is the command line of blackholed: commands that start a peer, and commands
// that speak to a running one through package client.
//
// Standard output carries data and nothing else, in the form that -o names; progress,
// warnings and errors go to standard error. Exit codes are the table in exit.go. The
// package does not know the daemon: what starts one is given to it.
package cli

import (
	"context"
	"errors"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/internal/platform/config"
	"github.com/blackhole/blackhole/pkg/fault"
)

// name is what users type, and what error messages begin with.
const name = "blackholed"

// App is the program. All fields are required; Execute does not change it.
type App struct {
	Version string
	Stdin   io.Reader // what "-" as a file name reads
	Stdout  io.Writer
	Stderr  io.Writer
	Environ []string // as os.Environ gives it

	// Run is a peer's whole life: it returns nil after ctx ended it.
	Run func(ctx context.Context, c config.Config, stderr io.Writer) error
	// Identity loads or creates the identity in a data directory and gives its peer id.
	Identity func(dataDir string) (peerID string, err error)
	// Recover makes the peer of a data directory, which nobody runs, the only voter of its group, or
	// with commit false only says what that would mean.
	Recover func(dataDir string, commit bool) (Recovery, error)
}

// Execute runs the command that args (without the program's name) ask for, and gives the
// exit code. The end of ctx is the user's interrupt.
func (a App) Execute(ctx context.Context, args []string) (exitCode int) {
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
	a.report(cmd, err)
	return exitCodeOf(err)
}

// The groups of commands in the help.
const (
	groupPeer    = "peer"
	groupProvide = "provide"
	groupFind    = "find"
	groupApps    = "apps"
	groupAgree   = "agree"
)

func (a App) root() *cobra.Command {
	root := &cobra.Command{
		Use:   name,
		Short: "Decentralised service discovery: announce services and find those of others",
		Long: "Decentralised service discovery: announce services and find those of others.\n\n" +
			"One binary is the peer (blackholed run) and the client of a running peer.\n\n" +
			"Exit codes:\n" + exitHelp(),
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          a.unknownCommand,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetIn(a.Stdin)
	root.SetOut(a.Stdout)
	root.SetErr(a.Stderr)
	root.SetFlagErrorFunc(flagError)
	root.AddGroup(
		&cobra.Group{ID: groupPeer, Title: "This peer:"},
		&cobra.Group{ID: groupProvide, Title: "Its services:"},
		&cobra.Group{ID: groupFind, Title: "Services of all:"},
		&cobra.Group{ID: groupApps, Title: "Instances of applications:"},
		&cobra.Group{ID: groupAgree, Title: "Locks and leases of all:"},
	)
	add := func(group string, cmds ...*cobra.Command) {
		for _, c := range cmds {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	add(groupPeer, a.initCommand(), a.runCommand(), a.idCommand(), a.statusCommand(), a.peersCommand(), a.configCommand())
	add(groupProvide, a.registerCommand(), a.updateCommand(), a.withdrawCommand(), a.recordsCommand())
	add(groupFind, a.queryCommand(), a.watchCommand(), a.resolveCommand())
	add(groupApps, a.servicesCommand(), a.serviceCommand(), a.discoverCommand(), a.dnsCommand())
	add(groupAgree, a.requireCommand(), a.requirementsCommand(), a.lockCommand(), a.locksCommand(), a.leaseCommand(), a.coordCommand(), a.groupCommand())
	add("", a.versionCommand())
	return root
}

// unknownCommand refuses what is no command, and says what may have been meant.
func (a App) unknownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	meant := ""
	cmd.SuggestionsMinimumDistance = 2
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		meant = "; did you mean " + strings.Join(near, " or ") + "?"
	}
	return fault.Invalidf("", args[0], "%q is not a command%s", args[0], meant)
}

// env gives the last value of an environment variable, as the shell does.
func (a App) env(variable string) (string, bool) {
	value, found := "", false
	for _, entry := range a.Environ {
		if v, ok := strings.CutPrefix(entry, variable+"="); ok {
			value, found = v, true
		}
	}
	return value, found
}

// noArgs refuses arguments.
func noArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fault.Invalidf("", args[0], "takes no argument, not %q", args[0])
	}
	return nil
}

// oneArg wants exactly one argument.
func oneArg(what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) != 1 {
			return fault.Invalidf(what, nil, "must be given once, not %d times", len(args))
		}
		return nil
	}
}

// someArgs wants at least one argument.
func someArgs(what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) == 0 {
			return fault.Invalidf(what, nil, "must be given at least once")
		}
		return nil
	}
}
