package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/internal/cli/command"
	"github.com/blackhole/blackhole/internal/cli/settings"
	"github.com/blackhole/blackhole/internal/cli/term"
)

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
		return f.Print(con, term.Document{Value: map[string]int{"offers": n}, Table: term.Plain(fmt.Sprintf("%d offers reclaimed: start this peer\n", n))})
	}
	return cmd
}
