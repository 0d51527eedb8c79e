// Package process runs one blackholed as a child process: its ports, its last words, its
// memory, its end.
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
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/blackhole/blackhole/internal/platform/config"
	"github.com/blackhole/blackhole/pkg/fault"
)

const (
	grace       = 10 * time.Second // from the request to end to the kill
	outputGrace = 2 * time.Second  // from a process's end to the end of its output

	checkTimeout = 30 * time.Second // of a check of a provider: who is gone refuses at once, who is slow is not gone
)

// Build compiles blackholed into dir and gives the path of the binary.
func Build(ctx context.Context, dir string) (string, error) {
	binary := filepath.Join(dir, "blackholed")
	cmd := exec.CommandContext(ctx, "go", "build", "-o", binary, "github.com/blackhole/blackhole/cmd/blackholed")
	out, err := cmd.CombinedOutput()
	switch {
	case ctx.Err() != nil:
		return "", fault.Wrap("process.Build", ctx.Err())
	case err != nil:
		return "", fault.New("process.Build", fault.Unavailable, "go build ./cmd/blackholed: %w\n%s", err, out)
	}
	return binary, nil
}

// Identity gives the peer id of a data directory, which is made if need be.
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

// Spec is one blackholed to run.
type Spec struct {
	Name      string // of the peer, for people
	Binary    string
	Data      string        // its data directory
	Bootstrap []string      // multiaddrs of the peers that it joins by
	Check     time.Duration // between two checks of one provider
	Founders  []string      // peer ids of those that found the coordination group; none: each its own
	Replace   time.Duration // silence after which a voter is replaced; 0: as usual
	Log       io.Writer     // gets its log, each line with the name before it; nil: nobody

	Place
}

// Place is where a blackholed runs. The zero Place is loopback, on ports that are free.
type Place struct {
	Listen string // multiaddr for other peers
	HTTP   string // host:port
	GRPC   string // host:port
	DNS    string // IP:port, over UDP and TCP

	// Within runs start where the process is to live; nil: here.
	Within func(start func() error) error
}

// fill chooses what is left open.
func (p *Place) fill() error {
	ports, err := FreePorts(3)
	if err != nil {
		return err
	}
	p.Listen = cmp.Or(p.Listen, "/ip4/127.0.0.1/tcp/0")
	p.HTTP, p.GRPC, p.DNS = cmp.Or(p.HTTP, ports[0]), cmp.Or(p.GRPC, ports[1]), cmp.Or(p.DNS, ports[2])
	if p.Within == nil {
		p.Within = func(start func() error) error { return start() }
	}
	return nil
}

// Process is a blackholed that was started. Its methods are safe for concurrent use.
type Process struct {
	HTTP string // host:port
	GRPC string // host:port
	DNS  string // IP:port

	name   string
	cmd    *exec.Cmd
	log    *tail
	exited chan struct{} // closed when the process is gone and cmd.ProcessState is set
}

// Start starts a blackholed. Where it may choose the ports they are free now, but another process may
// take them first: then this one ends soon, and Clashed tells so. Stop must be called.
func Start(s Spec) (*Process, error) {
	if err := s.fill(); err != nil {
		return nil, fault.As("process.Start", fault.Unavailable, err)
	}
	p := &Process{HTTP: s.HTTP, GRPC: s.GRPC, DNS: s.DNS, name: s.Name, log: newTail(s.Name, s.Log), exited: make(chan struct{})}
	args := []string{
		"run", "--profile", "dev", "--data", s.Data, "--listen", s.Listen, "--http", p.HTTP, "--grpc", p.GRPC, "--dns", p.DNS,
	}
	for _, addr := range s.Bootstrap {
		args = append(args, "--bootstrap", addr)
	}
	p.cmd = exec.Command(s.Binary, args...)
	p.cmd.Env = append(cleanEnvironment(os.Environ()), s.settings()...)
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	p.cmd.WaitDelay = outputGrace
	p.cmd.SysProcAttr = orphanless()
	if err := s.Within(p.cmd.Start); err != nil {
		return nil, fault.As("process.Start", fault.Unavailable, err)
	}
	go func() { // ends with the process, which Stop sees to
		defer close(p.exited)
		_ = p.cmd.Wait() // Failure reads the state
	}()
	return p, nil
}

func (s Spec) settings() []string {
	env := []string{
		config.Prefix + "DISCOVERY_HEALTH_CHECK_INTERVAL=" + s.Check.String(),
		config.Prefix + "DISCOVERY_HEALTH_CHECK_TIMEOUT=" + checkTimeout.String(),
		config.Prefix + "COORDINATION_FOUNDERS=" + strings.Join(s.Founders, ","),
	}
	if s.Replace > 0 {
		env = append(env, config.Prefix+"COORDINATION_REPLACE="+s.Replace.String())
	}
	return env
}

// cleanEnvironment drops the settings of the peers of whoever runs this: each of ours is as we say.
func cleanEnvironment(env []string) []string {
	var kept []string
	for _, v := range env {
		if !strings.HasPrefix(v, config.Prefix) {
			kept = append(kept, v)
		}
	}
	return kept
}

// FreePorts finds n addresses of loopback, host:port, that nobody listens on, all different. Systems give none of
// these ports to who asks for any, nor to who connects: they are likely to stay free.
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
		defer streams.Close() // held until all are found
		var packets net.PacketConn
		if packets, err = net.ListenPacket("udp", address); err != nil { // of DNS
			continue
		}
		defer packets.Close()
		addrs = append(addrs, address)
	}
	return nil, fault.New("process.FreePorts", fault.Unavailable, "found only %d of %d: %w", len(addrs), n, err)
}

// PID is the process's id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Exited is closed when the process is gone.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Running reports whether the process lives.
func (p *Process) Running() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// Clashed reports whether the process ended because one of its ports was taken.
func (p *Process) Clashed() bool {
	return !p.Running() && strings.Contains(p.log.String(), "address already in use")
}

// Failure tells how the process ended, or that it runs, with the last lines of its log.
func (p *Process) Failure() error {
	state := "is running"
	if !p.Running() {
		state = "ended: " + p.cmd.ProcessState.String()
	}
	return fault.New("process.Failure", fault.Unavailable, "%s %s; its last lines:\n%s", p.name, state, p.log)
}

// Kill ends the process as a crash would: at once, by SIGKILL. It waits until it is gone.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // it may be gone already
	<-p.exited
}

// Pause stops the process where it stands, by SIGSTOP: its connections stay, and nobody answers on
// them. Resume lets it go on.
func (p *Process) Pause() error { return p.signal("process.Pause", suspend) }

// Resume ends a Pause.
func (p *Process) Resume() error { return p.signal("process.Resume", proceed) }

func (p *Process) signal(op string, s os.Signal) error {
	return fault.As(op, fault.Unavailable, p.cmd.Process.Signal(s))
}

// Stop ends the process: it asks first, by SIGTERM, and kills what does not listen. It waits until it is
// gone. (An interrupt would not do: who is started in the background of a script ignores it, and so do
// its children.)
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

// Resident is the memory that the process holds now, in bytes; 0 where the system does
// not tell.
func (p *Process) Resident() uint64 {
	if !p.Running() {
		return 0
	}
	return resident(p.PID())
}

// String names the process for people.
func (p *Process) String() string { return fmt.Sprintf("%s (pid %d)", p.name, p.PID()) }
