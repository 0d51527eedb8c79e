package authority_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/internal/frontend/authority"
	"github.com/blackhole/blackhole/internal/platform/access"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// TestRelease: an admin, the owner, and everybody at a peer without authentication end the lease of a lock's holder by its token. The
// next in line holds it then with a higher token, the log says who did it, and a repetition ends nobody else.
func TestRelease(t *testing.T) {
	for name, row := range map[string]struct {
		ctx  context.Context
		open bool
		may  bool
	}{
		"an admin":                                {as(t, access.RoleAdmin, "root"), false, true},
		"the owner":                               {service(t, "web"), false, true},
		"another caller of the same service":      {as(t, access.RoleService, "deputy", "web", "web/*"), false, false},
		"another service":                         {service(t, "pay"), false, false},
		"without a name":                          {t.Context(), false, false},
		"without a name, where nobody needs one":  {t.Context(), true, true},
		"without a name, with a role for a while": {as(t, access.RoleReadOnly, ""), false, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			next, _, err := ops.Of(w).Do(service(t, "web"), ops.Command{Op: &ops.LeaseGrant{TTL: 60_000}})
			require.NoError(t, err)
			waiting := service(t, "web")
			go func() {
				_, _, _ = ops.Of(w).Acquire(waiting, ops.Command{Op: &ops.Lock{Name: "web/leader", Lease: next.Lease, Wait: true}}, time.Hour)
			}()
			var waits coord.Token
			for waits == 0 {
				info, err := w.solo.Read(t.Context(), coord.QuestionOf("", &apiv1.LockInfoRequest{Name: "web/leader"}))
				require.NoError(t, err)
				for _, claim := range info.GetLockInfo().GetLock().GetWaiting() {
					waits = coord.Token(claim.GetFencingToken())
				}
			}
			require.Greater(t, waits, w.webToken)
			g := w.Gate
			if row.open {
				g = authority.New(authority.Config{Service: w.solo, Peer: "peer-1", Open: true})
			}
			holder := func() coord.Token {
				a, err := w.solo.Read(t.Context(), coord.QuestionOf("", &apiv1.LockInfoRequest{Name: "web/leader"}))
				require.NoError(t, err)
				require.Len(t, a.GetLockInfo().GetLock().GetHolding(), 1)
				return coord.Token(a.GetLockInfo().Lock.Holding[0].GetFencingToken())
			}
			release := func(token coord.Token) (uint32, error) {
				r, err := g.Execute(row.ctx, coord.CommandOf("", &apiv1.UnlockRequest{Name: "web/leader", FencingToken: int64(token), Force: true}))
				return r.GetUnlock().GetCount(), err
			}
			ended, err := release(w.webToken)
			if !row.may {
				require.ErrorIs(t, err, fault.Forbidden)
				require.Equal(t, w.webToken, holder())
				require.NotContains(t, w.log.String(), "lock_released")
				return
			}
			require.NoError(t, err)
			require.EqualValues(t, 1, ended)
			require.Equal(t, waits, holder(), "the next in line, with its higher token")
			if !row.open {
				require.Contains(t, w.log.String(), "audit=lock_released")
				require.Contains(t, w.log.String(), "lock=web/leader")
			}
			ended, err = release(w.webToken)
			require.NoError(t, err)
			require.Zero(t, ended, "a repetition ends nobody else")
			require.Equal(t, waits, holder())
			_, _, err = ops.Of(w).Do(service(t, "web"), ops.Command{Op: &ops.Unlock{Name: "web/leader", Lease: w.web, Token: w.webToken}})
			require.Error(t, err, "the former holder learns it")
		})
	}
}

// TestReleaseOfPeers: locks of peers themselves are no application's, and stay.
func TestReleaseOfPeers(t *testing.T) {
	w := newWorld(t)
	r, _, err := ops.Of(w.solo).Do(t.Context(), ops.Command{Owner: "peer-1", Op: &ops.Lock{Name: "inner", Lease: w.peer}})
	require.NoError(t, err)
	_, err = w.Execute(as(t, access.RoleAdmin, "root"), coord.CommandOf("", &apiv1.UnlockRequest{Name: "inner", FencingToken: int64(r.Lock.Token), Force: true}))
	require.ErrorIs(t, err, fault.Forbidden)
}
