package peer

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/internal/cli/command"
	"github.com/blackhole/blackhole/internal/cli/exit"
	"github.com/blackhole/blackhole/internal/cli/remote"
	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/internal/operator"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Events makes the command events.
func Events(con *term.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use: "events", Short: "Follow what matters at this peer", Args: command.NoArgs,
		Long: "Show what matters at the peer until interrupted: leaders, voters, conditions, ended instances, lost\n" +
			"locks, offers and peers. --since begins with what mattered before; a peer remembers an hour.\n\n" +
			"With -o ndjson each line has an id, which --after continues at. --timeout ends the command with exit\n" +
			"code 0. A line begins with the time at which the peer learned of it, and ends with the time of the event\n" +
			"where it was earlier. Changes have streams of their own: offer watch, instance watch, kv watch.",
	}
	var q operator.EventQuery
	cmd.Flags().StringVar(&q.After, "after", "", "id of the last event seen")
	cmd.Flags().StringVar(&q.Since, "since", "", "begin with what mattered since then: a duration such as 1h, or a time (RFC 3339)")
	r := remote.New(con, cmd, 0)
	return r.Calls(func(ctx context.Context, c *operator.Client, _ []string) error {
		seen := false
		for e, err := range c.Events(ctx, q) {
			if seen && fault.KindOf(err) == fault.Timeout {
				return nil // the end that --timeout asked for
			}
			if err != nil {
				return exit.Fields{"after": "", "since": ""}.Rename(err)
			}
			seen = true
			if err := r.PrintNext(term.Document{Value: e, Table: term.Plain(eventLines(e))}); err != nil {
				return err
			}
		}
		return nil
	})
}

// eventLines returns a line for each note of an event.
func eventLines(e operator.PeerEvent) string {
	var out strings.Builder
	for _, n := range e.Notes {
		text := term.Clean(fmt.Sprintf("%s  %-11s  %s", n.At.UTC().Format(time.RFC3339), n.Kind, n.Text))
		if !n.Since.IsZero() {
			text += ", at " + n.Since.UTC().Format(time.RFC3339)
		}
		out.WriteString(strings.TrimRight(text, " ") + "\n")
	}
	return out.String()
}
