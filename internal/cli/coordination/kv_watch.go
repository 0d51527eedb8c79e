package coordination

import (
	"context"
	"encoding/base64"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/internal/cli/command"
	"github.com/blackhole/blackhole/internal/cli/remote"
	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/fault"
)

func kvWatch(con *term.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use: "watch PREFIX", Short: "Follow the keys that begin with a prefix", Args: command.OneArg("PREFIX"),
		Long: "Show all changes of the keys with this PREFIX until interrupted. The prefix \"\" matches\n" +
			"all keys; the keys of the lock NAME are NAME/LEASE, with the lease in hexadecimal.\n\n" +
			"With -o ndjson, progress events give the revision for --from, which resumes the watch there. The\n" +
			"command ends with exit code 3 if the group has compacted that revision.",
	}
	from := cmd.Flags().Int64("from", 0, "first revision to show; 0 means the next revision")
	prev := cmd.Flags().Bool("prev", false, "show the previous value too")
	r := remote.New(con, cmd, 0)
	return r.Coordinates(func(ctx context.Context, c *client.Client, args []string) error {
		if *from < 0 {
			return fault.Invalidf("--from", *from, "must be at least 0")
		}
		w := client.Watch{Span: client.Under(args[0]), From: client.Revision(*from), Prev: *prev}
		seen := false
		for batch, err := range c.Follow(ctx, w) {
			if seen && fault.KindOf(err) == fault.Timeout {
				return nil // the end that --timeout asked for
			}
			if err != nil {
				return err
			}
			seen = true
			if err := printChanges(r, batch); err != nil {
				return err
			}
		}
		return nil
	})
}

// changeView is the JSON form of a change of a key.
type changeView struct {
	Event    string     `json:"event"` // put, delete or progress
	Revision int64      `json:"revision,omitempty"`
	Key      string     `json:"key,omitempty"`
	Now      *valueView `json:"kv,omitempty"`
	Before   *valueView `json:"prev_kv,omitempty"`
	Next     int64      `json:"next_revision,omitempty"` // in a progress event
}

// valueView is the JSON form of a version of a key.
type valueView struct {
	Value   *string `json:"value,omitempty"`  // nil: not asked for
	Base64  bool    `json:"base64,omitempty"` // base64 in place of invalid UTF-8
	Created int64   `json:"create_revision"`
	Version int64   `json:"version"`
	Lease   string  `json:"lease,omitempty"`
}

func showValue(kv *client.KeyValue) *valueView {
	if kv == nil {
		return nil
	}
	v := &valueView{Created: int64(kv.CreateRevision), Version: kv.Version}
	value := string(kv.Value)
	if v.Base64 = !utf8.ValidString(value); v.Base64 {
		value = base64.StdEncoding.EncodeToString(kv.Value)
	}
	v.Value = &value
	if kv.Lease != 0 {
		v.Lease = LeaseID(kv.Lease)
	}
	return v
}

// printChanges prints the events of a batch. A table omits progress events.
func printChanges(r *remote.Peer, b client.Batch) error {
	for _, e := range b.Events {
		v := changeView{
			Event: "put", Revision: int64(e.Revision), Key: strings.ToValidUTF8(e.Key, "\ufffd"),
			Now: showValue(e.KV), Before: showValue(e.Prev),
		}
		value := ""
		if v.Now == nil {
			v.Event = "delete"
		} else {
			value = *v.Now.Value
		}
		line := term.Clean(fmt.Sprintf("%-6s  %8d  %s  %s", v.Event, v.Revision, v.Key, value))
		if err := r.PrintNext(term.Document{Value: v, Table: term.Plain(strings.TrimRight(line, " ") + "\n")}); err != nil {
			return err
		}
	}
	if len(b.Events) > 0 || r.Format == term.AsTable {
		return nil
	}
	return r.PrintNext(term.Document{Value: changeView{Event: "progress", Next: int64(b.Next)}})
}
