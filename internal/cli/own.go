package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
)

// maxFile bounds a file of offers, in bytes: a full batch of records at their largest.
const maxFile = 64 << 20

func (a App) registerCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "register -f FILE", Short: "Announce services", Args: noArgs,
		Long: "Announce the services that a file describes.\n\n" +
			"The file is YAML (any number of documents, each an offer or a list) or JSON (values\n" +
			"one after the other, each an offer or a list). Several offers go as one batch: each\n" +
			"is accepted or refused on its own. The peer keeps them announced until withdrawn.",
	}
	file := fileFlag(cmd)
	r := a.remoteFlags(cmd, defaultTimeout)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		offers, err := a.readOffers(*file)
		if err != nil {
			return err
		}
		return r.call(cmd, func(ctx context.Context, c *client.Client) error {
			out := outcomes{of: len(offers)}
			if len(offers) == 1 {
				got, err := c.Register(ctx, offers[0])
				out.add(offers[0].ID, receipt(got), err)
				return out.print(r)
			}
			results, err := c.RegisterBatch(ctx, offers)
			if err != nil {
				return err
			}
			for i, o := range results {
				if i < len(offers) {
					out.add(offers[i].ID, receipt(o.Receipt), o.Err)
				}
			}
			return out.print(r)
		})
	}
	return cmd
}

func (a App) updateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "update -f FILE", Short: "Replace the content of announced services", Args: noArgs,
		Long: "Replace the content of services of the running peer by what a file says. The file is\nas for register; each offer is updated on its own, in order.",
	}
	file := fileFlag(cmd)
	r := a.remoteFlags(cmd, defaultTimeout)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		offers, err := a.readOffers(*file)
		if err != nil {
			return err
		}
		return r.call(cmd, func(ctx context.Context, c *client.Client) error {
			out := outcomes{of: len(offers)}
			for _, o := range offers {
				got, err := c.Update(ctx, o)
				if out.add(o.ID, receipt(got), err); hopeless(err) {
					break
				}
			}
			return out.print(r)
		})
	}
	return cmd
}

func (a App) withdrawCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "withdraw ID...", Short: "End services everywhere", Args: someArgs("ID")}
	r := a.remoteFlags(cmd, defaultTimeout)
	cmd.RunE = func(cmd *cobra.Command, ids []string) error {
		return r.call(cmd, func(ctx context.Context, c *client.Client) error {
			out := outcomes{of: len(ids)}
			for _, id := range ids {
				got, err := c.Withdraw(ctx, id)
				if out.add(id, receipt(got), err); hopeless(err) {
					break
				}
			}
			return out.print(r)
		})
	}
	return cmd
}

func (a App) recordsCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "records", Short: "List the services of the running peer", Args: noArgs}
	r := a.remoteFlags(cmd, defaultTimeout)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return r.call(cmd, func(ctx context.Context, c *client.Client) error {
			own, err := c.List(ctx)
			if err != nil {
				return err
			}
			views := make([]records.View, len(own))
			for i, rec := range own {
				views[i] = rec.View
			}
			return r.print(document{value: map[string]any{"records": views}, items: itemsOf(views), table: recordTable(views)})
		})
	}
	return cmd
}

// hopeless reports whether what comes next would fail in the same way.
func hopeless(err error) bool {
	switch fault.KindOf(err) {
	case fault.Timeout, fault.Canceled, fault.Unavailable:
		return true
	}
	return false
}

// receipt has the fields of discovery.Receipt, so that one converts into the other.
type receipt struct {
	ID        string         `json:"id"`
	Key       string         `json:"key"`
	Sequence  uint64         `json:"sequence"`
	ExpiresAt time.Time      `json:"expires_at"`
	Stored    records.Stored `json:"stored"`
}

// failure stands in the place of a receipt.
type failure struct {
	ID    string `json:"id"`
	Error struct {
		Kind    string `json:"kind"`
		Field   string `json:"field,omitempty"`
		Message string `json:"message"`
	} `json:"error"`
}

// outcomes are what became of the services that a command names, in their order.
type outcomes struct {
	of     int   // services named
	items  []any // receipt or failure
	rows   [][]string
	failed []string // one line each
	first  error    // the first failure
}

func (o *outcomes) add(id string, r receipt, err error) {
	if err == nil {
		o.items = append(o.items, r)
		o.rows = append(o.rows, []string{
			r.ID, strconv.FormatUint(r.Sequence, 10), fmt.Sprintf("%d of %d", r.Stored.On, r.Stored.Of), at(r.ExpiresAt), r.Key,
		})
		return
	}
	if o.first == nil {
		o.first = err
	}
	f := failure{ID: id}
	f.Error.Kind, f.Error.Field, f.Error.Message = fault.KindOf(err).String(), fault.FieldOf(err), message(err)
	o.items = append(o.items, f)
	o.failed = append(o.failed, id+": "+oneLine(err))
}

// print shows what was done, and fails as the first service did.
func (o *outcomes) print(r *remote) error {
	if o.of == 1 && o.first != nil {
		return o.first
	}
	err := r.print(document{
		value: map[string]any{"results": o.items}, items: o.items,
		table: table([]string{"ID", "SEQUENCE", "STORED", "EXPIRES", "KEY"}, o.rows),
	})
	if err != nil || o.first == nil {
		return err
	}
	for _, line := range o.failed {
		r.app.say("%s", line)
	}
	if left := o.of - len(o.items); left > 0 {
		r.app.say("%d not tried", left)
	}
	if !answered(o.first) {
		return o.first
	}
	kind := fault.KindOf(o.first)
	return fault.As("", kind, fault.New("", kind, "%d of %d failed", len(o.failed), o.of)) // within another: see answered
}

// fileFlag adds -f.
func fileFlag(cmd *cobra.Command) *string {
	return cmd.Flags().StringP("file", "f", "", "file of offers, YAML or JSON; - is standard input (required)")
}

// readOffers reads at least one offer.
func (a App) readOffers(path string) ([]records.Offer, error) {
	if path == "" {
		return nil, fault.Invalidf("--file", nil, "is required; - is standard input")
	}
	in := a.Stdin
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return nil, fault.Invalidf("--file", path, "%w", err)
		}
		defer func() { _ = f.Close() }() // only read
		in = f
	}
	data, err := io.ReadAll(io.LimitReader(in, maxFile+1))
	if err != nil {
		return nil, fault.Invalidf("--file", path, "%w", err)
	}
	if len(data) > maxFile {
		return nil, fault.New("", fault.TooLarge, "%s has more than %d bytes", path, maxFile)
	}
	offers, err := parseOffers(data)
	if err == nil && len(offers) == 0 {
		err = fault.Invalidf("--file", path, "has no offers")
	}
	return offers, err
}

// parseOffers reads JSON where the data is JSON, and otherwise YAML: not every JSON text
// is YAML, and larger files are allowed.
func parseOffers(data []byte) ([]records.Offer, error) {
	values, single := jsonValues(data)
	if values == nil {
		return records.ParseOffersYAML(data)
	}
	offers := make([]records.Offer, len(values))
	for i, value := range values {
		var err error
		if offers[i], err = records.ParseOffer(value); err != nil && !single {
			err = fault.In("["+strconv.Itoa(i)+"]", err)
		}
		if err != nil {
			return nil, err
		}
	}
	return offers, nil
}

// jsonValues takes JSON objects, and those in lists, one after the other; nil when the
// data is anything else. Single says that it is one object and no list.
func jsonValues(data []byte) (values []json.RawMessage, single bool) {
	single = true
	for dec := json.NewDecoder(bytes.NewReader(data)); ; {
		var value json.RawMessage
		err := dec.Decode(&value)
		if errors.Is(err, io.EOF) {
			return values, single && len(values) == 1
		}
		if err != nil || value[0] != '{' && value[0] != '[' {
			return nil, false
		}
		if value[0] == '{' {
			values = append(values, value)
			continue
		}
		var list []json.RawMessage
		if err := json.Unmarshal(value, &list); err != nil {
			return nil, false
		}
		values, single = append(values, list...), false
	}
}
