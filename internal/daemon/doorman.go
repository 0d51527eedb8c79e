package daemon

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"google.golang.org/grpc"

	"github.com/blackhole/blackhole/internal/platform/access"
	"github.com/blackhole/blackhole/pkg/fault"
	agentv1 "github.com/blackhole/blackhole/proto/blackhole/agent/v1"
)

// refusalsPerMinute bounds the audit lines about one refused peer, which asks again and again.
const refusalsPerMinute = 1

// doorman admits other peers as clients of the group, and leaves a line about those that it refuses.
type doorman struct {
	admit   func(context.Context) (string, error) // see coordination.Serving
	refused *access.Limiter
	log     *slog.Logger
	now     func() time.Time
}

func newDoorman(admit func(context.Context) (string, error), log *slog.Logger, now func() time.Time) *doorman {
	return &doorman{admit: admit, refused: access.NewLimiter(refusalsPerMinute, 0), log: log, now: now}
}

// owner returns the id of a calling peer. Errors: as of admit.
func (d *doorman) owner(ctx context.Context) (string, error) {
	id, err := d.admit(ctx)
	if stranger, ok := fault.ValueOf(err).(string); ok && fault.KindOf(err) == fault.Forbidden && d.refused.Take(stranger, 1, d.now()) == nil {
		d.log.Info("a peer may not use the group", "audit", "client_refused", "peer", stranger, "reason", fault.Message(err))
	}
	return id, err
}

// agents checks the callers of the agent's methods. The coordination plane checks its own.
func (d *doorman) agents(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	if strings.HasPrefix(info.FullMethod, "/"+agentv1.DiscoveryService_ServiceDesc.ServiceName+"/") {
		if _, err := d.owner(ctx); err != nil {
			return nil, err
		}
	}
	return next(ctx, req)
}
