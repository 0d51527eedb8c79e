package service

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/internal/cli/command"
	"github.com/blackhole/blackhole/internal/cli/exit"
	"github.com/blackhole/blackhole/internal/cli/remote"
	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/internal/contract/discovery"
	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/internal/operator"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// InstanceCommand makes the command instance.
func InstanceCommand(con *term.Console) *cobra.Command {
	return command.Parent(&cobra.Command{Use: "instance", Short: "Register and find instances of applications"},
		instanceRegister(con), instanceDeregister(con), instanceFind(con, false), instanceFind(con, true), instanceShow(con), instanceDrain(con))
}

// serviceArgs requires a service and a number of ids.
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

func instanceDeregister(con *term.Console) *cobra.Command {
	cmd := &cobra.Command{Use: "deregister SERVICE ID...", Short: "End instances immediately", Args: serviceArgs(1)}
	namespace := NamespaceFlag(cmd)
	r := remote.New(con, cmd, remote.DefaultTimeout)
	return r.Calls(func(ctx context.Context, c *operator.Client, args []string) error {
		out := remote.Results{Of: len(args) - 1, Header: []string{"DEREGISTERED"}}
		out.Each(args[1:], func(id string) error {
			_, err := c.Agent().Deregister(ctx, instance.Key{Namespace: *namespace, Service: args[0], ID: id})
			if err == nil {
				out.Add(map[string]string{"namespace": *namespace, "service": args[0], "id": id}, id)
			}
			return peerError(err)
		})
		lacks := func(c discovery.Condition) bool { return c.Name == "no_quorum" || c.Name == "no_group" }
		if s, err := c.Status(ctx); err == nil && slices.ContainsFunc(s.Conditions, lacks) {
			r.Say("warning: the coordination group has no leader: other peers list these instances until it has one, or until the lease of this peer ends")
		}
		return out.Print(r)
	})
}

// peerError renames the field of a peer's error to a flag or argument.
func peerError(err error) error {
	fields := instanceFields()
	fields["id"] = "ID"
	return fields.Answer(err)
}

func instanceShow(con *term.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use: "show SERVICE [ID...]", Short: "Show instances with any status", Args: serviceArgs(0),
		Long: "Show the instances of a service with any status. A single ID shows all details of the instance.\n" +
			"The peer of the instance also shows to the role admin when its last checks ended, and why they failed.",
	}
	namespace := NamespaceFlag(cmd)
	r := remote.New(con, cmd, remote.DefaultTimeout)
	return r.Calls(func(ctx context.Context, c *operator.Client, args []string) error {
		found, err := c.Agent().Discover(ctx, instance.Query{
			Name: instance.Name{Namespace: *namespace, Service: args[0]}, Selector: instance.Selector{AnyStatus: true},
		})
		if err != nil {
			return instanceFields().Rename(err)
		}
		warnStale(r, found.Contact)
		list, err := picked(found.Instances, args[1:])
		if len(found.Instances) == 0 {
			err = exit.Answer(fault.NotFound, "SERVICE: %s", unknown(ctx, c, instance.Name{Namespace: *namespace, Service: args[0]}))
		}
		if err != nil {
			sayRemoved(ctx, r, c, instance.Name{Namespace: *namespace, Service: args[0]})
			if found.Stale { // it may be at another peer
				return exit.Answer(fault.Unavailable, "%s", exit.Message(err))
			}
			return err
		}
		if len(args) == 2 {
			d, err := OneInstance(ctx, c, list[0])
			if err != nil {
				return err
			}
			return r.Print(d)
		}
		return r.Print(InstanceList(list, map[string]any{}))
	})
}

// picked returns the instances with these ids, or all instances without ids.
func picked(all []*instance.Instance, ids []string) ([]*instance.Instance, error) {
	if len(ids) == 0 {
		return all, nil
	}
	var list []*instance.Instance
	for _, id := range ids {
		n := slices.IndexFunc(all, func(i *instance.Instance) bool { return i.ID == id })
		if n < 0 {
			return nil, exit.Answer(fault.NotFound, "ID: %s is not registered", id)
		}
		list = append(list, all[n])
	}
	return list, nil
}

func instanceDrain(con *term.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use: "drain SERVICE ID...", Short: "Take instances out of service, or put them back", Args: serviceArgs(1),
		Long: "Take instances out of service: they stay registered, but a search without --status does not find\n" +
			"them. --undo puts them back and removes the status set by hand.",
	}
	namespace := NamespaceFlag(cmd)
	undo := cmd.Flags().Bool("undo", false, "put the instances back into service")
	to := cmd.Flags().String("status", instance.StatusOutOfService.String(), "OUT_OF_SERVICE, DOWN or STARTING")
	command.Complete(cmd, "status", "OUT_OF_SERVICE", "DOWN", "STARTING")
	r := remote.New(con, cmd, remote.DefaultTimeout)
	return r.Calls(func(ctx context.Context, c *operator.Client, args []string) error {
		status, err := instance.ParseStatus(*to)
		if err != nil {
			return instanceFields().Rename(err)
		}
		if *undo {
			if cmd.Flags().Changed("status") {
				return fault.Invalidf("--undo", nil, "cannot be used with --status")
			}
			status = instance.StatusUp
		}
		out := remote.Results{Of: len(args) - 1}
		out.Each(args[1:], func(id string) error {
			i, err := c.Agent().SetStatus(ctx, instance.Key{Namespace: *namespace, Service: args[0], ID: id}, status)
			if err == nil {
				addInstance(&out, i)
			}
			return peerError(err)
		})
		return out.Print(r)
	})
}

// addInstance notes the success of a change of an instance.
func addInstance(o *remote.Results, i *instance.Instance) {
	o.Header = instanceHeader()
	o.Add(instanceJSON(i), instanceRow(i)...)
}

// instanceJSON is the form of an instance in the API, with the id of its lease.
func instanceJSON(i *instance.Instance) *instances.DetailJSON {
	d := instances.Detail(i, time.Time{})
	d.LeaseID = i.Lease
	return d
}

// InstanceList shows instances. The JSON form is value with the instances added.
func InstanceList(all []*instance.Instance, value map[string]any) term.Document {
	views, rows := make([]*instances.DetailJSON, len(all)), make([][]string, len(all))
	for n, i := range all {
		views[n], rows[n] = instanceJSON(i), instanceRow(i)
	}
	value["instances"] = views
	return term.Document{Value: value, Items: term.Items(views), Table: term.Table(instanceHeader(), rows).Without("PEER", "TAGS", "ZONE", "VERSION")}
}

func instanceHeader() []string {
	return []string{"ID", "STATUS", "ADDRESS", "VERSION", "ZONE", "TAGS", "PEER"}
}

func instanceRow(i *instance.Instance) []string {
	return []string{
		i.ID, i.Status.String(), AddressOf(i), term.OrDash(i.Spec.Version), term.OrDash(i.Spec.Zone), term.OrDash(strings.Join(i.Spec.Tags, " ")), term.ShortPeer(i.Peer),
	}
}

// AddressOf shows the address of an instance, or the number of interfaces without an address.
func AddressOf(i *instance.Instance) string {
	switch {
	case i.Spec.Host != "" && i.Spec.Port == 0:
		return i.Spec.Host
	case i.Spec.Host != "":
		return net.JoinHostPort(i.Spec.Host, strconv.Itoa(i.Spec.Port))
	case len(i.Spec.Interfaces) > 0:
		return fmt.Sprintf("%d interfaces", len(i.Spec.Interfaces))
	}
	return "-"
}

// lastChecks returns how the last checks of an instance ended, newest first, or else who knows it.
func lastChecks(ctx context.Context, c *operator.Client, i *instance.Instance) (ends []instances.LastCheck, note string, err error) {
	if i.Spec.Check == nil {
		return nil, "", nil
	}
	ends, err = c.LastChecks(ctx, i.Key)
	switch kind := fault.KindOf(err); {
	case kind == fault.Unsupported, err == nil && len(ends) == 0:
		return nil, fmt.Sprintf("none known here: peer %s checks it, so ask there with --grpc", term.ShortPeer(i.Peer)), nil
	case kind == fault.Forbidden:
		return nil, "known to the role admin", nil
	}
	return ends, "", err
}

// checkRows shows the last checks, newest first.
func checkRows(ends []instances.LastCheck, note string) [][]string {
	if note != "" {
		return [][]string{{"last check", note}}
	}
	var rows [][]string
	label := "last check"
	for _, e := range ends {
		end := fmt.Sprintf("%s in %.0f ms", term.OrDash(e.State), e.TookMs)
		if !e.Passing {
			end += ": " + e.Cause
		}
		rows = append(rows, []string{label, fmt.Sprintf("%s %s, %s", term.At(e.At), instance.Status(e.Status), end)})
		label = "before"
	}
	return rows
}

// OneInstance shows one instance with its last checks.
func OneInstance(ctx context.Context, c *operator.Client, i *instance.Instance) (term.Document, error) {
	ends, note, err := lastChecks(ctx, c, i)
	if err != nil {
		return term.Document{}, err
	}
	return instanceDetail(i, ends, note), nil
}

// instanceDetail shows the non-empty fields of one instance, and its last checks or who knows them.
func instanceDetail(i *instance.Instance, ends []instances.LastCheck, note string) term.Document {
	override, check, removed := "", "none: heartbeats keep the instance", fmt.Sprintf("removed after %s", i.Spec.RemoveAfter)
	switch {
	case i.Spec.RemoveAfter == instance.Never:
		removed = "never removed"
	case i.Spec.Lasting:
		removed = fmt.Sprintf("removed %s after its last heartbeat, if one ever came", i.Spec.RemoveAfter)
	}
	if i.Override != instance.StatusUnknown {
		override = i.Override.String()
	}
	if c := i.Spec.Check; c != nil {
		check = strings.Join(strings.Fields(fmt.Sprintf("%s %s every %s", c.Type, c.Endpoint, c.Interval)), " ")
	}
	rows := [][]string{
		{"service", i.Service}, {"namespace", i.Namespace}, {"id", i.ID}, {"status", i.Status.String()}, {"override", override},
		{"address", AddressOf(i)}, {"version", i.Spec.Version}, {"zone", i.Spec.Zone}, {"weight", strconv.Itoa(i.Spec.Weight)},
		{"tags", strings.Join(i.Spec.Tags, " ")}, {"interfaces", assignments(i.Spec.Interfaces)}, {"metadata", assignments(i.Spec.Metadata)},
		{"depends on", strings.Join(i.Spec.Dependencies, " ")}, {"environment", i.Spec.Environment}, {"region", i.Spec.Region}, {"owner", i.Spec.Owner},
		{"check", check}, {"thresholds", fmt.Sprintf("unhealthy after %s, %s", i.Spec.UnhealthyAfter, removed)},
		{"registered", term.At(i.RegisteredAt)}, {"lease", i.Lease}, {"peer", i.Peer},
	}
	rows = slices.DeleteFunc(append(rows, checkRows(ends, note)...), func(row []string) bool { return row[1] == "" })
	value := instanceJSON(i)
	value.LastChecks = ends
	return term.Document{Value: value, Table: term.Pairs(rows)}
}

// assignments shows a map as NAME=VALUE in one line.
func assignments(m map[string]string) string {
	var words []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		words = append(words, k+"="+m[k])
	}
	return strings.Join(words, " ")
}
