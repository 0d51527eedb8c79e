package authority_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/coord/directory"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/internal/frontend/authority"
	"github.com/blackhole/blackhole/internal/platform/access"
	"github.com/blackhole/blackhole/pkg/fault"
	agentv1 "github.com/blackhole/blackhole/proto/blackhole/agent/v1"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// leaseOf collects the lease of a key in all ways to read it. The last way puts the key anew, without a lease.
func leaseOf(t testing.TB, ctx context.Context, g *authority.Gate, key string) map[string]coord.LeaseID {
	t.Helper()
	ids := map[string]coord.LeaseID{}
	page, _, err := ops.Of(g).Range(ctx, ops.Query{Span: coord.Exactly(key)}, ops.Linearizable)
	require.NoError(t, err)
	require.Len(t, page.Keys, 1)
	ids["range"] = page.Keys[0].Lease
	page, _, err = ops.Of(g).Range(ctx, ops.Query{Span: coord.Exactly(key), KeysOnly: true}, ops.Linearizable)
	require.NoError(t, err)
	ids["range of keys alone"] = page.Keys[0].Lease
	txn := func(s ops.Step) coord.LeaseID {
		r, _, err := ops.Of(g).Do(ctx, ops.Command{Op: &ops.Txn{Then: []ops.Step{s}}})
		require.NoError(t, err)
		step := r.Txn.Steps[0]
		if s.Txn != nil {
			step = step.Steps[0]
		}
		require.Len(t, step.Keys, 1)
		return step.Keys[0].Lease
	}
	read := ops.Step{Read: &ops.Read{Query: ops.Query{Span: coord.Exactly(key)}}}
	ids["transaction"] = txn(read)
	ids["transaction within one"] = txn(ops.Step{Txn: &ops.Txn{Then: []ops.Step{read}}})
	ids["version before, of a transaction"] = txn(ops.Step{Put: &ops.Put{Key: key}, Prev: true})
	watching, cancel := context.WithCancel(ctx)
	defer cancel()
	err = g.Watch(watching, &apiv1.WatchKeysRequest{Key: key, StartRevision: int64(page.Keys[0].ModRevision), PrevKv: true}, func(b *apiv1.WatchKeysResponse) error {
		for _, e := range b.GetEvents() {
			for way, kv := range map[string]*apiv1.KeyVal{"watch": e.GetKv(), "version before, of a watch": e.GetPrevKv()} {
				require.Empty(t, kv.GetLeaseOwner(), "is for peers")
				if kv.GetLease() != 0 || kv.GetLeaseTag() != "" {
					ids[way] = coord.LeaseOf(kv.GetLease())
				}
				require.True(t, kv.GetLease() == 0 || kv.GetLeaseTag() == "", "a tag stands in place of a hidden id")
			}
			cancel()
		}
		return nil
	})
	require.ErrorIs(t, err, fault.Canceled)
	require.Len(t, ids, 7)
	return ids
}

// TestOwnersReadTheirLeases: a caller with a name reads the id of its own lease back from its key, in all ways, and others read
// that it is hidden. So do all callers without a name, whose ids are credentials.
func TestOwnersReadTheirLeases(t *testing.T) {
	for name, row := range map[string]struct {
		ctx    context.Context
		learns bool
	}{
		"the owner":                          {service(t, "web"), true},
		"an admin":                           {as(t, access.RoleAdmin, "admin"), true},
		"another caller of the same service": {as(t, access.RoleService, "deputy", "web"), false},
		"without a name":                     {t.Context(), false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			_, _, err := ops.Of(w).Do(service(t, "web"), ops.Command{Op: &ops.Txn{Then: []ops.Step{{Put: &ops.Put{Key: "web/a", Lease: w.web}}}}})
			require.NoError(t, err)
			g, want := w.Gate, coord.HiddenLease
			if row.learns {
				want = w.web
			}
			if access.From(row.ctx).Name == "" {
				g = authority.New(authority.Config{Service: w.solo, Peer: "peer-1", Open: true})
			}
			for way, id := range leaseOf(t, row.ctx, g, "web/a") {
				require.Equal(t, want, id, way)
			}
		})
	}
	w := newWorld(t)
	open := authority.New(authority.Config{Service: w.solo, Peer: "peer-1", Open: true})
	_, _, err := ops.Of(open).Do(t.Context(), ops.Command{Op: &ops.Txn{Then: []ops.Step{{Put: &ops.Put{Key: "any", Lease: w.anybody}}}}})
	require.NoError(t, err)
	for way, id := range leaseOf(t, t.Context(), open, "any") {
		require.Equal(t, coord.HiddenLease, id, way)
	}
}

// TestHistoryKeepsItsOwner: an old version tells the owner of its lease, who is not the owner of a later lease with that id.
func TestHistoryKeepsItsOwner(t *testing.T) {
	w := newWorld(t)
	grant := func(name string) {
		_, _, err := ops.Of(w).Do(service(t, name), ops.Command{Op: &ops.LeaseGrant{ID: 77, TTL: 60_000}})
		require.NoError(t, err)
	}
	grant("web")
	put, _, err := ops.Of(w).Do(service(t, "web"), ops.Command{Op: &ops.Txn{Then: []ops.Step{{Put: &ops.Put{Key: "web/a", Lease: 77}}}}})
	require.NoError(t, err)
	_, _, err = ops.Of(w).Do(service(t, "web"), ops.Command{Op: &ops.LeaseRevoke{ID: 77}})
	require.NoError(t, err)
	grant("pay")
	for name, want := range map[string]coord.LeaseID{"web": 77, "pay": coord.HiddenLease} {
		page, _, err := ops.Of(w).Range(service(t, name), ops.Query{Span: coord.Exactly("web/a"), At: put.Revision}, ops.Linearizable)
		require.NoError(t, err)
		require.Equal(t, want, page.Keys[0].Lease, name)
	}
}

// TestLeasesOfAFront: the ids of a front's leases are public within the front, at every peer: its callers without a name see,
// renew, use and revoke them. Nobody else does, and other lists show them hidden.
func TestLeasesOfAFront(t *testing.T) {
	w := newWorld(t)
	front := func(name, peer string) *authority.Gate {
		return authority.New(authority.Config{Service: w.solo, Peer: peer, Front: name, Open: true})
	}
	here, there, other := front("etcd", "peer-1"), front("etcd", "peer-2"), front("consul", "peer-1")
	plain := authority.New(authority.Config{Service: w.solo, Peer: "peer-1", Open: true}) // as HTTP, gRPC and the command line
	do := func(g *authority.Gate, op ops.Op) (ops.Result, error) {
		r, _, err := ops.Of(g).Do(t.Context(), ops.Command{Op: op})
		return r, err
	}
	r, err := do(here, &ops.LeaseGrant{ID: 7, TTL: 60_000}) // clients of a front choose small ids
	require.NoError(t, err)
	require.Equal(t, coord.LeaseID(7), r.Lease)
	put := &ops.Txn{Then: []ops.Step{{Put: &ops.Put{Key: "etcd/a", Lease: 7}}}}
	for _, g := range []*authority.Gate{here, there} {
		_, err = do(g, put)
		require.NoError(t, err)
		for way, id := range leaseOf(t, t.Context(), g, "etcd/a") {
			require.Equal(t, coord.LeaseID(7), id, way)
		}
		_, err = do(g, put)
		require.NoError(t, err)
		states, _, err := ops.Of(g).Leases(t.Context(), ops.LeaseQuery{})
		require.NoError(t, err)
		require.Len(t, states, 1, "a front lists its own, and no lease of others")
		require.Equal(t, coord.LeaseID(7), states[0].ID)
		_, _, err = ops.Of(g).Leases(t.Context(), ops.LeaseQuery{ID: 7})
		require.NoError(t, err)
		renewals, _, err := ops.Of(g).KeepAlive(t.Context(), "", []coord.LeaseID{7, w.web, w.anybody})
		require.NoError(t, err)
		require.Equal(t, []bool{true, false, false}, []bool{renewals[0].TTL > 0, renewals[1].TTL > 0, renewals[2].TTL > 0})
	}
	for name, g := range map[string]*authority.Gate{"plain": plain, "another front": other, "named": w.Gate} {
		ctx, listed := t.Context(), 0
		if name == "named" {
			ctx = service(t, "web")
		}
		page, _, err := ops.Of(g).Range(ctx, ops.Query{Span: coord.Exactly("etcd/a")}, ops.Linearizable)
		require.NoError(t, err)
		require.Equal(t, coord.HiddenLease, page.Keys[0].Lease, name)
		states, _, err := ops.Of(g).Leases(ctx, ops.LeaseQuery{})
		require.NoError(t, err)
		for _, s := range states {
			require.NotEqual(t, coord.LeaseID(7), s.ID, name)
			if s.Owner == "&etcd~peer-1" {
				listed++
			}
		}
		require.Equal(t, name == "plain", listed == 1, name)
		_, _, err = ops.Of(g).Leases(ctx, ops.LeaseQuery{ID: 7})
		require.ErrorIs(t, err, fault.NotFound, name)
		renewals, _, err := ops.Of(g).KeepAlive(ctx, "", []coord.LeaseID{7})
		require.NoError(t, err)
		require.Zero(t, renewals[0].TTL, name)
		for _, op := range []ops.Op{&ops.LeaseRevoke{ID: 7}, &ops.Lock{Name: "web", Lease: 7}, &ops.Txn{Then: []ops.Step{{Put: &ops.Put{Key: "web", Lease: 7}}}}} {
			_, _, err := ops.Of(g).Do(ctx, ops.Command{Op: op})
			require.ErrorIs(t, err, fault.Forbidden, name)
		}
	}
	admin := as(t, access.RoleAdmin, "admin")
	named := authority.New(authority.Config{Service: w.solo, Peer: "peer-1", Front: "etcd"})
	states, _, err := ops.Of(named).Leases(admin, ops.LeaseQuery{})
	require.NoError(t, err)
	require.Empty(t, states, "an admin in a front has no leases of others")
	_, _, err = ops.Of(named).Do(admin, ops.Command{Op: &ops.LeaseRevoke{ID: w.web}})
	require.ErrorIs(t, err, fault.Forbidden)
	_, err = do(there, &ops.LeaseRevoke{ID: 7})
	require.NoError(t, err)
}

// TestChosenIDs: the id of a lease without a name is its credential, so a caller without a name chooses none that is easy to
// guess. A caller with a name chooses any: its name protects the lease.
func TestChosenIDs(t *testing.T) {
	w := newWorld(t)
	open := authority.New(authority.Config{Service: w.solo, Peer: "peer-1", Open: true})
	grant := func(g *authority.Gate, ctx context.Context, id coord.LeaseID) error {
		_, _, err := ops.Of(g).Do(ctx, ops.Command{Op: &ops.LeaseGrant{ID: id, TTL: 60_000}})
		return err
	}
	require.NoError(t, grant(w.Gate, service(t, "web"), 71))
	for _, id := range []coord.LeaseID{1, 71, 72, 1<<32 - 1} { // in use or not
		err := grant(open, t.Context(), id)
		require.ErrorIs(t, err, fault.Invalid)
		require.Equal(t, "id", fault.FieldOf(err))
		require.Contains(t, err.Error(), "leave it out")
	}
	require.NoError(t, grant(open, t.Context(), 1<<32))
	require.NoError(t, grant(open, t.Context(), 0))
	require.NoError(t, grant(w.Gate, service(t, "web"), 72))
	require.ErrorIs(t, grant(w.Gate, service(t, "pay"), 72), fault.Exists)
}

// TestDirectoryIsReadWithoutLeases: an entry of the directory, read as a key, tells neither the lease of the instance nor the
// name of the caller who registered it.
func TestDirectoryIsReadWithoutLeases(t *testing.T) {
	w := newWorld(t)
	value, err := proto.Marshal(&agentv1.Instance{Id: "web-1", ServiceName: "web", Host: "10.0.0.1", LeaseId: "lease-1", Principal: "@web"})
	require.NoError(t, err)
	key := directory.Key("default", "web", "web-1")
	_, _, err = ops.Of(w.solo).Do(t.Context(), ops.Command{Owner: "peer-1", Op: &ops.RegisterBatch{Lease: w.peer, Generation: 1, Puts: []directory.Entry{
		{Key: key, Value: value, Adopt: true, Principal: "@web"}, {Key: directory.Key("default", "web", "later"), Value: []byte{0xff}, Adopt: true},
	}}})
	require.NoError(t, err)
	for _, ctx := range []context.Context{t.Context(), service(t, "web"), as(t, access.RoleAdmin, "admin")} {
		page, _, err := ops.Of(w).Range(ctx, ops.Query{Span: coord.Under(directory.Prefix)}, ops.Linearizable)
		require.NoError(t, err)
		require.Len(t, page.Keys, 2)
		require.Empty(t, page.Keys[0].Value, "which this version cannot read")
		i := new(agentv1.Instance)
		require.NoError(t, proto.Unmarshal(page.Keys[1].Value, i))
		require.Equal(t, "10.0.0.1", i.GetHost())
		require.Empty(t, i.GetLeaseId()+i.GetPrincipal())
	}
	page, _, err := ops.Of(w.solo).Range(t.Context(), ops.Query{Span: coord.Exactly(key)}, ops.Linearizable)
	require.NoError(t, err)
	require.Equal(t, value, page.Keys[0].Value, "the plane's own version stays")
}
