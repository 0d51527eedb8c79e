package cli

import (
	"context"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

func (a App) serviceCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "service", Short: "Register, look after and end instances", Args: a.unknownCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.serviceRegister(), a.serviceDeregister(), a.serviceStatus(), a.serviceDrain())
	return cmd
}

// serviceArgs wants a service and at least some ids.
func serviceArgs(least int) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		switch {
		case len(args) == 0:
			return fault.Invalidf("SERVICE", nil, "must be given")
		case len(args) <= least:
			return fault.Invalidf("ID", nil, "must be given at least once")
		}
		return nil
	}
}

// done are the instances that a command has changed, and what became of the others.
type done struct {
	of     int
	items  []any // what is shown of an instance, or failure
	header []string
	rows   [][]string
	failed []string
	first  error
}

// fail notes that an instance could not be changed.
func (d *done) fail(id string, err error) {
	if d.first == nil {
		d.first = err
	}
	f := failure{ID: id}
	f.Error.Kind, f.Error.Field, f.Error.Message = fault.KindOf(err).String(), fault.FieldOf(err), message(err)
	d.items, d.failed = append(d.items, f), append(d.failed, id+": "+oneLine(err))
}

// add notes an instance as it is now, or that it could not be changed.
func (d *done) add(id string, i *instance.Instance, err error) {
	if err != nil {
		d.fail(id, err)
		return
	}
	v := showInstance(i)
	d.header, d.items, d.rows = instanceHeader(), append(d.items, v), append(d.rows, v.row())
}

// print shows what was done, and fails as the first did.
func (d *done) print(r *remote) error {
	if d.of == 1 && d.first != nil {
		return d.first
	}
	doc := document{value: map[string]any{"results": emptied(d.items)}, items: d.items}
	if len(d.rows) > 0 {
		doc.table = table(d.header, d.rows)
	}
	if err := r.print(doc); err != nil || d.first == nil {
		return err
	}
	for _, line := range d.failed {
		r.app.say("%s", line)
	}
	if left := d.of - len(d.items); left > 0 {
		r.app.say("%d not tried", left)
	}
	if !answered(d.first) {
		return d.first
	}
	kind := fault.KindOf(d.first)
	return fault.As("", kind, fault.New("", kind, "%d of %d failed", len(d.failed), d.of)) // within another: see answered
}

func (a App) serviceDeregister() *cobra.Command {
	cmd := &cobra.Command{Use: "deregister SERVICE ID...", Short: "End instances at once", Args: serviceArgs(1)}
	namespace := namespaceFlag(cmd)
	r := a.remoteFlags(cmd, defaultTimeout)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return r.call(cmd, func(ctx context.Context, c *client.Client) error {
			out := done{of: len(args) - 1, header: []string{"DEREGISTERED"}}
			for _, id := range args[1:] {
				_, err := c.Agent().Deregister(ctx, instance.Key{Namespace: *namespace, Service: args[0], ID: id})
				if hopeless(err) {
					out.fail(id, err)
					break
				}
				if err != nil {
					out.fail(id, ofPeer(err))
					continue
				}
				out.items = append(out.items, map[string]string{"namespace": *namespace, "service": args[0], "id": id})
				out.rows = append(out.rows, []string{id})
			}
			return out.print(r)
		})
	}
	return cmd
}

// ofPeer is a peer's refusal in the words of the command line, still told from what this program says.
func ofPeer(err error) error {
	named := renameField(err, func(field string) string {
		if field == "id" {
			return "ID"
		}
		return instanceFlag(field)
	})
	if named == err {
		return err
	}
	return fault.As("", fault.KindOf(named), named) // within another: see answered
}

func (a App) serviceStatus() *cobra.Command {
	cmd := &cobra.Command{
		Use: "status SERVICE [ID...]", Short: "Show instances, whatever their status", Args: serviceArgs(0),
		Long: "Show the instances of a service, whatever their status; one that is named alone with all that is\nknown of it.",
	}
	namespace := namespaceFlag(cmd)
	r := a.remoteFlags(cmd, defaultTimeout)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		q := instance.Query{
			Name: instance.Name{Namespace: *namespace, Service: args[0]}, Selector: instance.Selector{AnyStatus: true},
		}
		return r.call(cmd, func(ctx context.Context, c *client.Client) error {
			found, err := c.Agent().Discover(ctx, q)
			if err != nil {
				return renameField(err, instanceFlag)
			}
			views, err := picked(showInstances(found.Instances), args[1:])
			if err != nil {
				return err
			}
			r.warnStale(found.Contact)
			if len(args) == 2 {
				return r.print(document{value: views[0], table: instanceDetail(&views[0])})
			}
			return r.print(document{value: map[string]any{"instances": views}, items: itemsOf(views), table: instanceTable(views)})
		})
	}
	return cmd
}

// picked are the instances of some ids, all for none.
func picked(all []instanceView, ids []string) ([]instanceView, error) {
	if len(ids) == 0 {
		return all, nil
	}
	var views []instanceView
	for _, id := range ids {
		n := slices.IndexFunc(all, func(v instanceView) bool { return v.ID == id })
		if n < 0 {
			return nil, fault.As("", fault.NotFound, fault.New("", fault.NotFound, "ID: %s is not registered", id)) // within another: see answered
		}
		views = append(views, all[n])
	}
	return views, nil
}

func (a App) serviceDrain() *cobra.Command {
	cmd := &cobra.Command{
		Use: "drain SERVICE ID...", Short: "Take instances out of service, or back", Args: serviceArgs(1),
		Long: "Take instances out of service: nobody finds them any more who does not ask for them, and they stay\n" +
			"registered. --undo takes them back, whatever status was set by hand.",
	}
	namespace := namespaceFlag(cmd)
	undo := cmd.Flags().Bool("undo", false, "take them back")
	to := cmd.Flags().String("status", instance.StatusOutOfService.String(), "OUT_OF_SERVICE, DOWN or STARTING")
	complete(cmd, "status", "OUT_OF_SERVICE", "DOWN", "STARTING")
	r := a.remoteFlags(cmd, defaultTimeout)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		status, err := instance.ParseStatus(*to)
		if err != nil {
			return renameField(err, instanceFlag)
		}
		if *undo {
			if cmd.Flags().Changed("status") {
				return fault.Invalidf("--undo", nil, "does not go with --status")
			}
			status = instance.StatusUp
		}
		return r.call(cmd, func(ctx context.Context, c *client.Client) error {
			out := done{of: len(args) - 1}
			for _, id := range args[1:] {
				i, err := c.Agent().SetStatus(ctx, instance.Key{Namespace: *namespace, Service: args[0], ID: id}, status)
				if out.add(id, i, ofPeer(err)); hopeless(err) {
					break
				}
			}
			return out.print(r)
		})
	}
	return cmd
}

// assign reads NAME=VALUE as it is given to a flag.
func assign(flag string, list []string) (map[string]string, error) {
	var m map[string]string
	for _, pair := range list {
		key, value, ok := strings.Cut(pair, "=")
		if !ok || key == "" {
			return nil, fault.Invalidf(flag, pair, "must be NAME=VALUE, not %q", pair)
		}
		if _, twice := m[key]; twice {
			return nil, fault.Invalidf(flag, pair, "names %q twice", key)
		}
		if m == nil {
			m = map[string]string{}
		}
		m[key] = value
	}
	return m, nil
}
