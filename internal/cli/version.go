package cli

import (
	"io"

	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/internal/cli/command"
	"github.com/blackhole/blackhole/internal/cli/term"
)

// Build describes the program: the commit and its date, "" if unknown, and the system that it runs on.
type Build struct{ Revision, Time, Platform string }

// versionText is the version for people: "blackholed v1.2.0, commit 1a2b3c4d5e6f of 2026-03-01T00:00:00Z, go1.26 linux/amd64".
func versionText(version string, b Build) string {
	text := command.Program + " " + version
	if b.Revision != "" {
		text += ", commit " + b.Revision[:min(len(b.Revision), 12)]
		if b.Time != "" {
			text += " of " + b.Time
		}
	}
	if b.Platform != "" {
		text += ", " + b.Platform
	}
	return text + "\n"
}

// versionFlag adds -v and --version. Cobra's own flag prints its text through text/template. The linker
// then keeps every exported method of every type, because templates call methods by name.
func versionFlag(root *cobra.Command, text string) {
	show := root.Flags().BoolP("version", "v", false, "version for "+command.Program)
	help := root.RunE
	root.RunE = func(cmd *cobra.Command, args []string) error {
		if !*show {
			return help(cmd, args)
		}
		_, err := io.WriteString(cmd.OutOrStdout(), text)
		return err
	}
}

func versionCommand(con *term.Console, version string, b Build) *cobra.Command {
	cmd := &cobra.Command{Use: "version", Short: "Show the version of this program", Args: command.NoArgs}
	var f term.Format
	command.Output(cmd, &f)
	cmd.RunE = func(*cobra.Command, []string) error {
		return f.Print(con, term.Document{
			Value: map[string]string{"version": version, "revision": b.Revision, "time": b.Time, "platform": b.Platform},
			Table: term.Plain(versionText(version, b)),
		})
	}
	return cmd
}
