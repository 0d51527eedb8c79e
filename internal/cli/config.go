package cli

import (
	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/internal/cli/command"
	"github.com/blackhole/blackhole/internal/cli/settings"
	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/internal/platform/config"
)

func configCommand(con *term.Console) *cobra.Command {
	return command.Parent(&cobra.Command{Use: "config", Short: "Inspect settings"}, configShowCommand(con))
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
