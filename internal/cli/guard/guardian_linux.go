package guard

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/blackhole/blackhole/internal/cli/command"
)

// Arg makes this program the guardian of a command under a lock. Users do not call it.
const Arg = "lock-guardian"

const (
	guardianPipe = 3 // descriptor of the deadlines
	huntInterval = 5 * time.Millisecond
	huntTime     = 500 * time.Millisecond // kept before the deadline: a busy machine runs this process late
	huntLimit    = 5 * time.Second        // ends the search if processes of another user remain
)

// guarded is a command with a guardian: a process between this one and the command, which kills all descendants of the
// command when this process dies, or when it lets the lock's deadline pass because it is frozen.
func guarded(command []string) (*exec.Cmd, *os.File, error) {
	path, err := exec.LookPath(command[0])
	if err != nil {
		return nil, nil, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	cmd := exec.Command("/proc/self/exe", append([]string{Arg, path}, command...)...) //nolint:gosec // this program
	cmd.SysProcAttr, cmd.ExtraFiles = &syscall.SysProcAttr{Setpgid: true}, []*os.File{r}
	return cmd, w, nil
}

// encodeDeadline tells a guardian how long the lock lasts from now on. The clock goes on while the machine sleeps.
func encodeDeadline(left time.Duration) []byte {
	return binary.BigEndian.AppendUint64(nil, uint64(bootTime()+left))
}

func bootTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		return time.Duration(time.Now().UnixNano()) // impossible since Linux 2.6.39
	}
	return time.Duration(t.Nano())
}

// guardian watches over one command.
type guardian struct {
	command   int // process id
	deadline  time.Duration
	deadlines chan time.Duration // closed when the holder of the lock is gone
	ended     chan syscall.WaitStatus
}

// Main runs a program with its command line in this process group, and returns its exit code.
func Main(args []string) int {
	runtime.LockOSThread() // the command dies with this thread
	unix.CloseOnExec(guardianPipe)
	// Orphans of the command become children of this process, so none escapes.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		fmt.Fprintln(os.Stderr, command.Program+": lock: processes that leave the command cannot be killed:", err)
	}
	// The signals of the group are for the command. Unlike ignored signals, caught ones have their default there.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT)
	g := &guardian{deadline: bootTime() + time.Hour, deadlines: make(chan time.Duration), ended: make(chan syscall.WaitStatus, 1)}
	var err error
	g.command, err = syscall.ForkExec(args[0], args[1:], &syscall.ProcAttr{
		Env: os.Environ(), Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL},
	})
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %s: %v\n", command.Program, args[0], err)
		return 126
	}
	go g.read(os.NewFile(guardianPipe, "deadlines"))
	go g.reap()
	return g.watch()
}

// read takes the deadlines until the writer is gone. Like reap, it ends with the process.
func (g *guardian) read(r io.Reader) {
	defer close(g.deadlines)
	for b := make([]byte, 8); ; {
		if _, err := io.ReadFull(r, b); err != nil {
			return
		}
		g.deadlines <- time.Duration(binary.BigEndian.Uint64(b))
	}
}

// reap waits for all children, adopted ones included.
func (g *guardian) reap() {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case err == syscall.EINTR:
		case err != nil:
			return
		case pid == g.command:
			g.ended <- status
		}
	}
}

// watch waits for the end of the command, of its holder or of the lock. Near the deadline the command gets SIGTERM, in case
// the holder sent none.
func (g *guardian) watch() int {
	look := time.NewTimer(checkInterval)
	defer look.Stop()
	for warned := false; ; {
		select {
		case status := <-g.ended:
			if status.Signaled() {
				return 128 + int(status.Signal())
			}
			return status.ExitStatus()
		case deadline, open := <-g.deadlines:
			if !open {
				return g.kill()
			}
			g.deadline, warned = deadline, false
		case <-look.C:
		}
		switch left := g.deadline - bootTime(); {
		case left <= huntTime:
			fmt.Fprintln(os.Stderr, command.Program+": lock: the lock ends, and its command still runs: it is killed")
			return g.kill()
		case left <= 4*checkInterval && !warned:
			warned = true
			_ = syscall.Kill(0, syscall.SIGTERM)
		}
		look.Reset(min(checkInterval, g.deadline-bootTime()-huntTime)) // at intervals, because timers stand still while the machine sleeps
	}
}

// kill ends the descendants of this process, and with them the guardian's work.
func (g *guardian) kill() int {
	hunt(os.Getpid())
	return 128 + int(syscall.SIGKILL)
}

// hunt kills the descendants of a process. It repeats the search until it finds none, because they can fork meanwhile.
func hunt(of int) {
	tick := time.NewTicker(huntInterval)
	defer tick.Stop()
	for began := time.Now(); time.Since(began) < huntLimit; <-tick.C {
		found := descendants(of)
		if len(found) == 0 {
			return
		}
		for _, pid := range found {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// descendants lists the living descendants of a process.
func descendants(of int) (found []int) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	children := map[int][]int{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if parent, living := parentOf(pid); living {
			children[parent] = append(children[parent], pid)
		}
	}
	for next := []int{of}; len(next) > 0; next = next[1:] {
		found = append(found, children[next[0]]...)
		next = append(next, children[next[0]]...)
	}
	return found
}

// parentOf returns the parent of a process that is no zombie.
func parentOf(pid int) (parent int, living bool) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, false
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:])) // the name may contain anything
	if len(fields) < 2 || fields[0] == "Z" || fields[0] == "X" {
		return 0, false
	}
	parent, err = strconv.Atoi(fields[1])
	return parent, err == nil
}
