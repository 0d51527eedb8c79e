package cli

import (
	"fmt"

	"github.com/spf13/cobra"
)

func reclaimCommand(con *console, reclaim func(dataDir string) (int, error)) *cobra.Command {
	cmd := &cobra.Command{
		Use: "reclaim", Short: "Renew the offers of a stopped peer after identity_in_use", Args: noArgs,
		Long: "Make the offers in a data directory valid again, after the condition identity_in_use: another\n" +
			"machine had a copy of identity.key, or the directory was restored from a backup.\n\n" +
			"First stop the other machine, or delete its identity.key so that it creates a new identity.\n" +
			"Stop this peer too. After reclaim, its next start signs all offers in the directory again,\n" +
			"in place of newer versions and withdrawals by the other machine. Offers of the other machine\n" +
			"only end by themselves, after 48 hours at most.",
	}
	dataFlag(cmd, "data directory")
	var f format
	outputFlag(cmd, &f)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		n, err := reclaim(con.dataDir(cmd))
		if err != nil {
			return err
		}
		return f.print(con, document{value: map[string]int{"offers": n}, table: plain(fmt.Sprintf("%d offers reclaimed: start this peer\n", n))})
	}
	return cmd
}
