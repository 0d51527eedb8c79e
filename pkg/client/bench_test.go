package client

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// BenchmarkLock locks and unlocks an uncontended lock, through gRPC in memory to a plane in
// memory. It measures the costs of the client and of gRPC.
func BenchmarkLock(b *testing.B) {
	w := serve(b, coordtest.New(coordtest.Config{}))
	s, err := w.client("alice").Locks().Session(b.Context())
	require.NoError(b, err)
	b.ReportAllocs()
	for b.Loop() {
		held, err := s.Lock(b.Context(), "db")
		if err != nil {
			b.Fatal(err)
		}
		if err := held.Unlock(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkKeepAlive renews 4096 leases with one message.
func BenchmarkKeepAlive(b *testing.B) {
	w := serve(b, coordtest.New(coordtest.Config{}))
	c := w.client("alice")
	ids := make([]coord.LeaseID, coord.MaxKeepAlive)
	for i := range ids {
		r, err := c.do(b.Context(), &api.LeaseGrantRequest{TtlMs: 3_600_000})
		require.NoError(b, err)
		ids[i] = coord.LeaseID(r.GetLeaseGrant().GetId())
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := ops.Of(c.link.Coordination).KeepAlive(b.Context(), "", ids); err != nil {
			b.Fatal(err)
		}
	}
}
