//go:build !linux

package guard

import (
	"os"
	"os/exec"
	"time"

	"github.com/blackhole/blackhole/internal/cli/exit"
)

// Arg is never an argument: there is no guardian on this system.
const Arg = "\x00"

// Main is never called.
func Main([]string) int { return exit.Failure }

func guarded(command []string) (*exec.Cmd, *os.File, error) {
	cmd := exec.Command(command[0], command[1:]...) //nolint:gosec // the user's own command
	cmd.SysProcAttr = childAttributes()
	return cmd, nil, nil
}

// hunt does nothing: only Linux finds what left the process group.
func hunt(int) {}

func encodeDeadline(time.Duration) []byte { return nil }
