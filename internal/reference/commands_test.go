package reference_test

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/cli"
	"github.com/blackhole/blackhole/internal/cli/command"
	"github.com/blackhole/blackhole/internal/platform/config"
)

// commandsPage lists the commands. Flags stand in the help of a command, with their meaning, alone.
func commandsPage(t *testing.T) string {
	t.Helper()
	tree := cli.App{}.Commands()
	b := begin("Commands", "`blackholed COMMAND --help` has the flags of a command, with examples; `blackholed man DIR` writes\n"+
		"manual pages. [errors.md](errors.md) has the exit codes, [settings.md](settings.md) the settings that `config show`\n"+
		"and `run` take as flags: lists repeat, `--leaf` means `--leaf=on`, and `--network` and `--name` are `network.name`\n"+
		"and `connections.name`.")
	b.WriteString("\nCommands that call a peer take" + flagsOfCallers(find(t, tree, "kv", "put")) + ".\n")
	for _, group := range append(tree.Groups(), &cobra.Group{Title: "Others:"}) {
		b.WriteString("\n## " + strings.TrimSuffix(group.Title, ":") + "\n\n")
		for _, cmd := range tree.Commands() {
			if cmd.GroupID == group.ID && cmd.Runnable() && cmd.Name() != "help" && cmd.Name() != "completion" && !cmd.Hidden {
				describe(b, cmd)
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

// describe writes a command that does something, or all commands below it.
func describe(b *strings.Builder, cmd *cobra.Command) {
	for _, child := range cmd.Commands() {
		if !child.Hidden {
			describe(b, child)
		}
	}
	if cmd.HasSubCommands() {
		return
	}
	use := strings.TrimSuffix(strings.TrimPrefix(cmd.UseLine(), "blackholed "), " [flags]")
	b.WriteString("- " + code(use) + ": " + cell(cmd.Short) + "\n")
}

// flagsOfCallers returns the flags that a command has because it calls a peer, with a blank before each.
func flagsOfCallers(cmd *cobra.Command) string {
	var all strings.Builder
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Name == "output" || command.PeerFlag(cmd, f.Name) {
			all.WriteString(" " + code("--"+f.Name))
		}
	})
	return all.String()
}

func settingsPage(t *testing.T) string {
	t.Helper()
	b := begin("Settings", "The keys of a settings file (`blackhole.yaml` in the data directory, or `--config FILE`), with defaults in parentheses, lists empty without one. The variable of a key has capital letters\nand `_` for the dots: `BLACKHOLE_DISCOVERY_RECORD_TTL`. Flags override variables, variables the file. `blackholed init` writes all keys,\n`blackholed config show --origin` shows what holds and why. A duration has a unit (`30s`). A path may begin with `~/`.\n\n"+
		"At SIGHUP a peer reads file and variables again and applies the settings marked +. A mistake leaves all old settings in force; other changes wait for\na restart. The log names the field in both cases.\n\n"+
		"The default data directory is `$STATE_DIRECTORY` in a service of systemd, else `$XDG_STATE_HOME/blackholed` where that is set, else on Linux\n`~/.local/state/blackholed` (root: `/var/lib/blackholed`), macOS `~/Library/Application Support/blackholed` (root: the same under `/Library`), Windows\n`%LocalAppData%\\blackholed`.")
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
		mark := ""
		if s.Reloads {
			mark = "+"
		}
		if standard != "" && standard != code("[]") {
			standard = " (" + standard + ")"
		} else {
			standard = ""
		}
		b.WriteString("- " + code(s.Key) + mark + standard + ": " + cell(s.Help) + "\n")
	}
	return b.String()
}
