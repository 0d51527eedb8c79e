package cli

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// requisition is what the arguments and flags of require ask for.
type requisition struct {
	needs     []client.Requirement
	command   []string
	namespace string
	name      string
	wait      time.Duration
	remove    bool
	timeout   time.Duration // to reach the group
}

func (a App) requireCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "require SERVICE=N[@FIELD=VALUE,...]... [-- COMMAND ARG...]", Short: "Wait until services have enough instances, and run a command then",
		Long: "Require so many instances of each service in the whole cluster, wait until there are as many, and run a\n" +
			"command then. Behind @ stand the fields that instances must have: zone, version (a range such as 2.x), tag\n" +
			"(again for each), environment, dependency, health (UP unless it says more, again for each, or any).\n\n" +
			"A requirement is known to all peers. Without --name it is removed in the end; one with a name stays for\n" +
			"others to look at and to wait for: that of the first SERVICE has the name, those of the others\n" +
			"NAME.2, NAME.3 and so on.\n\n" +
			"The exit code is that of the command, 128 and the signal when one ended it, 127 when there is no such command,\n" +
			strconv.Itoa(exitNotAcquired) + " when --wait ends before there are enough.",
		Example: "  " + name + " require storage=3 -- ./serve\n" +
			"  " + name + " require --wait 60s storage=3 billing=1@zone=eu,tag=v2 -- ./serve",
	}
	var q requisition
	f := cmd.Flags()
	f.StringVar(&q.namespace, "namespace", instance.DefaultNamespace, "namespace of the services")
	f.StringVar(&q.name, "name", "", "name of the requirement, which stays then")
	f.BoolVar(&q.remove, "rm", false, "remove it in the end all the same")
	f.DurationVar(&q.wait, "wait", 0, "longest time to wait for instances; 0 is without bound")
	r := a.remoteFlags(cmd, defaultTimeout)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		q.timeout = r.timeout
		if err := q.read(cmd, args); err != nil {
			return err
		}
		r.timeout = min(r.timeout, 0) // it is for reaching the group, not for what follows
		return r.coordinate(cmd, func(ctx context.Context, c *client.Client) error { return r.require(ctx, c, &q) })
	}
	return cmd
}

// read reads the arguments.
func (q *requisition) read(cmd *cobra.Command, args []string) error {
	if dash := cmd.ArgsLenAtDash(); dash >= 0 {
		args, q.command = args[:dash], args[dash:]
	}
	switch {
	case len(args) == 0:
		return fault.Invalidf("SERVICE=N", nil, "is missing")
	case q.wait < 0:
		return fault.Invalidf("--wait", q.wait, "must be at least 0")
	case cmd.Flags().Changed("name") && q.name == "":
		return fault.Invalidf("--name", nil, "is empty")
	}
	if q.name == "" {
		var b [8]byte
		_, _ = rand.Read(b[:]) // it never fails
		q.name, q.remove = "require-"+hex.EncodeToString(b[:]), true
	}
	for i, arg := range args {
		need, err := readNeed(arg)
		if err != nil {
			return err
		}
		if need.Service.Namespace, need.Name = q.namespace, q.name; i > 0 {
			need.Name += "." + strconv.Itoa(i+1)
		}
		if err := need.Service.Validate(); err != nil {
			return renameField(err, func(field string) string {
				if field == "namespace" {
					return "--namespace"
				}
				return "SERVICE=N"
			})
		}
		q.needs = append(q.needs, need)
	}
	if len(q.command) > 0 {
		if _, err := exec.LookPath(q.command[0]); err != nil {
			return coded{127, fault.New("", fault.NotFound, "%w", err)}
		}
	}
	return nil
}

// readNeed reads SERVICE=N@FIELD=VALUE,... Errors name the argument as a whole, or the field in it.
func readNeed(arg string) (n client.Requirement, err error) {
	what, fields, selects := strings.Cut(arg, "@")
	service, count, _ := strings.Cut(what, "=")
	n.Service.Service = service
	if n.Min, err = strconv.Atoi(count); err != nil || n.Min < 1 {
		return n, fault.Invalidf("SERVICE=N", arg, "must be a service and a number above 0, such as storage=3, not %q", arg)
	}
	if !selects {
		return n, nil
	}
	for one := range strings.SplitSeq(fields, ",") {
		field, value, ok := strings.Cut(one, "=")
		if !ok || value == "" {
			return n, fault.Invalidf("SERVICE=N", arg, "must have FIELD=VALUE behind @, not %q", one)
		}
		if err := selectBy(&n.Selector, field, value); err != nil {
			return n, err
		}
	}
	_, err = n.Selector.Compile()
	return n, err
}

// selectBy adds what one field must be.
func selectBy(s *instance.Selector, field, value string) error {
	switch field {
	case "zone":
		s.Zone = value
	case "version":
		s.Version = value
	case "tag":
		s.Tags = append(s.Tags, value)
	case "environment":
		s.Environment = value
	case "dependency":
		s.Dependency = value
	case "health":
		if strings.EqualFold(value, "any") {
			s.AnyStatus = true
			return nil
		}
		status, err := instance.ParseStatus(value)
		if err != nil {
			return renameField(err, func(string) string { return "health" })
		}
		s.Statuses = append(s.Statuses, status)
	default:
		return fault.Invalidf("SERVICE=N", field, "%q is no field to select by", field)
	}
	return nil
}

// require sets the requirements, waits for them, and removes what is not to stay.
func (r *remote) require(ctx context.Context, c *client.Client, q *requisition) error {
	if q.remove {
		defer r.dropNeeds(ctx, c, q)
	}
	if err := r.setNeeds(ctx, c, q); err != nil {
		return err
	}
	waiting, stop := ctx, context.CancelFunc(func() {})
	if q.wait > 0 {
		waiting, stop = context.WithTimeout(ctx, q.wait)
	}
	defer stop()
	all, err := awaitNeeds(waiting, c, q.needs)
	switch {
	case err != nil && ctx.Err() == nil && waiting.Err() != nil:
		return coded{exitNotAcquired, fault.New("", fault.Conflict, "%s", r.shortage(ctx, c, all))}
	case err != nil:
		return err
	case len(q.command) > 0:
		stop()
		return r.app.run(ctx, q.command)
	}
	return r.print(standingsDocument(all))
}

// setNeeds sets the requirements within the time to reach the group.
func (r *remote) setNeeds(ctx context.Context, c *client.Client, q *requisition) error {
	if q.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, q.timeout)
		defer cancel()
	}
	for _, need := range q.needs {
		if err := c.Require(ctx, need); err != nil {
			return renameField(err, func(field string) string {
				switch field {
				case "name":
					return "--name"
				case "min":
					return "SERVICE=N"
				}
				return field
			})
		}
	}
	return nil
}

// dropNeeds removes the requirements.
func (r *remote) dropNeeds(ctx context.Context, c *client.Client, q *requisition) {
	patience := farewell
	if q.timeout > 0 {
		patience = min(patience, q.timeout)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	for _, need := range q.needs {
		err := c.Unrequire(ctx, need.Name)
		if kind := fault.KindOf(err); err != nil && kind != fault.NotFound && kind != fault.Unsupported {
			r.app.say("warning: the requirement %s could not be removed: %s", need.Name, message(err))
		}
	}
}

// awaitNeeds waits until all requirements are satisfied at a time. Without success it tells how they stood when they
// were last heard of.
func awaitNeeds(ctx context.Context, c *client.Client, needs []client.Requirement) ([]client.Standing, error) {
	all := make([]client.Standing, len(needs))
	for i, need := range needs {
		all[i] = client.Standing{Requirement: need}
		all[i].State, all[i].Needed = "pending", need.Min
	}
	for {
		for i, need := range needs {
			now, err := c.AwaitRequirement(ctx, need.Name)
			if now.Name != "" {
				all[i] = now
			}
			if err != nil {
				return all, err
			}
		}
		lost := false
		for i, need := range needs { // one may have lost again what it had while another was waited for
			now, err := c.Required(ctx, need.Name)
			if err != nil && ctx.Err() == nil && fault.KindOf(err) == fault.Unavailable {
				lost = true
				continue
			}
			if err != nil {
				return all, err
			}
			all[i] = now
			lost = lost || !now.Satisfied()
		}
		if !lost {
			return all, nil
		}
	}
}

// shortage says what is missing, as far as it is known in the end.
func (r *remote) shortage(ctx context.Context, c *client.Client, all []client.Standing) string {
	ctx, cancel := context.WithTimeout(ctx, farewell)
	defer cancel()
	var missing []string
	for _, s := range all {
		if now, err := c.Required(ctx, s.Name); err == nil {
			s = now
		}
		if s.Satisfied() {
			continue
		}
		text := fmt.Sprintf("%s: %d needed, %d available", s.Service.Service, s.Needed, s.Available)
		switch {
		case s.Problem != "":
			text += ": " + s.Problem
		case !s.Judged():
			text = fmt.Sprintf("%s: %d needed, nobody tells how many are available", s.Service.Service, s.Needed)
		}
		missing = append(missing, text)
	}
	if len(missing) == 0 {
		return "the services did not have enough instances at a time"
	}
	return strings.Join(missing, "; ")
}

// run runs a command. An interrupt is passed on as SIGTERM.
func (a App) run(ctx context.Context, command []string) error {
	cmd := exec.Command(command[0], command[1:]...) //nolint:gosec // what the user asked for
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.Env = a.Stdin, a.Stdout, a.Stderr, a.Environ
	c, err := start(cmd)
	if err != nil {
		return coded{126, fault.New("", fault.Internal, "%s: %w", command[0], err)}
	}
	select {
	case <-c.done:
	case <-ctx.Done():
		c.terminate()
		<-c.done
	}
	return c.ending()
}

func (a App) requirementsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "requirements", Short: "List what services are required, and whether there are enough", Args: noArgs,
	}
	remove := cmd.Flags().StringArray("rm", nil, "remove the requirement of this name instead (repeat)")
	r := a.remoteFlags(cmd, defaultTimeout)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return r.coordinate(cmd, func(ctx context.Context, c *client.Client) error {
			for _, name := range *remove {
				if err := c.Unrequire(ctx, name); err != nil {
					return renameField(err, func(string) string { return "--rm" })
				}
			}
			if len(*remove) > 0 {
				return nil
			}
			all, err := c.Requirements(ctx)
			if err != nil {
				return err
			}
			return r.print(standingsDocument(all))
		})
	}
	return cmd
}

// standingView is a requirement as it is shown.
type standingView struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
	Service   string `json:"service"`
	Selector  string `json:"selector,omitempty"` // as the command require takes it
	State     string `json:"state"`
	Needed    int    `json:"needed"`
	Available int    `json:"available"`
	Revision  int64  `json:"revision"`
	Problem   string `json:"problem,omitempty"`
}

func standingsDocument(all []client.Standing) document {
	views, rows := make([]standingView, len(all)), make([][]string, len(all))
	for i, s := range all {
		v := standingView{
			Name: s.Name, Namespace: s.Service.Namespace, Service: s.Service.Service, Selector: selectorText(&s.Selector),
			State: string(s.State), Needed: s.Needed, Available: s.Available, Revision: int64(s.Revision), Problem: s.Problem,
		}
		views[i] = v
		rows[i] = []string{v.Name, v.Service, orDash(v.Selector), v.State, strconv.Itoa(v.Needed), strconv.Itoa(v.Available)}
	}
	return document{
		value: map[string]any{"requirements": views}, items: itemsOf(views),
		table: table([]string{"REQUIREMENT", "SERVICE", "SELECTOR", "STATE", "NEEDED", "AVAILABLE"}, rows),
	}
}

// selectorText gives a selector as readNeed reads it.
func selectorText(s *instance.Selector) string {
	var fields []string
	add := func(field, value string) {
		if value != "" {
			fields = append(fields, field+"="+value)
		}
	}
	add("zone", s.Zone)
	add("version", s.Version)
	for _, tag := range s.Tags {
		add("tag", tag)
	}
	add("environment", s.Environment)
	add("dependency", s.Dependency)
	add("id", s.ID) // set by another way
	if s.AnyStatus {
		add("health", "any")
	}
	for _, status := range s.Statuses {
		add("health", status.String())
	}
	return strings.Join(fields, ",")
}
