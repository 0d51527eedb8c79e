package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/blackhole/blackhole/internal/platform/pause"
	"github.com/blackhole/blackhole/pkg/fault"
)

// notifyInterval is the time between two status lines for a service manager without a watchdog.
const notifyInterval = 10 * time.Second

// manager is the service manager that started this process, by the protocol of sd_notify(3). Without one all methods
// do nothing.
type manager struct {
	out   io.WriteCloser // nil: none
	every time.Duration  // between two signs of life
}

// newManager connects to the service manager that the environment names. pid is the id of this process. The variables
// are NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID.
func newManager(env func(string) string, pid int) (*manager, error) {
	m := &manager{every: notifyInterval}
	path := env("NOTIFY_SOCKET")
	if path == "" {
		return m, nil
	}
	if own := env("WATCHDOG_PID"); own == "" || own == strconv.Itoa(pid) {
		if us, err := strconv.ParseInt(env("WATCHDOG_USEC"), 10, 64); err == nil && us > 1 {
			m.every = min(m.every, time.Duration(us)*time.Microsecond/2) // sd_watchdog_enabled(3): half of it
		}
	}
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"}) // a first "@" means an abstract name
	if err != nil {
		return m, fault.As("daemon.newManager", fault.Unavailable, fmt.Errorf("NOTIFY_SOCKET: %w", err))
	}
	m.out = c
	return m, nil
}

// tell reports the life of the peer until ctx ends: that it is up, then signs of life. describe asks all planes for one
// line. A plane that hangs gives no line, so the service manager restarts the process.
func (m *manager) tell(ctx context.Context, describe func() string) error {
	if m.out == nil {
		<-ctx.Done()
		return nil
	}
	err := m.send("READY=1", "STATUS="+describe())
	for pause.For(ctx, m.every) {
		if sent := m.send("WATCHDOG=1", "STATUS="+describe()); err == nil {
			err = sent // the manager restarts a peer that it does not hear
		}
	}
	return errors.Join(err, m.send("STOPPING=1"), m.out.Close())
}

func (m *manager) send(assignments ...string) error {
	_, err := io.WriteString(m.out, strings.Join(assignments, "\n"))
	return err
}

// describe is the peer in one line for `systemctl status`. It asks each plane, and thereby shows that none hangs.
func (p *parts) describe() string {
	s := p.Status()
	line := fault.Counted(s.Peers, "peer") + ", " + fault.Counted(s.RecordsKept, "record") + " kept"
	if p.agent != nil {
		instances := 0
		for _, n := range p.agent.Count() {
			instances += n
		}
		line += ", " + fault.Counted(instances, "instance")
	}
	if s.Group != nil {
		line += ", group: " + s.Group.Role
	}
	for _, c := range s.Conditions {
		line += ", " + c.Name
	}
	return line
}
