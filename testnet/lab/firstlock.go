package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"

	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/internal/operator"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
	"github.com/blackhole/blackhole/testnet/await"
	"github.com/blackhole/blackhole/testnet/netns"
	"github.com/blackhole/blackhole/testnet/process"
)

const (
	shareLimit  = 5 * time.Second  // from the start of a joined daemon until it shares locks and instances
	readerLimit = 30 * time.Second // until a command of the README does what it says
	contests    = 10               // times that each machine takes one lock
)

// desk is a machine as a reader of the README has it: a shell in an empty directory, and no settings.
type desk struct {
	*operator.Client
	*host
	home string
	env  []string
	log  *os.File
}

// job is a command at a desk.
type job struct {
	command string
	cmd     *exec.Cmd
	out     bytes.Buffer
	ended   chan struct{}
}

// firstLock plays the README's section of two machines word by word, lets more machines join by the same line, and checks that all
// of them are one network: one holder at a time, and every instance found everywhere.
func firstLock(machines int) func(context.Context, *world) error {
	return func(ctx context.Context, w *world) error {
		text, err := document("README.md")
		if err != nil {
			return err
		}
		steps, err := guide(text, "Two machines")
		if err != nil {
			return err
		}
		ctx, cancel := context.WithCancel(ctx)
		p := &firstLockPlay{world: w, segment: w.network(netns.Quality{}), address: lan4, name: "machine"}
		defer func() { cancel(); p.close() }()
		for range machines {
			if err := p.desk(); err != nil {
				return err
			}
		}
		return p.run(ctx, steps)
	}
}

type firstLockPlay struct {
	*world
	segment *netns.Network
	desks   []*desk
	daemons []*job // of each desk; nil before its start
	behind  []*job // other commands without an end
	line    string // the invitation
	joined  string // the command that joins, as the README has it

	address func(i int) string // of the i-th machine
	name    string             // of the machines, before the number
}

// desk adds a machine.
func (p *firstLockPlay) desk() (err error) {
	d := &desk{}
	name := fmt.Sprintf("%s-%d", p.name, len(p.desks)+1)
	if d.host, err = p.host(p.segment, name, p.address(len(p.desks))); err != nil {
		return err
	}
	if d.home = filepath.Join(p.dir, name); os.Mkdir(d.home, 0o700) != nil {
		return fault.New("lab.desk", fault.Unavailable, "cannot create %s", d.home)
	}
	if d.log, err = os.Create(d.home + ".log"); err != nil {
		return fault.As("lab.desk", fault.Unavailable, err)
	}
	d.env = p.environment(d.home)
	d.Client, err = operator.New(grpcAddress, operator.Dial(grpc.WithContextDialer(d.space.Dial)))
	p.desks, p.daemons = append(p.desks, d), append(p.daemons, nil)
	return err
}

// environment is that of a shell at a desk.
func (w *world) environment(home string) []string {
	return []string{"HOME=" + home, "XDG_STATE_HOME=" + home, "PATH=" + filepath.Dir(w.Binary) + string(os.PathListSeparator) + os.Getenv("PATH")}
}

// start runs a command at a desk.
func (d *desk) start(ctx context.Context, command string) (*job, error) {
	j := &job{command: command, cmd: exec.CommandContext(ctx, "sh", "-c", "exec "+command), ended: make(chan struct{})}
	j.cmd.Dir, j.cmd.Env, j.cmd.Stdout, j.cmd.Stderr = d.home, d.env, &j.out, &j.out
	j.cmd.SysProcAttr = process.Orphanless()
	j.cmd.Cancel = func() error { return j.cmd.Process.Signal(syscall.SIGTERM) }
	j.cmd.WaitDelay = callLimit
	if err := d.space.Do(j.cmd.Start); err != nil {
		return nil, fault.As("lab.start", fault.Unavailable, err)
	}
	go func() { // ends with the process, which ends with ctx
		defer close(j.ended)
		_ = j.cmd.Wait() // the state has the exit code
	}()
	return j, nil
}

// stop ends a command as Ctrl-C does.
func (j *job) stop() {
	_ = j.cmd.Process.Signal(os.Interrupt) // it may have ended
	<-j.ended
}

func (j *job) running() bool {
	select {
	case <-j.ended:
		return false
	default:
		return true
	}
}

// run plays a command to its end.
func (d *desk) run(ctx context.Context, command string) (printed string, code int, err error) {
	j, err := d.start(ctx, command)
	if err != nil {
		return "", 0, err
	}
	<-j.ended
	return strings.TrimSpace(j.out.String()), j.cmd.ProcessState.ExitCode(), ctx.Err()
}

// close ends all commands and keeps what they printed. The context of the commands has ended.
func (p *firstLockPlay) close() {
	for _, j := range p.behind {
		<-j.ended
	}
	for i, j := range p.daemons {
		if j != nil {
			<-j.ended
			_, _ = p.desks[i].log.Write(j.out.Bytes()) // for people
		}
		_ = p.desks[i].Close() // no call is in flight
		_ = p.desks[i].log.Close()
	}
}

func (p *firstLockPlay) run(ctx context.Context, steps []instruction) error {
	for _, s := range steps {
		if err := p.follow(ctx, s); err != nil {
			return err
		}
	}
	for _, j := range p.behind {
		j.stop()
	}
	if p.joined == "" {
		return fault.New("lab.firstLock", fault.Invalid, "README.md does not tell a second machine to join")
	}
	for i := 2; i < len(p.desks); i++ {
		if err := p.follow(ctx, instruction{machine: i + 1, command: p.joined}); err != nil {
			return err
		}
	}
	if err := errors.Join(p.contest(ctx), p.sound(ctx)); err != nil {
		return err
	}
	if err := p.again(ctx); err != nil {
		return err
	}
	for i, j := range p.daemons {
		if j == nil || !j.running() {
			p.violated("the daemon of machine %d does not run any more", i+1)
		}
	}
	return nil
}

// follow does what the README says.
func (p *firstLockPlay) follow(ctx context.Context, s instruction) error {
	if s.machine > len(p.desks) {
		return fault.New("lab.firstLock", fault.Invalid, "README.md has a machine %d", s.machine)
	}
	d := p.desks[s.machine-1]
	command := s.command
	if shown := invitation(command); shown != "" {
		command = strings.Replace(command, shown, p.line, 1)
	}
	if len(s.printed) > 0 {
		return p.show(ctx, d, command, s.printed)
	}
	j, err := d.start(ctx, command)
	if err != nil {
		return err
	}
	p.say("machine %d: $ %s", s.machine, s.command)
	if !strings.HasPrefix(command, "blackholed run") {
		p.behind = append(p.behind, j)
		return await.Until(ctx, readerLimit, command+" holds", func(ctx context.Context) error { return holds(ctx, d) })
	}
	p.daemons[s.machine-1] = j
	if s.machine == 1 {
		return nil
	}
	p.joined = s.command
	return p.join(ctx, s.machine-1, time.Now())
}

// holds returns nil if some lock has a holder.
func holds(ctx context.Context, d *desk) error {
	locks, _, err := ops.Of(d.Coordination()).Locks(ctx, ops.LockQuery{})
	if err == nil && (len(locks) == 0 || len(locks[0].Holding) == 0) {
		err = fault.New("lab.holds", fault.NotFound, "nobody holds a lock")
	}
	return err
}

// show runs a command until it prints what the README says. A lock that others hold must never be had meanwhile.
func (p *firstLockPlay) show(ctx context.Context, d *desk, command string, want []string) error {
	err := await.Until(ctx, readerLimit, command, func(ctx context.Context) error {
		printed, code, err := d.run(ctx, command)
		if err != nil {
			return err
		}
		if line := invitation(printed); line != "" && invitation(want[0]) != "" {
			p.line, printed, want = line, want[0], want[:1]
		}
		switch {
		case code == 0 && strings.Contains(command, "--try"):
			return await.Never(fault.New("lab.show", fault.Conflict, "%s: %s has the lock, which another machine holds", command, d.name))
		case printed != strings.Join(want, "\n"):
			return fault.New("lab.show", fault.Invalid, "it printed %q, README.md says %q", printed, want)
		}
		return nil
	})
	if err != nil {
		p.violated("%v", err)
		return err
	}
	p.say("%s: $ %s", d.name, command)
	return nil
}

// join waits until a daemon that has just started shares all instances with the others, and their locks.
func (p *firstLockPlay) join(ctx context.Context, i int, began time.Time) error {
	err := await.Until(ctx, readerLimit, fmt.Sprintf("machine %d shares locks and instances", i+1), func(ctx context.Context) error {
		for k := range i + 1 {
			if _, err := p.desks[k].Services().Register(ctx, registration(k)); err != nil {
				return err
			}
		}
		group := ""
		for k := range i + 1 {
			found, err := p.desks[k].Services().Discover(ctx, instance.Query{Name: instance.Name{Service: "app"}})
			if err == nil && len(found.Instances) != i+1 {
				err = fault.New("lab.join", fault.NotFound, "machine %d finds %d of %d instances", k+1, len(found.Instances), i+1)
			}
			if err != nil {
				return err
			}
			g, err := p.desks[k].Coordination().Group(ctx)
			if err == nil && (g.ID == "" || group != "" && g.ID != group) {
				err = fault.New("lab.join", fault.Unavailable, "machine %d has the group %q", k+1, g.ID)
			}
			if err != nil {
				return err
			}
			group = g.ID
		}
		return nil
	})
	took := time.Since(began)
	if err == nil {
		p.say("%d machines are one group and find all instances, %.1f s after the last start", i+1, took.Seconds())
	}
	if err == nil && took > shareLimit {
		err = fault.New("lab.join", fault.Timeout, "machine %d took %v to join, at most %v", i+1, took, shareLimit)
	}
	if err != nil {
		p.violated("%v", err)
	}
	return ctx.Err()
}

func registration(i int) instance.Registration {
	return instance.Registration{
		Key:  instance.Key{Service: "app", ID: fmt.Sprintf("at-%d", i+1)},
		Spec: instance.Spec{Host: strings.Split(lan4(i), "/")[0], Port: 9, UnhealthyAfter: time.Hour},
	}
}

// contest lets all machines take one lock by the command line at once, time after time. Each holder writes its token at the begin
// and at the end into one file.
func (p *firstLockPlay) contest(ctx context.Context) error {
	const hold = `blackholed lock hold jobs -- sh -c 'echo $BLACKHOLE_LOCK_TOKEN >> ../held; sleep 0.02; echo $BLACKHOLE_LOCK_TOKEN >> ../held'`
	var work sync.WaitGroup
	failed := make([]error, len(p.desks))
	for i, d := range p.desks {
		work.Go(func() {
			for range contests {
				printed, code, err := d.run(ctx, hold)
				if err == nil && code != 0 {
					err = fault.New("lab.contest", fault.Unavailable, "machine %d: exit code %d: %s", i+1, code, printed)
				}
				failed[i] = errors.Join(failed[i], err)
			}
		})
	}
	work.Wait()
	if err := errors.Join(failed...); err != nil {
		p.violated("%v", err)
		return ctx.Err()
	}
	text, err := os.ReadFile(filepath.Join(p.dir, "held"))
	if err != nil {
		return fault.As("lab.contest", fault.Unavailable, err)
	}
	if err := alternates(strings.Fields(string(text)), contests*len(p.desks)); err != nil {
		p.violated("%v", err)
		return nil
	}
	p.say("%d machines held one lock %d times each, one at a time, with rising tokens", len(p.desks), contests)
	return nil
}

// sound requires that doctor finds no problem at any machine.
func (p *firstLockPlay) sound(ctx context.Context) error {
	for _, d := range p.desks {
		printed, code, err := d.run(ctx, "blackholed doctor")
		if err != nil {
			return err
		}
		if code != 0 {
			p.violated("blackholed doctor at %s finds problems where none is: %s", d.name, printed)
		}
	}
	p.say("doctor finds no problem at %d machines", len(p.desks))
	return nil
}

// alternates checks that every holder ended before the next one began.
func alternates(tokens []string, holders int) error {
	const op = "lab.alternates"
	if len(tokens) != 2*holders {
		return fault.New(op, fault.Invalid, "%d begins and ends of %d holders", len(tokens), holders)
	}
	last := int64(0)
	for i := 0; i < len(tokens); i += 2 {
		var token int64
		if _, err := fmt.Sscan(tokens[i], &token); err != nil {
			return fault.As(op, fault.Invalid, err)
		}
		switch {
		case tokens[i] != tokens[i+1]:
			return fault.New(op, fault.Conflict, "tokens %s and %s held at once", tokens[i], tokens[i+1])
		case token <= last:
			return fault.New(op, fault.Conflict, "token %d after token %d", token, last)
		}
		last = token
	}
	return nil
}

// again starts the second machine's daemon without any flag: it remembers the network.
func (p *firstLockPlay) again(ctx context.Context) error {
	p.daemons[1].stop()
	if _, err := p.desks[1].log.Write(p.daemons[1].out.Bytes()); err != nil {
		return fault.As("lab.again", fault.Unavailable, err)
	}
	p.say("machine 2 again: $ blackholed run")
	j, err := p.desks[1].start(ctx, "blackholed run")
	if err != nil {
		return err
	}
	p.daemons[1] = j
	return p.join(ctx, len(p.desks)-1, time.Now())
}
