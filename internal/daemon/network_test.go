package daemon

import (
	"context"
	"crypto/rand"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/internal/platform/access"
	"github.com/blackhole/blackhole/internal/platform/config"
	"github.com/blackhole/blackhole/internal/platform/identity"
	"github.com/blackhole/blackhole/internal/platform/invite"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
)

// TestNetworksNeverMerge: two networks share a bootstrap address. Records, watches and
// routing tables of each network stay in it.
func TestNetworksNeverMerge(t *testing.T) {
	t.Parallel() // waits for its own peers
	if testing.Short() {
		t.Skip("whole peers on loopback")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*patience)
	defer cancel()
	a0 := startIn(t, "a", t.TempDir())
	b0 := startIn(t, "b", t.TempDir(), a0.addr)
	a1, b1 := startIn(t, "a", t.TempDir(), a0.addr), startIn(t, "b", t.TempDir(), a0.addr, b0.addr)
	for _, p := range []*peerUnderTest{a0, a1, b0, b1} {
		until(t, "each peer knows the other one of its network", func() bool {
			s, err := p.Status(ctx)
			return err == nil && s.RoutingTable == 1
		})
	}
	for _, own := range []struct {
		id           string
		seller, user *peerUnderTest
	}{{"of-a", a0, a1}, {"of-b", b0, b1}} {
		_, err := own.seller.Offers().Register(ctx, compute(own.id, 1, 1, 1))
		require.NoError(t, err)
		until(t, "a peer finds the record of its network, and complete", func() bool {
			answer, err := own.user.Offers().Query(ctx, query.Query{Type: "compute"})
			require.NoError(t, err)
			return answer.Complete && len(answer.Results) == 1
		})
	}
	for p, want := range map[*peerUnderTest]string{a0: "of-a", a1: "of-a", b0: "of-b", b1: "of-b"} {
		answer, err := p.Offers().Query(ctx, query.Query{Type: "compute"})
		require.NoError(t, err)
		require.Equal(t, []string{want}, ids(answer))
		s, err := p.Status(ctx)
		require.NoError(t, err)
		require.Equal(t, 1, s.RoutingTable)
		kept, _ := p.parts.plane.Records()
		require.Equal(t, 1, kept, "gossip brought nothing of the other network either")
	}
}

// TestKeyIsTheCredentialOfTheGroup: a peer with the key of the network is a client of the group, and loses that right
// with the key, while both run. A peer without it is refused with the reason.
func TestKeyIsTheCredentialOfTheGroup(t *testing.T) {
	t.Parallel() // waits for its own peers
	if testing.Short() {
		t.Skip("whole peers on loopback")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*patience)
	defer cancel()
	old, fresh := newKey(t), newKey(t)
	founder := t.TempDir()
	id, err := Identity(founder)
	require.NoError(t, err)
	start := func(dir string, key identity.Key, bootstrap ...string) *peerUnderTest {
		c := config.Default()
		c.Coordination.Founders, c.Coordination.Clients = []string{id}, "key"
		if key != nil {
			require.NoError(t, access.CreateNetworkKey(filepath.Join(dir, keyFile), key))
		}
		return startWith(t, c, dir, bootstrap...)
	}
	a := start(founder, old)
	member, stranger := start(t.TempDir(), old, a.addr), start(t.TempDir(), nil, a.addr)
	lease := func(p *peerUnderTest) error {
		_, _, err := ops.Of(p.Coordination()).Do(ctx, ops.Command{Op: &ops.LeaseGrant{TTL: 60_000}})
		return err
	}
	until(t, "the member is a client", func() bool { return lease(member) == nil })
	until(t, "the stranger is refused with the reason", func() bool {
		err := lease(stranger)
		require.Error(t, err)
		return fault.KindOf(err) == fault.Forbidden && strings.Contains(err.Error(), "does not prove the key of the network")
	})

	path := filepath.Join(founder, keyFile)
	require.NoError(t, os.WriteFile(path, keyText(fresh, old), 0o600))
	require.NoError(t, lease(member), "the old key is still accepted")
	require.NoError(t, os.WriteFile(path, keyText(fresh), 0o600))
	until(t, "the old key is gone", func() bool { return fault.KindOf(lease(member)) == fault.Forbidden })
	require.NoError(t, os.WriteFile(filepath.Join(member.config.Data, keyFile), keyText(fresh), 0o600))
	until(t, "the member has the new key", func() bool { return lease(member) == nil })
}

// keyText is the content of a file of keys.
func keyText(keys ...identity.Key) []byte {
	text := "network key, format 1\n"
	for _, k := range keys {
		text += k.Text() + "\n"
	}
	return []byte(text)
}

func newKey(t *testing.T) identity.Key {
	k, err := identity.NewKey(rand.Reader)
	require.NoError(t, err)
	return k
}

// TestKeyIsGenerated: by the first peer of a network, never in a network of one machine without authentication, and
// once.
func TestKeyIsGenerated(t *testing.T) {
	for name, test := range map[string]struct {
		edit func(*config.Config)
		want bool
	}{
		"dev":                     {func(*config.Config) {}, false},
		"dev with authentication": {func(c *config.Config) { c.Auth.Enabled = "true" }, true},
		"dev, closed":             {func(c *config.Config) { c.Network.Closed = true }, true},
		"lan":                     {func(c *config.Config) { c.Profile = "lan" }, true},
		"public":                  {func(c *config.Config) { c.Profile = "public" }, true},
		"a peer that joins":       {func(c *config.Config) { c.Profile, c.Bootstrap = "lan", []string{"/ip4/192.0.2.1/tcp/1"} }, false},
	} {
		t.Run(name, func(t *testing.T) {
			c := config.Default()
			c.Data = t.TempDir()
			test.edit(&c)
			var log strings.Builder
			p := &parts{config: c, now: time.Now, log: slog.New(slog.NewTextHandler(&log, nil))}
			require.NoError(t, p.startKeys(t.Context()))
			path := filepath.Join(c.Data, keyFile)
			info, err := os.Stat(path)
			if !test.want {
				require.ErrorIs(t, err, fs.ErrNotExist)
				require.Empty(t, p.network.keys.Get())
				return
			}
			require.NoError(t, err)
			require.Equal(t, fs.FileMode(0o600), info.Mode().Perm())
			keys := p.network.keys.Get()
			require.Len(t, keys, 1)
			require.NotContains(t, log.String(), keys[0].Text())
			require.Equal(t, c.Network.Closed, len(p.network.private) == identity.KeySize)
			require.Contains(t, log.String(), "generated the key of the network")

			require.NoError(t, p.startKeys(t.Context()))
			require.True(t, p.network.keys.Get()[0].Equal(keys[0]), "the second start keeps it")
			require.NoError(t, os.Chmod(path, 0o640))
			err = p.startKeys(t.Context())
			require.ErrorIs(t, err, &fault.Error{Kind: fault.Invalid, Field: "network.key"})
			require.ErrorContains(t, err, "chmod 600")
			require.NoError(t, os.Chmod(path, 0o600))
			require.NoError(t, os.WriteFile(path, []byte("secret rubbish"), 0o600))
			err = p.startKeys(t.Context())
			require.ErrorIs(t, err, fault.Invalid)
			require.NotContains(t, err.Error(), "secret rubbish")
		})
	}
}

// TestJoin: a directory joins one network, repeatedly, and never loses a key.
func TestJoin(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	i := invite.Invitation{Name: "office", Profile: "lan", Key: newKey(t), Addresses: []string{"/ip4/192.0.2.1/tcp/1/p2p/12D3KooWLnf1GdmD17qaAn8sYACPYggSSps1gQD1aL3gpEUuqCVB"}}
	keys, err := NetworkKeys(dir)
	require.NoError(t, err)
	require.Empty(t, keys)
	for range 2 {
		require.NoError(t, Join(dir, i))
		keys, err := NetworkKeys(dir)
		require.NoError(t, err)
		require.Len(t, keys, 1)
		require.True(t, keys[0].Equal(i.Key))
		c, _, err := config.Load(config.Source{Flags: map[string]any{"data": dir}})
		require.NoError(t, err)
		require.Equal(t, i.Name, c.NetworkName())
		require.Equal(t, i.Addresses, c.Bootstrap)
		require.False(t, generatesKey(&c))
	}
	other := i
	other.Key = newKey(t)
	err = Join(dir, other)
	require.ErrorIs(t, err, fault.Conflict)
	require.ErrorContains(t, err, "holds another key than the invitation")
	keys, err = NetworkKeys(dir)
	require.NoError(t, err)
	require.True(t, keys[0].Equal(i.Key))

	rotated := filepath.Join(dir, keyFile)
	require.NoError(t, os.WriteFile(rotated, keyText(other.Key, i.Key), 0o600))
	require.NoError(t, Join(dir, other), "one of several keys")
	require.NoError(t, os.Chmod(rotated, 0o644))
	_, err = NetworkKeys(dir)
	require.ErrorIs(t, err, fault.Invalid)
	require.ErrorIs(t, Join(dir, i), fault.Invalid)
}

func TestClosedNetworkNeedsItsKey(t *testing.T) {
	c := config.Default()
	c.Data, c.Network.Closed, c.Bootstrap = t.TempDir(), true, []string{"/ip4/192.0.2.1/tcp/1"}
	p := &parts{config: c, now: time.Now, log: slog.New(slog.DiscardHandler)}
	err := p.startKeys(t.Context())
	require.ErrorIs(t, err, &fault.Error{Kind: fault.Invalid, Field: "network.closed"})
	require.ErrorContains(t, err, "--join")
}

// TestExpectedPeersBeginTogether: three peers with one key and one count are one group. The addresses by which they meet have no id.
func TestExpectedPeersBeginTogether(t *testing.T) {
	dir := t.TempDir()
	c := config.Default()
	c.Network.Name, c.Network.Closed, c.Coordination.Expect = "trio", true, 3
	c.Network.KeyFile = filepath.Join(dir, "key")
	require.NoError(t, os.WriteFile(c.Network.KeyFile, []byte(newKey(t).Text()+"\n"), 0o600))
	first := startWith(t, c, filepath.Join(dir, "a"), "/ip4/127.0.0.1/tcp/1") // nobody is there
	door, _, _ := strings.Cut(first.addr, "/p2p/")
	others := []*peerUnderTest{startWith(t, c, filepath.Join(dir, "b"), door), startWith(t, c, filepath.Join(dir, "c"), door)}
	groups := map[string]bool{}
	for _, p := range append(others, first) {
		until(t, "a group of three", func() bool {
			g, err := p.Coordination().Group(t.Context())
			whole := err == nil && g.Leader != "" && len(g.Voters) == 3
			if whole {
				groups[g.ID] = true
			}
			return whole
		})
	}
	require.Len(t, groups, 1)
}

// TestExpectationNeedsAKey: whoever can connect must not count.
func TestExpectationNeedsAKey(t *testing.T) {
	c := config.Default()
	c.Data, c.Profile, c.Coordination.Expect = t.TempDir(), "lan", 3
	p := &parts{config: c, log: slog.New(slog.DiscardHandler), now: time.Now}
	require.ErrorContains(t, p.startKeys(t.Context()), "coordination.expect: needs the key")
	c.Network.KeyFile = filepath.Join(c.Data, "key")
	p.config = c
	require.ErrorContains(t, p.startKeys(t.Context()), "network.key_file")
	require.NoError(t, os.WriteFile(c.Network.KeyFile, []byte("short"), 0o600))
	require.ErrorContains(t, p.startKeys(t.Context()), "network.key_file")
}
