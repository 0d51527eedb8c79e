package cli

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/fault"
)

// printNext prints one document of a sequence.
func (r *remote) printNext(d document) error {
	if r.format == formatYAML { // one document for each
		if _, err := io.WriteString(r.app.Stdout, "---\n"); err != nil {
			return fault.As("cli.print", fault.Internal, err)
		}
	}
	return r.print(d)
}

func (a App) locksCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "locks [PREFIX]", Short: "List the locks that somebody claims",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return fault.Invalidf("PREFIX", nil, "must be given once at most, not %d times", len(args))
			}
			return nil
		},
	}
	r := a.remoteFlags(cmd, defaultTimeout)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return r.coordinate(cmd, func(ctx context.Context, c *client.Client) error {
			var views []lockView
			for q := (client.LockQuery{Prefix: strings.Join(args, "")}); ; {
				states, _, err := c.Coordination().Locks(ctx, q)
				if err != nil {
					return renameField(err, func(string) string { return "PREFIX" })
				}
				if len(states) == 0 {
					break
				}
				for _, l := range states {
					views = append(views, showLock(l))
				}
				q.After = states[len(states)-1].Name
			}
			return r.print(document{value: map[string]any{"locks": emptied(views)}, items: itemsOf(views), table: lockTable(views)})
		})
	}
	return cmd
}

// lockView is a lock as it is shown.
type lockView struct {
	Name    string      `json:"name"`
	Holding []claimView `json:"holding"`
	Waiting []claimView `json:"waiting"`
}

// claimView is a claim as it is shown. Age is in seconds.
type claimView struct {
	Holder   string  `json:"holder_id"`
	Lease    string  `json:"lease_id"`
	Token    int64   `json:"fencing_token"`
	Mode     string  `json:"mode"`
	Permits  uint32  `json:"permits,omitempty"`
	Count    uint32  `json:"count"`
	Age      float64 `json:"age,omitempty"`
	Metadata string  `json:"metadata,omitempty"`
}

func showLock(l client.LockState) lockView {
	return lockView{Name: l.Name, Holding: showClaims(l.Holding), Waiting: showClaims(l.Waiting)}
}

func showClaims(claims []client.ClaimState) []claimView {
	views := make([]claimView, len(claims))
	for i, c := range claims {
		views[i] = claimView{
			Holder: c.Holder, Lease: leaseID(c.Lease), Token: int64(c.Token), Permits: c.Permits, Count: c.Count,
			Mode: "exclusive", Age: c.Age.Seconds(), Metadata: strings.ToValidUTF8(string(c.Metadata), "\ufffd"),
		}
		switch c.Mode {
		case client.ModeShared:
			views[i].Mode = "shared"
		case client.ModePermit:
			views[i].Mode = "permit"
		}
	}
	return views
}

// lockTable has a row for each claim; those that wait follow those that hold.
func lockTable(locks []lockView) string {
	var rows [][]string
	for _, l := range locks {
		for state, claims := range [][]claimView{l.Holding, l.Waiting} {
			for _, c := range claims {
				mode := c.Mode
				if c.Permits > 0 {
					mode += " of " + strconv.FormatUint(uint64(c.Permits), 10)
				}
				rows = append(rows, []string{
					l.Name, []string{"holds", "waits"}[state], mode, strconv.FormatInt(c.Token, 10), c.Lease, orDash(c.Holder), age(c.Age),
				})
			}
		}
	}
	return table([]string{"LOCK", "STATE", "MODE", "TOKEN", "LEASE", "HOLDER", "AGE"}, rows)
}

// age shows seconds; 0 is not known.
func age(s float64) string {
	if s == 0 {
		return "-"
	}
	return time.Duration(s * float64(time.Second)).Round(time.Second).String()
}

func (a App) coordCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "coord", Short: "Look at the keys of the coordination group", Args: a.unknownCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.coordWatch())
	return cmd
}

func (a App) coordWatch() *cobra.Command {
	cmd := &cobra.Command{
		Use: "watch PREFIX", Short: "Follow the keys that begin with a prefix", Args: oneArg("PREFIX"),
		Long: "Show every change of the keys that begin with PREFIX, until interrupted. \"\" is all of them;\n" +
			"those of the lock NAME are NAME/LEASE, the lease in hex.\n\n" +
			"With -o ndjson marks of progress say what revision to go on from: --from. When that is\n" +
			"forgotten already the command ends with exit code 3.",
	}
	from := cmd.Flags().Int64("from", 0, "first revision to show; 0 is the next one")
	prev := cmd.Flags().Bool("prev", false, "show what was there before, too")
	r := a.remoteFlags(cmd, 0)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if *from < 0 {
			return fault.Invalidf("--from", *from, "must be at least 0")
		}
		return r.coordinate(cmd, func(ctx context.Context, c *client.Client) error {
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
				if err := r.changes(batch); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return cmd
}

// changeView is a change of a key as it is shown.
type changeView struct {
	Event    string     `json:"event"` // put, delete or progress
	Revision int64      `json:"revision,omitempty"`
	Key      string     `json:"key,omitempty"`
	Now      *valueView `json:"kv,omitempty"`
	Before   *valueView `json:"prev_kv,omitempty"`
	Next     int64      `json:"next_revision,omitempty"` // of progress
}

// valueView is a version of a key as it is shown.
type valueView struct {
	Value   string `json:"value"`
	Base64  bool   `json:"base64,omitempty"` // value is bytes
	Created int64  `json:"create_revision"`
	Version int64  `json:"version"`
	Lease   string `json:"lease,omitempty"`
}

func showValue(kv *client.KeyValue) *valueView {
	if kv == nil {
		return nil
	}
	v := &valueView{Created: int64(kv.CreateRevision), Version: kv.Version}
	if v.Value = string(kv.Value); !utf8.ValidString(v.Value) {
		v.Value, v.Base64 = base64.StdEncoding.EncodeToString(kv.Value), true
	}
	if kv.Lease != 0 {
		v.Lease = leaseID(kv.Lease)
	}
	return v
}

// changes prints the events of a batch; a mark of progress is not for tables.
func (r *remote) changes(b client.Batch) error {
	for _, e := range b.Events {
		v := changeView{
			Event: "put", Revision: int64(e.Revision), Key: strings.ToValidUTF8(e.Key, "\ufffd"),
			Now: showValue(e.KV), Before: showValue(e.Prev),
		}
		value := ""
		if v.Now == nil {
			v.Event = "delete"
		} else {
			value = v.Now.Value
		}
		line := clean(fmt.Sprintf("%-6s  %8d  %s  %s", v.Event, v.Revision, v.Key, value))
		if err := r.printNext(document{value: v, table: strings.TrimRight(line, " ") + "\n"}); err != nil {
			return err
		}
	}
	if len(b.Events) > 0 || r.format == formatTable {
		return nil
	}
	return r.printNext(document{value: changeView{Event: "progress", Next: int64(b.Next)}})
}

func (a App) groupCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "group", Short: "Describe the coordination group", Args: a.unknownCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.groupStatus(), a.groupMembers(), a.groupTransfer(), a.groupRecover())
	return cmd
}

func (a App) groupStatus() *cobra.Command {
	cmd := &cobra.Command{Use: "status", Short: "Tell how the group stands", Args: noArgs}
	r := a.remoteFlags(cmd, defaultTimeout)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return r.coordinate(cmd, func(ctx context.Context, c *client.Client) error {
			s, err := c.Coordination().Group(ctx)
			if err != nil {
				return err
			}
			s.Voters, s.Learners = emptied(s.Voters), emptied(s.Learners)
			return r.print(document{value: s, table: pairs([][]string{
				{"group", orDash(s.ID)},
				{"phase", s.Phase},
				{"missing", orDash(s.Missing)},
				{"leader", orDash(s.Leader)},
				{"term", strconv.FormatUint(s.Term, 10)},
				{"members", fmt.Sprintf("%d voters, %d learners", len(s.Voters), len(s.Learners))},
				{"revision", strconv.FormatInt(int64(s.Revision), 10)},
				{"incarnation", strconv.FormatUint(s.Incarnation, 10)},
				{"keeps", fmt.Sprintf("%d leases, %d locks, %d keys", s.Leases, s.Locks, s.Keys)},
			})})
		})
	}
	return cmd
}

// memberView is a member as it is shown.
type memberView struct {
	client.Member
	Role string `json:"role"`
}

func (a App) groupMembers() *cobra.Command {
	cmd := &cobra.Command{Use: "members", Short: "List the members of the group", Args: noArgs}
	r := a.remoteFlags(cmd, defaultTimeout)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return r.coordinate(cmd, func(ctx context.Context, c *client.Client) error {
			s, err := c.Coordination().Group(ctx)
			if err != nil {
				return err
			}
			views := []memberView{}
			for _, m := range s.Voters {
				role := "voter"
				if m.Peer == s.Leader {
					role = "leader"
				}
				views = append(views, memberView{m, role})
			}
			for _, m := range s.Learners {
				views = append(views, memberView{m, "learner"})
			}
			rows := make([][]string, len(views))
			for i, m := range views {
				state := "silent"
				if m.Active {
					state = "active"
				}
				applied := ""
				if m.Applied > 0 {
					applied = strconv.FormatUint(m.Applied, 10)
				}
				rows[i] = []string{m.Peer, strconv.FormatUint(m.ID, 16), m.Role, state, orDash(applied)}
			}
			return r.print(document{
				value: map[string]any{"members": views}, items: itemsOf(views),
				table: table([]string{"PEER", "MEMBER", "ROLE", "STATE", "APPLIED"}, rows),
			})
		})
	}
	return cmd
}

func (a App) groupTransfer() *cobra.Command {
	cmd := &cobra.Command{Use: "transfer PEER", Short: "Make another voter the leader", Args: oneArg("PEER")}
	r := a.remoteFlags(cmd, defaultTimeout)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return r.coordinate(cmd, func(ctx context.Context, c *client.Client) error {
			return renameField(c.Coordination().Transfer(ctx, args[0]), func(string) string { return "PEER" })
		})
	}
	return cmd
}
