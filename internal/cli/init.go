package cli

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/internal/cli/command"
	"github.com/blackhole/blackhole/internal/cli/settings"
	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/internal/platform/config"
	"github.com/blackhole/blackhole/pkg/fault"
)

func initCommand(con *term.Console, identity func(dataDir string) (string, error)) *cobra.Command {
	cmd := &cobra.Command{
		Use: "init", Short: "Create a peer's data directory with settings file and identity", Args: command.NoArgs,
		Long: "Create a peer's data directory with an identity and a settings file, which lists every\n" +
			"setting as a comment with its default. Existing files stay unchanged. Prints the peer id.",
	}
	settings.DataFlag(cmd, "directory to create")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		dir := settings.DataDir(con, cmd)
		if dir == "" {
			return fault.Invalidf("--data", dir, "must not be empty")
		}
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fault.As("cli.init", fault.Internal, err)
		}
		path := filepath.Join(dir, settings.ConfigFile)
		created, err := createFile(path, settingsFile(settings.HomeDir(con)))
		if err != nil {
			return fault.As("cli.init", fault.Internal, err)
		}
		if created {
			con.Say("wrote %s", path)
		} else {
			con.Say("kept %s", path)
		}
		return printID(con, identity, dir, term.AsTable)
	}
	return cmd
}

func idCommand(con *term.Console, identity func(dataDir string) (string, error)) *cobra.Command {
	cmd := &cobra.Command{Use: "id", Short: "Print the peer id of a data directory", Args: command.NoArgs}
	settings.DataFlag(cmd, "data directory")
	var f term.Format
	command.Output(cmd, &f)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		dir := settings.DataDir(con, cmd)
		if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) { // identity would create the directory
			return fault.New("", fault.NotFound, "no data directory %s; %s init creates one", dir, command.Program)
		}
		return printID(con, identity, dir, f)
	}
	return cmd
}

func printID(c *term.Console, identity func(dataDir string) (string, error), dir string, f term.Format) error {
	id, err := identity(dir)
	if err != nil {
		return err
	}
	return f.Print(c, term.Document{Value: map[string]string{"peer_id": id}, Table: term.Plain(id + "\n")})
}

// createFile writes a new file and leaves an existing file unchanged.
func createFile(path, text string) (created bool, err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	_, err = f.WriteString(text)
	return true, errors.Join(err, f.Close())
}

// settingsFile is a settings file that changes nothing. "#" without a space begins a
// setting, "# " an explanation. data is the default data directory.
func settingsFile(data string) string {
	var b strings.Builder
	b.WriteString("# Settings of this peer. A line with # and no space is a setting with its default. To change\n" +
		"# a setting, remove its # and the # of the sections above it.\n" +
		"# `" + command.Program + " config show --origin` shows the effective settings and their sources.\n\n")
	defaults := config.Default()
	defaults.Data = data
	var open []string // sections of the last line
	for _, d := range config.Settings() {
		path := strings.Split(d.Key, ".")
		sections, last := path[:len(path)-1], path[len(path)-1]
		shared := 0
		for shared < min(len(open), len(sections)) && open[shared] == sections[shared] {
			shared++
		}
		for i := shared; i < len(sections); i++ {
			b.WriteString("\n#" + strings.Repeat("  ", i) + sections[i] + ":\n")
		}
		open = sections
		indent := strings.Repeat("  ", len(sections))
		b.WriteString("# " + indent + d.Help + "\n")
		b.WriteString("#" + indent + last + ": " + literal(defaults.Value(d.Key)) + "\n")
	}
	return b.String()
}

// literal is the short form of a default: 24h for 24h0m0s.
func literal(value string) string {
	if short, ok := strings.CutSuffix(value, "m0s"); ok { // a duration
		value = short + "m"
	}
	if short, ok := strings.CutSuffix(value, "h0m"); ok {
		value = short + "h"
	}
	return value
}

func reclaimCommand(con *term.Console, reclaim func(dataDir string) (int, error)) *cobra.Command {
	cmd := &cobra.Command{
		Use: "reclaim", Short: "Renew the offers of a stopped peer after identity_in_use", Args: command.NoArgs,
		Long: "Make the offers in a data directory valid again, after the condition identity_in_use: another\n" +
			"machine had a copy of identity.key, or the directory was restored from a backup.\n\n" +
			"First stop the other machine, or delete its identity.key so that it creates a new identity.\n" +
			"Stop this peer too. After reclaim, its next start signs all offers in the directory again,\n" +
			"in place of newer versions and withdrawals by the other machine. Offers of the other machine\n" +
			"only end by themselves, after 48 hours at most.",
	}
	settings.DataFlag(cmd, "data directory")
	var f term.Format
	command.Output(cmd, &f)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		n, err := reclaim(settings.DataDir(con, cmd))
		if err != nil {
			return err
		}
		return f.Print(con, term.Document{Value: map[string]int{"offers": n}, Table: term.Plain(fault.Counted(n, "offer") + " reclaimed: start this peer\n")})
	}
	return cmd
}

// settingView is the JSON form of a setting with its source.
type settingView struct {
	Key    string `json:"key"`
	Value  string `json:"value"`
	Origin string `json:"origin"`
}

func configShowCommand(con *term.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use: "show", Short: "Show the settings that run would use", Args: command.NoArgs,
		Long: "Show the settings that run would use with the same flags. -o yaml prints a settings\nfile; --origin adds the source of each setting.",
	}
	s := settings.New(con, cmd)
	origins := cmd.Flags().Bool("origin", false, "show the source of each setting")
	var f term.Format
	command.Output(cmd, &f)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, origin, err := s.Load(cmd)
		if err != nil {
			return err
		}
		var list []settingView
		var rows [][]string
		for _, key := range config.Keys() {
			list = append(list, settingView{key, c.Value(key), origin[key]})
			rows = append(rows, []string{key, c.Value(key)})
			if *origins {
				rows[len(rows)-1] = append(rows[len(rows)-1], origin[key])
			}
		}
		d := term.Document{Value: map[string]any{"settings": list}, Items: term.Items(list), Table: term.Pairs(rows)}
		if !*origins {
			d.Items = nil
			if d.Value, err = c.Tree(); err != nil {
				return err
			}
		}
		return f.Print(con, d)
	}
	return cmd
}
