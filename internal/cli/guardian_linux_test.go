package cli

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
)

// TestLockLeavesNoProcess: when nobody holds the lock any more, every process of the command is gone: its children, those
// in a session of their own, and those whose parents ended, whether the holder was killed, frozen or lost its group.
func TestLockLeavesNoProcess(t *testing.T) {
	const script = `trap '' TERM
sh -c 'trap "" TERM; echo $$; sleep 1000' & setsid sh -c 'echo $$; sleep 1000' &
(setsid sh -c 'trap "" TERM HUP; echo $$; sleep 1000' &) ; echo $$; while :; do wait; sleep 1; done`
	for name, end := range map[string]func(holder *os.Process, halt func()){
		"killed": func(holder *os.Process, _ func()) { _ = holder.Signal(syscall.SIGKILL) },
		"frozen": func(holder *os.Process, _ func()) { _ = holder.Signal(syscall.SIGSTOP) },
		"lost":   func(_ *os.Process, halt func()) { halt() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			solo := liveGroup()
			cmd := exec.CommandContext(t.Context(), os.Args[0])
			cmd.Env = append(os.Environ(), lockArgsOf+"="+serveGroup(t, solo), lockScriptOf+"="+script)
			out, err := cmd.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, cmd.Start())
			var pids []string
			for lines := bufio.NewScanner(out); len(pids) < 4 && lines.Scan(); {
				pids = append(pids, strings.TrimSpace(lines.Text()))
			}
			require.Len(t, pids, 4)
			for _, pid := range pids {
				require.False(t, gone(pid))
			}
			end(cmd.Process, func() {
				_, _, err := ops.Of(solo).Do(context.Background(), ops.Command{Owner: provider, Op: &ops.LeaseRevoke{ID: 1}})
				require.NoError(t, err)
			})
			if name == "lost" {
				_ = cmd.Wait()
			} else {
				require.Eventually(t, func() bool {
					_, _, err := ops.Of(solo).Locks(context.Background(), ops.LockQuery{Name: "db"})
					return err != nil
				}, patient, time.Millisecond)
			}
			for _, pid := range pids {
				require.True(t, gone(pid), pid)
			}
			_ = cmd.Process.Signal(syscall.SIGCONT)
			_ = cmd.Wait()
		})
	}
}
