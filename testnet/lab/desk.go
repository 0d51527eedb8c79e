package lab

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"

	"github.com/blackhole/blackhole/internal/operator"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/testnet/netns"
	"github.com/blackhole/blackhole/testnet/process"
)

// readerLimit is the time until a command of a document does what it says.
const readerLimit = 30 * time.Second

// desk is a machine as a reader of a document has it: a shell in an empty directory, and no settings.
type desk struct {
	*operator.Client
	*host
	home string
	env  []string
	log  *os.File
}

// job is a command at a desk.
type job struct {
	cmd   *exec.Cmd
	out   bytes.Buffer
	ended chan struct{}
}

// office has the machines that follow a document.
type office struct {
	*world
	segment *netns.Network
	address func(i int) string // of the i-th machine
	name    string             // of the machines, before the number

	desks   []*desk
	daemons []*job // of each desk; nil before its start
}

// desk adds a machine.
func (o *office) desk() (err error) {
	d := &desk{}
	name := fmt.Sprintf("%s-%d", o.name, len(o.desks)+1)
	if d.host, err = o.host(o.segment, name, o.address(len(o.desks))); err != nil {
		return err
	}
	if d.home = filepath.Join(o.dir, name); os.Mkdir(d.home, 0o700) != nil {
		return fault.New("lab.desk", fault.Unavailable, "cannot create %s", d.home)
	}
	if d.log, err = os.Create(d.home + ".log"); err != nil {
		return fault.As("lab.desk", fault.Unavailable, err)
	}
	d.env = o.environment(d.home)
	d.Client, err = operator.New(grpcAddress, operator.Dial(grpc.WithContextDialer(d.space.Dial)))
	o.desks, o.daemons = append(o.desks, d), append(o.daemons, nil)
	return err
}

// environment is that of a shell at a desk.
func (w *world) environment(home string) []string {
	return []string{"HOME=" + home, "XDG_STATE_HOME=" + home, "PATH=" + filepath.Dir(w.Binary) + string(os.PathListSeparator) + os.Getenv("PATH")}
}

// start runs a command at a desk.
func (d *desk) start(ctx context.Context, command string) (*job, error) {
	j := &job{cmd: exec.CommandContext(ctx, "sh", "-c", "exec "+command), ended: make(chan struct{})}
	j.cmd.Dir, j.cmd.Env, j.cmd.Stdout, j.cmd.Stderr = d.home, d.env, &j.out, &j.out
	j.cmd.SysProcAttr = process.Orphanless()
	j.cmd.Cancel = func() error { return j.cmd.Process.Signal(syscall.SIGTERM) }
	j.cmd.WaitDelay = callLimit
	if err := d.space.Do(j.cmd.Start); err != nil {
		return nil, fault.As("lab.start", fault.Unavailable, err)
	}
	go func() { // ends with the process, which ends with ctx
		defer close(j.ended)
		_ = j.cmd.Wait() // what it printed says more
	}()
	return j, nil
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
func (d *desk) run(ctx context.Context, command string) (printed string, err error) {
	j, err := d.start(ctx, command)
	if err != nil {
		return "", err
	}
	<-j.ended
	return strings.TrimSpace(j.out.String()), ctx.Err()
}

// close ends all commands and keeps what they printed. The context of the commands has ended.
func (o *office) close() {
	for i, j := range o.daemons {
		if j != nil {
			<-j.ended
			_, _ = o.desks[i].log.Write(j.out.Bytes()) // for people
		}
		_ = o.desks[i].Close() // no call is in flight
		_ = o.desks[i].log.Close()
	}
}
