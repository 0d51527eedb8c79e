// Package authority puts the rights of applications around the coordination plane. The front ends call the
// plane through it, and other peers call the plane itself: the group trusts its members and clients.
//
// The owner of a command is the authenticated name of its caller, or without a name the knowledge of a lease's
// id; in a front for other clients it is the front. Callers with role service change only locks, keys and requirements whose names begin with one of their
// services. Admins may end any lease of an application. The leases of peers are out of reach.
package authority

import (
	"cmp"
	"context"
	"log/slog"
	"strings"
	"time"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/coord/directory"
	"github.com/blackhole/blackhole/internal/contract/coord/principals"
	"github.com/blackhole/blackhole/internal/contract/coord/requirements"
	"github.com/blackhole/blackhole/internal/platform/access"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// firstChosen is the smallest id of a lease that a caller without a name may choose: its id is its credential.
const firstChosen = 1 << 32

// Bounds of the audit log.
const (
	denialsPerMinute = 6    // lines about one caller
	maxDenied        = 1024 // callers counted
)

// Config holds the plane behind a Gate.
type Config struct {
	Service coord.Service
	Peer    string // id of this peer
	// Front names a front for other clients, whose callers without a name share the ids of their leases; empty: none. No
	// caller of a front is an admin, so none lists the leases of other fronts.
	Front string
	// Reserved begin names that no lock may have: keys of locks would stand among those of a front.
	Reserved []string
	// Open is true without authentication: nobody has a name or a role, and every caller may use every name.
	Open   bool
	Now    func() time.Time // nil means time.Now
	Logger *slog.Logger     // for the audit; nil discards
}

// Gate is the plane for applications. It takes the caller from the context, where package access has put it.
type Gate struct {
	Config
	nobody  string // the owner of callers without a name
	denials *access.Limiter
}

var _ coord.Service = (*Gate)(nil)

// New returns a gate.
func New(c Config) *Gate {
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	if c.Now == nil {
		c.Now = time.Now
	}
	return &Gate{Config: c, nobody: principals.OfFront(c.Front, c.Peer), denials: access.NewLimiter(denialsPerMinute, maxDenied)}
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
		// They share one quota of the group. Each user or address has a part of it.
		return caller{Principal: p, owner: principals.From(g.nobody, access.Client(ctx))}
	}
	return caller{Principal: p, owner: principals.Named(p.Name), admin: g.Front == "" && p.Role >= access.RoleAdmin}
}

// visibleTo is the caller's part of a list of leases.
func (c *caller) visibleTo() string {
	if c.admin {
		return coord.Everybody
	}
	return c.owner
}

// learns reports whether an answer may tell the id of an owner's lease. Admins learn all.
func (c *caller) learns(owner string) bool { return c.admin || principals.Learns(owner, c.owner) }

// Execute implements coord.Service, for the caller.
func (g *Gate) Execute(ctx context.Context, cmd *coordv1.Command) (*coordv1.Result, error) {
	c := g.caller(ctx)
	if err := g.permitted(&c, cmd); err != nil {
		return nil, err
	}
	cmd.Owner = c.owner
	if r := cmd.GetUnlock(); r.GetForce() {
		return g.release(ctx, &c, cmd, r)
	}
	if r := cmd.GetLeaseRevoke(); r != nil && c.admin {
		return g.revoke(ctx, &c, cmd, r.GetId())
	}
	result, err := g.Service.Execute(ctx, cmd)
	c.hideResults(result.GetTxn().GetResults())
	return result, err
}

// revoke ends a lease for an admin, in the name of its owner.
func (g *Gate) revoke(ctx context.Context, c *caller, cmd *coordv1.Command, id int64) (*coordv1.Result, error) {
	a, err := g.Service.Read(ctx, coord.QuestionOf(c.owner, &apiv1.LeaseTimeToLiveRequest{Id: id}))
	if err != nil && fault.KindOf(err) != fault.NotFound {
		return nil, err
	}
	// An unknown lease may be this command's earlier success: the group knows.
	lease := a.GetLeaseTimeToLive().GetLease()
	owner := lease.GetClientId()
	foreign := lease != nil && !principals.MayUse(owner, c.owner) && principals.IsApplication(owner)
	if foreign {
		cmd.Owner = owner
	}
	result, err := g.Service.Execute(ctx, cmd)
	if foreign && err == nil {
		g.Logger.Info("an admin ended a lease of another owner", "audit", "lease_revoked", "caller", c.Name, "owner", owner,
			"application", lease.GetApplication(), "lease", coord.LeaseID(id).Tag(), "revision", result.GetLeaseRevoke().GetHeader().GetRevision())
	}
	return result, err
}

// release ends the lease of a claim that holds a lock: its holder learns that, and the next claim gets the lock with a higher token.
// The token keeps a repetition from ending the next one.
func (g *Gate) release(ctx context.Context, c *caller, cmd *coordv1.Command, r *apiv1.UnlockRequest) (*coordv1.Result, error) {
	const op = "authority.Release"
	a, err := g.Service.Read(ctx, coord.QuestionOf(coord.Everybody, &apiv1.LockInfoRequest{Name: r.GetName(), AfterToken: r.GetFencingToken() - 1}))
	none := &apiv1.UnlockResponse{Header: a.GetLockInfo().GetHeader()}
	if err != nil && fault.KindOf(err) != fault.NotFound {
		return nil, err
	}
	holding := a.GetLockInfo().GetLock().GetHolding()
	if len(holding) == 0 || holding[0].GetFencingToken() != r.GetFencingToken() {
		return &coordv1.Result{Response: &coordv1.Result_Unlock{Unlock: none}}, nil
	}
	claim := holding[0]
	owner := claim.GetHolderId()
	if !principals.IsApplication(owner) || !g.Open && !c.admin && !principals.Learns(owner, c.owner) {
		return nil, fault.Wrap(op, fault.Refused(fault.Forbidden, "force", "needs the role admin: the lock belongs to another caller"))
	}
	cmd.Owner, cmd.Request = owner, &coordv1.Command_LeaseRevoke{LeaseRevoke: &apiv1.LeaseRevokeRequest{Id: claim.GetLeaseId()}}
	done, err := g.Service.Execute(ctx, cmd)
	if err != nil && fault.KindOf(err) != fault.NotFound { // it has ended meanwhile
		return nil, err
	}
	g.Logger.Warn("a caller ended the lease of a lock by force", "audit", "lock_released", "caller", cmp.Or(c.Name, c.owner), "lock", r.GetName(),
		"token", claim.GetFencingToken(), "owner", owner, "application", claim.GetApplication(), "lease", coord.LeaseID(claim.GetLeaseId()).Tag())
	none.Header, none.Count = done.GetLeaseRevoke().GetHeader(), 1
	return &coordv1.Result{Response: &coordv1.Result_Unlock{Unlock: none}}, nil
}

// permitted checks the names that a command changes, and the id that it chooses.
func (g *Gate) permitted(c *caller, m *coordv1.Command) error {
	if m.GetPublishInstances() != nil {
		return fault.New("authority", fault.Forbidden, "only peers publish instances: register with the agent")
	}
	if id := m.GetLeaseGrant().GetId(); id > 0 && id < firstChosen && principals.IsAnonymous(c.owner) {
		return fault.Wrap("authority", fault.Invalidf("id", id,
			"is easy to guess, and whoever knows it may use a lease without a name: leave it out, or choose one at random from %d up", int64(firstChosen)))
	}
	for _, o := range objectsOf(m) {
		if o.hides && g.Front == "" {
			return fault.Wrap("authority", fault.Refused(fault.Forbidden, o.field, "is for fronts of other clients: the group bounds its history itself"))
		}
		for _, prefix := range g.Reserved {
			if o.kind == "lock" && strings.HasPrefix(o.name+"/", prefix) && m.GetUnlock() == nil {
				return fault.Wrap("authority", fault.Refused(fault.Forbidden, o.field, "is under %s, which is for clients of etcd or Consul: use another name", prefix))
			}
		}
	}
	if g.Open {
		return nil
	}
	for _, o := range objectsOf(m) {
		if o.span != nil && c.MayRange(o.span.From, o.span.To) || o.span == nil && c.MayName(o.name) {
			continue
		}
		g.denied(c, o)
		return fault.Wrap("authority", fault.Refused(fault.Forbidden, o.field,
			"%s lacks permission for %s: use a name that begins with one of its services, or other credentials", c.Name, o))
	}
	return nil
}

// denied leaves a line about a refused caller, a few a minute.
func (g *Gate) denied(c *caller, o object) {
	if g.denials.Take(c.Name, 1, g.Now()) == nil {
		g.Logger.Info("a caller lacks the role for a name", "audit", "role_denied", "caller", c.Name, "role", c.Role.String(), "object", o.String())
	}
}

// CheckPrefix checks the prefix of the keys of a front's clients: it must leave out the keys of the group itself. field is the setting.
func CheckPrefix(field, prefix string) error {
	for _, own := range []string{coord.MembersPrefix, directory.Prefix, directory.OutsidePrefix, requirements.Prefix, requirements.StatusPrefix} {
		if prefix == "" || strings.HasPrefix(prefix, own) || strings.HasPrefix(own, prefix) {
			return fault.Invalidf(field, prefix, "must not overlap %s, where the group has keys of its own", own)
		}
	}
	return nil
}
