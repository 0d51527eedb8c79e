package peer

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/internal/cli/command"
	"github.com/blackhole/blackhole/internal/cli/exit"
	"github.com/blackhole/blackhole/internal/cli/remote"
	"github.com/blackhole/blackhole/internal/cli/service"
	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/discovery"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Events makes the command events.
func Events(con *term.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use: "events", Short: "Follow everything that changes", Args: command.NoArgs,
		Long: "Show the events of the peer until interrupted: offers, services, and keys with locks and\n" +
			"leases. Each topic begins with its state. --since begins with what mattered before: leaders, voters, conditions,\n" +
			"ended instances, lost locks and peers; a peer remembers an hour.\n\n" +
			"With -o ndjson each line has the data of GET /v1/events. The last id with --after resumes offers, services and\n" +
			"keys there; a topic whose history is gone says reset. --timeout ends the command with exit code 0.",
	}
	var q client.EventQuery
	topics := []string{"history", "offers", "services", "keys"}
	cmd.Flags().StringSliceVar(&q.Topics, "topics", nil, "topics to follow: "+strings.Join(topics, ", ")+" (default all)")
	cmd.Flags().StringSliceVar(&q.Types, "types", nil, "types of offers (default storage, compute, cdn, bandwidth)")
	cmd.Flags().StringVar(&q.Prefix, "prefix", "", "show only keys with this prefix")
	cmd.Flags().StringVar(&q.After, "after", "", "id of the last event seen")
	cmd.Flags().StringVar(&q.Since, "since", "", "begin with what mattered since then: a duration such as 1h, or a time (RFC 3339)")
	_ = cmd.RegisterFlagCompletionFunc("topics", cobra.FixedCompletions(topics, cobra.ShellCompDirectiveNoFileComp)) // fails only for an unknown flag
	namespace := service.NamespaceFlag(cmd)
	r := remote.New(con, cmd, 0)
	return r.Calls(func(ctx context.Context, c *client.Client, _ []string) error {
		q.Namespace = *namespace
		seen := false
		for e, err := range c.Events(ctx, q) {
			if seen && fault.KindOf(err) == fault.Timeout {
				return nil // the end that --timeout asked for
			}
			if err != nil {
				return eventFields(err)
			}
			seen = true
			if err := printEvent(r, e); err != nil {
				return err
			}
		}
		return nil
	})
}

// eventFields names the flag in an error about a field of the question.
func eventFields(err error) error {
	return exit.Fields{"topics": "", "types": "", "type": "--types", "prefix": "", "after": "", "since": "", "namespace": ""}.Rename(err)
}

// printEvent prints an event. A table omits the first one, and those that only move the position.
func printEvent(r *remote.Peer, e client.PeerEvent) error {
	d := term.Document{Value: e}
	if e.Topic != "open" && len(e.Data) > 0 {
		lines, err := eventLines(e)
		if err != nil {
			return err
		}
		d.Table = term.Plain(lines)
	}
	return r.PrintNext(d)
}

// eventData has what a table shows of the data of all topics.
type eventData struct {
	Kind, Message, Reason string
	Offer                 *eventEntry
	Offers, Instances     []eventEntry // parts of a state
	Changes               []struct {
		Type     string
		Instance eventEntry
		KV       *eventEntry
	}
	Notes   []discovery.Note
	Contact *struct {
		Stale  bool
		Reason string
	}
}

// eventEntry is an offer, an instance or a key.
type eventEntry struct {
	Type, Service, ID, Name, Health, Key string

	Provider  string `json:"provider_id"`
	KeyBase64 []byte `json:"key_base64"` // instead of key for bytes that are not text
}

// parts are the words of a line. Bytes that are not text are escaped, as in Go.
func (e *eventEntry) parts() []string {
	key := e.Key
	if len(e.KeyBase64) > 0 {
		key = strconv.Quote(string(e.KeyBase64))
	}
	return []string{e.Type, e.Service, e.ID, e.Name, term.ShortPeers(e.Provider), e.Health, key}
}

// eventLines returns a line for each change of an event.
func eventLines(e client.PeerEvent) (string, error) {
	var d eventData
	if err := json.Unmarshal(e.Data, &d); err != nil {
		return "", fault.New("cli.events", fault.Internal, "the peer sent an event of %s that is not readable: %v", e.Topic, err)
	}
	var out strings.Builder
	say := func(kind string, parts ...string) {
		parts = slices.DeleteFunc(parts, func(s string) bool { return s == "" })
		text := term.Clean(fmt.Sprintf("%-8s  %-11s  %s", e.Topic, kind, strings.Join(parts, "  ")))
		out.WriteString(strings.TrimRight(text, " ") + "\n")
	}
	for _, entry := range slices.Concat(d.Offers, d.Instances) {
		say(d.Kind, entry.parts()...)
	}
	for _, n := range d.Notes {
		say(n.Kind, n.At.UTC().Format(time.RFC3339), n.Text)
	}
	for _, c := range d.Changes {
		if c.KV == nil {
			c.KV = &c.Instance
		}
		say(strings.ToLower(c.Type), c.KV.parts()...)
	}
	switch {
	case out.Len() > 0, d.Notes != nil:
	case d.Offer != nil:
		say(d.Kind, append(d.Offer.parts(), d.Reason)...)
	case d.Contact != nil && !d.Contact.Stale:
		say(d.Kind, "current again")
	case d.Contact != nil:
		say(d.Kind, "stale", d.Contact.Reason)
	case d.Kind != "progress":
		say(d.Kind, d.Message, d.Reason)
	}
	return out.String(), nil
}
