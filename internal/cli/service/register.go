package service

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/blackhole/blackhole/internal/cli/command"
	"github.com/blackhole/blackhole/internal/cli/exit"
	"github.com/blackhole/blackhole/internal/cli/file"
	"github.com/blackhole/blackhole/internal/cli/guard"
	"github.com/blackhole/blackhole/internal/cli/remote"
	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/internal/operator"
	"github.com/blackhole/blackhole/internal/platform/environ"
	"github.com/blackhole/blackhole/internal/platform/strictjson"
	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// registerFlags are the flags of service register. Flags of a matching type fill
// reg directly.
type registerFlags struct {
	file       string
	reg        instance.Registration
	metadata   []string
	interfaces []string
	check      string
	interval   time.Duration
	timeout    time.Duration
	starting   bool
	keep       bool
}

func instanceRegister(con *term.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use: "register {SERVICE --host HOST --port PORT | -f FILE} [-- COMMAND ARG...]", Short: "Register instances, alone or while a command runs",
		Long: "Register one instance from flags, or several from a file: YAML documents or JSON values, each an\n" +
			"instance or a list of instances. A registration replaces an instance with the same id.\n\n" +
			"With a command, the instances stay registered while it runs. An interrupt is passed on as SIGTERM, and\n" +
			"the exit code is the command's own. The command gets the variables BLACKHOLE_SERVICE,\n" +
			"BLACKHOLE_INSTANCE_ID and BLACKHOLE_LEASE of the first instance. With --keep the instances stay\n" +
			"registered until interrupted. Otherwise they need a passing health check, or\n" +
			"heartbeats of an application.",
		Example: "  " + command.Program + " instance register web --host 10.0.0.7 --port 8080 --check http:/health --tag v2\n" +
			"  " + command.Program + " instance register web --host 10.0.0.7 --port 8080 -- ./web --listen :8080",
		Args: registerArgs,
	}
	g := newRegisterFlags(cmd)
	r := remote.New(con, cmd, remote.DefaultTimeout)
	cmd.PreRun = func(*cobra.Command, []string) { r.ConnectOnly = g.keep || cmd.ArgsLenAtDash() >= 0 }
	return r.Calls(func(ctx context.Context, c *operator.Client, args []string) error {
		var program []string
		if dash := cmd.ArgsLenAtDash(); dash >= 0 {
			args, program = args[:dash], args[dash:]
		}
		if g.keep && len(program) > 0 {
			return fault.Invalidf("--keep", nil, "cannot be used with a command")
		}
		list, err := g.registrations(cmd, con, args)
		if err == nil {
			err = guard.Check(program)
		}
		switch {
		case err != nil:
			return err
		case r.ConnectOnly:
			for _, one := range list {
				if text := one.Unaskable(one.Spec.Tags); text != "" {
					r.Say("warning: %s", text)
				}
			}
			return keepServices(ctx, r, c, program, list)
		}
		return registerOnce(ctx, r, c, list)
	})
}

// registerArgs allows one service, and requires "--" before a command.
func registerArgs(cmd *cobra.Command, args []string) error {
	names := len(args)
	if dash := cmd.ArgsLenAtDash(); dash >= 0 {
		if names = dash; len(args) == dash {
			return fault.Invalidf("COMMAND", nil, "must follow --")
		}
	}
	if names > 1 {
		return fault.Invalidf("SERVICE", nil, "must be given once; a command follows --")
	}
	return nil
}

func newRegisterFlags(cmd *cobra.Command) *registerFlags {
	g, f := new(registerFlags), cmd.Flags()
	v := &g.reg
	f.StringVarP(&g.file, "file", "f", "", "file of instances, YAML or JSON; - means standard input")
	f.StringVar(&v.Namespace, "namespace", "", "namespace of the service (default "+instance.DefaultNamespace+")")
	f.StringVar(&v.ID, "id", "", "id of the instance (default: a new random id)")
	f.StringVar(&v.Spec.Host, "host", "", "address or name of the instance for its clients")
	f.IntVar(&v.Spec.Port, "port", 0, "port on the host")
	f.StringVar(&v.Spec.Version, "version", "", "semantic version")
	f.StringArrayVar(&v.Spec.Tags, "tag", nil, "tag (repeat)")
	f.StringArrayVar(&g.metadata, "meta", nil, "metadata KEY=VALUE (repeat)")
	f.StringArrayVar(&g.interfaces, "interface", nil, "interface NAME=ADDRESS, such as gRPC=10.0.0.7:9000 (repeat)")
	f.StringArrayVar(&v.Spec.Dependencies, "depends-on", nil, "service that the instance needs (repeat)")
	f.StringVar(&v.Spec.Environment, "environment", "", "development, staging or production")
	f.StringVar(&v.Spec.Region, "region", "", "region")
	f.StringVar(&v.Spec.Owner, "owner", "", "team or person in charge")
	f.StringVar(&v.Spec.Description, "description", "", "description")
	f.StringVar(&v.Spec.Zone, "zone", "", "zone")
	f.IntVar(&v.Spec.Weight, "weight", 0, "weight in load balancing, 1 to 100 (default 1)")
	f.StringVar(&g.check, "check", "", "health check TYPE or TYPE:ENDPOINT: http:/health, tcp, tcp:9000, grpc, script:NAME")
	f.DurationVar(&g.interval, "check-interval", 0, "time between two checks (default 10s)")
	f.DurationVar(&g.timeout, "check-timeout", 0, "timeout of a check (default 5s)")
	f.DurationVar(&v.Spec.UnhealthyAfter, "unhealthy-after", 0, "time without heartbeat or passing check until UNHEALTHY (default 30s)")
	f.Var((*removal)(&v.Spec.RemoveAfter), "remove-after", "time without heartbeat or passing check until removal, or never (default 60s after the last heartbeat; without heartbeats an instance with a check stays)")
	f.BoolVar(&g.starting, "starting", false, "register with status STARTING until the first heartbeat or passing check")
	f.BoolVar(&v.Strict, "strict", false, "fail if the id is registered already")
	f.BoolVar(&v.RequireCommit, "require-commit", false, "fail if the group cannot commit the instance now")
	f.BoolVar(&g.keep, "keep", false, "stay registered until interrupted, then deregister")
	return g
}

// registrations returns the instances of the flags or of the file.
func (g *registerFlags) registrations(cmd *cobra.Command, con *term.Console, args []string) ([]instance.Registration, error) {
	switch {
	case g.file != "" && len(args) > 0:
		return nil, fault.Invalidf("SERVICE", args[0], "cannot be used with --file")
	case g.file != "":
		return g.fromFile(cmd, con)
	case len(args) == 0:
		return nil, fault.Invalidf("SERVICE", nil, "is required, or use --file")
	}
	r, err := g.fromFlags(args[0])
	return []instance.Registration{r}, instanceFields().Rename(err)
}

func (g *registerFlags) fromFlags(service string) (instance.Registration, error) {
	r := g.reg
	r.Service = service
	r.Key = r.Key.WithDefaults()
	var err error
	if r.Spec.Metadata, err = command.Assignments("--meta", g.metadata); err != nil {
		return r, err
	}
	if r.Spec.Interfaces, err = command.Assignments("--interface", g.interfaces); err != nil {
		return r, err
	}
	if g.starting {
		r.Status = instance.StatusStarting
	}
	if g.check != "" {
		kind, endpoint, _ := strings.Cut(g.check, ":")
		r.Spec.Check = &instance.Check{Endpoint: endpoint, Interval: g.interval, Timeout: g.timeout}
		if r.Spec.Check.Type, err = instance.ParseCheckType(kind); err != nil {
			return r, fault.In("health_check", err)
		}
	} else if g.interval != 0 || g.timeout != 0 {
		return r, fault.Invalidf("--check", nil, "is required with --check-interval and --check-timeout")
	}
	return r, r.Normalize()
}

// fromFile reads at least one instance. Only flags without a field in the file are allowed.
func (g *registerFlags) fromFile(cmd *cobra.Command, con *term.Console) ([]instance.Registration, error) {
	for _, flag := range []string{
		"id", "host", "port", "version", "tag", "meta", "interface", "depends-on", "environment", "region", "owner", "description", "zone",
		"weight", "check", "check-interval", "check-timeout", "unhealthy-after", "remove-after", "starting",
	} {
		if cmd.Flags().Changed(flag) {
			return nil, fault.Invalidf("--"+flag, nil, "cannot be used with --file")
		}
	}
	data, err := file.Read(con, "--file", g.file, maxInstanceFile)
	if err != nil {
		return nil, err
	}
	list, err := ParseInstances(data, g.reg.Namespace)
	if err == nil && len(list) == 0 {
		err = fault.Invalidf("--file", g.file, "has no instances")
	}
	for n := range list {
		list[n].Strict, list[n].RequireCommit = g.reg.Strict, g.reg.RequireCommit
	}
	return list, err
}

// registerOnce registers instances, and warns of instances without a health check.
func registerOnce(ctx context.Context, r *remote.Peer, c *operator.Client, list []instance.Registration) error {
	out := remote.Results{Of: len(list)}
	for _, reg := range list {
		got, err := c.Agent().Register(ctx, reg)
		if err != nil {
			out.Fail(term.OrDash(reg.ID), peerError(err))
			if exit.Hopeless(err) {
				break
			}
			continue
		}
		if got.Spec.Check == nil && got.Spec.RemoveAfter != instance.Never {
			r.Say("warning: %s has no health check: it ends in %s without heartbeats (use --keep or a command)", got.ID, got.Spec.RemoveAfter)
		}
		for _, text := range got.Warnings {
			r.Say("warning: %s: %s", got.ID, text)
		}
		addInstance(&out, got.Instance)
	}
	return out.Print(r)
}

// removal is the value of --remove-after.
type removal time.Duration

// String implements pflag.Value.
func (d *removal) String() string {
	switch time.Duration(*d) {
	case 0:
		return "" // no default is shown
	case instance.Never:
		return "never"
	}
	return time.Duration(*d).String()
}

// Set implements pflag.Value.
func (d *removal) Set(text string) error {
	if text == "never" {
		*d = removal(instance.Never)
		return nil
	}
	given, err := time.ParseDuration(text)
	*d = removal(given)
	return err
}

// Type implements pflag.Value.
func (*removal) Type() string { return "duration" }

// Bounds of a file of instances.
const (
	maxInstanceFile = 4 << 20 // bytes
	maxInstances    = 1000
)

// fileInstance is the form of an instance in a file: the API's form with the service.
type fileInstance struct {
	*instances.RegistrationJSON
	Service string `json:"service"`
}

// ParseInstances reads registrations from JSON or YAML. A registration without a namespace
// gets the default one. Errors of several registrations name their position.
func ParseInstances(data []byte, namespace string) ([]instance.Registration, error) {
	values, _ := file.JSONValues(data)
	if values == nil {
		var err error
		if values, err = yamlValues(data); err != nil {
			return nil, err
		}
	}
	if len(values) > maxInstances {
		return nil, fault.Invalidf("--file", len(values), "has more than %d instances", maxInstances)
	}
	list := make([]instance.Registration, len(values))
	for n, value := range values {
		var err error
		if list[n], err = parseInstance(value, namespace); err != nil {
			if len(values) > 1 {
				err = fault.In("["+strconv.Itoa(n)+"]", err)
			}
			return nil, err
		}
	}
	return list, nil
}

func parseInstance(value json.RawMessage, namespace string) (instance.Registration, error) {
	f := fileInstance{RegistrationJSON: new(instances.RegistrationJSON)}
	if err := strictjson.Decode(value, maxInstanceFile, &f); err != nil {
		return instance.Registration{}, err
	}
	f.Namespace = cmp.Or(f.Namespace, namespace)
	r, err := f.Registration(instance.Name{Service: f.Service})
	if err == nil {
		err = r.Normalize()
	}
	return r, err
}

// yamlValues converts all documents of a YAML file, and the elements of lists, to JSON.
func yamlValues(data []byte) ([]json.RawMessage, error) {
	var values []json.RawMessage
	for documents := yaml.NewDecoder(bytes.NewReader(data)); ; {
		var document any
		err := documents.Decode(&document)
		if errors.Is(err, io.EOF) {
			return values, nil
		}
		if err != nil {
			return nil, fault.Invalidf("--file", nil, "is not YAML: %w", err)
		}
		list, ok := document.([]any)
		if !ok && document != nil {
			list = []any{document}
		}
		for _, item := range list {
			value, err := json.Marshal(item)
			if err != nil {
				return nil, fault.Invalidf("--file", nil, "cannot be converted to JSON: %w", err)
			}
			values = append(values, value)
		}
	}
}

// registered are instances that a command keeps registered, with the console of the command.
type registered struct {
	*remote.Peer
	handles []*client.InstanceHandle
}

// keepServices registers instances and keeps them registered while a command runs, or until
// interrupted without a command.
func keepServices(ctx context.Context, r *remote.Peer, c *operator.Client, command []string, list []instance.Registration) error {
	kept := &registered{Peer: r}
	defer func() { kept.end(ctx) }()
	connecting, cancel := r.Connecting(ctx)
	defer cancel()
	for _, reg := range list {
		p, err := c.Services().Register(connecting, reg)
		if err != nil {
			return err
		}
		kept.handles = append(kept.handles, p)
	}
	if len(command) > 0 {
		return kept.run(ctx, command)
	}
	out := remote.Results{Of: len(kept.handles)}
	for _, p := range kept.handles {
		addInstance(&out, p.Instance())
	}
	if err := out.Print(r); err != nil {
		return err
	}
	return kept.wait(ctx)
}

// wait waits until interrupted. It reports instances with a permanent
// removal by the peer, and returns after the last of them.
func (r *registered) wait(ctx context.Context) error {
	ended := make(chan *client.InstanceHandle, len(r.handles))
	var waiting sync.WaitGroup
	defer waiting.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, p := range r.handles {
		waiting.Go(func() {
			select {
			case <-p.Done():
				ended <- p
			case <-ctx.Done():
			}
		})
	}
	var last error
	silent := make(map[*client.InstanceHandle]bool)
	look := time.NewTicker(lookInterval)
	defer look.Stop()
	for left := len(r.handles); left > 0; {
		select {
		case p := <-ended:
			last, left = p.Err(), left-1
			r.Say("%s is no longer registered: %s", p.Instance().ID, exit.Message(last))
		case <-look.C:
			for _, p := range r.handles {
				r.tell(p, silent)
			}
		case <-ctx.Done():
			return nil
		}
	}
	return last
}

// lookInterval is the time between two looks at the heartbeats.
const lookInterval = time.Second

// tell says when the heartbeats of an instance begin to fail, and when they succeed again. silent has the failing ones.
func (r *registered) tell(p *client.InstanceHandle, silent map[*client.InstanceHandle]bool) {
	missed := p.Missed()
	if p.Err() != nil || (missed != nil) == silent[p] {
		return
	}
	silent[p] = missed != nil
	if missed != nil {
		r.Say("warning: %s has no heartbeat, and goes down without one: %s", p.Instance().ID, exit.Message(missed))
	} else {
		r.Say("%s has heartbeats again", p.Instance().ID)
	}
}

// run runs a command. It reports the end of a registration, and lets the command continue.
func (r *registered) run(ctx context.Context, command []string) error {
	first := r.handles[0].Instance()
	p, err := guard.Start(r.Console, command, environ.Instance(first.Service, first.ID, first.Lease)...)
	if err != nil {
		return err
	}
	reporting, stop := context.WithCancel(context.Background())
	var reporter sync.WaitGroup
	reporter.Go(func() { _ = r.wait(reporting) })
	defer reporter.Wait()
	defer stop()
	return p.Wait(ctx)
}

// end deregisters the instances within the time for cleanup.
func (r *registered) end(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), remote.CleanupTimeout)
	defer cancel()
	for _, p := range r.handles {
		i := p.Instance()
		if err := p.Close(ctx); err != nil {
			r.Say("warning: %s could not be deregistered; remove_after is %v: %s", i.ID, (*removal)(&i.Spec.RemoveAfter), exit.Message(err))
		}
	}
}
