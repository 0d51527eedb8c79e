package catalog

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// TestByLease checks that a lease finds its present instance and that former
// leases find nothing.
func TestByLease(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := New(Config{})
		all := map[instance.Key]*instance.Instance{}
		var said []string
		rev := uint64(1)
		draw := func() *instance.Instance {
			k := instance.Key{Namespace: "default", Service: "web", ID: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "id")}
			lease := fmt.Sprintf("%s-%d", k.ID, rapid.IntRange(0, 2).Draw(t, "lease"))
			said = append(said, lease)
			return &instance.Instance{Key: k, Lease: lease, Status: instance.Status(rapid.IntRange(0, 3).Draw(t, "status")), Revision: rev}
		}
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				rev++
				i := draw()
				if all[i.Key].Same(i) {
					i = all[i.Key]
				}
				all[i.Key] = i
				require.NoError(t, c.Apply(rev, []instances.Change{{Key: i.Key, Instance: i}}))
			},
			"remove": func(t *rapid.T) {
				rev++
				k := draw().Key
				delete(all, k)
				require.NoError(t, c.Apply(rev, []instances.Change{{Key: k}}))
			},
			"reset": func(t *rapid.T) {
				rev = max(1, rev+uint64(rapid.IntRange(0, 2).Draw(t, "rise"))-1)
				clear(all)
				var list []*instance.Instance
				for range rapid.IntRange(0, 2).Draw(t, "count") {
					if i := draw(); all[i.Key] == nil {
						all[i.Key] = i
						list = append(list, i)
					}
				}
				require.NoError(t, c.Reset(rev, list))
			},
			"": func(t *rapid.T) {
				leases := map[string]*instance.Instance{}
				for _, i := range all {
					leases[i.Lease] = i
				}
				for _, lease := range said {
					i, ok := c.ByLease(lease)
					require.Equal(t, leases[lease] != nil, ok, lease)
					require.True(t, leases[lease].Same(i), lease)
				}
			},
		})
	})
}

func TestUntil(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(Config{})
		looked, wants := 0, uint64(5)
		done := make(chan error, 1)
		wait := func(ctx context.Context) {
			done <- c.Until(ctx, func() bool {
				looked++
				found, err := c.List(ctx, instances.ListQuery{Namespace: "default"})
				return err == nil && found.Revision >= wants && !found.Stale
			})
		}
		c.Freeze("test", time.Now())
		go wait(t.Context())
		synctest.Wait()
		apply(t, c, 4)
		synctest.Wait()
		apply(t, c, 5)
		synctest.Wait()
		require.Equal(t, 3, looked)
		c.Thaw()
		require.NoError(t, <-done)
		require.Equal(t, 4, looked)

		wants = 6
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		wait(ctx)
		require.ErrorIs(t, <-done, fault.Timeout)
	})
}
