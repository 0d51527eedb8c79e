package daemon

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"google.golang.org/grpc"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/coord/principals"
	"github.com/blackhole/blackhole/internal/platform/access"
	"github.com/blackhole/blackhole/pkg/fault"
	agentv1 "github.com/blackhole/blackhole/proto/blackhole/agent/v1"
)

// refusalsPerMinute bounds the audit lines about one refused peer, which asks again and again.
const refusalsPerMinute = 1

// peerAuth admits other peers as clients of the group, and leaves a line about those that it refuses.
type peerAuth struct {
	admit   func(context.Context) (string, error) // see coordination.Serving
	refused *access.Limiter
	log     *slog.Logger
	now     func() time.Time
}

func newPeerAuth(admit func(context.Context) (string, error), log *slog.Logger, now func() time.Time) *peerAuth {
	return &peerAuth{admit: admit, refused: access.NewLimiter(refusalsPerMinute, 0), log: log, now: now}
}

// owner returns the id of a calling peer. Errors: as of admit.
func (a *peerAuth) owner(ctx context.Context) (string, error) {
	id, err := a.admit(ctx)
	if stranger, ok := fault.ValueOf(err).(string); ok && fault.KindOf(err) == fault.Forbidden && a.refused.Take(stranger, 1, a.now()) == nil {
		a.log.Info("a peer may not use the group", "audit", "client_refused", "peer", stranger, "reason", fault.Message(err))
	}
	return id, err
}

// agents checks the callers of the agent's methods. The coordination plane checks its own.
func (a *peerAuth) agents(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	service, _, _ := strings.Cut(strings.TrimPrefix(info.FullMethod, "/"), "/")
	if service == agentv1.DiscoveryService_ServiceDesc.ServiceName {
		if _, err := a.owner(ctx); err != nil {
			return nil, err
		}
	}
	return next(ctx, req)
}

// callerCredentials tell another peer the authenticated caller behind a call.
type callerCredentials struct{}

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (callerCredentials) GetRequestMetadata(ctx context.Context, _ ...string) (map[string]string, error) {
	name := access.From(ctx).Name
	if name == "" {
		return nil, nil
	}
	return map[string]string{coord.PrincipalMetadata: principals.Named(name)}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials: libp2p encrypts.
func (callerCredentials) RequireTransportSecurity() bool { return false }
