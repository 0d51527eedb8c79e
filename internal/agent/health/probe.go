package health

import (
	"context"
	"fmt"

	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/blackhole/blackhole/internal/platform/probe"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

const (
	maxAnswer = 16 << 10 // bytes read of an answer
	maxBody   = 4 << 10  // bytes read of its body
	userAgent = "blackholed-health"
)

// probe runs one check. It returns at the deadline of the context, or
// scriptGrace later for a script. Connections and process groups end with it.
func (c *Checker) probe(ctx context.Context, p *plan) error {
	var err error
	switch p.target.Check.Type {
	case instance.HTTP:
		err = c.probeHTTP(ctx, p)
	case instance.TCP:
		err = c.probeTCP(ctx, p)
	case instance.GRPC:
		err = c.probeGRPC(ctx, p)
	default:
		err = c.runScript(ctx, p)
	}
	if err != nil && ctx.Err() != nil {
		return fault.As("health.Check", fault.KindOf(ctx.Err()), err)
	}
	return err
}

func (c *Checker) probeTCP(ctx context.Context, p *plan) error {
	l, err := c.line(ctx, p)
	if err != nil {
		return err
	}
	_, end, err := l.Open(ctx)
	if err != nil {
		return failed("health.dial", err)
	}
	end()
	return nil
}

// probeGRPC passes if the plan's service, or the server for an empty one, is SERVING.
func (c *Checker) probeGRPC(ctx context.Context, p *plan) error {
	const op = "health.grpc"
	l, err := c.line(ctx, p)
	if err != nil {
		return err
	}
	a, err := l.Health(ctx, userAgent, p.resource)
	switch {
	case err != nil:
		return failed(op, err)
	case a.Status == "" && a.HTTP/100 == 2:
		return fault.As(op, fault.Unavailable, fmt.Errorf("answered %d: %w", a.HTTP, &probe.Foreign{Wanted: "gRPC"}))
	case a.Status == "":
		return refused(op, "answered %d and no gRPC", a.HTTP)
	case a.Status != "0":
		return refused(op, "answered status %.8q", a.Status)
	case a.Health == nil:
		return fault.As(op, fault.Unavailable, &probe.Foreign{Wanted: "health service of gRPC"})
	case a.Health.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING:
		return refused(op, "is %s", a.Health.GetStatus())
	}
	return nil
}
