package cli

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

func (a App) queryCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "query --type TYPE", Short: "Find services", Args: noArgs,
		Long: "Find services by type, place, capabilities, price and quality.\n\n" +
			"A service that does not state a value does not pass a filter on it. Results from an\n" +
			"answer that is not complete are right, but there may be more: a warning says why.",
		Example: "  " + name + " query --type compute --near 52.52,13.40 --radius 100km --min-cpu 8 --gpu\n" +
			"  " + name + " query --type storage --max-price 0.05 --sort price --limit 10 -o json",
	}
	flags := filterFlags(cmd)
	flags.orderFlags(cmd)
	r := a.remoteFlags(cmd, defaultTimeout)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		q, err := flags.query(cmd)
		if err != nil {
			return err
		}
		return r.call(cmd, func(ctx context.Context, c *client.Client) error {
			answer, err := c.Query(ctx, q)
			if err != nil {
				return named(err)
			}
			if err := r.print(document{value: answer, items: itemsOf(answer.Results), table: answerTable(answer)}); err != nil {
				return err
			}
			r.summarise(answer)
			return nil
		})
	}
	return cmd
}

// summarise says what the rows of an answer do not.
func (r *remote) summarise(a query.AnswerView) {
	if r.format == formatTable {
		from := "from the network"
		switch a.Source {
		case query.SourceCache:
			from = "from the cache, found " + ago(a.AgeMs)
		case query.SourceLocal:
			from = "from this peer's index"
		}
		of := strconv.Itoa(a.Total)
		if a.AtLeast {
			of = "at least " + of
		}
		r.app.say("%d of %s, %s, in %s", len(a.Results), of, from, duration(a.TookMs))
	}
	if !a.Complete {
		r.app.say("warning: the answer is incomplete: %s", orDash(a.Reason))
	}
}

// ago shows an age to three digits or so.
func ago(ms float64) string { return duration(ms) + " ago" }

func duration(ms float64) string {
	d := time.Duration(ms * float64(time.Millisecond))
	switch {
	case d < time.Millisecond:
		return d.Round(time.Microsecond).String()
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	default:
		return d.Round(100 * time.Millisecond).String()
	}
}

func (a App) resolveCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "resolve KEY", Short: "Show the record under a key", Args: oneArg("KEY")}
	r := a.remoteFlags(cmd, defaultTimeout)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return r.call(cmd, func(ctx context.Context, c *client.Client) error {
			rec, err := c.Resolve(ctx, args[0])
			if err != nil {
				return renameField(err, func(string) string { return "KEY" })
			}
			return r.print(document{value: rec.View, table: recordTable([]records.View{rec.View})})
		})
	}
	return cmd
}

func (a App) watchCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "watch --type TYPE", Short: "Follow services as they come, change and go", Args: noArgs,
		Long: "Show the services that match now, and then every change until interrupted.\n\n" +
			"Events: added, updated, withdrawn (by the provider), expired (not renewed), removed\n" +
			"(lives, but matches no more), reset (forget what you had: the current matches follow)\n" +
			"and progress (nothing changed; not in tables). With -o ndjson each line has a cursor:\n" +
			"--after resumes behind it. With --timeout the watch ends well after that time.",
	}
	flags := filterFlags(cmd)
	after := cmd.Flags().String("after", "", "cursor of the last event seen")
	r := a.remoteFlags(cmd, 0)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		q, err := flags.query(cmd)
		if err != nil {
			return err
		}
		return r.call(cmd, func(ctx context.Context, c *client.Client) error {
			w, err := c.Watch(ctx, q, *after)
			if err != nil {
				return named(err)
			}
			return r.follow(w)
		})
	}
	return cmd
}

// follow prints events until the watch ends. A timeout after the first event is the end
// that the user asked for; before, no peer answered.
func (r *remote) follow(w *client.Watcher) error {
	for seen := false; ; seen = true {
		ev, err := w.Next()
		if seen && fault.KindOf(err) == fault.Timeout {
			return nil
		}
		if err != nil {
			return named(err)
		}
		if err := r.event(ev); err != nil {
			return err
		}
	}
}

func (r *remote) event(ev client.Event) error {
	d := document{value: ev}
	switch {
	case ev.Record != nil:
		d.table = eventLine(string(ev.Kind), &ev.Record.View)
	case ev.Kind == "reset":
		d.table = "reset\n"
	}
	if r.format == formatYAML { // one document for each event
		if _, err := io.WriteString(r.app.Stdout, "---\n"); err != nil {
			return fault.As("cli.event", fault.Internal, err)
		}
	}
	return r.print(d)
}

func (a App) versionCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "version", Short: "Show the version of this program", Args: noArgs}
	var f format
	outputFlag(cmd, &f)
	cmd.RunE = func(*cobra.Command, []string) error {
		return f.print(a.Stdout, document{
			value: map[string]string{"version": a.Version},
			table: fmt.Sprintf("%s %s\n", name, a.Version),
		})
	}
	return cmd
}
