package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/pkg/client"
)

func logLevelCommand(con *console) *cobra.Command {
	cmd := &cobra.Command{
		Use: "log-level LEVEL", Short: "Change the level of the peer's log", Args: oneArg("LEVEL"),
		ValidArgs: []string{"debug", "info", "warn", "error"},
		Long: "Change the level of the running peer's log to debug, info, warn or error, until the peer stops. The setting\n" +
			"log.level holds at the next start. Needs the role admin.",
	}
	r := newRemote(con, cmd, defaultTimeout)
	return r.calls(func(ctx context.Context, c *client.Client, args []string) error {
		before, err := client.OperatorOf(c).SetLogLevel(ctx, args[0])
		if err != nil {
			return renameField(err, "LEVEL")
		}
		v := map[string]string{"level": args[0], "previous": before}
		return r.print(document{value: v, table: pairs([][]string{{"level", args[0]}, {"before", before}})})
	})
}
