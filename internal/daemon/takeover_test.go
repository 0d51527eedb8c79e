package daemon

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/coord/principals"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/internal/operator"
	"github.com/blackhole/blackhole/internal/platform/access"
	"github.com/blackhole/blackhole/internal/platform/config"
	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// TestAnotherUserTakesNothing: with authentication on, another user of the host starts a daemon of his own. It gets no
// instance of a live peer, and speaks for no authenticated caller, although every peer may be a client of the group.
// Not even a peer with the key of the network moves or ends such an instance for callers without a name.
func TestAnotherUserTakesNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("whole peers on loopback")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 6*patience)
	defer cancel()
	dir, key := t.TempDir(), newKey(t)
	require.NoError(t, access.CreateNetworkKey(filepath.Join(dir, keyFile), key))
	c := config.Default()
	c.Auth.Tokens = []config.Token{{Token: func() string { return "secret" }, Name: "web", Role: "service", Services: []string{"web"}}}
	c.Coordination.Clients = "network"
	victim := startWith(t, c, dir)
	web, err := operator.New(victim.grpc, client.WithToken("secret"))
	require.NoError(t, err)
	defer func() { require.NoError(t, web.Close()) }()
	spec := instance.Spec{Host: "10.0.0.1", Port: 80, UnhealthyAfter: time.Hour, RemoveAfter: 2 * time.Hour}
	k := instance.Key{Namespace: "default", Service: "web", ID: "web-1"}
	until(t, "the victim's instance is in the directory", func() bool {
		got, err := web.Agent().Register(ctx, instance.Registration{Key: k, Spec: spec})
		return err == nil && got.Committed
	})
	found := func(p *operator.Client) []*instance.Instance {
		got, err := p.Agent().Discover(ctx, instance.Query{Name: k.Name(), Selector: instance.Selector{AnyStatus: true}})
		require.NoError(t, err)
		return got.Instances
	}
	evil := spec
	evil.Host = "10.6.6.6"

	attacker := startWith(t, config.Default(), t.TempDir(), victim.addr)
	until(t, "the attacker is a client of the group", func() bool {
		_, _, err := ops.Of(attacker.Coordination()).Do(ctx, ops.Command{Op: &ops.LeaseGrant{TTL: 60_000}})
		return err == nil
	})
	until(t, "the attacker sees the instance", func() bool { return len(found(attacker.Client)) == 1 })
	require.Empty(t, found(attacker.Client)[0].Principal, "the API tells nobody whose it is")
	for _, id := range []string{"web-1", "web-2"} {
		_, err := attacker.Agent().Register(ctx, instance.Registration{Key: instance.Key{Namespace: "default", Service: "web", ID: id}, Spec: evil, RequireCommit: true})
		require.Error(t, err, id)
	}
	requireUntouched(t, attacker, k)
	_, _, err = ops.Of(attacker.parts.coordination.plane).Do(ctx, ops.Command{Owner: principals.Named("web"), Op: &ops.LeaseGrant{TTL: 60_000}})
	require.Equal(t, fault.Forbidden, fault.KindOf(err), "%v", err)

	insider := t.TempDir()
	require.NoError(t, access.CreateNetworkKey(filepath.Join(insider, keyFile), key))
	open := startWith(t, config.Default(), insider, victim.addr)
	until(t, "the insider registers an instance of its own", func() bool {
		got, err := open.Agent().Register(ctx, instance.Registration{Key: instance.Key{Namespace: "default", Service: "shop", ID: "shop-1"}, Spec: spec})
		return err == nil && got.Committed
	})
	until(t, "the insider sees the instance", func() bool { return len(found(open.Client)) == 1 })
	_, err = open.Agent().Register(ctx, instance.Registration{Key: k, Spec: evil, RequireCommit: true})
	require.Equal(t, fault.Forbidden, fault.KindOf(err), "%v", err)
	requireUntouched(t, open, k)

	for _, p := range []*operator.Client{web, attacker.Client, open.Client} {
		list := found(p)
		require.Len(t, list, 1)
		require.Equal(t, []any{"10.0.0.1", victim.parts.node.Host().ID().String()}, []any{list[0].Spec.Host, list[0].Peer})
	}
	require.NoError(t, func() error { _, err := web.Agent().Deregister(ctx, k); return err }())
}

// requireUntouched expects that callers of a peer can neither change nor end an instance of another peer.
func requireUntouched(t *testing.T, p *peerUnderTest, k instance.Key) {
	t.Helper()
	_, err := p.Agent().Deregister(t.Context(), k)
	require.Equal(t, fault.Forbidden, fault.KindOf(err), "%v", err)
	_, err = p.Agent().SetStatus(t.Context(), k, instance.StatusDown)
	require.Equal(t, fault.Forbidden, fault.KindOf(err), "%v", err)
}

// TestPeersHearTheCaller: a call to another peer names the authenticated caller behind it, and nobody without one.
func TestPeersHearTheCaller(t *testing.T) {
	said, err := callerCredentials{}.GetRequestMetadata(access.With(t.Context(), access.Principal{Name: "web"}))
	require.NoError(t, err)
	require.Equal(t, map[string]string{coord.PrincipalMetadata: "@web"}, said)
	said, err = callerCredentials{}.GetRequestMetadata(t.Context())
	require.NoError(t, err)
	require.Empty(t, said)
	require.False(t, callerCredentials{}.RequireTransportSecurity())
}
