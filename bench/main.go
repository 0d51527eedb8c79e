// Command bench measures processes on loopback with real fsync: a peer that local applications ask, a group of three, a network
// of ten. With -etcd it drives an etcd cluster of three by etcd's own Go client in between, on the same disk, run by run,
// and prints the ratios.
//
//	go run ./bench -only find,locks -duration 3s
//
// It prints rows for Markdown tables; each is the median of the runs. Servers and clients share the machine. On a busy machine the
// processor time of an operation and the ratio to etcd say more than the rate.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/testnet/await"
	"github.com/blackhole/blackhole/testnet/network"
	"github.com/blackhole/blackhole/testnet/process"
)

const (
	members = 3                // of a group
	serving = 60 * time.Second // from a start to the first answer
)

// session is one run of the command.
type session struct {
	binary, etcd, only, dir         string
	duration                        time.Duration // of one measurement
	runs, kills, instances, changes int
	verbose                         bool
	profile                         string
	quic                            bool // peers listen over QUIC beside TCP, which libp2p prefers

	out     io.Writer // results
	scratch string    // temporary directory
	started int       // networks
	fronts  []string  // of the last one, for clients of etcd, by peer
}

// part is one measured part.
type part struct {
	name string
	run  func(*session, context.Context) error
}

func parts() []part {
	return []part{
		{"find", (*session).find}, {"register", (*session).register}, {"heartbeats", (*session).heartbeats}, {"dns", (*session).dns},
		{"locks", grouped((*session).locks)}, {"contended", grouped((*session).contended)}, {"keepalive", grouped((*session).keepalive)},
		{"reads", grouped((*session).reads)}, {"watch", grouped((*session).watch)},
		{"mutex", driven((*session).locks)}, {"v3lock", driven((*session).v3lock)}, {"serializable", driven((*session).serializable)}, {"streams", driven((*session).streams)}, {"failover", grouped((*session).failover)},
		{"wake", (*session).wake}, {"trade", (*session).trade},
	}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the second signal ends the program
	err := execute(ctx, os.Args[1:], os.Stdout, os.Stderr)
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return
	}
	fmt.Fprintln(os.Stderr, "bench:", err)
	if fault.KindOf(err) == fault.Invalid {
		os.Exit(2)
	}
	os.Exit(1)
}

// execute measures part by part, each with new servers. It fails with Invalid, naming the flag.
func execute(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	s := &session{out: stdout}
	var names []string
	for _, p := range parts() {
		names = append(names, p.name)
	}
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.StringVar(&s.binary, "blackholed", "", "`path` of the blackholed to measure (default: built from this tree)")
	f.StringVar(&s.etcd, "etcd", "", "`path` of an etcd to measure beside the parts of a group")
	f.StringVar(&s.only, "only", strings.Join(names, ","), "parts to run, with commas")
	f.StringVar(&s.dir, "dir", "", "`directory` on the disk to use (default a temporary one)")
	f.DurationVar(&s.duration, "duration", 3*time.Second, "of one measurement")
	f.IntVar(&s.runs, "runs", 3, "of each measurement; the median is printed")
	f.IntVar(&s.kills, "kills", 20, "of the leader, in failover")
	f.IntVar(&s.instances, "instances", 10_000, "that are present, in register")
	f.IntVar(&s.changes, "changes", 300, "of which watchers are told, in wake")
	f.StringVar(&s.profile, "profile", "dev", "of our peers: dev or lan")
	f.BoolVar(&s.quic, "quic", false, "with -profile lan, our peers listen over QUIC too, as public ones do")
	f.BoolVar(&s.verbose, "v", false, "show the servers' logs")
	if err := f.Parse(args); err != nil {
		return err
	}
	chosen := strings.Split(s.only, ",")
	for _, name := range chosen {
		if !slices.Contains(names, name) {
			return fault.Invalidf("-only", name, "is none of %s", strings.Join(names, ", "))
		}
	}
	if s.profile != "dev" && s.profile != "lan" {
		return fault.Invalidf("-profile", s.profile, "must be dev or lan")
	}
	if s.quic && s.profile != "lan" {
		return fault.Invalidf("-quic", s.profile, "needs -profile lan")
	}
	within := func(field string, n, least, most int) error {
		if n < least || n > most {
			return fault.Invalidf(field, n, "must be %d to %d", least, most)
		}
		return nil
	}
	err = cmp.Or(within("arguments", f.NArg(), 0, 0), within("-duration", int(s.duration/time.Millisecond), 100, 3_600_000), within("-runs", s.runs, 1, 1000),
		within("-kills", s.kills, 1, 1000), within("-instances", s.instances, newcomers, maxInstances), within("-changes", s.changes, 1, 100_000))
	if err != nil {
		return err
	}
	if s.scratch, err = os.MkdirTemp(s.dir, "blackhole-bench-"); err != nil {
		return fault.As("bench", fault.Invalid, err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(s.scratch)) }()
	if s.binary == "" { // without the clock of package process, which costs
		s.binary = filepath.Join(s.scratch, "blackholed")
		if err := build(ctx, ".", s.binary, "./cmd/blackholed"); err != nil {
			return err
		}
	}
	for _, p := range parts() {
		if slices.Contains(chosen, p.name) {
			if err := p.run(s, ctx); err != nil {
				return fault.Wrap(p.name, err)
			}
		}
	}
	return nil
}

// build compiles a command of the module in a directory.
func build(ctx context.Context, dir, to, what string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-o", to, what)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fault.New("bench.build", fault.Unavailable, "%s: %w\n%s", what, err, out)
	}
	return nil
}

// network starts new peers. The first three are a group; a lone peer has a group of its own.
func (s *session) network(ctx context.Context, peers int, settings ...string) (*network.Network, error) {
	s.started++
	c := network.Config{Peers: peers, Founders: min(peers, members), Binary: s.binary, Dir: filepath.Join(s.scratch, strconv.Itoa(s.started)), Keep: true}
	if s.verbose {
		c.Log = os.Stderr
	}
	if err := os.Mkdir(c.Dir, 0o700); err != nil {
		return nil, fault.As("bench.network", fault.Invalid, err)
	}
	ports, err := process.FreePorts(3 * peers) // a restarted peer keeps its ports
	if err != nil {
		return nil, err
	}
	s.fronts, ports = ports[:peers], ports[peers:]
	c.Adapt = func(i int, p *process.Spec) {
		_, port, _ := net.SplitHostPort(ports[2*i]) // FreePorts returns host:port
		p.Listen, p.GRPC, p.Profile = "/ip4/127.0.0.1/tcp/"+port, ports[2*i+1], s.profile
		p.Settings = append(slices.Clone(settings), "ETCD_LISTEN="+s.fronts[i])
		if s.quic {
			p.Settings = append(p.Settings, "LISTEN="+p.Listen+",/ip4/127.0.0.1/udp/"+port+"/quic-v1")
			p.Listen = process.Everywhere
		}
	}
	n, err := network.Start(ctx, c)
	if err != nil {
		return nil, err
	}
	if err := ready(ctx, n); err != nil {
		n.Stop()
		return nil, err
	}
	return n, nil
}

// ready waits until all peers know their whole group and read from it.
func ready(ctx context.Context, n *network.Network) error {
	return await.Until(ctx, serving, "one group", func(ctx context.Context) error {
		for _, p := range n.Peers {
			g, err := p.Coordination().Group(ctx)
			switch {
			case err != nil:
				return err
			case g.Leader == "" || len(g.Voters) != n.Founding():
				return fault.New("bench.ready", fault.Unavailable, "%d voters, leader %q, %s %s", len(g.Voters), g.Leader, g.Phase, g.Missing)
			}
			if _, _, err := ops.Of(p.Coordination()).Range(ctx, ops.Query{Span: coord.Exactly("ready")}, ops.Linearizable); err != nil {
				return err
			}
		}
		return nil
	})
}

// leader returns the index of the leader.
func leader(ctx context.Context, n *network.Network) (int, error) {
	at := -1
	err := await.Until(ctx, serving, "a leader", func(ctx context.Context) error {
		g, err := n.Peers[0].Coordination().Group(ctx)
		at = slices.IndexFunc(n.Peers, func(p *network.Peer) bool { return p.ID.String() == g.Leader })
		if err == nil && at < 0 {
			err = fault.New("bench.leader", fault.Unavailable, "%q is none of us", g.Leader)
		}
		return err
	})
	return at, err
}
