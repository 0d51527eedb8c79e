package offer

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/internal/cli/command"
	"github.com/blackhole/blackhole/internal/cli/exit"
	"github.com/blackhole/blackhole/internal/cli/remote"
	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/discovery"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
)

func offerFind(con *term.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use: "find --type TYPE", Short: "Find offers in the network", Args: command.NoArgs,
		Long: "Find offers by type, place, capabilities, price and quality.\n\n" +
			"A filter on a value excludes offers that do not state the value. An incomplete\n" +
			"answer has correct results, but lacks others: a warning gives the reason.",
		Example: "  " + command.Program + " offer find --type compute --near berlin --radius 100km --min-cpu 8 --gpu\n" +
			"  " + command.Program + " offer find --type storage --max-price 0.05 --sort price --limit 10 -o json\n" +
			"  " + command.Program + " offer find --type compute --gpu-model H100,A100 --gpu-memory-mb 80000 --gpus 8\n" +
			"  " + command.Program + " offer find --type bandwidth --where 'bandwidth.exit_countries=DE' --where 'location.country!=US'",
	}
	flags := newQueryFlags(cmd)
	flags.addOrder(cmd)
	var must bool
	remote.MustFind(cmd, &must)
	r := remote.New(con, cmd, remote.DefaultTimeout)
	return r.Calls(func(ctx context.Context, c *client.Client, _ []string) error {
		q, err := flags.query(cmd)
		if err != nil {
			return err
		}
		if flags.near.city != "" {
			r.Say("near %s", flags.near.city)
		}
		answer, err := c.Query(ctx, q)
		if err != nil {
			return queryFields().Rename(err)
		}
		if err := r.Print(term.Document{Value: answer, Items: term.Items(answer.Results), Table: answerTable(answer)}); err != nil {
			return err
		}
		summarise(r, answer)
		if len(answer.Results) == 0 && r.Format == term.AsTable && q.After == "" && !q.Explain {
			explainNoOffer(ctx, r, c, q)
		}
		return remote.Found(nil, must, answer.Total)
	})
}

// summarise tells the user the total, the source and the completeness of an answer.
func summarise(r *remote.Peer, a query.AnswerView) {
	if r.Format == term.AsTable {
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
		r.Say("%d of %s, %s, in %s", len(a.Results), of, from, duration(a.TookMs))
	}
	if a.Next != "" {
		r.Say("more: --after %s", a.Next)
	}
	if a.ExcludedTotal > 0 {
		r.Say("%s", excludedLine(a))
	}
	if !a.Complete {
		r.Say("warning: the answer is incomplete: %s", term.OrDash(a.Reason))
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

// OfferOf returns the offer with a key, or the own one with an id.
func OfferOf(ctx context.Context, c *client.Client, id string) (client.Record, error) {
	if strings.HasPrefix(id, "/") {
		return c.Resolve(ctx, id)
	}
	return c.Get(ctx, id)
}

func offerShow(con *term.Console) *cobra.Command {
	r := remote.New(con, &cobra.Command{Use: "show ID", Short: "Show all fields of an own offer, or of the offer with a key", Args: command.OneArg("ID")}, remote.DefaultTimeout)
	return r.Calls(func(ctx context.Context, c *client.Client, args []string) error {
		rec, err := OfferOf(ctx, c, args[0])
		if err != nil {
			return exit.Rename(err, "ID")
		}
		d, err := term.FieldsOf(rec.View)
		if err != nil {
			return err
		}
		return r.Print(d)
	})
}

func offerWatch(con *term.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use: "watch --type TYPE", Short: "Follow the offers that match a query", Args: command.NoArgs,
		Long: "Show the matching offers, then all changes until interrupted.\n\n" +
			"Events: added, updated, withdrawn (by the provider), expired (not renewed), removed\n" +
			"(still offered, but outside the query), reset (discard earlier results: the current\n" +
			"ones follow) and progress (nothing changed; not in tables). With -o ndjson each line\n" +
			"has a cursor for --after, which resumes the watch there. --timeout ends the watch\n" +
			"with exit code 0. A warning says how many offers need a newer version of the peer.",
	}
	flags := newQueryFlags(cmd)
	after := cmd.Flags().String("after", "", "cursor of the last event seen")
	r := remote.New(con, cmd, 0)
	return r.Calls(func(ctx context.Context, c *client.Client, _ []string) error {
		q, err := flags.query(cmd)
		if err != nil {
			return err
		}
		w, err := c.Watch(ctx, q, *after)
		if err != nil {
			return queryFields().Rename(err)
		}
		return followOffers(r, w)
	})
}

// followOffers prints events until the watch ends. A timeout after the first event is the end
// that the user asked for; a timeout before it means that no peer answered.
func followOffers(r *remote.Peer, w *client.Watcher) error {
	warned := ""
	for seen := false; ; seen = true {
		ev, err := w.Next()
		if seen && fault.KindOf(err) == fault.Timeout {
			return nil
		}
		if err != nil {
			return queryFields().Rename(err)
		}
		if ev.Kind == discovery.Progress && ev.Reason != warned {
			if warned = ev.Reason; warned != "" {
				r.Say("warning: %s", warned)
			}
		}
		d := term.Document{Value: ev}
		switch {
		case ev.Record != nil:
			d.Table = term.Plain(eventLine(string(ev.Kind), &ev.Record.View, ev.Reason))
		case ev.Kind == "reset":
			d.Table = term.Plain("reset\n")
		}
		if err := r.PrintNext(d); err != nil {
			return err
		}
	}
}
