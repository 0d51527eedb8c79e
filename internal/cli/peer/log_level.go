package peer

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/internal/cli/command"
	"github.com/blackhole/blackhole/internal/cli/exit"
	"github.com/blackhole/blackhole/internal/cli/remote"
	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/pkg/client"
)

// LogLevel makes the command log-level.
func LogLevel(con *term.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use: "log-level LEVEL", Short: "Change the level of the peer's log", Args: command.OneArg("LEVEL"),
		ValidArgs: []string{"debug", "info", "warn", "error"},
		Long: "Change the level of the running peer's log to debug, info, warn or error, until the peer stops. The setting\n" +
			"log.level holds at the next start. Needs the role admin.",
	}
	r := remote.New(con, cmd, remote.DefaultTimeout)
	return r.Calls(func(ctx context.Context, c *client.Client, args []string) error {
		before, err := client.OperatorOf(c).SetLogLevel(ctx, args[0])
		if err != nil {
			return exit.Rename(err, "LEVEL")
		}
		v := map[string]string{"level": args[0], "previous": before}
		return r.Print(term.Document{Value: v, Table: term.Pairs([][]string{{"level", args[0]}, {"before", before}})})
	})
}
