package command

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/blackhole/blackhole/internal/cli/exit"
	"github.com/blackhole/blackhole/internal/cli/term"
)

// peerFlags are the flags that name the peer to call and prove who calls. Help shows them apart from a command's own flags.
func peerFlags() []string {
	return []string{"grpc", "context", TimeoutFlag, "token", "token-file", "tls-ca", "cert", "key"}
}

// CallsPeer reports whether a command calls a peer, and so has the flags for it.
func CallsPeer(cmd *cobra.Command) bool { return cmd.Flags().Lookup(TimeoutFlag) != nil }

// PeerFlag reports whether a flag of a command names the peer to call or proves who calls.
func PeerFlag(cmd *cobra.Command, flag string) bool {
	return CallsPeer(cmd) && slices.Contains(peerFlags(), flag)
}

// Usage writes how to use a command, within the width of the terminal.
func Usage(c *term.Console, cmd *cobra.Command) error {
	var b strings.Builder
	b.WriteString("Usage:\n")
	if cmd.Runnable() && !cmd.HasAvailableSubCommands() {
		b.WriteString("  " + cmd.UseLine() + "\n")
	}
	if cmd.HasAvailableSubCommands() {
		b.WriteString("  " + cmd.CommandPath() + " COMMAND\n")
	}
	if cmd.Example != "" {
		b.WriteString("\nExamples:\n" + cmd.Example + "\n")
	}
	usageCommands(&b, cmd)
	own, peer := pflag.NewFlagSet("", pflag.ContinueOnError), pflag.NewFlagSet("", pflag.ContinueOnError)
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if PeerFlag(cmd, f.Name) {
			peer.AddFlag(Displayed(f))
		} else {
			own.AddFlag(Displayed(f))
		}
	})
	for _, section := range []struct {
		title string
		flags *pflag.FlagSet
	}{{"Flags", own}, {"Flags for the call of the peer", peer}} {
		if section.flags.HasAvailableFlags() {
			fmt.Fprintf(&b, "\n%s:\n%s", section.title, section.flags.FlagUsagesWrapped(c.Screen().Columns))
		}
	}
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(&b, "\n%s COMMAND --help has more about a command.\n", cmd.CommandPath())
	}
	_, err := io.WriteString(cmd.OutOrStdout(), b.String())
	return err
}

// usageCommands lists the commands below a command, by groups.
func usageCommands(b *strings.Builder, cmd *cobra.Command) {
	groups := cmd.Groups()
	if !slices.ContainsFunc(cmd.Commands(), func(c *cobra.Command) bool { return c.GroupID != "" }) {
		groups = nil
	}
	rest := "Commands:"
	if groups != nil {
		rest = "More:"
	}
	for _, group := range append(slices.Clone(groups), &cobra.Group{Title: rest}) {
		title := "\n" + group.Title + "\n"
		for _, child := range cmd.Commands() {
			if child.GroupID == group.ID && (child.IsAvailableCommand() || child.IsAdditionalHelpTopicCommand()) {
				fmt.Fprintf(b, "%s  %-*s  %s\n", title, child.NamePadding(), child.Name(), child.Short)
				title = ""
			}
		}
	}
}

// OutputTopic is a page of help without a command.
func OutputTopic() *cobra.Command {
	return &cobra.Command{
		Use: "output", Short: "About tables, formats and exit codes",
		Long: "At a terminal, tables fit its width: columns are left out, peer ids abbreviated, and\n" +
			"long cells cut. A pipe, or -o json, ndjson or yaml, gets everything. NO_COLOR turns\n" +
			"colours off. Results go to standard output, all else to standard error.\n\n" +
			"Exit codes:\n" + exit.Help(),
	}
}

// TimeoutFlag is a flag of exactly the commands that call a peer.
const TimeoutFlag = "timeout"
