package agent

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/agent/catalog"
	"github.com/blackhole/blackhole/internal/agent/health"
	"github.com/blackhole/blackhole/internal/agent/registry"
	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/pkg/instance"
)

// instant is a directory without delay and a network without a wire.
type instant struct{ to *Service }

func (instant) Publish([]instances.Change) {}

func (instant) Committed(context.Context, instance.Key) (uint64, error) { return 1, nil }

func (i instant) Read(ctx context.Context, n instance.Name) ([]*instance.Instance, uint64, error) {
	found, err := i.to.Catalog.Discover(ctx, instance.Query{Name: n, Selector: instance.Selector{AnyStatus: true}})
	return found.Instances, found.Revision + 1, err
}

func (i instant) At(string) (instances.Registrar, error) { return i.to.Direct(), nil }

func benched(b *testing.B, self string, to *Service) *Service {
	known := catalog.New(catalog.Config{})
	s, err := newService(Config{
		Registry: registry.Config{Dir: "instances", FS: vfs.NewMem(), Self: self}, Loopback: true, Now: time.Now,
		Checks: health.Config{Random: func() uint64 { return 1 }}, Peers: instant{to},
	}, instant{to}, known)
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, s.Close()) })
	return s
}

// BenchmarkHeartbeat renews 4,096 leases: local, of another peer, and unknown.
func BenchmarkHeartbeat(b *testing.B) {
	owner := benched(b, "a", nil)
	other := benched(b, "b", owner)
	var refs, unknown []instances.Ref
	for n := range instances.MaxBeats {
		got, err := owner.Register(b.Context(), lasting(fmt.Sprint("x-", n)))
		require.NoError(b, err)
		refs = append(refs, instances.Ref{Lease: got.Lease})
		unknown = append(unknown, instances.Ref{Lease: fmt.Sprint("lease-", n)})
	}
	all, revision := owner.registry.All()
	require.NoError(b, other.Reset(revision, all))
	for name, run := range map[string]struct {
		at   *Service
		refs []instances.Ref
	}{"own": {owner, refs}, "forwarded": {other, refs}, "unknown": {other, unknown}} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, err := run.at.Heartbeat(b.Context(), run.refs); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(refs)), "ns/beat")
		})
	}
}

// BenchmarkLinearizable reads the 1,000 instances of a service linearizably,
// without the group's own time.
func BenchmarkLinearizable(b *testing.B) {
	owner := benched(b, "a", nil)
	s := benched(b, "b", owner)
	for n := range 1000 {
		_, err := owner.Register(b.Context(), lasting(fmt.Sprint("x-", n)))
		require.NoError(b, err)
	}
	all, revision := owner.registry.All()
	require.NoError(b, s.Reset(revision, all))
	require.NoError(b, owner.Reset(revision, all))
	for b.Loop() {
		if _, err := s.Discover(b.Context(), surely()); err != nil {
			b.Fatal(err)
		}
	}
}
