package health

import (
	"context"
	"os"
	"os/exec"
	"strconv"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
)

// scriptGrace is how long a killed script may take to end.
const scriptGrace = 500 * time.Millisecond

// runScript passes when the command ends with 0. At the deadline it is killed with all that it
// started and that stayed in its process group. It has no standard streams, and of the environment the
// path alone: what else is there may be secret.
func (c *Checker) runScript(ctx context.Context, p *plan) error {
	argv := c.cfg.Scripts[p.target.Check.Endpoint]
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"),
		"BLACKHOLE_NAMESPACE=" + p.target.Key.Namespace,
		"BLACKHOLE_SERVICE=" + p.target.Key.Service,
		"BLACKHOLE_ID=" + p.target.Key.ID,
		"BLACKHOLE_HOST=" + p.target.Host,
		"BLACKHOLE_PORT=" + strconv.Itoa(p.target.Port),
	}
	cmd.Dir = os.TempDir()
	cmd.WaitDelay = scriptGrace
	ownGroup(cmd)
	if err := cmd.Run(); err != nil {
		return fault.As("health.script", fault.Unavailable, err)
	}
	return nil
}
