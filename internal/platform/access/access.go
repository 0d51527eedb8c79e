// Package access answers three questions about a call of the API: who makes it, may they,
// and how often. It holds the roles, the methods by which a caller proves a name (bearer
// tokens, JSON Web Tokens, client certificates, the credentials of a unix socket's peer), the
// guards of the HTTP and gRPC servers, their TLS, and the limit on registrations.
//
// A guard decides by role before a handler runs. What it cannot know, the service named in a
// body or that a lease belongs to, the handler checks with Check. Everything is refused unless
// something admits it; a nil *Guard, of a peer whose operator turned authentication off,
// admits everything.
package access

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
)

// Role is what a caller may do. A higher role may do all that the lower ones may.
type Role uint8

const (
	// RoleNone may use only what is open to everybody.
	RoleNone Role = iota
	// RoleReadOnly may look up, list and watch.
	RoleReadOnly
	// RoleService may also register its own services, keep them alive, change and deregister them.
	RoleService
	// RoleAdmin may do everything.
	RoleAdmin

	roles // count, keep last
)

// String gives the role's name in settings and claims.
func (r Role) String() string {
	if r >= roles {
		return fmt.Sprintf("role(%d)", uint8(r))
	}
	return [roles]string{"none", "read-only", "service", "admin"}[r]
}

// MarshalText implements encoding.TextMarshaler.
func (r Role) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler. It fails with Invalid for a name that is no role's.
func (r *Role) UnmarshalText(text []byte) error {
	for known := range roles {
		if known.String() == string(text) {
			*r = known
			return nil
		}
	}
	return fault.Invalidf("role", string(text), "must be none, read-only, service or admin")
}

// ParseRole gives the role of a name; the empty name is none. It fails with Invalid.
func ParseRole(name string) (r Role, err error) {
	if name == "" {
		return RoleNone, nil
	}
	err = r.UnmarshalText([]byte(name))
	return r, err
}

// Principal is who makes a call.
type Principal struct {
	// Name as the caller proved it; empty for a caller that proved none.
	Name string
	Role Role
	// Services that a RoleService may change: a name; a name that ends in "*", for all that begin
	// so; or either with "namespace/" before it, which without fit in every namespace.
	Services []string
}

// May reports whether the principal may change a service, given as "name" or
// "namespace/name".
func (p Principal) May(service string) bool {
	switch p.Role {
	case RoleAdmin:
		return true
	case RoleService:
		return slices.ContainsFunc(p.Services, func(pattern string) bool { return fits(pattern, service) })
	default:
		return false
	}
}

func fits(pattern, service string) bool {
	if !strings.Contains(pattern, "/") {
		service = service[strings.LastIndexByte(service, '/')+1:]
	}
	if prefix, ok := strings.CutSuffix(pattern, "*"); ok {
		return strings.HasPrefix(service, prefix)
	}
	return pattern == service
}

// Need is what a call asks of its caller. The zero value asks nothing.
type Need struct {
	Role Role
	// Service that the call changes, as May takes it; empty: none, or not known yet. Calls that
	// need no more than RoleReadOnly change none.
	Service string
}

// caller is what a guard found out about a call.
type caller struct {
	Principal
	client  string    // that bounds on use count by
	expires time.Time // of what proved the name; zero: never
}

type callerKey struct{}

func of(ctx context.Context) caller {
	c, _ := ctx.Value(callerKey{}).(caller)
	return c
}

// From gives the principal of a call that a guard admitted, and elsewhere the zero value,
// which may nothing.
func From(ctx context.Context) Principal { return of(ctx).Principal }

// Client gives what limits on a call's client count by: the principal's name where it has
// proved one, or else the address it calls from. An IPv6 address counts with its /64, which
// one host has as a whole.
func Client(ctx context.Context) string { return of(ctx).client }

// With gives a context in which a principal calls: for callers within the process, and tests.
func With(ctx context.Context, p Principal) context.Context {
	return context.WithValue(ctx, callerKey{}, caller{Principal: p, client: p.Name})
}

// Check reports whether the principal of ctx fulfils a need. It fails with Unauthentic when a
// caller without a name must prove one, and with Forbidden when the name does not suffice.
func Check(ctx context.Context, n Need) error { return of(ctx).check(n) }

func (c caller) check(n Need) error {
	switch {
	case c.Role < n.Role && c.Name == "":
		return unauthentic()
	case c.Role < n.Role:
		return fault.New("access", fault.Forbidden, "%s has role %s, and this needs %s", c.Name, c.Role, n.Role)
	case n.Role >= RoleService && n.Service != "" && !c.May(n.Service):
		return fault.New("access", fault.Forbidden, "%s may not change service %s", c.Name, n.Service)
	}
	return nil
}

// unauthentic is the answer to whoever proves nothing. It does not say what was wrong: the
// log does, at debug level.
func unauthentic() error {
	return &fault.Error{Op: "access", Kind: fault.Unauthentic, Err: errUnauthentic}
}

// errUnauthentic has the words of the specification (SAP-044 Registry, section 7).
//
//lint:ignore ST1005 the words begin as specified
var errUnauthentic = errors.New("Missing or invalid authentication token")

// admitted gives the context of an admitted call, which ends when its proof expires.
func (c caller) admitted(ctx context.Context, now time.Time) (context.Context, context.CancelFunc) {
	ctx = context.WithValue(ctx, callerKey{}, c)
	if c.expires.IsZero() {
		return ctx, func() {}
	}
	return context.WithTimeoutCause(ctx, c.expires.Sub(now), unauthentic())
}
