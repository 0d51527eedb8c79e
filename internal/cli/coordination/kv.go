// Package coordination has the commands for keys, leases and locks.
package coordination

import (
	"context"
	"encoding/base64"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/internal/cli/command"
	"github.com/blackhole/blackhole/internal/cli/exit"
	"github.com/blackhole/blackhole/internal/cli/file"
	"github.com/blackhole/blackhole/internal/cli/remote"
	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/operator"
	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// KV makes the command kv.
func KV(con *term.Console) *cobra.Command {
	return command.Parent(&cobra.Command{Use: "kv", Short: "Store, read and follow keys"},
		kvPut(con), kvGet(con), kvDelete(con), kvList(con), kvTxn(con), kvWatch(con))
}

func kvPut(con *term.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use: "put KEY [VALUE]", Short: "Store a value", Args: putArgs,
		Long: "Store VALUE under KEY. Without VALUE, or with -, the value is read from standard input, byte for byte.",
		Example: "  " + command.Program + " kv put app/colour blue\n" +
			"  " + command.Program + " kv put app/config < config.yaml\n" +
			"  " + command.Program + " kv put --if-revision 0 app/leader this-host   # only if nobody has it",
	}
	guard := guardFlag(cmd)
	lease := cmd.Flags().String("lease", "", "id of the lease that the key ends with")
	r := remote.New(con, cmd, remote.DefaultTimeout)
	return r.Coordinates(func(ctx context.Context, c *operator.Client, args []string) error {
		put := &apiv1.TxnPut{Key: []byte(args[0])}
		if *lease != "" {
			id, err := ParseLease(*lease)
			if err != nil {
				return exit.Rename(err, "--lease")
			}
			put.Lease = int64(id)
		}
		if len(args) == 2 && args[1] != "-" {
			put.Value = []byte(args[1])
		} else {
			var err error
			if put.Value, err = file.Read(r.Console, "VALUE", "-", maxValue); err != nil {
				return err
			}
		}
		return writeKey(ctx, r, c, guarded(args[0], *guard, &apiv1.TxnStep{Step: &apiv1.TxnStep_Put{Put: put}}))
	})
}

// maxValue bounds a value from standard input, in bytes. The group's own limit is lower.
const maxValue = 1 << 20

func putArgs(_ *cobra.Command, args []string) error {
	if len(args) < 1 || len(args) > 2 {
		return fault.Invalidf("KEY", nil, "must be given, with at most one VALUE")
	}
	return nil
}

func kvDelete(con *term.Console) *cobra.Command {
	cmd := &cobra.Command{Use: "del KEY", Short: "Delete a key, or all keys with a prefix", Args: command.OneArg("KEY")}
	guard := guardFlag(cmd)
	prefix := cmd.Flags().Bool("prefix", false, "delete all keys that begin with KEY")
	r := remote.New(con, cmd, remote.DefaultTimeout)
	return r.Coordinates(func(ctx context.Context, c *operator.Client, args []string) error {
		gone := &apiv1.TxnDelete{Key: []byte(args[0])}
		if *prefix {
			gone.Key, gone.RangeEnd = coord.Under(prefixOf(args)).Bounds()
		}
		if *prefix && *guard >= 0 {
			return fault.Invalidf("--if-revision", nil, "cannot be used with --prefix")
		}
		return writeKey(ctx, r, c, guarded(args[0], *guard, &apiv1.TxnStep{Step: &apiv1.TxnStep_Delete{Delete: gone}}))
	})
}

// guardFlag adds the flag of conditional writes. Negative: not given.
func guardFlag(cmd *cobra.Command) *int64 {
	return cmd.Flags().Int64("if-revision", -1, "write only if the mod_revision of KEY is this; 0: only if KEY is absent")
}

// guarded is a change of a key, with the condition of --if-revision.
func guarded(key string, guard int64, change *apiv1.TxnStep) *apiv1.TxnRequest {
	txn := &apiv1.TxnRequest{Then: []*apiv1.TxnStep{change}}
	if guard >= 0 {
		txn.Compare = []*apiv1.Compare{coord.WhileAt(key, coord.Revision(guard))}
	}
	return txn
}

// writeKey makes a change, and prints its revision.
func writeKey(ctx context.Context, r *remote.Peer, c *operator.Client, txn *apiv1.TxnRequest) error {
	result, err := execute(ctx, c, txn)
	if err == nil {
		err = coord.Unmet(result)
	}
	if err != nil {
		return exit.Fields{
			"compare[0]": "--if-revision", "compare[0].key": "KEY", "then[0].key": "KEY",
			"then[0].value": "VALUE", "then[0].lease": "--lease",
		}.Exactly(err)
	}
	revision, changed := result.GetHeader().GetRevision(), int64(result.GetChanged())
	return r.Print(term.Document{
		Value: map[string]int64{"revision": revision, "changed": changed},
		Table: term.Pairs([][]string{{"revision", strconv.FormatInt(revision, 10)}, {"changed", strconv.FormatInt(changed, 10)}}),
	})
}

func kvGet(con *term.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use: "get KEY", Short: "Print the value of a key", Args: command.OneArg("KEY"),
		Long: "Print the value of KEY, byte for byte; a terminal gets it without control characters, and the end of a line after it. The exit code is 3 for a key that does not exist.",
	}
	at := cmd.Flags().Int64("revision", 0, "read the key as it was; 0 means the present")
	r := remote.New(con, cmd, remote.DefaultTimeout)
	return r.Coordinates(func(ctx context.Context, c *operator.Client, args []string) error {
		page, err := readKeys(ctx, r, c, &apiv1.RangeRequest{Key: []byte(args[0]), Revision: *at})
		switch {
		case err != nil:
			return err
		case len(page.Keys) == 0:
			return fault.Refused(fault.NotFound, args[0], "does not exist at revision %d", page.Revision)
		case r.Format == term.AsTable:
			value := page.Keys[0].Value
			if r.Screen().Columns > 0 {
				return r.Print(term.Document{Table: term.Plain(strings.TrimSuffix(string(value), "\n") + "\n")})
			}
			_, err := r.Stdout.Write(value)
			return fault.As("cli.print", fault.Internal, err)
		}
		return r.Print(term.Document{Value: page.Keys[0]})
	})
}

// prefixOf is the prefix of a command; without one all keys match.
func prefixOf(args []string) string { return strings.Join(args, "") }

func kvList(con *term.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use: "ls [PREFIX]", Short: "List, sort or count the keys with a prefix", Args: command.AtMostOne("PREFIX"),
		Long: "List the keys that begin with PREFIX; without it, all keys.",
		Example: "  " + command.Program + " kv ls app/\n" +
			"  " + command.Program + " kv ls app/ --sort mod --descending --limit 10   # the last changes\n" +
			"  " + command.Program + " kv ls --count-only",
	}
	q := &apiv1.RangeRequest{}
	flags := cmd.Flags()
	flags.Int64Var(&q.Revision, "revision", 0, "show the keys as they were; 0 means the present")
	limit := flags.Int("limit", 0, "list at most so many keys; 0 lists all")
	order := flags.String("sort", "key", "sort by key, version, create, mod (revision) or value")
	flags.BoolVar(&q.Descending, "descending", false, "list the largest first")
	flags.BoolVar(&q.KeysOnly, "keys-only", false, "leave out the values")
	flags.BoolVar(&q.CountOnly, "count-only", false, "only count the keys")
	cmd.MarkFlagsMutuallyExclusive("keys-only", "count-only")
	cmd.MarkFlagsMutuallyExclusive("limit", "count-only")
	r := remote.New(con, cmd, remote.DefaultTimeout)
	return r.Coordinates(func(ctx context.Context, c *operator.Client, args []string) (err error) {
		if q.Order, err = parseOrder("--sort", *order); err != nil {
			return err
		}
		if q.Limit, err = parseLimit(*limit); err != nil {
			return err
		}
		q.Key, q.RangeEnd = coord.Under(prefixOf(args)).Bounds()
		page, err := readKeys(ctx, r, c, q)
		if err != nil {
			return err
		}
		if q.GetCountOnly() {
			return r.Print(term.Document{
				Value: map[string]any{"revision": page.Revision, "count": page.Count}, Table: term.Plain(strconv.FormatInt(page.Count, 10) + "\n"),
			})
		}
		return r.Print(keyList(page, q.GetKeysOnly()))
	})
}

// keyList shows the keys of a page.
func keyList(page Page, keysOnly bool) term.Document {
	rows := make([][]string, len(page.Keys))
	head := []string{"KEY", "VALUE", "REVISION", "LEASE"}
	for i, kv := range page.Keys {
		rows[i] = []string{kv.Key, shortened(keyText(kv.Value, kv.LockClaim)), strconv.FormatInt(int64(kv.ModRevision), 10), leaseOf(kv)}
		if keysOnly {
			rows[i] = slices.Delete(rows[i], 1, 2)
		}
	}
	if keysOnly {
		head = slices.Delete(head, 1, 2)
	}
	page.Keys = term.Emptied(page.Keys)
	return term.Document{Value: page, Items: term.Items(page.Keys), Table: term.Table(head, rows)}
}

func leaseOf(kv *coord.KeyValue) string {
	if kv.Lease == 0 {
		return ""
	}
	return LeaseID(kv.Lease)
}

// keyText is the value of a key for people; that of a claim is one of the group's own.
func keyText(value []byte, claim *coord.Claim) string {
	if claim == nil {
		return valueText(value)
	}
	mode, _ := claim.Mode.MarshalText() // never fails
	return fmt.Sprintf("(claim, %s, by %s)", mode, term.OrDash(claim.Holder))
}

// valueText is a value for people: bytes that are not text are in base64.
func valueText(value []byte) string {
	if utf8.Valid(value) {
		return string(value)
	}
	return base64.StdEncoding.EncodeToString(value)
}

// readKeys reads keys.
func readKeys(ctx context.Context, r *remote.Peer, c *operator.Client, q *apiv1.RangeRequest) (Page, error) {
	if q.GetRevision() < 0 {
		return Page{}, fault.Invalidf("--revision", q.GetRevision(), "must be at least 0")
	}
	page, err := Keys(ctx, c, q)
	return page, exit.Fields{"revision": "--revision", "at": "--revision", "key": "KEY"}.Rename(err)
}

// parseOrder reads the name of an order, as etcdctl has it.
func parseOrder(field, text string) (apiv1.TxnRange_Order, error) {
	order, known := map[string]apiv1.TxnRange_Order{
		"key": apiv1.TxnRange_KEY, "version": apiv1.TxnRange_VERSION, "create": apiv1.TxnRange_CREATE_REVISION,
		"mod": apiv1.TxnRange_MOD_REVISION, "value": apiv1.TxnRange_VALUE,
	}[strings.ToLower(text)]
	if !known {
		return order, fault.Invalidf(field, text, "must be key, version, create, mod or value")
	}
	return order, nil
}

// parseLimit reads --limit.
func parseLimit(n int) (uint32, error) {
	if n < 0 {
		return 0, fault.Invalidf("--limit", n, "must be at least 0")
	}
	return uint32(min(n, math.MaxUint32)), nil
}

// shortened is the first line of a value, for a table.
func shortened(value string) string {
	const most = 60
	first, _, more := strings.Cut(value, "\n")
	if runes := []rune(first); len(runes) > most {
		first, more = string(runes[:most]), true
	}
	if more {
		first += "..."
	}
	return first
}

func kvWatch(con *term.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use: "watch [PREFIX]", Short: "Follow the keys that begin with a prefix", Args: command.AtMostOne("PREFIX"),
		Long: "Show all changes of the keys with this PREFIX until interrupted. Without it, those of\n" +
			"all keys; the keys of the lock NAME are NAME/LEASE, with the lease in hexadecimal.\n\n" +
			"With -o ndjson, progress events give the revision for --from, which resumes the watch there. The\n" +
			"command ends with exit code 3 if the group has compacted that revision.",
	}
	from := cmd.Flags().Int64("from", 0, "first revision to show; 0 means the next revision")
	prev := cmd.Flags().Bool("prev", false, "show the previous value too")
	r := remote.New(con, cmd, 0)
	return r.Coordinates(func(ctx context.Context, c *operator.Client, args []string) error {
		if *from < 0 {
			return fault.Invalidf("--from", *from, "must be at least 0")
		}
		w := client.Watch{Span: client.Under(prefixOf(args)), From: client.Revision(*from), Prev: *prev}
		heard, stop := listen(r)
		defer stop()
		seen := false
		for batch, err := range c.KV().Watch(ctx, w) {
			heard()
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

// silence is the longest that a healthy group leaves a watch without a word: it marks its progress every 10 seconds.
const silence = 40 * time.Second

// listen tells on standard error when a watch is silent for too long, and when it goes on. Call heard for each batch, and stop at
// the end.
func listen(r *remote.Peer) (heard, stop func()) {
	var silent atomic.Bool
	timer := time.AfterFunc(silence, func() {
		silent.Store(true)
		r.Say("warning: no word from the group for %v: changes are missing until it answers; see `%s status%s`", silence, command.Program, r.Given())
	})
	heard = func() {
		timer.Reset(silence)
		if silent.Swap(false) {
			r.Say("the group answers again")
		}
	}
	return heard, func() { timer.Stop() }
}

// printChanges prints the events of a batch. A table omits progress events.
func printChanges(r *remote.Peer, b client.Batch) error {
	for _, e := range b.Events {
		kind, value := "delete", ""
		if e.KV != nil {
			kind, value = "put", keyText(e.KV.Value, claimOf([]byte(e.Key), e.KV.Value, int64(e.KV.Lease), e.KV.LeaseTag))
		}
		line := term.Clean(fmt.Sprintf("%-6s  %8d  %s  %s", kind, e.Revision, e.Key, value))
		if err := r.PrintNext(term.Document{Value: e, Table: term.Plain(strings.TrimRight(line, " ") + "\n")}); err != nil {
			return err
		}
	}
	if len(b.Events) > 0 || r.Format == term.AsTable {
		return nil
	}
	return r.PrintNext(term.Document{Value: map[string]client.Revision{"next_revision": b.Next}})
}
