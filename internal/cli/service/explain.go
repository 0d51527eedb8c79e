package service

import (
	"context"
	"fmt"
	"strings"

	"github.com/blackhole/blackhole/internal/cli/remote"
	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/internal/platform/spelling"
	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/instance"
)

// explainNothing tells on standard error why a query of instances found none: how many each filter leaves out, or that no
// such service exists. What cannot be found out is left out: the answer itself is complete.
func explainNothing(ctx context.Context, r *remote.Peer, c *client.Client, q instance.Query) {
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
		r.Say("no service %s in the namespace %s%s", q.Service, q.Namespace, spelling.Meant(spelling.Nearest(q.Service, names)))
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
	r.Say("%s of %s, none passes; left out: %s", term.Counted(all, "instance"), q.Service, strings.Join(left, ", "))
}
