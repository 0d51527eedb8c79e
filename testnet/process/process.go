// Package process runs one blackholed, or another program, as a child process: ports, last log lines, memory, end.
package process

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/blackhole/blackhole/internal/platform/config"
	"github.com/blackhole/blackhole/internal/platform/identity"
	"github.com/blackhole/blackhole/pkg/fault"
)

const (
	grace       = 10 * time.Second // from SIGTERM to SIGKILL
	outputGrace = 2 * time.Second  // from the end of a process to the end of its output

	checkTimeout = 30 * time.Second // of a provider check: a dead process refuses at once, a slow process is not dead
)

// Build returns a blackholed whose clock SetClock sets: the one beside this program, which "go run ./testnet" builds with
// it. Without one, as in tests, Build compiles it into dir.
func Build(ctx context.Context, dir string) (string, error) {
	const name = "blackholed"
	if program, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(program), name)
		if _, err := os.Stat(beside); err == nil {
			binary := filepath.Join(dir, name)
			if os.Link(beside, binary) == nil { // the file stays when a later run builds another
				return binary, nil
			}
			return beside, nil
		}
	}
	return Program(ctx, dir, "github.com/blackhole/blackhole/cmd/blackholed", "-tags=lab")
}

// Program puts the program of a package into dir, and returns its path. It asks "go run" to copy it, which keeps what it has
// linked; "go build" links again for each directory.
func Program(ctx context.Context, dir, pkg string, flags ...string) (string, error) {
	binary := filepath.Join(dir, path.Base(pkg))
	cmd := exec.CommandContext(ctx, "go", append(append([]string{"run"}, flags...), "-exec=cp", pkg, binary)...)
	out, err := cmd.CombinedOutput()
	switch {
	case ctx.Err() != nil:
		return "", fault.Wrap("process.Program", ctx.Err())
	case err != nil:
		return "", fault.New("process.Program", fault.Unavailable, "go run %s: %w\n%s", pkg, err, out)
	}
	return binary, nil
}

// Identity returns the peer id of a data directory, and creates both if missing.
func Identity(ctx context.Context, binary, data string) (string, error) {
	if err := os.MkdirAll(data, 0o700); err != nil {
		return "", fault.As("process.Identity", fault.Invalid, err)
	}
	cmd := exec.CommandContext(ctx, binary, "id", "--data", data)
	cmd.Env, cmd.WaitDelay = cleanEnvironment(os.Environ()), outputGrace
	out, err := cmd.Output()
	switch {
	case ctx.Err() != nil:
		return "", fault.Wrap("process.Identity", ctx.Err())
	case err != nil:
		return "", fault.New("process.Identity", fault.Unavailable, "blackholed id: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

// firstVoters is the number of founders of a group.
const firstVoters = 3

// Spec describes one blackholed process.
type Spec struct {
	Name      string // name for people
	Binary    string
	Data      string        // its data directory
	Profile   string        // empty means dev
	Bootstrap []string      // multiaddrs of its bootstrap peers
	Check     time.Duration // interval of provider checks, and from a failed check to the next; 0 means the default
	Founders  []string      // peer ids of the only members, of which the first three found; empty: the first peer of the network founds
	Replace   time.Duration // silence before a voter is replaced; 0 means the default
	Settings  []string      // more settings, each NAME=value without the prefix of the variables
	Log       io.Writer     // receives log lines, each after the name; may be nil

	Place
}

// Place is the address set of a blackholed. The zero Place is loopback with free ports.
type Place struct {
	Listen string // multiaddr for other peers, or Everywhere
	HTTP   string // host:port
	GRPC   string // host:port
	DNS    string // IP:port, over UDP and TCP

	// Within runs start inside the network of the process; nil means this one.
	Within func(start func() error) error
}

// Everywhere as Listen means the default addresses of the profile.
const Everywhere = "everywhere"

// fill sets the empty fields.
func (p *Place) fill() error {
	ports, err := FreePorts(4)
	if err != nil {
		return err
	}
	_, port, _ := net.SplitHostPort(ports[3]) // FreePorts returns host:port
	p.HTTP, p.GRPC, p.DNS = cmp.Or(p.HTTP, ports[0]), cmp.Or(p.GRPC, ports[1]), cmp.Or(p.DNS, ports[2])
	p.Listen = cmp.Or(p.Listen, "/ip4/127.0.0.1/tcp/"+port)
	if p.Within == nil {
		p.Within = func(start func() error) error { return start() }
	}
	return nil
}

// Process is a started program. Methods are safe for concurrent use.
type Process struct {
	Place // of a blackholed

	name   string
	cmd    *exec.Cmd
	log    *tail
	exited chan struct{} // closed after the end of the process, with cmd.ProcessState set
}

// Start starts a blackholed. Ports chosen here are free now, but another process may take them
// first: then the process ends soon, and Clashed reports it. Callers must call Stop.
func Start(s Spec) (*Process, error) {
	if err := s.fill(); err != nil {
		return nil, fault.As("process.Start", fault.Unavailable, err)
	}
	args := []string{"run", "--profile", cmp.Or(s.Profile, "dev"), "--data", s.Data}
	if s.Listen != Everywhere {
		args = append(args, "--listen", s.Listen)
	}
	args = append(args, "--http", s.HTTP, "--grpc", s.GRPC, "--dns", s.DNS)
	for _, addr := range s.Bootstrap {
		args = append(args, "--bootstrap", addr)
	}
	cmd := exec.Command(s.Binary, args...)
	cmd.Env = append(cleanEnvironment(os.Environ()), s.settings()...)
	var p *Process
	err := s.Within(func() (err error) {
		p, err = Run(s.Name, cmd, s.Log)
		return err
	})
	if err != nil {
		return nil, err
	}
	p.Place = s.Place
	return p, nil
}

// Run starts any program, with a name for people. log receives its lines and may be nil. Callers must call Stop.
func Run(name string, cmd *exec.Cmd, log io.Writer) (*Process, error) {
	p := &Process{name: name, cmd: cmd, log: newTail(name, log), exited: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = p.log, p.log
	cmd.WaitDelay = outputGrace
	cmd.SysProcAttr = Orphanless()
	if err := cmd.Start(); err != nil {
		return nil, fault.As("process.Start", fault.Unavailable, err)
	}
	go func() { // ends with the process; Stop ends the process
		defer close(p.exited)
		_ = cmd.Wait() // Failure reads the state
	}()
	return p, nil
}

func (s Spec) settings() []string {
	n := min(len(s.Founders), firstVoters)
	env := []string{config.Prefix + "COORDINATION_FOUNDERS=" + strings.Join(s.Founders[:n], ",")}
	if identity.PeerName(s.Name).Validate() == nil {
		env = append(env, config.Prefix+"CONNECTIONS_NAME="+s.Name)
	}
	if n > 0 {
		env = append(env, config.Prefix+"COORDINATION_MEMBERS="+config.ListedMembers, config.Prefix+"COORDINATION_ALLOW="+strings.Join(s.Founders[n:], ","))
	}
	if s.Check > 0 {
		env = append(env,
			config.Prefix+"DISCOVERY_HEALTH_CHECK_INTERVAL="+s.Check.String(),
			config.Prefix+"DISCOVERY_HEALTH_CONFIRM_AFTER="+min(s.Check, 2*time.Minute).String(),
			config.Prefix+"DISCOVERY_HEALTH_CHECK_TIMEOUT="+checkTimeout.String())
	}
	for _, setting := range s.Settings {
		env = append(env, config.Prefix+setting)
	}
	if s.Replace > 0 {
		env = append(env, config.Prefix+"COORDINATION_REPLACE="+s.Replace.String())
	}
	return env
}

// cleanEnvironment drops blackholed settings from the environment of the caller: Spec alone
// decides.
func cleanEnvironment(env []string) []string {
	var kept []string
	for _, v := range env {
		if !strings.HasPrefix(v, config.Prefix) {
			kept = append(kept, v)
		}
	}
	return kept
}

// FreePorts returns n different free addresses of loopback, host:port. Systems assign none of
// these ports to clients or to listeners on port 0, so they are likely to stay free.
func FreePorts(n int) ([]string, error) {
	const first, last, tries = 16_000, 32_000, 1000
	var addrs []string
	var err error
	for range tries {
		if len(addrs) == n {
			return addrs, nil
		}
		address := fmt.Sprintf("127.0.0.1:%d", first+rand.IntN(last-first))
		var streams net.Listener
		if streams, err = net.Listen("tcp", address); err != nil {
			continue
		}
		defer streams.Close() // held until all ports are found
		var packets net.PacketConn
		if packets, err = net.ListenPacket("udp", address); err != nil { // for DNS
			continue
		}
		defer packets.Close()
		addrs = append(addrs, address)
	}
	return nil, fault.New("process.FreePorts", fault.Unavailable, "found only %d of %d: %w", len(addrs), n, err)
}

// PID is the process's id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Exited is closed after the end of the process.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Running reports whether the process runs.
func (p *Process) Running() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// Clashed reports whether the process ended because of a taken port.
func (p *Process) Clashed() bool {
	return !p.Running() && strings.Contains(p.log.String(), "address already in use")
}

// Failure describes the end of the process, or its running state, with the last log lines.
func (p *Process) Failure() error {
	state := "is running"
	if !p.Running() {
		state = "ended: " + p.cmd.ProcessState.String()
	}
	return fault.New("process.Failure", fault.Unavailable, "%s %s; its last lines:\n%s", p.name, state, p.log)
}

// Kill ends the process like a crash: at once, by SIGKILL. It waits for the end.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // it may have ended already
	<-p.exited
}

// Pause stops the process by SIGSTOP: its connections stay open without answers. Resume continues
// it.
func (p *Process) Pause() error { return p.signal("process.Pause", suspend) }

// Resume ends a Pause.
func (p *Process) Resume() error { return p.signal("process.Resume", proceed) }

func (p *Process) signal(op string, s os.Signal) error {
	return fault.As(op, fault.Unavailable, p.cmd.Process.Signal(s))
}

// Stop ends the process by SIGTERM, and after a grace period by SIGKILL. It waits for the end.
// SIGINT is no choice: background jobs of scripts and their children ignore it.
func (p *Process) Stop() {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.Kill()
		return
	}
	patience := time.NewTimer(grace)
	defer patience.Stop()
	select {
	case <-p.exited:
	case <-patience.C:
		p.Kill()
	}
}

// Resident returns the resident memory in bytes, 0 on systems without this figure.
func (p *Process) Resident() uint64 {
	if !p.Running() {
		return 0
	}
	return resident(p.PID())
}

// Usage is what a process used since its start.
type Usage struct {
	CPU     time.Duration // user and system
	Written uint64        // bytes to files and TCP connections
}

// Used returns what the process used so far. It fails after the end of the process, and on systems without these figures.
func (p *Process) Used() (Usage, error) {
	if !p.Running() {
		return Usage{}, p.Failure()
	}
	u, err := used(p.PID())
	return u, fault.As("process.Used", fault.Unavailable, err)
}

// Own is the processor time of this process, in steps of 10 ms; 0 on systems without this figure.
func Own() time.Duration {
	u, _ := used(os.Getpid())
	return u.CPU
}

// String names the process for people.
func (p *Process) String() string { return fmt.Sprintf("%s (pid %d)", p.name, p.PID()) }
