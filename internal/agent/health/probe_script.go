package health

import (
	"context"
	"os"
	"os/exec"
	"strconv"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
)

// scriptGrace bounds the end of a killed script.
const scriptGrace = 500 * time.Millisecond

// runScript passes if the command exits with 0. The deadline kills its whole
// process group. The command has no standard streams, and only PATH of the
// environment, which may contain secrets.
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
