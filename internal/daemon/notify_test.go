package daemon

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// heard is a service manager that remembers what it hears.
type heard struct{ lines chan string }

func (h heard) Write(b []byte) (int, error) { h.lines <- string(b); return len(b), nil }
func (h heard) Close() error                { close(h.lines); return nil }

func TestManagerHearsTheLifeOfThePeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := heard{make(chan string, 10)}
		m := &manager{out: h, every: 15 * time.Second}
		ctx, stop := context.WithCancel(t.Context())
		hanging := make(chan struct{})
		asked := 0
		describe := func() string {
			if asked++; asked == 3 {
				<-hanging // a plane that answers no more
			}
			return strconv.Itoa(asked)
		}
		done := make(chan error)
		go func() { done <- m.tell(ctx, describe) }()
		require.Equal(t, "READY=1\nSTATUS=1", <-h.lines)
		time.Sleep(15 * time.Second)
		require.Equal(t, "WATCHDOG=1\nSTATUS=2", <-h.lines)
		time.Sleep(time.Hour)
		require.Empty(t, h.lines, "a peer that hangs gives no sign of life")
		close(hanging)
		require.Equal(t, "WATCHDOG=1\nSTATUS=3", <-h.lines)
		stop()
		require.NoError(t, <-done)
		last := ""
		for line := range h.lines {
			last = line
		}
		require.Equal(t, "STOPPING=1", last)
	})
}

func TestManagerByEnvironment(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "notify")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	for name, tt := range map[string]struct {
		env   map[string]string
		every time.Duration
		works bool
	}{
		"none":                      {nil, notifyInterval, true},
		"without a watchdog":        {map[string]string{"NOTIFY_SOCKET": socket}, notifyInterval, true},
		"half of the watchdog":      {map[string]string{"NOTIFY_SOCKET": socket, "WATCHDOG_USEC": "3000000"}, 1500 * time.Millisecond, true},
		"of this process":           {map[string]string{"NOTIFY_SOCKET": socket, "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": strconv.Itoa(os.Getpid())}, 1500 * time.Millisecond, true},
		"of another process":        {map[string]string{"NOTIFY_SOCKET": socket, "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}, notifyInterval, true},
		"a watchdog of no duration": {map[string]string{"NOTIFY_SOCKET": socket, "WATCHDOG_USEC": "0"}, notifyInterval, true},
		"nobody listens":            {map[string]string{"NOTIFY_SOCKET": socket + "-gone"}, notifyInterval, false},
	} {
		t.Run(name, func(t *testing.T) {
			m, err := newManager(func(v string) string { return tt.env[v] }, os.Getpid())
			require.Equal(t, tt.works, err == nil, err)
			require.Equal(t, tt.every, m.every)
			if m.out != nil {
				require.NoError(t, m.send("A=1", "B=2"))
				b := make([]byte, 100)
				n, err := l.Read(b)
				require.NoError(t, err)
				require.Equal(t, "A=1\nB=2", string(b[:n]))
				require.NoError(t, m.out.Close())
			}
		})
	}
}
