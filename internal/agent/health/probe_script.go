package health

import (
	"context"
	"strconv"

	"github.com/blackhole/blackhole/internal/platform/environ"
	"github.com/blackhole/blackhole/internal/platform/script"
	"github.com/blackhole/blackhole/pkg/fault"
)

// runScript passes if the command exits with 0. The deadline kills its whole process group.
func (c *Checker) runScript(ctx context.Context, p *plan) error {
	of := p.target.Key
	env := environ.Check(of.Namespace, of.Service, of.ID, p.target.Host, strconv.Itoa(p.target.Port))
	done, err := script.Run(ctx, c.cfg.Scripts[p.target.Check.Endpoint], env, nil, 0)
	if err == nil && done.Code != 0 {
		err = fault.New("", fault.Unavailable, "the script ended with %d", done.Code)
	}
	return fault.As("health.script", fault.Unavailable, err)
}
