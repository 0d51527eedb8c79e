package cli

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/discovery"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
)

func offerFind(con *console) *cobra.Command {
	cmd := &cobra.Command{
		Use: "find --type TYPE", Short: "Find offers in the network", Args: noArgs,
		Long: "Find offers by type, place, capabilities, price and quality.\n\n" +
			"A filter on a value excludes offers that do not state the value. An incomplete\n" +
			"answer has correct results, but lacks others: a warning gives the reason.",
		Example: "  " + name + " offer find --type compute --near berlin --radius 100km --min-cpu 8 --gpu\n" +
			"  " + name + " offer find --type storage --max-price 0.05 --sort price --limit 10 -o json\n" +
			"  " + name + " offer find --type compute --gpu-model H100,A100 --gpu-memory-mb 80000 --gpus 8\n" +
			"  " + name + " offer find --type bandwidth --where 'bandwidth.exit_countries=DE' --where 'location.country!=US'",
	}
	flags := newQueryFlags(cmd)
	flags.addOrder(cmd)
	var must bool
	mustFlag(cmd, &must)
	r := newRemote(con, cmd, defaultTimeout)
	return r.calls(func(ctx context.Context, c *client.Client, _ []string) error {
		q, err := flags.query(cmd)
		if err != nil {
			return err
		}
		if flags.near.city != "" {
			r.say("near %s", flags.near.city)
		}
		answer, err := c.Query(ctx, q)
		if err != nil {
			return queryFields().rename(err)
		}
		if err := r.print(document{value: answer, items: itemsOf(answer.Results), table: answerTable(answer)}); err != nil {
			return err
		}
		r.summarise(answer)
		if len(answer.Results) == 0 && r.format == formatTable && q.After == "" && !q.Explain {
			r.explainNoOffer(ctx, c, q)
		}
		return foundSome(nil, must, answer.Total)
	})
}

// summarise tells the user the total, the source and the completeness of an answer.
func (r *remote) summarise(a query.AnswerView) {
	if r.format == formatTable {
		from := "from the network"
		switch a.Source {
		case query.SourceCache:
			from = "from the cache, found " + duration(a.AgeMs) + " ago"
		case query.SourceLocal:
			from = "from this peer's index"
		}
		of := strconv.Itoa(a.Total)
		if a.AtLeast {
			of = "at least " + of
		}
		r.say("%d of %s, %s, in %s", len(a.Results), of, from, duration(a.TookMs))
	}
	if a.Next != "" {
		r.say("more: --after %s", a.Next)
	}
	if a.ExcludedTotal > 0 {
		r.say("%s", excludedLine(a))
	}
	if !a.Complete {
		r.say("warning: the answer is incomplete: %s", orDash(a.Reason))
	}
}

// duration shows milliseconds with about three digits.
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

// offerOf returns the offer with a key, or the own one with an id.
func offerOf(ctx context.Context, c *client.Client, id string) (client.Record, error) {
	if strings.HasPrefix(id, "/") {
		return c.Resolve(ctx, id)
	}
	return c.Get(ctx, id)
}

func offerShow(con *console) *cobra.Command {
	r := newRemote(con, &cobra.Command{Use: "show ID", Short: "Show all fields of an own offer, or of the offer with a key", Args: oneArg("ID")}, defaultTimeout)
	return r.calls(func(ctx context.Context, c *client.Client, args []string) error {
		rec, err := offerOf(ctx, c, args[0])
		if err != nil {
			return renameField(err, "ID")
		}
		d, err := fields(rec.View)
		if err != nil {
			return err
		}
		return r.print(d)
	})
}

func offerWatch(con *console) *cobra.Command {
	cmd := &cobra.Command{
		Use: "watch --type TYPE", Short: "Follow the offers that match a query", Args: noArgs,
		Long: "Show the matching offers, then all changes until interrupted.\n\n" +
			"Events: added, updated, withdrawn (by the provider), expired (not renewed), removed\n" +
			"(still offered, but outside the query), reset (discard earlier results: the current\n" +
			"ones follow) and progress (nothing changed; not in tables). With -o ndjson each line\n" +
			"has a cursor for --after, which resumes the watch there. --timeout ends the watch\n" +
			"with exit code 0. A warning says how many offers need a newer version of the peer.",
	}
	flags := newQueryFlags(cmd)
	after := cmd.Flags().String("after", "", "cursor of the last event seen")
	r := newRemote(con, cmd, 0)
	return r.calls(func(ctx context.Context, c *client.Client, _ []string) error {
		q, err := flags.query(cmd)
		if err != nil {
			return err
		}
		w, err := c.Watch(ctx, q, *after)
		if err != nil {
			return queryFields().rename(err)
		}
		return r.follow(w)
	})
}

// follow prints events until the watch ends. A timeout after the first event is the end
// that the user asked for; a timeout before it means that no peer answered.
func (r *remote) follow(w *client.Watcher) error {
	warned := ""
	for seen := false; ; seen = true {
		ev, err := w.Next()
		if seen && fault.KindOf(err) == fault.Timeout {
			return nil
		}
		if err != nil {
			return queryFields().rename(err)
		}
		if ev.Kind == discovery.Progress && ev.Reason != warned {
			if warned = ev.Reason; warned != "" {
				r.say("warning: %s", warned)
			}
		}
		d := document{value: ev}
		switch {
		case ev.Record != nil:
			d.table = plain(eventLine(string(ev.Kind), &ev.Record.View, ev.Reason))
		case ev.Kind == "reset":
			d.table = plain("reset\n")
		}
		if err := r.printNext(d); err != nil {
			return err
		}
	}
}
