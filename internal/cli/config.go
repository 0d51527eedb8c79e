package cli

import (
	"time"

	"github.com/go-viper/mapstructure/v2"
	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/internal/platform/config"
	"github.com/blackhole/blackhole/pkg/fault"
)

func (a App) configCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "config", Short: "Look at settings", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	cmd.AddCommand(a.configShowCommand())
	return cmd
}

// shown is a setting with where it comes from.
type shown struct {
	Key    string `json:"key"`
	Value  string `json:"value"`
	Origin string `json:"origin"`
}

func (a App) configShowCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "show", Short: "Show the settings that run would use", Args: noArgs,
		Long: "Show the settings that run would use with the same flags. -o yaml prints a settings\nfile; --origin says where each comes from.",
	}
	s := a.settingFlags(cmd)
	origins := cmd.Flags().Bool("origin", false, "say where each setting comes from")
	var f format
	outputFlag(cmd, &f)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, origin, err := s.load(cmd)
		if err != nil {
			return err
		}
		var list []shown
		var rows [][]string
		for _, key := range config.Keys() {
			list = append(list, shown{key, c.Value(key), origin[key]})
			rows = append(rows, []string{key, c.Value(key)})
			if *origins {
				rows[len(rows)-1] = append(rows[len(rows)-1], origin[key])
			}
		}
		d := document{value: map[string]any{"settings": list}, items: itemsOf(list), table: pairs(rows)}
		if !*origins {
			d.items = nil
			if d.value, err = tree(c); err != nil {
				return err
			}
		}
		return f.print(a.Stdout, d)
	}
	return cmd
}

// tree gives the settings in the shape of the settings file.
func tree(c config.Config) (map[string]any, error) {
	var m map[string]any
	dec, err := mapstructure.NewDecoder(&mapstructure.DecoderConfig{TagName: "koanf", Result: &m})
	if err == nil {
		err = dec.Decode(c)
	}
	spell(m)
	return m, fault.As("cli.tree", fault.Internal, err)
}

// spell gives values the form that they have in the file.
func spell(m map[string]any) {
	for key, value := range m {
		switch v := value.(type) {
		case time.Duration:
			m[key] = v.String()
		case []string:
			m[key] = append([]string{}, v...) // [] and not null
		case map[string][]string:
			if v == nil {
				m[key] = map[string][]string{}
			}
		case []config.Token:
			m[key] = append([]config.Token{}, v...)
		case []config.Certificate:
			m[key] = append([]config.Certificate{}, v...)
		case map[string]any:
			spell(v)
		}
	}
}
