package health

import (
	"context"
	"net"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

const (
	maxAnswer = 16 << 10 // bytes of an answer that are read, or of its head by HTTP/2
	maxBody   = 4 << 10  // of its body
	userAgent = "blackholed-health"
)

// probe makes one check. It returns at the context's deadline at the latest, a script scriptGrace
// after it, and nothing that it started outlives its connection or process group.
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
	conn, err := c.network.open(ctx, p)
	if err != nil {
		return err
	}
	_ = conn.Close()
	return nil
}

// bind ends reads and writes of a connection with the context, until the function that it gives is
// called.
func bind(ctx context.Context, conn net.Conn) (release func() bool) {
	return context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
}
