package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
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

// registering are the flags of service register on their way to a registration.
type registering struct {
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
	command    []string
	patience   time.Duration // to reach the peer
}

func (a App) serviceRegister() *cobra.Command {
	cmd := &cobra.Command{
		Use: "register {SERVICE --host HOST --port PORT | -f FILE} [-- COMMAND ARG...]", Short: "Register instances, alone or while a command runs",
		Long: "Register an instance that flags describe, or those in a file: YAML (any number of documents, each an\n" +
			"instance or a list) or JSON. An id that is registered already is replaced.\n\n" +
			"With a command, the instances are kept registered while it runs, and deregistered when it has ended;\n" +
			"an interrupt is passed on as SIGTERM, and the exit code is that of the command. It finds the variables\n" +
			"BLACKHOLE_SERVICE, BLACKHOLE_INSTANCE_ID and BLACKHOLE_LEASE of the first instance. With --keep they are\n" +
			"kept until interrupted. With neither, they stay as long as their health check passes or somebody\n" +
			"sends heartbeats.",
		Example: "  " + name + " service register web --host 10.0.0.7 --port 8080 --check http:/health --tag v2\n" +
			"  " + name + " service register web --host 10.0.0.7 --port 8080 -- ./web --listen :8080",
		Args: registerArgs,
	}
	g := registerFlags(cmd)
	r := a.remoteFlags(cmd, defaultTimeout)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if dash := cmd.ArgsLenAtDash(); dash >= 0 {
			args, g.command = args[:dash], args[dash:]
		}
		list, err := g.registrations(cmd, a, args)
		if err != nil {
			return err
		}
		g.patience = r.timeout
		if len(g.command) > 0 || g.keep {
			r.timeout = min(r.timeout, 0) // it is for reaching the peer, not for staying registered
		}
		return r.call(cmd, func(ctx context.Context, c *client.Client) error {
			if len(g.command) > 0 || g.keep {
				return r.keepServices(ctx, c, g, list)
			}
			return r.registerOnce(ctx, c, list)
		})
	}
	return cmd
}

// registerArgs wants a service at most, and a command behind "--" only.
func registerArgs(cmd *cobra.Command, args []string) error {
	names := len(args)
	if dash := cmd.ArgsLenAtDash(); dash >= 0 {
		if names = dash; len(args) == dash {
			return fault.Invalidf("COMMAND", nil, "must stand behind --")
		}
	}
	if names > 1 {
		return fault.Invalidf("SERVICE", nil, "must be given once; a command stands behind --")
	}
	return nil
}

func registerFlags(cmd *cobra.Command) *registering {
	g, f := new(registering), cmd.Flags()
	v := &g.view
	f.StringVarP(&g.file, "file", "f", "", "file of instances, YAML or JSON; - is standard input")
	f.StringVar(&v.Namespace, "namespace", "", "namespace of the service (default "+instance.DefaultNamespace+")")
	f.StringVar(&v.ID, "id", "", "id of the instance (default: one is made up)")
	f.StringVar(&v.Host, "host", "", "address or name at which others reach it")
	f.IntVar(&v.Port, "port", 0, "port of the host")
	f.StringVar(&v.Version, "version", "", "semantic version")
	f.StringArrayVar(&v.Tags, "tag", nil, "tag (repeat)")
	f.StringArrayVar(&g.metadata, "meta", nil, "KEY=VALUE of its metadata (repeat)")
	f.StringArrayVar(&g.interfaces, "interface", nil, "NAME=ADDRESS of an interface, as gRPC=10.0.0.7:9000 (repeat)")
	f.StringArrayVar(&v.Dependencies, "depends-on", nil, "service that it needs (repeat)")
	f.StringVar(&v.Environment, "environment", "", "development, staging or production")
	f.StringVar(&v.Region, "region", "", "region")
	f.StringVar(&v.Owner, "owner", "", "who looks after it")
	f.StringVar(&v.Description, "description", "", "what it is")
	f.StringVar(&v.Zone, "zone", "", "zone")
	f.IntVar(&v.Weight, "weight", 0, "share of requests among instances, 1 to 100 (default 1)")
	f.StringVar(&g.check, "check", "", "TYPE or TYPE:ENDPOINT of a health check: http:/health, tcp, tcp:9000, grpc, script:NAME")
	f.DurationVar(&g.interval, "check-interval", 0, "time between two checks (default 10s)")
	f.DurationVar(&g.timeout, "check-timeout", 0, "longest time for one check (default 5s)")
	f.DurationVar(&g.unhealthy, "unhealthy-after", 0, "without a heartbeat or a passing check it is UNHEALTHY (default 30s)")
	f.DurationVar(&g.remove, "remove-after", 0, "without a heartbeat or a passing check it is removed (default 60s)")
	f.BoolVar(&g.starting, "starting", false, "it is not ready yet: STARTING until the first heartbeat or passing check")
	f.BoolVar(&g.strict, "strict", false, "fail when the id is registered already")
	f.BoolVar(&g.commit, "require-commit", false, "fail when the whole cluster cannot know now")
	f.BoolVar(&g.keep, "keep", false, "keep it registered until interrupted, then deregister it")
	return g
}

// registrations are those that flags or a file describe.
func (g *registering) registrations(cmd *cobra.Command, a App, args []string) ([]instance.Registration, error) {
	var list []instance.Registration
	switch {
	case g.keep && len(g.command) > 0:
		return nil, fault.Invalidf("--keep", nil, "does not go with a command")
	case g.file != "" && len(args) > 0:
		return nil, fault.Invalidf("SERVICE", args[0], "does not go with --file")
	case g.file != "":
		var err error
		if list, err = g.fromFile(cmd, a); err != nil {
			return nil, err
		}
	case len(args) == 0:
		return nil, fault.Invalidf("SERVICE", nil, "must be given, or --file")
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
	if len(g.command) > 0 {
		if _, err := exec.LookPath(g.command[0]); err != nil {
			return nil, coded{127, fault.New("", fault.NotFound, "%w", err)}
		}
	}
	return list, nil
}

func (g *registering) fromFlags(service string) (instance.Registration, error) {
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

// fromFile reads at least one registration.
func (g *registering) fromFile(cmd *cobra.Command, a App) ([]instance.Registration, error) {
	for _, flag := range []string{
		"id", "host", "port", "version", "tag", "meta", "interface", "depends-on", "environment", "region", "owner", "description", "zone",
		"weight", "check", "check-interval", "check-timeout", "unhealthy-after", "remove-after", "starting",
	} {
		if cmd.Flags().Changed(flag) {
			return nil, fault.Invalidf("--"+flag, nil, "does not go with --file")
		}
	}
	data, err := a.readFile(g.file, maxInstanceFile)
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

// readFile reads a file of at most so many bytes, or standard input.
func (a App) readFile(path string, most int) ([]byte, error) {
	in := a.Stdin
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return nil, fault.Invalidf("--file", path, "%w", err)
		}
		defer func() { _ = f.Close() }() // only read
		in = f
	}
	data, err := io.ReadAll(io.LimitReader(in, int64(most)+1))
	if err != nil {
		return nil, fault.Invalidf("--file", path, "%w", err)
	}
	if len(data) > most {
		return nil, fault.New("", fault.TooLarge, "%s has more than %d bytes", path, most)
	}
	return data, nil
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

// registerOnce registers, and warns of those that nothing will keep.
func (r *remote) registerOnce(ctx context.Context, c *client.Client, list []instance.Registration) error {
	out := done{of: len(list)}
	for _, reg := range list {
		got, err := c.Agent().Register(ctx, reg)
		if out.add(orDash(reg.ID), got.Instance, ofPeer(err)); hopeless(err) {
			break
		}
		if err == nil && got.Check == nil {
			r.app.say("warning: %s has no health check: it ends in %s unless heartbeats come (--keep, or a command)", got.ID, got.RemoveAfter)
		}
	}
	return out.print(r)
}
