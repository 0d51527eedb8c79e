package authority_test

import (
	"context"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	"github.com/blackhole/blackhole/internal/frontend/authority"
	"github.com/blackhole/blackhole/internal/platform/access"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

type from struct {
	net.Conn
	address string
}

func (f from) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.ParseIP(f.address), Port: 1} }

// TestGreedyCallers: without authentication a caller at any front that takes all leases it can leaves some to another
// address. It may use the leases of others there as before.
func TestGreedyCallers(t *testing.T) {
	for _, front := range []string{"", "etcd", "consul"} {
		limits := coord.DefaultLimits()
		limits.PerOwner.Leases = 20
		solo := coordtest.New(coordtest.Config{Limits: limits})
		g := authority.New(authority.Config{Service: solo, Peer: coordtest.Peer, Front: front, Open: true})
		at := func(address string) context.Context { return access.ConnContext(t.Context(), from{address: address}) }
		grant := func(ctx context.Context) (int64, error) {
			a, err := g.Execute(ctx, coord.CommandOf("", &apiv1.LeaseGrantRequest{Ttl: 60}))
			return a.GetLeaseGrant().GetId(), err
		}
		taken, err := 0, error(nil)
		for ; err == nil; taken++ {
			_, err = grant(at("192.0.2.1"))
		}
		require.ErrorIs(t, err, fault.PoolExhausted)
		pool, share := fault.PoolOf(err)
		require.Equal(t, []any{"leases", true, 15}, []any{pool, share, taken - 1})
		id, err := grant(at("192.0.2.2"))
		require.NoError(t, err)
		_, err = g.Execute(at("192.0.2.1"), coord.CommandOf("", &apiv1.LeaseKeepAliveRequest{Id: id}))
		require.NoError(t, err)
		_, err = g.Execute(at("192.0.2.3"), coord.CommandOf("", &apiv1.LeaseRevokeRequest{Id: id}))
		require.NoError(t, err)
	}
}
