package offer

import (
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/internal/cli/command"
	"github.com/blackhole/blackhole/internal/cli/exit"
	"github.com/blackhole/blackhole/internal/cli/settings"
	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/network"
	"github.com/blackhole/blackhole/pkg/records/delegation"
)

// DelegateFunc states with the identity of a data directory that another peer offers for it.
type DelegateFunc func(dataDir string, n network.Name, delegate string, life time.Duration) (*delegation.Signed, error)

func offerDelegate(con *term.Console, sign DelegateFunc) *cobra.Command {
	cmd := &cobra.Command{
		Use: "delegate PEER", Short: "Let another peer offer for this one", Args: command.OneArg("PEER"),
		Long: "Let another peer offer for this one: beside its own 100 offers a provider may have 32 delegates with as many\n" +
			"each. All count as one provider: --provider finds their offers too. The command signs a line for the setting\n" +
			"discovery.offers_for of the other peer. It needs no running peer. Nobody takes the line back: it ends.",
	}
	s := &settings.Settings{Con: con}
	cmd.Flags().StringVar(&s.File, "config", "", "settings file (default DATA/"+settings.ConfigFile+" if it exists)")
	settings.DataFlag(cmd, "data directory of the provider")
	life := cmd.Flags().Duration("for", 90*24*time.Hour, "end of the delegation after this time, at most 8784h")
	var f term.Format
	command.Output(cmd, &f)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, _, err := s.Load(cmd)
		if err != nil {
			return err
		}
		if _, err := os.Stat(c.Data); err != nil { // the identity would create the directory
			return fault.New("", fault.NotFound, "no data directory %s; %s init creates one", c.Data, command.Program)
		}
		d, err := sign(c.Data, c.NetworkName(), args[0], *life)
		if err != nil {
			return exit.Fields{"delegate": "PEER", "for": ""}.Rename(err)
		}
		con.Say("set discovery.offers_for of %s to this line, and add that peer to discovery.delegates of %s once it offers; the delegation is for the network %s and ends at %s",
			d.Delegate, d.Provider, c.NetworkName(), term.At(d.Expires))
		value := map[string]any{"delegation": d.Text(), "offered_for": d.Provider.String(), "delegate": d.Delegate.String(), "network": c.NetworkName(), "expires_at": d.Expires}
		return f.Print(con, term.Document{Value: value, Table: term.Plain(d.Text() + "\n")})
	}
	return cmd
}
