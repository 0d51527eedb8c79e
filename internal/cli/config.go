package cli

import (
	"time"

	"github.com/go-viper/mapstructure/v2"
	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/internal/platform/config"
	"github.com/blackhole/blackhole/pkg/fault"
)

func configCommand(con *console) *cobra.Command {
	return parent(&cobra.Command{Use: "config", Short: "Inspect settings"}, configShowCommand(con))
}

// settingView is the JSON form of a setting with its source.
type settingView struct {
	Key    string `json:"key"`
	Value  string `json:"value"`
	Origin string `json:"origin"`
}

func configShowCommand(con *console) *cobra.Command {
	cmd := &cobra.Command{
		Use: "show", Short: "Show the settings that run would use", Args: noArgs,
		Long: "Show the settings that run would use with the same flags. -o yaml prints a settings\nfile; --origin adds the source of each setting.",
	}
	s := settingFlags(con, cmd)
	origins := cmd.Flags().Bool("origin", false, "show the source of each setting")
	var f format
	outputFlag(cmd, &f)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, origin, err := s.load(cmd)
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
		d := document{value: map[string]any{"settings": list}, items: itemsOf(list), table: pairs(rows)}
		if !*origins {
			d.items = nil
			if d.value, err = tree(c); err != nil {
				return err
			}
		}
		return f.print(con, d)
	}
	return cmd
}

// tree returns the settings in the structure of the settings file.
func tree(c config.Config) (map[string]any, error) {
	var m map[string]any
	dec, err := mapstructure.NewDecoder(&mapstructure.DecoderConfig{TagName: "koanf", Result: &m})
	if err == nil {
		err = dec.Decode(c)
	}
	formatValues(m)
	return m, fault.As("cli.tree", fault.Internal, err)
}

// formatValues converts values to their form in the file.
func formatValues(m map[string]any) {
	for key, value := range m {
		switch v := value.(type) {
		case time.Duration:
			m[key] = v.String()
		case []string:
			m[key] = append([]string{}, v...) // [], not null
		case map[string][]string:
			if v == nil {
				m[key] = map[string][]string{}
			}
		case []config.Token:
			m[key] = append([]config.Token{}, v...)
		case []config.Certificate:
			m[key] = append([]config.Certificate{}, v...)
		case map[string]any:
			formatValues(v)
		}
	}
}
