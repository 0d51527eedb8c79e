package reference_test

import (
	"regexp"
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
	b := begin("Commands", "`blackholed COMMAND --help` has the same and more, `blackholed man DIR` writes manual pages, and [errors.md](errors.md) has the exit codes.\nA default stands in parentheses. A flag that means the same at an earlier command is only named, with that command if others mean something else by it.\nOf flags that are settings lists repeat, `--leaf` means `--leaf=on`, and `--network` and `--name` are `network.name` and `connections.name`.")
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
	return lonely(b.String())
}

// lonely leaves out the command after a flag that has one meaning in the whole page.
func lonely(page string) string {
	meanings := map[string]map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^- `(?:-., )?(--[a-z-]+)[^`]*`: .*$").FindAllStringSubmatch(page, -1) {
		if meanings[m[1]] == nil {
			meanings[m[1]] = map[string]bool{}
		}
		meanings[m[1]][m[0]] = true
	}
	return regexp.MustCompile("`(--[a-z-]+)` \\([a-z ]+\\)").ReplaceAllStringFunc(page, func(named string) string {
		flag, _, _ := strings.Cut(named[1:], "`")
		if len(meanings[flag]) == 1 {
			return code(flag)
		}
		return named
	})
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
	var told, settings []string // earlier commands, in order; flags that are settings
	named := map[string][]string{}
	lead := "\n"
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" || !keep(f) {
			return
		}
		if (cmd.Name() == "show" || cmd.Name() == "run") && f.Name != "data" && isSetting(f.Name) {
			settings = append(settings, code("--"+f.Name))
			return
		}
		value, usage := pflag.UnquoteUsage(f)
		name := "--" + f.Name
		if value != "" {
			name += "=" + value
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
	if len(settings) > 0 {
		p.b.WriteString(lead + "- [settings](settings.md): " + strings.Join(settings, ", ") + "\n")
		lead = ""
	}
	for i, earlier := range told {
		told[i] = strings.Join(named[earlier], ", ") + " (" + earlier + ")"
		if len(named[earlier]) > 20 {
			told[i] = "all of " + earlier + " but " + strings.Join(p.others(earlier, named[earlier]), ", ")
		}
	}
	if len(told) > 0 {
		p.b.WriteString(lead + "- " + strings.Join(told, ", ") + "\n")
	}
}

// others are the flags that a command has told in full, without those named.
func (p page) others(told string, named []string) (rest []string) {
	for line, cmd := range p.flags {
		flag := code(regexp.MustCompile(`--[a-z-]+`).FindString(line))
		if cmd == told && !slices.Contains(named, flag) {
			rest = append(rest, flag)
		}
	}
	slices.Sort(rest)
	return rest
}

// isSetting reports whether a flag of run has the name of a setting, or is short for network.name or connections.name.
func isSetting(flag string) bool {
	return flag == "network" || flag == "name" || slices.Contains(config.Keys(), flag)
}

func settingsPage(t *testing.T) string {
	t.Helper()
	b := begin("Settings", "The keys of a settings file (`blackhole.yaml` in the data directory, or `--config FILE`), with defaults in parentheses, lists empty without one. The variable of a key has capital letters\nand `_` for the dots: `BLACKHOLE_DISCOVERY_RECORD_TTL`. Flags override variables, variables the file. `blackholed init` writes all keys,\n`blackholed config show --origin` shows what holds and why.\n\nA file is one YAML document. A duration has a unit (`30s`). A path may begin with `~/`, the home of `$HOME`.\n\nAt SIGHUP a peer reads file and variables again and applies the settings marked +. A mistake leaves all old settings in force; other changes wait for\na restart. The log names the field in both cases.\n\nThe default data directory is `$STATE_DIRECTORY` in a service of systemd, else `$XDG_STATE_HOME/blackholed` where that is set, else on Linux\n`~/.local/state/blackholed` (root: `/var/lib/blackholed`), macOS `~/Library/Application Support/blackholed` (root: the same under `/Library`), Windows\n`%LocalAppData%\\blackholed`. Without a home directory it is `blackhole-data` in the working directory.")
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
