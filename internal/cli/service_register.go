package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// Bounds of a file of instances.
const (
	maxInstanceFile = 4 << 20 // bytes
	maxInstances    = 1000
)

// registerFlags are the flags of service register.
type registerFlags struct {
	file       string
	view       registrationView
	check      string
	metadata   []string
	interfaces []string
	interval   time.Duration
	timeout    time.Duration
	unhealthy  time.Duration
	remove     time.Duration
	starting   bool
	strict     bool
	commit     bool
	keep       bool
}

func serviceRegister(con *console) *cobra.Command {
	cmd := &cobra.Command{
		Use: "register {SERVICE --host HOST --port PORT | -f FILE} [-- COMMAND ARG...]", Short: "Register instances, alone or while a command runs",
		Long: "Register one instance from flags, or the instances in a file: YAML (any number of documents) or JSON\n" +
			"(any number of values); each document or value is an instance or a list of instances. An existing id\n" +
			"is replaced.\n\n" +
			"With a command, the instances stay registered while it runs. An interrupt is passed on as SIGTERM, and\n" +
			"the exit code is the command's own. The command gets the variables BLACKHOLE_SERVICE,\n" +
			"BLACKHOLE_INSTANCE_ID and BLACKHOLE_LEASE of the first instance. With --keep the instances stay\n" +
			"registered until interrupted. Otherwise they stay while their health check passes or an\n" +
			"application sends heartbeats.",
		Example: "  " + name + " service register web --host 10.0.0.7 --port 8080 --check http:/health --tag v2\n" +
			"  " + name + " service register web --host 10.0.0.7 --port 8080 -- ./web --listen :8080",
		Args: registerArgs,
	}
	g := newRegisterFlags(cmd)
	r := newRemote(con, cmd, defaultTimeout)
	cmd.PreRun = func(*cobra.Command, []string) { r.connectOnly = g.keep || cmd.ArgsLenAtDash() >= 0 }
	return r.calls(func(ctx context.Context, c *client.Client, args []string) error {
		var command []string
		if dash := cmd.ArgsLenAtDash(); dash >= 0 {
			args, command = args[:dash], args[dash:]
		}
		if g.keep && len(command) > 0 {
			return fault.Invalidf("--keep", nil, "cannot be used with a command")
		}
		list, err := g.registrations(cmd, con, args)
		if err == nil {
			err = checkCommand(command)
		}
		switch {
		case err != nil:
			return err
		case r.connectOnly:
			return r.keepServices(ctx, c, command, list)
		}
		return r.registerOnce(ctx, c, list)
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
	v := &g.view
	f.StringVarP(&g.file, "file", "f", "", "file of instances, YAML or JSON; - means standard input")
	f.StringVar(&v.Namespace, "namespace", "", "namespace of the service (default "+instance.DefaultNamespace+")")
	f.StringVar(&v.ID, "id", "", "id of the instance (default: a new random id)")
	f.StringVar(&v.Host, "host", "", "address or name of the instance for its clients")
	f.IntVar(&v.Port, "port", 0, "port on the host")
	f.StringVar(&v.Version, "version", "", "semantic version")
	f.StringArrayVar(&v.Tags, "tag", nil, "tag (repeat)")
	f.StringArrayVar(&g.metadata, "meta", nil, "metadata KEY=VALUE (repeat)")
	f.StringArrayVar(&g.interfaces, "interface", nil, "interface NAME=ADDRESS, such as gRPC=10.0.0.7:9000 (repeat)")
	f.StringArrayVar(&v.Dependencies, "depends-on", nil, "service that the instance needs (repeat)")
	f.StringVar(&v.Environment, "environment", "", "development, staging or production")
	f.StringVar(&v.Region, "region", "", "region")
	f.StringVar(&v.Owner, "owner", "", "team or person in charge")
	f.StringVar(&v.Description, "description", "", "description")
	f.StringVar(&v.Zone, "zone", "", "zone")
	f.IntVar(&v.Weight, "weight", 0, "weight in load balancing, 1 to 100 (default 1)")
	f.StringVar(&g.check, "check", "", "health check TYPE or TYPE:ENDPOINT: http:/health, tcp, tcp:9000, grpc, script:NAME")
	f.DurationVar(&g.interval, "check-interval", 0, "time between two checks (default 10s)")
	f.DurationVar(&g.timeout, "check-timeout", 0, "timeout of a check (default 5s)")
	f.DurationVar(&g.unhealthy, "unhealthy-after", 0, "time without heartbeat or passing check until UNHEALTHY (default 30s)")
	f.DurationVar(&g.remove, "remove-after", 0, "time without heartbeat or passing check until removal (default 60s)")
	f.BoolVar(&g.starting, "starting", false, "register with status STARTING until the first heartbeat or passing check")
	f.BoolVar(&g.strict, "strict", false, "fail if the id is registered already")
	f.BoolVar(&g.commit, "require-commit", false, "fail if the group cannot commit the instance now")
	f.BoolVar(&g.keep, "keep", false, "stay registered until interrupted, then deregister")
	return g
}

// registrations returns the instances of the flags or of the file.
func (g *registerFlags) registrations(cmd *cobra.Command, con *console, args []string) ([]instance.Registration, error) {
	var list []instance.Registration
	switch {
	case g.file != "" && len(args) > 0:
		return nil, fault.Invalidf("SERVICE", args[0], "cannot be used with --file")
	case g.file != "":
		var err error
		if list, err = g.fromFile(cmd, con); err != nil {
			return nil, err
		}
	case len(args) == 0:
		return nil, fault.Invalidf("SERVICE", nil, "is required, or use --file")
	default:
		r, err := g.fromFlags(args[0])
		if err != nil {
			return nil, renameField(err, instanceFlag)
		}
		list = append(list, r)
	}
	for n := range list {
		list[n].Strict, list[n].RequireCommit = g.strict, g.commit
	}
	return list, nil
}

func (g *registerFlags) fromFlags(service string) (instance.Registration, error) {
	v := g.view
	v.Service, v.UnhealthyAfter, v.RemoveAfter = service, period(g.unhealthy), period(g.remove)
	var err error
	if v.Metadata, err = assign("--meta", g.metadata); err != nil {
		return instance.Registration{}, err
	}
	if v.Interfaces, err = assign("--interface", g.interfaces); err != nil {
		return instance.Registration{}, err
	}
	if g.starting {
		v.Status = instance.StatusStarting.String()
	}
	if g.check != "" {
		kind, endpoint, _ := strings.Cut(g.check, ":")
		v.HealthCheck = &checkView{Type: kind, Endpoint: endpoint, Interval: period(g.interval), Timeout: period(g.timeout)}
	} else if g.interval != 0 || g.timeout != 0 {
		return instance.Registration{}, fault.Invalidf("--check", nil, "is required with --check-interval and --check-timeout")
	}
	return v.registration()
}

// fromFile reads at least one instance.
func (g *registerFlags) fromFile(cmd *cobra.Command, con *console) ([]instance.Registration, error) {
	for _, flag := range []string{
		"id", "host", "port", "version", "tag", "meta", "interface", "depends-on", "environment", "region", "owner", "description", "zone",
		"weight", "check", "check-interval", "check-timeout", "unhealthy-after", "remove-after", "starting",
	} {
		if cmd.Flags().Changed(flag) {
			return nil, fault.Invalidf("--"+flag, nil, "cannot be used with --file")
		}
	}
	data, err := con.readFile("--file", g.file, maxInstanceFile)
	if err != nil {
		return nil, err
	}
	views, err := parseInstances(data)
	if err != nil {
		return nil, err
	}
	if len(views) == 0 {
		return nil, fault.Invalidf("--file", g.file, "has no instances")
	}
	list := make([]instance.Registration, len(views))
	for n := range views {
		if views[n].Namespace == "" {
			views[n].Namespace = g.view.Namespace
		}
		if list[n], err = views[n].registration(); err != nil {
			if len(views) > 1 {
				err = fault.In("["+strconv.Itoa(n)+"]", err)
			}
			return nil, err
		}
	}
	return list, nil
}

// parseInstances reads JSON where the data is JSON, and otherwise YAML. Fields that are not known are
// refused.
func parseInstances(data []byte) ([]registrationView, error) {
	if values, _ := jsonValues(data); values != nil {
		return parseEach(values, func(value json.RawMessage, v *registrationView) error {
			dec := json.NewDecoder(bytes.NewReader(value))
			dec.DisallowUnknownFields()
			return dec.Decode(v)
		})
	}
	var nodes []*yaml.Node
	for documents := yaml.NewDecoder(bytes.NewReader(data)); ; {
		var document yaml.Node
		err := documents.Decode(&document)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fault.Invalidf("--file", nil, "is not YAML: %w", err)
		}
		for _, root := range document.Content {
			if root.Kind == yaml.SequenceNode {
				nodes = append(nodes, root.Content...)
			} else if root.Tag != "!!null" {
				nodes = append(nodes, root)
			}
		}
	}
	return parseEach(nodes, func(node *yaml.Node, v *registrationView) error {
		text, err := yaml.Marshal(node) // a node by itself does not refuse unknown fields
		if err != nil {
			return err
		}
		dec := yaml.NewDecoder(bytes.NewReader(text))
		dec.KnownFields(true)
		return dec.Decode(v)
	})
}

// parseEach reads some instances. Errors name the one at fault.
func parseEach[T any](list []T, parse func(T, *registrationView) error) ([]registrationView, error) {
	if len(list) > maxInstances {
		return nil, fault.Invalidf("--file", len(list), "has more than %d instances", maxInstances)
	}
	views := make([]registrationView, len(list))
	for n, one := range list {
		if err := parse(one, &views[n]); err != nil {
			err = fault.Invalidf("--file", nil, "%s", parseFault(err))
			if len(list) > 1 {
				err = fault.In("["+strconv.Itoa(n)+"]", err)
			}
			return nil, err
		}
	}
	return views, nil
}

// parseFault is what a parser has to say, without the names of this program's types and the lines of
// what it was given, which is not the file.
func parseFault(err error) string {
	var several *yaml.TypeError
	text := err.Error()
	if errors.As(err, &several) && len(several.Errors) > 0 {
		text = several.Errors[0]
		if at, rest, ok := strings.Cut(text, ": "); ok && strings.HasPrefix(at, "line ") {
			text = rest
		}
	}
	text, _, _ = strings.Cut(text, " in type cli.")
	return strings.TrimPrefix(text, "json: ")
}

// registerOnce registers instances, and warns of instances without a health check.
func (r *remote) registerOnce(ctx context.Context, c *client.Client, list []instance.Registration) error {
	out := results{of: len(list)}
	for _, reg := range list {
		got, err := c.Agent().Register(ctx, reg)
		if err != nil {
			out.fail(orDash(reg.ID), peerError(err))
			if hopeless(err) {
				break
			}
			continue
		}
		if got.Check == nil {
			r.say("warning: %s has no health check: it ends in %s without heartbeats (use --keep or a command)", got.ID, got.RemoveAfter)
		}
		out.addInstance(got.Instance)
	}
	return out.print(r)
}
