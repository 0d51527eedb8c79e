package service

import (
	"context"
	"slices"

	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/internal/cli/command"
	"github.com/blackhole/blackhole/internal/cli/remote"
	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/pkg/client"
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
	return r.Calls(func(ctx context.Context, c *client.Client, args []string) error {
		out := remote.Results{Of: len(args) - 1, Header: []string{"DEREGISTERED"}}
		out.Each(args[1:], func(id string) error {
			_, err := c.Agent().Deregister(ctx, instance.Key{Namespace: *namespace, Service: args[0], ID: id})
			if err == nil {
				out.Add(map[string]string{"namespace": *namespace, "service": args[0], "id": id}, id)
			}
			return peerError(err)
		})
		return out.Print(r)
	})
}

// peerError renames the field of a peer's error to a flag or argument, and keeps the error
// recognisable as an answer of the peer.
func peerError(err error) error {
	fields := instanceFields()
	fields["id"] = "ID"
	named := fields.Rename(err)
	if named == err {
		return err
	}
	return fault.As("", fault.KindOf(named), named) // nested: see answered
}

func instanceShow(con *term.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use: "show SERVICE [ID...]", Short: "Show instances with any status", Args: serviceArgs(0),
		Long: "Show the instances of a service with any status. A single ID shows all details of the instance.\n" +
			"The peer of the instance also shows to the role admin when its last checks ended, and why they failed.",
	}
	namespace := NamespaceFlag(cmd)
	r := remote.New(con, cmd, remote.DefaultTimeout)
	return r.Calls(func(ctx context.Context, c *client.Client, args []string) error {
		found, err := c.Agent().Discover(ctx, instance.Query{
			Name: instance.Name{Namespace: *namespace, Service: args[0]}, Selector: instance.Selector{AnyStatus: true},
		})
		if err != nil {
			return instanceFields().Rename(err)
		}
		list, err := picked(found.Instances, args[1:])
		if err != nil {
			return err
		}
		warnStale(r, found.Contact)
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
			return nil, fault.As("", fault.NotFound, fault.New("", fault.NotFound, "ID: %s is not registered", id)) // nested: see answered
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
	return r.Calls(func(ctx context.Context, c *client.Client, args []string) error {
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
