package access

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/blackhole/blackhole/internal/platform/secret"
	"github.com/blackhole/blackhole/pkg/fault"
)

// TestAdoptedRules: new settings reach running calls, and end those whose token is gone or has other rights.
func TestAdoptedRules(t *testing.T) {
	tokens := func(list ...Token) Config { return Config{Enabled: true, Anonymous: "none", Tokens: list} }
	ops := Token{Name: "ops", Token: secret.New("first-token-of-ops"), Role: RoleAdmin}
	web := Token{Name: "web", Token: secret.New("token-of-web"), Role: RoleService, Services: []string{"web"}}
	less := ops
	less.Role = RoleReadOnly
	other := ops
	other.Token = secret.New("second-token-of-ops")
	for name, c := range map[string]struct {
		next Config
		ends error // nil: the call goes on
	}{
		"the same":       {tokens(ops, web), nil},
		"another is new": {tokens(ops), nil},
		"revoked":        {tokens(web), fault.Unauthentic},
		"replaced":       {tokens(other), fault.Unauthentic},
		"a smaller role": {tokens(less), fault.Unauthentic},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newGuard(t, tokens(ops), Options{})
				ctx, cancel := context.WithTimeout(metadata.NewIncomingContext(t.Context(), metadata.Pairs("authorization", "Bearer first-token-of-ops")), 2*time.Hour)
				defer cancel()
				err := g.Stream(needOf)(nil, endless{ctx: ctx}, &grpc.StreamServerInfo{}, func(_ any, ss grpc.ServerStream) error {
					time.Sleep(time.Hour)
					require.NoError(t, ss.Context().Err())
					g.Adopt(newGuard(t, c.next, Options{}))
					before := time.Now()
					<-ss.Context().Done()
					if c.ends != nil {
						require.LessOrEqual(t, time.Since(before), recheckEvery)
					}
					return context.Cause(ss.Context())
				})
				if c.ends == nil {
					require.ErrorIs(t, err, context.DeadlineExceeded)
					return
				}
				require.Error(t, err)
				require.NotErrorIs(t, err, context.DeadlineExceeded)
			})
		})
	}
}

// TestAdoptedCertificate: later connections see the certificate of the new settings.
func TestAdoptedCertificate(t *testing.T) {
	servers, clients := newAuthority(t, "servers"), newAuthority(t, "clients")
	_, c := serverFiles(t, servers, clients)
	_, next := serverFiles(t, newAuthority(t, "others"), clients)
	secure, err := NewTLS(c, Options{})
	require.NoError(t, err)
	certificate := func() []byte {
		now, err := secure.Server("h2").GetConfigForClient(nil)
		require.NoError(t, err)
		return now.Certificates[0].Certificate[0]
	}
	before := certificate()
	other, err := NewTLS(next, Options{})
	require.NoError(t, err)
	secure.Adopt(other)
	require.NotEqual(t, before, certificate())
}
