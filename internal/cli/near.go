package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/blackhole/blackhole/internal/platform/spelling"
	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/instance"
)

// synonyms maps words of other programs to our commands.
func synonyms() map[string][]string {
	return map[string][]string{
		"start": {"run"}, "serve": {"run"}, "agent": {"run"}, "daemon": {"run"}, "up": {"run"},
		"join": {"run"}, "members": {"peer ls"}, "swarm": {"peer ls"}, "nodes": {"peer ls"},
		"catalog": {"service ls"}, "list": {"service ls"}, "discover": {"instance find"},
		"operator": {"group"}, "raft": {"group"}, "snapshot": {"group backup"}, "etcd": {"kv"}, "delete": {"kv del"},
		"search": {"offer find"}, "query": {"offer find"}, "publish": {"offer register"}, "provide": {"offer register"}, "records": {"offer ls"},
		"netcheck": {"doctor"}, "diag": {"doctor"}, "check": {"doctor"}, "troubleshoot": {"doctor"},
		"resolve": {"offer show", "dns"}, "validate": {"config show"}, "monitor": {"events", "log-level"}, "logs": {"log-level", "events"},
		"heartbeat": {"instance register"}, "info": {"status"}, "ping": {"status"}, "health": {"status"}, "session": {"lease"}, "mutex": {"lock"}, "elect": {"lock"},
	}
}

// meantCommands suggests commands for an unknown one: subcommands of cmd with a similar name, and at the root also their
// subcommands and our commands for words of other programs.
func meantCommands(cmd *cobra.Command, typed string) (found []string) {
	commands := map[string][]string{}
	for _, child := range cmd.Commands() {
		commands[child.Name()] = append(commands[child.Name()], child.Name())
	}
	if !cmd.HasParent() {
		maps.Copy(commands, synonyms())
		for _, child := range cmd.Commands() {
			for _, verb := range child.Commands() {
				commands[verb.Name()] = append(commands[verb.Name()], child.Name()+" "+verb.Name())
			}
		}
	}
	words := []string{typed}
	if commands[typed] == nil {
		words = spelling.Nearest(typed, slices.Collect(maps.Keys(commands)))
	}
	for _, word := range words {
		for _, command := range commands[word] {
			if !slices.Contains(found, command) {
				found = append(found, command)
			}
		}
	}
	return found
}

// meantFlag suggests flags for an unknown one.
func meantFlag(cmd *cobra.Command, err error) string {
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) {
		return ""
	}
	var flags []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { flags = append(flags, f.Name) })
	near := spelling.Nearest(unknown.GetSpecifiedName(), flags)
	for i := range near {
		near[i] = "--" + near[i]
	}
	if name := unknown.GetSpecifiedName(); slices.Contains(formats(), name) && cmd.Flags().Lookup("output") != nil {
		near = []string{"-o " + name}
	}
	return spelling.Meant(near)
}

// explainNothing tells on standard error why a query of instances found none: how many each filter leaves out, or that no
// such service exists. What cannot be found out is left out: the answer itself is complete.
func (r *remote) explainNothing(ctx context.Context, c *client.Client, q instance.Query) {
	count := func(s instance.Selector) (int, bool) {
		found, err := c.Agent().Discover(ctx, instance.Query{Name: q.Name, Selector: s})
		return len(found.Instances), err == nil
	}
	all, ok := count(instance.Selector{AnyStatus: true})
	if !ok {
		return
	}
	if all == 0 {
		list, err := c.Services().List(ctx, q.Namespace)
		if err != nil {
			return
		}
		var names []string
		for _, s := range list.Services {
			names = append(names, s.Name)
		}
		r.say("no service %s in the namespace %s%s", q.Service, q.Namespace, spelling.Meant(spelling.Nearest(q.Service, names)))
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
	r.say("%s of %s, none passes; left out: %s", counted(all, "instance"), q.Service, strings.Join(left, ", "))
}
