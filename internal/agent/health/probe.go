package health

import (
	"context"
	"net"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

const (
	maxAnswer = 16 << 10 // bytes read of an answer, or of its HTTP/2 head
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
	conn, err := c.network.open(ctx, p)
	if err != nil {
		return err
	}
	_ = conn.Close()
	return nil
}

// bind ends reads and writes of a connection with the context, until a call of
// release.
func bind(ctx context.Context, conn net.Conn) (release func() bool) {
	return context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
}
