package service

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/internal/cli/command"
	"github.com/blackhole/blackhole/internal/cli/exit"
	"github.com/blackhole/blackhole/internal/cli/guard"
	"github.com/blackhole/blackhole/internal/cli/remote"
	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/internal/operator"
	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// requireFlags holds the arguments and flags of require.
type requireFlags struct {
	requirements []client.Requirement
	command      []string
	namespace    string
	name         string
	wait         time.Duration
	remove       bool
}

func serviceRequire(con *term.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use: "require SERVICE=N[@FIELD=VALUE,...]... [-- COMMAND ARG...]", Short: "Wait for enough instances of services, then run a command",
		Long: "Require N instances of each service in the group, wait for them, and then run a command. The fields after @ select instances: zone, version (a range such as 2.x), tag (repeat),\n" +
			"environment, dependency, health (default UP; another status, repeat; or any).\n\n" +
			"All peers see a requirement. A requirement without --name ends with this command. With --name it\n" +
			"stays for other clients: the first SERVICE gets the name NAME, later ones NAME.2, NAME.3 and so on.\n\n" +
			"The exit code is the command's own, 128 plus the signal that ended it, 127 for an unknown command,\n" +
			"or " + strconv.Itoa(exit.NotAcquired) + " if --wait ends with too few instances.",
		Example: "  " + command.Program + " service require storage=3 -- ./serve\n" +
			"  " + command.Program + " service require --wait 60s storage=3 billing=1@zone=eu,tag=v2 -- ./serve",
	}
	var q requireFlags
	f := cmd.Flags()
	f.StringVar(&q.namespace, "namespace", instance.DefaultNamespace, "namespace of the services")
	f.StringVar(&q.name, "name", "", "name of a lasting requirement")
	f.BoolVar(&q.remove, "rm", false, "remove the named requirement at the end")
	f.DurationVar(&q.wait, "wait", 0, "longest time to wait for instances; 0 means no limit")
	r := remote.New(con, cmd, remote.DefaultTimeout)
	r.ConnectOnly = true
	return r.Coordinates(func(ctx context.Context, c *operator.Client, args []string) error {
		if err := q.read(cmd, args); err != nil {
			return err
		}
		return requireAll(ctx, r, c, &q)
	})
}

// read reads the arguments.
func (q *requireFlags) read(cmd *cobra.Command, args []string) error {
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
		_, _ = rand.Read(b[:]) // never fails
		q.name, q.remove = "require-"+hex.EncodeToString(b[:]), true
	}
	for i, arg := range args {
		need, err := parseRequirement(arg)
		if err != nil {
			return err
		}
		if need.Service.Namespace, need.Name = q.namespace, q.name; i > 0 {
			need.Name += "." + strconv.Itoa(i+1)
		}
		if err := need.Service.Validate(); err != nil {
			return requireFields().Rename(err)
		}
		q.requirements = append(q.requirements, need)
	}
	return guard.Check(q.command)
}

// requireFields names the flags and arguments for the fields of a requirement.
func requireFields() exit.Fields {
	return exit.Fields{"name": "", "namespace": "", "min": "SERVICE=N", "service": "SERVICE=N", "service_name": "SERVICE=N"}
}

// parseRequirement reads SERVICE=N@FIELD=VALUE,... Errors name the argument, or a field in it.
func parseRequirement(arg string) (q client.Requirement, err error) {
	what, fields, selects := strings.Cut(arg, "@")
	service, count, _ := strings.Cut(what, "=")
	q.Service.Service = service
	if q.Min, err = strconv.Atoi(count); err != nil || q.Min < 1 {
		return q, fault.Invalidf("SERVICE=N", arg, "needs the form SERVICE=N with N above 0, such as storage=3, not %q", arg)
	}
	if !selects {
		return q, nil
	}
	for pair := range strings.SplitSeq(fields, ",") {
		field, value, ok := strings.Cut(pair, "=")
		if !ok || value == "" {
			return q, fault.Invalidf("SERVICE=N", arg, "must have FIELD=VALUE after @, not %q", pair)
		}
		if err := setSelector(&q.Selector, field, value); err != nil {
			return q, err
		}
	}
	_, err = q.Selector.Compile()
	return q, err
}

// setSelector sets one field of a selector. Repeated tags and statuses accumulate.
func setSelector(s *instance.Selector, field, value string) error {
	texts := map[string]*string{"zone": &s.Zone, "version": &s.Version, "environment": &s.Environment, "dependency": &s.Dependency}
	switch text := texts[field]; {
	case text != nil:
		*text = value
	case field == "tag":
		s.Tags = append(s.Tags, value)
	case field == "health" && strings.EqualFold(value, "any"):
		s.AnyStatus = true
	case field == "health":
		status, err := instance.ParseStatus(value)
		if err != nil {
			return exit.Rename(err, "health")
		}
		s.Statuses = append(s.Statuses, status)
	default:
		return fault.Invalidf("SERVICE=N", field, "cannot select by %q: use zone, version, tag, environment, dependency or health", field)
	}
	return nil
}

// requireAll sets the requirements and waits for all of them. Requirements without a name end with
// the command.
func requireAll(ctx context.Context, r *remote.Peer, c *operator.Client, q *requireFlags) error {
	if q.remove {
		defer removeRequirements(ctx, r, c, q.requirements)
	}
	connecting, cancel := r.Connecting(ctx)
	defer cancel()
	for _, need := range q.requirements {
		if err := c.Services().Requirements().Set(connecting, need); err != nil {
			return requireFields().Rename(err)
		}
	}
	waiting, stop := remote.Bounded(ctx, q.wait)
	defer stop()
	all, err := awaitAll(waiting, c, q.requirements)
	switch {
	case err != nil && ctx.Err() == nil && waiting.Err() != nil:
		return exit.With(exit.NotAcquired, fault.New("", fault.Conflict, "%s", shortage(ctx, c, q.requirements)))
	case err != nil:
		return err
	case len(q.command) == 0:
		return r.Print(requirementList(all))
	}
	stop()
	p, err := guard.Start(r.Console, q.command)
	if err != nil {
		return err
	}
	return p.Wait(ctx)
}

// removeRequirements removes requirements within the time for cleanup.
func removeRequirements(ctx context.Context, r *remote.Peer, c *operator.Client, requirements []client.Requirement) {
	timeout := remote.CleanupTimeout
	if r.Timeout > 0 {
		timeout = min(timeout, r.Timeout)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer cancel()
	for _, need := range requirements {
		err := c.Services().Requirements().Delete(ctx, need.Name)
		if kind := fault.KindOf(err); err != nil && kind != fault.NotFound && kind != fault.Unsupported {
			r.Say("warning: the requirement %s could not be removed: %s", need.Name, exit.Message(err))
		}
	}
}

// awaitAll waits for one round of requests with all requirements satisfied, and returns their status.
func awaitAll(ctx context.Context, c *operator.Client, requirements []client.Requirement) ([]client.EvaluatedRequirement, error) {
	for {
		for _, need := range requirements {
			if _, err := c.Services().Requirements().Await(ctx, need.Name); err != nil {
				return nil, err
			}
		}
		all, missing := standings(ctx, c, requirements) // during a wait the status of others may have changed
		if missing == nil {
			return all, nil
		}
	}
}

// pending is the state of a requirement that nobody has evaluated yet.
const pending = "pending"

// standings asks for the status of each requirement, and describes those that are not satisfied.
func standings(ctx context.Context, c *operator.Client, requirements []client.Requirement) (all []client.EvaluatedRequirement, missing []string) {
	for _, need := range requirements {
		s, err := c.Services().Requirements().Get(ctx, need.Name)
		switch all = append(all, s); {
		case err != nil || s.State == pending && s.Problem == "":
			missing = append(missing, fmt.Sprintf("%s: %d needed, number of available instances unknown", need.Service.Service, need.Min))
		case !s.Satisfied():
			missing = append(missing, strings.TrimSuffix(fmt.Sprintf("%s: %d needed, %d available: %s", s.Service.Service, s.Min, s.Available, s.Problem), ": "))
		}
	}
	return all, missing
}

// shortage describes the requirements that are not satisfied.
func shortage(ctx context.Context, c *operator.Client, requirements []client.Requirement) string {
	ctx, cancel := context.WithTimeout(ctx, remote.CleanupTimeout)
	defer cancel()
	if _, missing := standings(ctx, c, requirements); missing != nil {
		return strings.Join(missing, "; ")
	}
	return "the services did not have enough instances at the same time"
}

func serviceRequirements(con *term.Console) *cobra.Command {
	cmd := &cobra.Command{Use: "requirements", Short: "List the requirements on services with their status", Args: command.NoArgs}
	remove := cmd.Flags().StringArray("rm", nil, "remove the requirement with this name (repeat)")
	r := remote.New(con, cmd, remote.DefaultTimeout)
	return r.Coordinates(func(ctx context.Context, c *operator.Client, _ []string) error {
		for _, name := range *remove {
			err := c.Services().Requirements().Delete(ctx, name)
			if fault.KindOf(err) == fault.NotFound {
				return exit.Answer(fault.NotFound, "--rm: no requirement has the name %s", name)
			}
			if err != nil {
				return exit.Rename(err, "--rm")
			}
		}
		if len(*remove) > 0 {
			return nil
		}
		all, err := c.Services().Requirements().List(ctx)
		if err != nil {
			return err
		}
		return r.Print(requirementList(all))
	})
}

// requirementJSON is the JSON form of a requirement with its status.
type requirementJSON struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
	Service   string `json:"service"`
	Selector  string `json:"selector,omitempty"` // in the form of the command require
	State     string `json:"state"`
	Needed    int    `json:"needed"`
	Available int    `json:"available"`
	// Revision of the change to State.
	Revision client.Revision `json:"revision"`
	Problem  string          `json:"problem,omitempty"`
}

func requirementList(all []client.EvaluatedRequirement) term.Document {
	list := make([]requirementJSON, len(all))
	for i, s := range all {
		list[i] = requirementJSON{
			s.Name, s.Service.Namespace, s.Service.Service, selectorText(&s.Selector), s.State, s.Min, s.Available, s.Revision, s.Problem,
		}
	}
	header := []string{"REQUIREMENT", "SERVICE", "SELECTOR", "STATE", "NEEDED", "AVAILABLE"}
	return term.List("requirements", list, header, func(s *requirementJSON) []string {
		return []string{s.Name, s.Service, term.OrDash(s.Selector), s.State, strconv.Itoa(s.Needed), strconv.Itoa(s.Available)}
	})
}

// selectorText formats a selector for parseRequirement.
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
	add("id", s.ID) // set through the API only
	if s.AnyStatus {
		add("health", "any")
	}
	for _, status := range s.Statuses {
		add("health", status.String())
	}
	return strings.Join(fields, ",")
}
