package mirror

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/blackhole/blackhole/internal/cli/command"
	"github.com/blackhole/blackhole/internal/cli/remote"
	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/fault"
)

const maxMessage = 64 << 20 // bytes of a page

// Command makes the command sync.
func Command(con *term.Console) *cobra.Command {
	return command.Parent(&cobra.Command{
		Use: "sync", Short: "Copy keys or services from etcd, Consul or Kubernetes, or to them",
		Long: "Copy keys or services from one system to another, one way. A peer is an end by its\n" +
			"own fronts: etcd.listen for keys, consul.enabled for keys and services.\n\n" +
			"An end is PROTOCOL+URL, with the protocol etcd, consul or kubernetes. What is gone\n" +
			"at the source is removed at the target if sync wrote it, and never while the source\n" +
			"is empty.",
		Example: "  " + command.Program + " sync keys --from etcd+http://10.0.0.5:2379 --to etcd+http://127.0.0.1:2379 --prefix /app/",
	}, keysCommand(con), servicesCommand(con))
}

// flags are those of both commands.
type flags struct {
	*term.Console
	from, to, fromToken, toToken, ca string
	prefix                           string
	every                            time.Duration
	once, prune                      bool
}

func (f *flags) bind(cmd *cobra.Command) {
	s := cmd.Flags()
	s.StringVar(&f.from, "from", "", "the source, such as etcd+https://HOST:2379 (required)")
	s.StringVar(&f.to, "to", "", "the target, such as consul+http://127.0.0.1:8500 (required)")
	s.StringVar(&f.fromToken, "from-token-file", "", "file with the token of the source, or USER:PASSWORD of etcd")
	s.StringVar(&f.toToken, "to-token-file", "", "file with the token of the target, or USER:PASSWORD of etcd")
	s.StringVar(&f.ca, "tls-ca", "", "certificate authorities of both ends: a PEM file (default: the system's)")
	s.DurationVar(&f.every, "every", 10*time.Second, "time between rounds")
	s.BoolVar(&f.once, "once", false, "end after one round")
}

func keysCommand(con *term.Console) *cobra.Command {
	f := &flags{Console: con}
	cmd := &cobra.Command{
		Use: "keys", Short: "Copy the keys of a prefix", Args: command.NoArgs,
		Long: "Copy the keys of a prefix between etcd's and Consul's protocol. A key of a lease or\n" +
			"a session is left out, because it would outlive its holder. A round begins when the\n" +
			"source changes, and after --every.",
		Example: "  " + command.Program + " sync keys --from consul+http://10.0.0.5:8500 --to etcd+http://127.0.0.1:2379 --prefix config/ --once",
	}
	f.bind(cmd)
	cmd.Flags().StringVar(&f.prefix, "prefix", "", "only keys that begin with it")
	cmd.Flags().BoolVar(&f.prune, "prune", false, "remove keys of the prefix that the source lacks, whoever wrote them")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return f.run(cmd.Context(), func(of string, e address) (target, error) {
			switch e.protocol {
			case "etcd":
				return e.etcd(f.prefix)
			case "consul":
				return &consulKeys{web: e.web("X-Consul-Token", ""), prefix: f.prefix}, nil
			}
			return nil, fault.Invalidf(of, e.protocol, "has no keys by %q: name etcd or consul", e.protocol)
		})
	}
	return cmd
}

func servicesCommand(con *term.Console) *cobra.Command {
	f := &flags{Console: con}
	cmd := &cobra.Command{
		Use: "services", Short: "Copy services with their health", Args: command.NoArgs,
		Long: "Copy the services of a Consul catalog, or the endpoints of a Kubernetes cluster, to\n" +
			"the agent of the target. Each has a check with a TTL there, which says what the checks\n" +
			"at the source say, and is critical when this command ends.",
		Example: "  " + command.Program + " sync services --from kubernetes+https://10.0.0.5:6443 --from-token-file t --to consul+http://127.0.0.1:8500",
	}
	f.bind(cmd)
	cmd.Flags().StringVar(&f.prefix, "namespace", "", "only this namespace of a Kubernetes cluster")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return f.run(cmd.Context(), func(of string, e address) (target, error) {
			switch {
			case e.protocol == "consul":
				return &consulServices{web: e.web("X-Consul-Token", ""), ttl: 3*f.every + time.Minute/2, asTarget: of == "--to"}, nil
			case e.protocol == "kubernetes" && of == "--from":
				return readOnly{&endpointSlices{web: e.web("Authorization", "Bearer "), namespace: f.prefix}}, nil
			}
			return nil, fault.Invalidf(of, e.protocol, "has no services by %q: name consul, or kubernetes as a source", e.protocol)
		})
	}
	return cmd
}

// readOnly is a source in the place of a target.
type readOnly struct{ source }

func (readOnly) put(context.Context, string, entry, bool) error {
	return fault.New("", fault.Unsupported, "is only read")
}
func (readOnly) remove(context.Context, string) error {
	return fault.New("", fault.Unsupported, "is only read")
}

// run opens both ends and copies.
func (f *flags) run(ctx context.Context, open func(of string, e address) (target, error)) error {
	if f.every < time.Second || f.every > time.Hour {
		return fault.Invalidf("--every", f.every, "must be from 1s to 1h")
	}
	from, err := f.parse("--from", f.from, f.fromToken)
	if err != nil {
		return err
	}
	to, err := f.parse("--to", f.to, f.toToken)
	if err != nil {
		return err
	}
	if f.from == f.to {
		return fault.Invalidf("--to", f.to, "is the source")
	}
	m := mirror{con: f.Console, every: f.every, prune: f.prune}
	source, err := open("--from", from)
	if err != nil {
		return err
	}
	defer source.close()
	if m.to, err = open("--to", to); err != nil {
		return err
	}
	defer m.to.close()
	m.from = source
	_, m.restless = m.to.(*consulServices)
	return m.run(ctx, f.once)
}

// address is one end as the user names it.
type address struct {
	protocol string
	url      *url.URL
	tls      *tls.Config
	secret   string
}

func (f *flags) parse(of, text, tokenFile string) (address, error) {
	if text == "" {
		return address{}, fault.Invalidf(of, nil, "is missing")
	}
	protocol, rest, _ := strings.Cut(text, "+")
	u, err := url.Parse(rest)
	if err != nil || !slices.Contains([]string{"http", "https"}, u.Scheme) || u.Host == "" || u.User != nil {
		return address{}, fault.Invalidf(of, text, "must be etcd, consul or kubernetes, a plus, and an URL: etcd+http://127.0.0.1:2379")
	}
	e := address{protocol: protocol, url: u}
	if u.Scheme == "https" {
		if e.tls, err = client.TLSFiles(f.ca, "", ""); err != nil {
			return address{}, fault.In("--tls-ca", err)
		}
	}
	if tokenFile == "" {
		return e, nil
	}
	e.secret, err = remote.ReadToken(f.Console, of+"-token-file", tokenFile)
	if host := net.ParseIP(u.Hostname()); err == nil && e.tls == nil && u.Hostname() != "localhost" && (host == nil || !host.IsLoopback()) {
		err = fault.Invalidf(of, text, "must be https, because others could read the token on its way")
	}
	return e, err
}

// web returns the end over HTTP. It follows no redirect, which would take the token elsewhere.
func (e address) web(header, before string) web {
	transport := &http.Transport{TLSClientConfig: e.tls, Proxy: http.ProxyFromEnvironment, MaxIdleConnsPerHost: 4, IdleConnTimeout: time.Minute}
	w := web{base: e.url, client: &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}, header: make(http.Header)}
	if e.secret != "" {
		w.header.Set(header, before+e.secret)
	}
	return w
}

func (e address) etcd(prefix string) (*etcdKeys, error) {
	creds := insecure.NewCredentials()
	if e.tls != nil {
		creds = credentials.NewTLS(e.tls)
	}
	conn, err := grpc.NewClient(e.url.Host, grpc.WithTransportCredentials(creds), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)))
	if err != nil {
		return nil, fault.As("", fault.Invalid, err)
	}
	return &etcdKeys{conn: conn, prefix: prefix, login: e.secret}, nil
}
