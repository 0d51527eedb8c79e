package agent

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// callerName is the context key of a caller's name.
type callerName struct{}

// as is a call of an authenticated caller; "" has no name.
func as(t *testing.T, name string) context.Context {
	return context.WithValue(t.Context(), callerName{}, name)
}

// authenticate gives callers names, and gives the word of peers weight.
func (g *cluster) authenticate(trusted bool) {
	name := func(ctx context.Context) string { said, _ := ctx.Value(callerName{}).(string); return said }
	for _, d := range g.desks {
		d.local.config.Caller = name
		d.local.config.Speaks = func(ctx context.Context) (string, error) {
			if !trusted {
				return "@" + name(ctx), fault.New("", fault.Forbidden, "no key")
			}
			return "@" + name(ctx), nil
		}
	}
}

// TestInstanceOfACaller: other callers neither move nor end the instance of an authenticated caller through another peer,
// unless its own peer believes that peer.
func TestInstanceOfACaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newCluster(t, "a", "b")
		g.authenticate(false)
		got, err := g.desks["a"].Register(as(t, "web"), lasting("x"))
		require.NoError(t, err)
		require.Equal(t, "@web", got.Principal)
		rest()
		b := g.desks["b"]
		change := func(name string) []error {
			_, status := b.SetStatus(as(t, name), got.Key, instance.StatusDown)
			_, gone := b.Deregister(as(t, name), got.Key)
			return []error{status, gone}
		}
		for _, name := range []string{"", "web", "pay"} {
			for _, err := range change(name) {
				require.ErrorIs(t, err, fault.Forbidden, "a peer without weight says %q", name)
			}
			_, err := b.Heartbeat(as(t, name), []instances.Ref{{Lease: got.Lease}})
			require.NoError(t, err)
		}
		beats, err := b.Heartbeat(as(t, "web"), []instances.Ref{{Lease: got.Lease}, {Key: got.Key}})
		require.NoError(t, err)
		require.ErrorIs(t, beats[0].Err, fault.Forbidden)
		require.ErrorIs(t, beats[1].Err, fault.Forbidden)

		g.authenticate(true)
		for _, err := range change("") {
			require.ErrorIs(t, err, fault.Forbidden, "nobody has a right to the service")
		}
		beats, err = b.Heartbeat(as(t, ""), []instances.Ref{{Lease: got.Lease}})
		require.NoError(t, err)
		require.NoError(t, beats[0].Err)
		for _, err := range change("ops") {
			require.NoError(t, err, "the peer of ops has checked its right")
		}
	})
}

// TestAdoptionByCaller: the same caller alone moves its instance away from a silent peer, which may live.
func TestAdoptionByCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newCluster(t, "a", "b")
		g.authenticate(true)
		got, err := g.desks["a"].Register(as(t, "web"), lasting("x"))
		require.NoError(t, err)
		rest()
		g.dies("a")
		b := g.desks["b"]
		for _, name := range []string{"", "pay"} {
			beats, err := b.Heartbeat(as(t, name), []instances.Ref{{Lease: got.Lease}})
			require.NoError(t, err)
			require.ErrorIs(t, beats[0].Err, fault.Forbidden)
			require.Empty(t, b.Census())
		}
		beats, err := b.Heartbeat(as(t, "web"), []instances.Ref{{Lease: got.Lease}})
		require.NoError(t, err)
		require.NoError(t, beats[0].Err)
		rest()
		moved, ok := b.registry.Get(got.Key)
		require.True(t, ok)
		require.Equal(t, "@web", moved.Principal, "it is still its instance")
		require.Equal(t, "b", g.holder(got.Key))
	})
}

// TestLeaseNeedsARight: whoever knows the lease of another caller's instance does not renew it, here or at another peer,
// before and after the instance moved. Its own caller does, also without a right to the service any more.
func TestLeaseNeedsARight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newCluster(t, "a", "b")
		g.authenticate(true)
		for _, d := range g.desks {
			d.local.config.May = func(ctx context.Context, service string) error {
				if said, _ := ctx.Value(callerName{}).(string); said == "ops" && service == "default/web" {
					return nil
				}
				return fault.New("", fault.Forbidden, "lacks permission")
			}
		}
		got, err := g.desks["a"].Register(as(t, "web"), lasting("x"))
		require.NoError(t, err)
		rest()
		refs := []instances.Ref{{Lease: "lease-nobody"}, {Lease: got.Lease}, {Lease: got.Lease}}
		try := func(at string) {
			for name, may := range map[string]bool{"pay": false, "": false, "ops": true, "web": true} {
				beats, err := g.desks[at].Heartbeat(as(t, name), refs)
				require.NoError(t, err)
				require.ErrorIs(t, beats[0].Err, fault.NotFound)
				for _, beat := range beats[1:] {
					if may {
						require.NoError(t, beat.Err, "%s at %s", name, at)
						require.Equal(t, got.Key, beat.Key)
						continue
					}
					require.ErrorIs(t, beat.Err, fault.Forbidden, "%s at %s", name, at)
					require.Equal(t, "lease_id", fault.FieldOf(beat.Err))
				}
			}
			require.Equal(t, got.Lease, refs[1].Lease, "the request stays as it is")
		}
		try("a")
		try("b")
		before, _ := g.desks["a"].LastBeat(got.Key)
		time.Sleep(time.Second)
		_, err = g.desks["b"].Heartbeat(as(t, "pay"), refs)
		require.NoError(t, err)
		after, _ := g.desks["a"].LastBeat(got.Key)
		require.Equal(t, before, after, "a refused beat is no sign of life")
		g.dies("a")
		beats, err := g.desks["b"].Heartbeat(as(t, "web"), refs)
		require.NoError(t, err)
		require.NoError(t, beats[1].Err, "it moves")
		rest()
		try("b")
	})
}
