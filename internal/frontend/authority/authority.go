// Package authority puts the rights of applications around the coordination plane. The front ends call the
// plane through it, and other peers call the plane itself: the group trusts its members and clients.
//
// The owner of a command is the authenticated name of its caller, or without a name the knowledge of a lease's
// id. Callers with role service change only locks, keys and requirements whose names begin with one of their
// services. Admins may end any lease of an application. The leases of peers are out of reach.
package authority

import (
	"context"
	"log/slog"
	"time"

	"github.com/blackhole/blackhole/internal/platform/access"
	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Bounds of the audit log.
const (
	denialsPerMinute = 6    // lines about one caller
	maxDenied        = 1024 // callers counted
)

// Config holds the plane behind a Gate.
type Config struct {
	Writer coord.Writer
	Reader coord.Reader
	Peer   string // id of this peer
	// Open is true without authentication: nobody has a name or a role, and every caller may use every name.
	Open   bool
	Now    func() time.Time // nil means time.Now
	Logger *slog.Logger     // for the audit; nil discards
}

// Gate is the plane for applications. It takes the caller from the context, where package access has put it.
type Gate struct {
	Config
	denials *access.Limiter
}

var (
	_ coord.Writer = (*Gate)(nil)
	_ coord.Reader = (*Gate)(nil)
)

// New returns a gate.
func New(c Config) *Gate {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return &Gate{Config: c, denials: access.NewLimiter(denialsPerMinute, maxDenied)}
}

// Owner returns the owner that a caller acts as. It never refuses: roles are checked before.
func (g *Gate) Owner(ctx context.Context) (string, error) { return g.caller(ctx).owner, nil }

// caller is the owner and the rights behind a call.
type caller struct {
	access.Principal
	owner string
	admin bool // authenticated as one
}

func (g *Gate) caller(ctx context.Context) caller {
	p := access.From(ctx)
	if g.Open || p.Name == "" {
		return caller{Principal: p, owner: coord.AnonymousOwner(g.Peer)}
	}
	return caller{Principal: p, owner: coord.NamedOwner(p.Name), admin: p.Role >= access.RoleAdmin}
}

// visibleTo is the caller's part of a list of leases.
func (c *caller) visibleTo() string {
	if c.admin {
		return coord.Everybody
	}
	return c.owner
}

// learns reports whether an answer may tell the id of an owner's lease. Whoever knows the id of a lease of a
// caller without a name may use it, so only admins learn it.
func (c *caller) learns(owner string) bool {
	return c.admin || coord.IsNamed(owner) && owner == c.owner
}

// Do implements coord.Writer.
func (g *Gate) Do(ctx context.Context, cmd coord.Command) (coord.Result, coord.Header, error) {
	c := g.caller(ctx)
	message, err := g.permitted(&c, cmd)
	if err != nil {
		return coord.Result{}, coord.Header{}, err
	}
	cmd.Owner = c.owner
	if r := message.GetLeaseRevoke(); r != nil && c.admin {
		return g.revoke(ctx, &c, cmd, coord.LeaseID(r.GetId()))
	}
	result, h, err := g.Writer.Do(ctx, cmd)
	result.Txn.Steps = c.hideSteps(result.Txn.Steps)
	return result, h, err
}

// Acquire implements coord.Writer.
func (g *Gate) Acquire(ctx context.Context, cmd coord.Command, wait time.Duration) (coord.Result, coord.Header, error) {
	c := g.caller(ctx)
	if _, err := g.permitted(&c, cmd); err != nil {
		return coord.Result{}, coord.Header{}, err
	}
	cmd.Owner = c.owner
	return g.Writer.Acquire(ctx, cmd, wait)
}

// KeepAlive implements coord.Writer.
func (g *Gate) KeepAlive(ctx context.Context, _ string, ids []coord.LeaseID) ([]coord.Renewal, coord.Header, error) {
	c := g.caller(ctx)
	return g.Writer.KeepAlive(ctx, c.owner, ids)
}

// revoke ends a lease for an admin, in the name of its owner.
func (g *Gate) revoke(ctx context.Context, c *caller, cmd coord.Command, id coord.LeaseID) (coord.Result, coord.Header, error) {
	states, h, err := g.Reader.Leases(ctx, coord.LeaseQuery{ID: id})
	if err != nil && fault.KindOf(err) != fault.NotFound {
		return coord.Result{}, h, err
	}
	// An unknown lease may be this command's earlier success: the group knows.
	foreign := len(states) == 1 && !coord.MayUse(states[0].Owner, c.owner) && application(states[0].Owner)
	if foreign {
		cmd.Owner = states[0].Owner
	}
	result, h, err := g.Writer.Do(ctx, cmd)
	if foreign && err == nil {
		g.Logger.Info("an admin ended a lease of another owner", "audit", "lease_revoked", "caller", c.Name,
			"owner", states[0].Owner, "application", states[0].Application, "lease", id.Tag(), "revision", int64(h.Revision))
	}
	return result, h, err
}

// application reports whether an owner is an application, not a peer.
func application(owner string) bool { return coord.IsNamed(owner) || coord.IsAnonymous(owner) }

// permitted checks the names that a command changes and returns its message.
func (g *Gate) permitted(c *caller, cmd coord.Command) (message, error) {
	m, err := messageOf(cmd)
	if err == nil && m.GetPublishInstances() != nil {
		err = fault.New("authority", fault.Forbidden, "only peers publish instances: register with the agent")
	}
	if err != nil || g.Open {
		return m, err
	}
	for _, o := range objectsOf(m) {
		if o.span != nil && c.MayRange(o.span.From, o.span.To) || o.span == nil && c.MayName(o.name) {
			continue
		}
		g.denied(c, o)
		return m, fault.Wrap("authority", fault.Refused(fault.Forbidden, o.field,
			"%s lacks permission for %s: use a name that begins with one of its services, or other credentials", c.Name, o))
	}
	return m, nil
}

// denied leaves a line about a refused caller, a few a minute.
func (g *Gate) denied(c *caller, o object) {
	if g.denials.Take(c.Name, 1, g.Now()) == nil {
		g.Logger.Info("a caller lacks the role for a name", "audit", "role_denied", "caller", c.Name, "role", c.Role.String(), "object", o.String())
	}
}
