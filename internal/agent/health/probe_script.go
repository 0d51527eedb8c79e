package health

import (
	"context"
	"os"
	"os/exec"
	"strconv"
	"time"

	"github.com/blackhole/blackhole/internal/platform/environ"
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
	of := p.target.Key
	cmd.Env = append(environ.Check(of.Namespace, of.Service, of.ID, p.target.Host, strconv.Itoa(p.target.Port)), "PATH="+os.Getenv("PATH"))
	cmd.Dir = os.TempDir()
	cmd.WaitDelay = scriptGrace
	ownGroup(cmd)
	if err := cmd.Run(); err != nil {
		return fault.As("health.script", fault.Unavailable, err)
	}
	return nil
}
