package reference_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/cli"
	"github.com/blackhole/blackhole/internal/cli/command"
	"github.com/blackhole/blackhole/internal/platform/config"
)

func commandsPage(t *testing.T) string {
	t.Helper()
	tree := cli.App{}.Commands()
	b := begin("Commands", "One program runs a peer and calls a running peer. `blackholed COMMAND --help` has the same and more, and `blackholed man DIR` writes manual\npages. [errors.md](errors.md) has the exit codes. A default stands in parentheses.")
	b.WriteString("\nCommands that call a peer have these flags too:\n")
	put := find(t, tree, "kv", "put")
	page{b, map[string]string{}}.flagsOf(put, func(f *pflag.Flag) bool { return f.Name == "output" || command.PeerFlag(put, f.Name) })
	p := page{b, map[string]string{}}
	for _, group := range append(tree.Groups(), &cobra.Group{Title: "Others:"}) {
		b.WriteString("\n## " + strings.TrimSuffix(group.Title, ":") + "\n")
		for _, cmd := range tree.Commands() {
			if cmd.GroupID == group.ID && cmd.Runnable() && cmd.Name() != "help" && cmd.Name() != "completion" && !cmd.Hidden {
				p.describe(cmd)
			}
		}
	}
	return b.String()
}

func find(t *testing.T, tree *cobra.Command, path ...string) *cobra.Command {
	t.Helper()
	cmd, rest, err := tree.Find(path)
	require.NoError(t, err)
	require.Empty(t, rest)
	return cmd
}

// page is the page of commands, with the flags that it has told already, by their lines.
type page struct {
	b     *strings.Builder
	flags map[string]string
}

// describe writes a command that does something, or all commands below it.
func (p page) describe(cmd *cobra.Command) {
	for _, child := range cmd.Commands() {
		if !child.Hidden {
			p.describe(child)
		}
	}
	if cmd.HasSubCommands() {
		return
	}
	use := strings.TrimSuffix(strings.TrimPrefix(cmd.UseLine(), "blackholed "), " [flags]")
	p.b.WriteString("\n### " + code(use) + "\n\n" + cell(cmd.Short) + ".\n")
	p.flagsOf(cmd, func(f *pflag.Flag) bool {
		return !command.PeerFlag(cmd, f.Name) && (f.Name != "output" || !command.CallsPeer(cmd))
	})
}

// flagsOf writes the flags of a command that keep accepts. A flag that means the same at an earlier command is only named.
func (p page) flagsOf(cmd *cobra.Command, keep func(*pflag.Flag) bool) {
	var told []string // earlier commands, in order
	named := map[string][]string{}
	lead := "\n"
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" || !keep(f) {
			return
		}
		value, usage := pflag.UnquoteUsage(f)
		name := "--" + f.Name
		if value != "" {
			name += " " + value
		}
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		line := code(name) + ": " + cell(usage)
		if f.DefValue != "" && !slices.Contains([]string{"[]", "false", "0", "0s"}, f.DefValue) {
			line += " (" + code(f.DefValue) + ")"
		}
		if earlier, ok := p.flags[line]; ok {
			if !slices.Contains(told, earlier) {
				told = append(told, earlier)
			}
			named[earlier] = append(named[earlier], code("--"+f.Name))
			return
		}
		p.flags[line] = strings.TrimPrefix(cmd.CommandPath(), "blackholed ")
		p.b.WriteString(lead + "- " + line + "\n")
		lead = ""
	})
	for _, earlier := range told {
		p.b.WriteString(lead + "- as at " + earlier + ": " + strings.Join(named[earlier], ", ") + "\n")
		lead = ""
	}
}

func settingsPage(t *testing.T) string {
	t.Helper()
	b := begin("Settings", "A settings file (`blackhole.yaml` in the data directory, or `--config FILE`) has these keys in YAML, with their defaults in parentheses. The variable of a key is `BLACKHOLE_` and\nthe key in capital letters with `_` for the dots: `BLACKHOLE_DISCOVERY_RECORD_TTL`. Flags override variables, variables override the file.\n`blackholed init` writes all keys with their defaults, and `blackholed config show --origin` shows what holds and why.\n\nA file has one document. A duration has a unit (`30s`). A path may begin with `~/`, the home of `$HOME`.\n\nA peer that gets SIGHUP reads file and variables of its start again, and applies the settings that say so below. A mistake leaves all old settings\nin force, and a line in the log names the field. All other changes wait for a restart, and the line names them.\n\nThe default data directory is `$STATE_DIRECTORY` in a service of systemd, `$XDG_STATE_HOME/blackholed` where that variable is set, and otherwise:\nLinux `~/.local/state/blackholed`, for root `/var/lib/blackholed`; macOS `~/Library/Application Support/blackholed`, for root the same under\n`/Library`; Windows `%LocalAppData%\\blackholed`. Without a home directory it is `blackhole-data` in the working directory.")
	defaults, section := config.Default(), "-"
	for _, s := range config.Settings() {
		in := ""
		if i := strings.LastIndexByte(s.Key, '.'); i >= 0 {
			in = s.Key[:i]
		}
		if in != section {
			section = in
			title := "General"
			if in != "" {
				title = in
			}
			b.WriteString("\n## " + title + "\n\n")
		}
		standard := code(defaults.Value(s.Key))
		if s.Key == "data" {
			standard = "see above"
		}
		if s.Reloads {
			s.Help += " Applied at SIGHUP."
		}
		if standard != "" {
			standard = " (" + standard + ")"
		}
		b.WriteString("- " + code(s.Key) + standard + ": " + cell(s.Help) + "\n")
	}
	return b.String()
}
