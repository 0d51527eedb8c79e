package cli

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// lookAgain is how often the list of services is asked for that nobody can watch.
const lookAgain = time.Second

func namespaceFlag(cmd *cobra.Command) *string {
	return cmd.Flags().String("namespace", instance.DefaultNamespace, "namespace of the service")
}

// summaryView is a service at a glance.
type summaryView struct {
	Name      string   `json:"name"`
	Instances int      `json:"instances"`
	Up        int      `json:"up"`
	Tags      []string `json:"tags,omitempty"`
}

func (a App) servicesCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "services", Short: "List the services of applications", Args: noArgs,
		Long: "List the services that have instances. With --watch the list is shown again whenever it has\nchanged, until interrupted.",
	}
	namespace := namespaceFlag(cmd)
	watch := cmd.Flags().Bool("watch", false, "show the list again whenever it changes")
	r := a.remoteFlags(cmd, defaultTimeout)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if *watch && !cmd.Flags().Changed(timeoutFlag) {
			r.timeout = 0
		}
		return r.call(cmd, func(ctx context.Context, c *client.Client) error {
			if *watch {
				return r.watchServices(ctx, c, *namespace)
			}
			all, err := c.Services().List(ctx, *namespace)
			if err != nil {
				return renameField(err, instanceFlag)
			}
			return r.print(servicesDocument(summaries(all)))
		})
	}
	return cmd
}

func summaries(all instance.Services) []summaryView {
	views := make([]summaryView, len(all.Services))
	for n, s := range all.Services {
		views[n] = summaryView(s)
	}
	return views
}

func servicesDocument(views []summaryView) document {
	rows := make([][]string, len(views))
	for n, v := range views {
		rows[n] = []string{v.Name, strconv.Itoa(v.Instances), strconv.Itoa(v.Up), orDash(strings.Join(v.Tags, " "))}
	}
	return document{
		value: map[string]any{"services": views}, items: itemsOf(views),
		table: table([]string{"SERVICE", "INSTANCES", "UP", "TAGS"}, rows),
	}
}

// watchServices shows the list whenever it has changed. A peer that does not answer for a moment
// ends nothing once it has answered.
func (r *remote) watchServices(ctx context.Context, c *client.Client, namespace string) error {
	var shown []summaryView
	ticker := time.NewTicker(lookAgain)
	defer ticker.Stop()
	for {
		all, err := c.Services().List(ctx, namespace)
		switch {
		case ctx.Err() != nil:
			return r.interrupted(ctx, shown != nil)
		case err != nil && (shown == nil || !hopeless(err)):
			return renameField(err, instanceFlag)
		case err == nil:
			views := summaries(all)
			if shown == nil || !reflect.DeepEqual(views, shown) {
				if err := r.printNext(servicesDocument(views)); err != nil {
					return err
				}
			}
			shown = views
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
		}
	}
}

// interrupted is the end of a command that goes on until its context ends: a timeout after the
// first answer is the end that the user asked for.
func (r *remote) interrupted(ctx context.Context, answered bool) error {
	if err := fault.Wrap("", ctx.Err()); !answered || fault.KindOf(err) != fault.Timeout {
		return err
	}
	return nil
}

// selection are the flags that pick instances of a service.
type selection struct {
	namespace    *string
	selector     instance.Selector
	statuses     []string
	linearizable bool
}

func selectionFlags(cmd *cobra.Command) *selection {
	s, f := &selection{namespace: namespaceFlag(cmd)}, cmd.Flags()
	f.StringArrayVar(&s.selector.Tags, "tag", nil, "only with this tag, KEY:VALUE of its metadata, or a key that is true (repeat)")
	f.StringVar(&s.selector.Zone, "zone", "", "only of this zone")
	f.StringVar(&s.selector.PreferZone, "prefer-zone", "", "those of this zone first")
	f.StringVar(&s.selector.Version, "version", "", "only of these versions: 2.x, ^1.2, '>=1.0 <2'")
	f.StringVar(&s.selector.Environment, "environment", "", "development, staging or production")
	f.StringVar(&s.selector.Dependency, "depends-on", "", "only those that depend on this service")
	f.StringSliceVar(&s.statuses, "status", nil, "UP, DOWN, UNHEALTHY, STARTING, OUT_OF_SERVICE, UNKNOWN (repeat, or commas), or any (default UP)")
	f.BoolVar(&s.linearizable, "linearizable", false, "have the cluster confirm that nothing newer is known")
	complete(cmd, "status", "UP", "DOWN", "UNHEALTHY", "STARTING", "OUT_OF_SERVICE", "UNKNOWN", "any")
	return s
}

// query gives the query that the flags ask for, valid. Errors name the flag.
func (s *selection) query(service string) (instance.Query, error) {
	q := instance.Query{Name: instance.Name{Namespace: *s.namespace, Service: service}, Selector: s.selector}
	for _, text := range s.statuses {
		if strings.EqualFold(text, "any") {
			q.AnyStatus = true
			continue
		}
		status, err := instance.ParseStatus(text)
		if err != nil {
			return q, renameField(err, instanceFlag)
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
	return q, renameField(err, instanceFlag)
}

// instanceFlag gives the flag or argument that sets a field; what none sets stays as it is.
func instanceFlag(field string) string {
	top, rest, _ := strings.Cut(field, "[")
	if rest == "" {
		top, _, _ = strings.Cut(field, ".")
	}
	switch top {
	case "service":
		return "SERVICE"
	case "service_name":
		return "SERVICE"
	case "tags":
		return "--tag"
	case "metadata":
		return "--meta"
	case "interfaces":
		return "--interface"
	case "dependencies", "dependency":
		return "--depends-on"
	case "health_check":
		return "--check"
	case "status":
		return "--status"
	case "prefer_zone", "unhealthy_after", "remove_after":
		return "--" + strings.ReplaceAll(top, "_", "-")
	}
	if slices.Contains([]string{"namespace", "id", "host", "port", "version", "environment", "region", "owner", "description", "zone", "weight"}, top) {
		return "--" + top
	}
	return field
}

func (a App) discoverCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "discover SERVICE", Short: "Find the instances of a service", Args: oneArg("SERVICE"),
		Long: "Find the instances of a service, those that are UP unless --status says more.\n\n" +
			"With --watch, show those that match now and then every change until interrupted: added,\n" +
			"modified, removed (it matches no more, or is gone) and reset (forget what you had: the current\n" +
			"matches follow). When the peer or its contact with the cluster is lost, standard error says so.",
		Example: "  " + name + " discover payment --tag v2 --prefer-zone eu\n" +
			"  " + name + " discover payment --status any --watch -o ndjson",
	}
	flags := selectionFlags(cmd)
	watch := cmd.Flags().Bool("watch", false, "follow what changes")
	r := a.remoteFlags(cmd, defaultTimeout)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		q, err := flags.query(args[0])
		if err != nil {
			return err
		}
		if *watch && !cmd.Flags().Changed(timeoutFlag) {
			r.timeout = 0
		}
		return r.call(cmd, func(ctx context.Context, c *client.Client) error {
			if *watch {
				return r.watchInstances(ctx, c, q)
			}
			found, err := c.Agent().Discover(ctx, q)
			if err != nil {
				return renameField(err, instanceFlag)
			}
			views := showInstances(found.Instances)
			r.warnStale(found.Contact)
			return r.print(document{
				value: map[string]any{"service": q.Service, "index": found.Index, "instances": views, "stale": found.Stale},
				items: itemsOf(views), table: instanceTable(views),
			})
		})
	}
	return cmd
}

func (r *remote) warnStale(c instance.Contact) {
	if !c.Stale {
		return
	}
	since := ""
	if c.Age > 0 {
		since = fmt.Sprintf(" (for %s)", c.Age.Round(time.Second))
	}
	r.app.say("warning: the answer may be old%s: %s", since, orDash(c.Reason))
}

// instanceEvent is one event of a watch.
type instanceEvent struct {
	Event    string        `json:"event"`
	Index    uint64        `json:"index"`
	Instance *instanceView `json:"instance,omitempty"`
}

// watchInstances shows events until the watch ends.
func (r *remote) watchInstances(ctx context.Context, c *client.Client, q instance.Query) error {
	heard, stale := false, false
	for b, err := range c.Services().Watch(ctx, q, 0) {
		switch {
		case ctx.Err() != nil:
			return r.interrupted(ctx, heard)
		case err != nil:
			return renameField(err, instanceFlag)
		}
		if b.Stale && !stale {
			r.warnStale(b.Contact)
		} else if stale && !b.Stale {
			r.app.say("contact is found again")
		}
		if stale = b.Stale; b.Reset && heard {
			if err := r.printNext(document{value: instanceEvent{Event: "reset", Index: b.Index}, table: "reset\n"}); err != nil {
				return err
			}
		}
		heard = heard || b.Reset
		for _, e := range b.Events {
			if err := r.instanceEvent(e); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *remote) instanceEvent(e instance.Event) error {
	kind := map[instance.EventType]string{instance.Added: "added", instance.Modified: "modified", instance.Removed: "removed"}[e.Type]
	v := showInstance(e.Instance)
	line := fmt.Sprintf("%-8s  %-24s  %-14s  %-24s  %-10s  %s", kind, v.ID, v.Status, v.address(), orDash(v.Version), strings.Join(v.Tags, " "))
	return r.printNext(document{value: instanceEvent{kind, e.Revision, &v}, table: strings.TrimRight(clean(line), " ") + "\n"})
}

// assignments shows names with their values in one line.
func assignments(m map[string]string) string {
	var words []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		words = append(words, k+"="+m[k])
	}
	return strings.Join(words, " ")
}
