// Package access authenticates and authorises the callers of the API, and limits their rate. It
// holds the roles, the authentication methods (bearer tokens, JSON Web Tokens, client certificates,
// and the credentials of a unix socket), the sessions of the page, the guards of the HTTP and gRPC servers, their TLS settings,
// the limit on registrations, and bounds on concurrent use.
//
// A guard checks the role before a handler runs. The handler checks the service, which may be in a
// body or depend on a lease, with Check. A guard refuses everything by default. A nil *Guard, for a
// peer without authentication, admits everything.
package access

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/peer"

	"github.com/blackhole/blackhole/pkg/fault"
)

// Role is the permission level of a caller. A higher role includes the lower ones.
type Role uint8

const (
	// RoleNone may use only open routes, such as probes.
	RoleNone Role = iota
	// RoleReadOnly may look up, list and watch.
	RoleReadOnly
	// RoleService may also register, renew, change and deregister its own services.
	RoleService
	// RoleAdmin may do everything.
	RoleAdmin

	roles // number of roles; keep last
)

// String returns the name of the role in settings and claims.
func (r Role) String() string {
	if r >= roles {
		return fmt.Sprintf("role(%d)", uint8(r))
	}
	return [roles]string{"none", "read-only", "service", "admin"}[r]
}

// MarshalText implements encoding.TextMarshaler.
func (r Role) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler. It fails with Invalid for unknown names.
func (r *Role) UnmarshalText(text []byte) error {
	for known := range roles {
		if known.String() == string(text) {
			*r = known
			return nil
		}
	}
	return fault.Invalidf("role", string(text), "must be none, read-only, service or admin")
}

// ParseRole returns the role of a name. The empty name means RoleNone. It fails with Invalid.
func ParseRole(name string) (r Role, err error) {
	if name == "" {
		return RoleNone, nil
	}
	err = r.UnmarshalText([]byte(name))
	return r, err
}

// Principal is an authenticated or anonymous caller.
type Principal struct {
	// Name is the authenticated name, or empty for an anonymous caller.
	Name string
	Role Role
	// Services are patterns of services that a RoleService may change: a name, or a prefix and "*",
	// either with "namespace/" in front. Without it a pattern matches in every namespace. The same patterns
	// bind names of locks and keys; see MayName.
	Services []string
}

// may reports whether the role permits a change, or one of the patterns of a service does.
func (p Principal) may(fits func(pattern string) bool) bool {
	return p.Role == RoleAdmin || p.Role == RoleService && slices.ContainsFunc(p.Services, fits)
}

// May reports whether the principal may change a service, given as "name" or "namespace/name".
func (p Principal) May(service string) bool {
	return p.may(func(pattern string) bool { return fits(pattern, service) })
}

// MayName reports whether the principal may change the lock, key or requirement with a name. The name of a
// service stands for itself and for all names with the service and "/" in front.
func (p Principal) MayName(name string) bool {
	return p.may(func(pattern string) bool {
		prefix, open := strings.CutSuffix(pattern, "*")
		return open && strings.HasPrefix(name, prefix) || !open && (name == pattern || strings.HasPrefix(name, pattern+"/"))
	})
}

// MayRange reports whether the principal may change all keys from one to another, exclusive. An empty end is
// the end of all keys.
func (p Principal) MayRange(from, to string) bool {
	return p.may(func(pattern string) bool {
		prefix, open := strings.CutSuffix(pattern, "*")
		if !open {
			prefix += "/"
		}
		return prefix == "" || strings.HasPrefix(from, prefix) && to != "" && to <= after(prefix)
	})
}

// after returns the first key that does not begin with a prefix and sorts behind it. Patterns are text, so
// their last byte is below 0xff.
func after(prefix string) string {
	last := len(prefix) - 1
	return prefix[:last] + string([]byte{prefix[last] + 1})
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

// Need is the permission that a call needs. The zero value needs none.
type Need struct {
	Role Role
	// Service is the service that the call changes, in the form of May. Empty means none or not yet
	// known. It matters for RoleService and above only.
	Service string
}

// caller is the result of authentication.
type caller struct {
	Principal
	client  string    // key of rate limits
	expires time.Time // of the credentials; zero means never
	by      callCredentials
	page    *[sha256.Size]byte // session of a page that acts for the caller; nil for the caller itself
}

type callerKey struct{}

func of(ctx context.Context) caller {
	c, _ := ctx.Value(callerKey{}).(caller)
	return c
}

// From returns the principal of a call that a guard admitted, or else the zero value, which has no
// permission.
func From(ctx context.Context) Principal { return of(ctx).Principal }

// Client returns the key of rate limits and shares for a call: the name of the principal, or the address of an anonymous
// caller. On a unix socket it is the user of the caller, and on loopback too where the system tells (Linux); otherwise all
// loopback addresses are one. An IPv6 address counts as its /64, the usual share of a single host. It is empty for a call
// within the process.
func Client(ctx context.Context) string {
	if c := of(ctx).client; c != "" {
		return c
	}
	if p, ok := peer.FromContext(ctx); ok && p.Addr != nil {
		return clientOf(callCredentials{remote: p.Addr})
	}
	if a, ok := ctx.Value(connKey{}).(net.Addr); ok {
		return clientOf(callCredentials{remote: a})
	}
	return ""
}

// With returns a context with a principal, for callers within the process and for tests.
func With(ctx context.Context, p Principal) context.Context {
	return context.WithValue(ctx, callerKey{}, caller{Principal: p, client: p.Name})
}

// Check checks that the principal of ctx fulfils a need. It fails with Unauthentic for an anonymous
// caller and with Forbidden for an authenticated one.
func Check(ctx context.Context, n Need) error { return of(ctx).check(n) }

func (c caller) check(n Need) error {
	switch {
	case c.Role < n.Role && c.Name == "":
		return unauthentic()
	case c.Role < n.Role:
		return fault.New("access", fault.Forbidden, "%s has role %s: use credentials with role %s", c.Name, c.Role, n.Role)
	case n.Role >= RoleService && n.Service != "" && !c.May(n.Service):
		return fault.New("access", fault.Forbidden, "%s lacks permission to change service %s: use credentials for this service", c.Name, n.Service)
	}
	return nil
}

// unauthentic is the error for missing or wrong credentials. Only the log contains the reason, at
// debug level.
func unauthentic() error {
	return &fault.Error{Op: "access", Kind: fault.Unauthentic, Err: errUnauthentic}
}

// errUnauthentic has the words of SAP-044 Registry, section 7.
//
//lint:ignore ST1005 the words begin as specified
var errUnauthentic = errors.New("Missing or invalid authentication token")

// admitted returns the context of an admitted call, which ends when the credentials expire.
func (c caller) admitted(ctx context.Context, now time.Time) (context.Context, context.CancelFunc) {
	ctx = context.WithValue(ctx, callerKey{}, c)
	if c.expires.IsZero() {
		return ctx, func() {}
	}
	return context.WithTimeoutCause(ctx, c.expires.Sub(now), unauthentic())
}
