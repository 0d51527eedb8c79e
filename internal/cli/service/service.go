// Package service has the commands for services of applications, their instances and requirements.
package service

import (
	"context"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/internal/cli/command"
	"github.com/blackhole/blackhole/internal/cli/exit"
	"github.com/blackhole/blackhole/internal/cli/remote"
	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/internal/operator"
	"github.com/blackhole/blackhole/internal/platform/spelling"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// listInterval is the time between two requests for the list of services, which has no watch.
const listInterval = time.Second

// NamespaceFlag adds --namespace.
func NamespaceFlag(cmd *cobra.Command) *string {
	return cmd.Flags().String("namespace", instance.DefaultNamespace, "namespace of the service")
}

// Command makes the command service.
func Command(con *term.Console) *cobra.Command {
	const instances = "use instance find SERVICE, or instance show SERVICE for those of any status"
	return command.Elsewhere(command.Parent(&cobra.Command{
		Use: "service", Short: "List services of applications, and wait for them",
		Long: "List services of applications, and wait for them. A service is all instances with one name.",
	}, serviceList(con), serviceWatch(con), serviceRequire(con), serviceRequirements(con)),
		map[string]string{
			"find": instances, "show": instances, "get": instances,
			"register": "use instance register SERVICE", "deregister": "use instance deregister SERVICE ID",
		})
}

func serviceList(con *term.Console) *cobra.Command {
	cmd := &cobra.Command{Use: "ls", Short: "List the services that have instances", Args: command.NoArgs}
	namespace := NamespaceFlag(cmd)
	r := remote.New(con, cmd, remote.DefaultTimeout)
	return r.Calls(func(ctx context.Context, c *operator.Client, _ []string) error {
		all, err := c.Services().List(ctx, *namespace)
		if err != nil {
			return instanceFields().Rename(err)
		}
		err = r.Print(servicesDocument(all.Services))
		sayRemoved(ctx, r, c, instance.Name{Namespace: *namespace})
		return err
	})
}

func serviceWatch(con *term.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use: "watch", Short: "Follow the list of services", Args: command.NoArgs,
		Long: "Show the services that have instances, and the list again after every change, until interrupted.",
	}
	namespace := NamespaceFlag(cmd)
	r := remote.New(con, cmd, 0)
	return r.Calls(func(ctx context.Context, c *operator.Client, _ []string) error {
		return watchServices(ctx, r, c, *namespace)
	})
}

func servicesDocument(views []instance.Summary) term.Document {
	return term.List("services", views, []string{"SERVICE", "INSTANCES", "UP", "TAGS"}, func(v *instance.Summary) []string {
		return []string{v.Name, strconv.Itoa(v.Instances), strconv.Itoa(v.Up), term.OrDash(strings.Join(v.Tags, " "))}
	})
}

// watchServices shows the list after every change. Once a peer has answered, a failure to
// reach it does not end the command.
func watchServices(ctx context.Context, r *remote.Peer, c *operator.Client, namespace string) error {
	var shown []instance.Summary
	silent := false
	ticker := time.NewTicker(listInterval)
	defer ticker.Stop()
	for {
		all, err := c.Services().List(ctx, namespace)
		switch {
		case ctx.Err() != nil:
			return remote.Interrupted(ctx, shown != nil)
		case err != nil && (shown == nil || !exit.Hopeless(err)):
			return instanceFields().Rename(err)
		case err != nil && !silent:
			r.Say("warning: no answer, changes may be missing: %s", exit.Message(err))
			silent = true
		case err == nil:
			if silent {
				r.Say("the peer answers again")
			}
			silent = false
			now := term.Emptied(all.Services)
			if shown == nil || !reflect.DeepEqual(now, shown) {
				if err := r.PrintNext(servicesDocument(now)); err != nil {
					return err
				}
			}
			shown = now
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
		}
	}
}

// selectionFlags holds the flags that select instances.
type selectionFlags struct {
	namespace    *string
	selector     instance.Selector
	statuses     []string
	linearizable bool
}

func newSelectionFlags(cmd *cobra.Command) *selectionFlags {
	s, f := &selectionFlags{namespace: NamespaceFlag(cmd)}, cmd.Flags()
	f.StringArrayVar(&s.selector.Tags, "tag", nil, "tag, KEY:VALUE of the metadata, or a metadata key with the value true (repeat)")
	f.StringVar(&s.selector.Zone, "zone", "", "zone")
	f.StringVar(&s.selector.PreferZone, "prefer-zone", "", "list the instances of this zone first")
	f.StringVar(&s.selector.Version, "version", "", "version range: 2.x, ^1.2, '>=1.0 <2'")
	f.StringVar(&s.selector.Environment, "environment", "", "development, staging or production")
	f.StringVar(&s.selector.Dependency, "depends-on", "", "require a dependency on this service")
	f.StringSliceVar(&s.statuses, "status", nil, "UP, DOWN, UNHEALTHY, STARTING, OUT_OF_SERVICE, UNKNOWN (repeat, or commas), or any (default UP)")
	f.BoolVar(&s.linearizable, "linearizable", false, "read the latest state that the group has committed")
	command.Complete(cmd, "status", "UP", "DOWN", "UNHEALTHY", "STARTING", "OUT_OF_SERVICE", "UNKNOWN", "any")
	return s
}

// query returns the valid query of the flags. Errors name the flag.
func (s *selectionFlags) query(service string) (instance.Query, error) {
	q := instance.Query{Name: instance.Name{Namespace: *s.namespace, Service: service}, Selector: s.selector}
	for _, text := range s.statuses {
		if strings.EqualFold(text, "any") {
			q.AnyStatus = true
			continue
		}
		status, err := instance.ParseStatus(text)
		if err != nil {
			return q, instanceFields().Rename(err)
		}
		q.Statuses = append(q.Statuses, status)
	}
	if s.linearizable {
		q.Consistency = instance.Linearizable
	}
	err := q.Name.Validate()
	if err == nil {
		_, err = q.Compile()
	}
	return q, instanceFields().Rename(err)
}

// instanceFields names the flags and arguments for the fields of an instance.
func instanceFields() exit.Fields {
	return exit.Fields{
		"service": "SERVICE", "service_name": "SERVICE", "tags": "--tag", "metadata": "--meta", "interfaces": "--interface",
		"dependencies": "--depends-on", "dependency": "--depends-on", "health_check": "--check", "status": "", "prefer_zone": "",
		"unhealthy_after": "", "remove_after": "", "namespace": "", "id": "", "host": "", "port": "", "version": "", "environment": "",
		"region": "", "owner": "", "description": "", "zone": "", "weight": "",
	}
}

// instanceFind makes find, or watch.
func instanceFind(con *term.Console, watch bool) *cobra.Command {
	cmd := &cobra.Command{
		Use: "find SERVICE", Short: "Find the instances of a service", Args: command.OneArg("SERVICE"),
		Long:    "Find the instances of a service with status UP, or with the statuses of --status.",
		Example: "  " + command.Program + " instance find payment --tag v2 --prefer-zone eu",
	}
	timeout := remote.DefaultTimeout
	if watch {
		timeout = 0
		cmd.Use, cmd.Short = "watch SERVICE", "Follow the instances of a service"
		cmd.Long = "Show the instances of a service with status UP, or with the statuses of --status, then all\n" +
			"changes until interrupted: added, modified, removed (deregistered, or no longer matching) and reset\n" +
			"(discard earlier instances: the current ones follow). A warning tells when the peer has lost its group."
		cmd.Example = "  " + command.Program + " instance watch payment --status any -o ndjson"
	}
	flags := newSelectionFlags(cmd)
	var must bool
	if !watch {
		remote.MustFind(cmd, &must)
	}
	r := remote.New(con, cmd, timeout)
	return r.Calls(func(ctx context.Context, c *operator.Client, args []string) error {
		q, err := flags.query(args[0])
		if err != nil {
			return err
		}
		if watch {
			return watchInstances(ctx, r, c, q)
		}
		found, err := c.Agent().Discover(ctx, q)
		if err != nil {
			return instanceFields().Rename(err)
		}
		warnStale(r, found.Contact)
		if len(found.Instances) == 0 {
			explainNothing(ctx, r, c, q)
		}
		value := map[string]any{"service": q.Service, "index": found.Index, "stale": found.Stale}
		if removed := sayRemoved(ctx, r, c, q.Name); len(removed) > 0 {
			value["removed"] = removed
		}
		err = r.Print(InstanceList(found.Instances, value))
		return remote.Found(err, must, len(found.Instances))
	})
}

func warnStale(r *remote.Peer, c instance.Contact) {
	if !c.Stale {
		return
	}
	since := ""
	if c.Age > 0 {
		since = fmt.Sprintf(" (for %s)", c.Age.Round(time.Second))
	}
	r.Say("warning: the answer may be outdated%s: %s", since, term.OrDash(c.Reason))
}

// instanceEvent is the JSON form of an event of a watch.
type instanceEvent struct {
	Event    string                `json:"event"`
	Index    uint64                `json:"index"`
	Instance *instances.DetailJSON `json:"instance,omitempty"`
}

// watchInstances shows events until the watch ends.
func watchInstances(ctx context.Context, r *remote.Peer, c *operator.Client, q instance.Query) error {
	received, stale := false, false
	for b, err := range c.Services().Watch(ctx, q, 0) {
		switch {
		case ctx.Err() != nil:
			return remote.Interrupted(ctx, received)
		case err != nil:
			return instanceFields().Rename(err)
		}
		if b.Stale && !stale {
			warnStale(r, b.Contact)
		} else if stale && !b.Stale {
			r.Say("the peer has reached its group again")
		}
		if stale = b.Stale; b.Reset && received {
			if err := r.PrintNext(term.Document{Value: instanceEvent{Event: "reset", Index: b.Index}, Table: term.Plain("reset\n")}); err != nil {
				return err
			}
		}
		received = received || b.Reset
		for _, e := range b.Events {
			if err := printInstance(r, e); err != nil {
				return err
			}
		}
	}
	return nil
}

func printInstance(r *remote.Peer, e instance.Event) error {
	kind := map[instance.EventType]string{instance.Added: "added", instance.Modified: "modified", instance.Removed: "removed"}[e.Type]
	i := e.Instance
	line := fmt.Sprintf("%-8s  %-24s  %-14s  %-24s  %-10s  %s", kind, i.ID, i.Status, AddressOf(i), term.OrDash(i.Spec.Version), strings.Join(i.Spec.Tags, " "))
	return r.PrintNext(term.Document{Value: instanceEvent{kind, e.Revision, instanceJSON(i)}, Table: term.Plain(strings.TrimRight(term.Clean(line), " ") + "\n")})
}

// saidRemoved bounds the removed instances that are named on standard error.
const saidRemoved = 5

// sayRemoved tells on standard error which instances of a service, or of a namespace, ended within the last hour, and why.
// It returns these instances: none if the peer does not know them.
func sayRemoved(ctx context.Context, r *remote.Peer, c *operator.Client, n instance.Name) []instances.Removal {
	removed, err := c.Agent().Removed(ctx, n)
	if err != nil {
		return nil
	}
	for at, i := range removed {
		if at == saidRemoved {
			r.Say("and %d more ended within the last hour", len(removed)-at)
			break
		}
		r.Say("%s %s ended at %s in status %s: %s", i.Service, i.ID, term.At(i.At), i.Status, i.Cause)
	}
	return removed
}

// unknown returns the message about a service without instances. It names services with similar names.
func unknown(ctx context.Context, c *operator.Client, n instance.Name) string {
	var names []string
	list, _ := c.Services().List(ctx, n.Namespace) // without it nothing is meant
	for _, s := range list.Services {
		names = append(names, s.Name)
	}
	return fmt.Sprintf("no service %s in the namespace %s%s", n.Service, n.Namespace, spelling.Meant(spelling.Nearest(n.Service, names)))
}

// explainNothing tells on standard error why a query of instances found none: how many each filter leaves out, or that no
// such service exists. What cannot be found out is left out: the answer itself is complete.
func explainNothing(ctx context.Context, r *remote.Peer, c *operator.Client, q instance.Query) {
	count := func(s instance.Selector) (int, bool) {
		found, err := c.Agent().Discover(ctx, instance.Query{Name: q.Name, Selector: s})
		return len(found.Instances), err == nil
	}
	all, ok := count(instance.Selector{AnyStatus: true})
	if !ok {
		return
	}
	if all == 0 {
		r.Say("%s", unknown(ctx, c, q.Name))
		return
	}
	var left []string
	for _, f := range []struct {
		flag string
		set  bool
		only instance.Selector
	}{
		{"--status", !q.AnyStatus, instance.Selector{Statuses: q.Statuses}},
		{"--tag", len(q.Tags) > 0, instance.Selector{AnyStatus: true, Tags: q.Tags}},
		{"--zone", q.Zone != "", instance.Selector{AnyStatus: true, Zone: q.Zone}},
		{"--version", q.Version != "", instance.Selector{AnyStatus: true, Version: q.Version}},
		{"--environment", q.Environment != "", instance.Selector{AnyStatus: true, Environment: q.Environment}},
		{"--depends-on", q.Dependency != "", instance.Selector{AnyStatus: true, Dependency: q.Dependency}},
	} {
		if !f.set {
			continue
		}
		if n, ok := count(f.only); ok && n < all {
			text := fmt.Sprintf("%d by %s", all-n, f.flag)
			if f.flag == "--status" && len(q.Statuses) == 0 {
				text += " (UP without the flag)"
			}
			left = append(left, text)
		}
	}
	r.Say("%s of %s, none passes; left out: %s", fault.Counted(all, "instance"), q.Service, strings.Join(left, ", "))
}
