package authority_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/coord/directory"
	"github.com/blackhole/blackhole/internal/contract/coord/requirements"
	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/internal/frontend/authority"
	"github.com/blackhole/blackhole/internal/platform/access"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// world is a group with a lease and a lock of web, one of pay, one of a caller without a name, and a peer's
// directory entry.
type world struct {
	*authority.Gate
	solo              *coordtest.Solo
	log               *bytes.Buffer
	web, pay, anybody coord.LeaseID
	own               coord.LeaseID // of the caller
	peer              coord.LeaseID
	webToken          coord.Token
}

func as(t testing.TB, role access.Role, name string, services ...string) context.Context {
	return access.With(t.Context(), access.Principal{Name: name, Role: role, Services: services})
}

func service(t testing.TB, name string) context.Context {
	return as(t, access.RoleService, name, name, name+"-*")
}

func newWorld(t testing.TB) *world {
	w := &world{solo: coordtest.New(coordtest.Config{}), log: &bytes.Buffer{}}
	w.Gate = authority.New(authority.Config{
		Service: w.solo, Peer: "peer-1", Now: func() time.Time { return time.Unix(0, 0) },
		Logger: slog.New(slog.NewTextHandler(w.log, nil)),
	})
	grant := func(ctx context.Context, application string) coord.LeaseID {
		r, _, err := ops.Of(w).Do(ctx, ops.Command{Op: &ops.LeaseGrant{TTL: 60_000, Application: application}})
		require.NoError(t, err)
		return r.Lease
	}
	w.web, w.pay, w.anybody = grant(service(t, "web"), "nginx"), grant(service(t, "pay"), ""), grant(t.Context(), "")
	r, _, err := ops.Of(w.solo).Do(t.Context(), ops.Command{Owner: "peer-1", Op: &ops.LeaseGrant{TTL: 15_000}})
	require.NoError(t, err)
	w.peer = r.Lease
	r, _, err = ops.Of(w).Do(service(t, "web"), ops.Command{Op: &ops.Lock{Name: "web/leader", Lease: w.web}})
	require.NoError(t, err)
	w.webToken = r.Lock.Token
	return w
}

// TestTable is the table principal x operation x object. Each cell is a fresh group.
func TestTable(t *testing.T) {
	write := func(c ...ops.Step) func(*world) ops.Op {
		return func(*world) ops.Op { return &ops.Txn{Then: c} }
	}
	put := func(key string) func(*world) ops.Op { return write(ops.Step{Put: &ops.Put{Key: key}}) }
	del := func(s coord.Span) func(*world) ops.Op { return write(ops.Step{Delete: &s}) }
	txn := func(o ops.Txn) func(*world) ops.Op { return func(*world) ops.Op { return &o } }
	read := func(s coord.Span) []ops.Step { return []ops.Step{{Read: &ops.Read{Query: ops.Query{Span: s}}}} }
	mine := []ops.Step{{Put: &ops.Put{Key: "web/x"}}}
	within := func(o ops.Txn) func(*world) ops.Op { return txn(ops.Txn{Then: mine, Else: []ops.Step{{Txn: &o}}}) }
	principals := []string{"web", "pay", "admin", "root-without-services"}
	for _, row := range []struct {
		name string
		op   func(*world) ops.Op
		may  string // of principals: w, p, a, r
	}{
		{"lock of web", func(w *world) ops.Op { return &ops.Lock{Name: "web", Lease: w.own} }, "wa"},
		{"lock below web", func(w *world) ops.Op { return &ops.Lock{Name: "web/x", Lease: w.own} }, "wa"},
		{"lock of web-1", func(w *world) ops.Op { return &ops.Lock{Name: "web-1", Lease: w.own} }, "wa"},
		{"lock of webs", func(w *world) ops.Op { return &ops.Lock{Name: "webs", Lease: w.own} }, "a"},
		{"lock of pay under the lease of web", func(w *world) ops.Op { return &ops.Lock{Name: "pay", Lease: w.web} }, ""},
		{"unlock of web's lock", func(w *world) ops.Op {
			return &ops.Unlock{Name: "web/leader", Lease: w.web, Token: w.webToken}
		}, "w"},
		{"put of web's key", put("web/config"), "wa"},
		{"put of pay's key", put("pay/config"), "pa"},
		{"put of no service's key", put("config"), "a"},
		{"put of two keys", write(ops.Step{Put: &ops.Put{Key: "web"}}, ops.Step{Put: &ops.Put{Key: "pay"}}), "a"},
		{"delete of web's keys", del(coord.Under("web/config")), "wa"},
		{"delete of keys like web's", del(coord.Under("webs")), "a"},
		{"delete from web's keys on", del(coord.Span{From: "web/config"}), "a"},
		{"comparison of pay's key", txn(ops.Txn{If: []ops.Compare{ops.IfRevision("pay", 0)}, Then: mine}), "a"},
		{"comparison of a range beyond web's", txn(ops.Txn{If: []ops.Compare{{Span: coord.Span{From: "web"}}}, Then: mine}), "a"},
		{"comparison with web's lock", txn(ops.Txn{If: []ops.Compare{ops.IfHolds("web/leader", 1)}, Then: mine}), "wa"},
		{"read of web's keys", txn(ops.Txn{Then: read(coord.Under("web/"))}), "wa"},
		{"read of pay's keys", txn(ops.Txn{Then: read(coord.Under("pay/"))}), "pa"},
		{"read of all keys", txn(ops.Txn{Then: read(coord.Span{})}), "a"},
		{"read of pay's keys in the other branch", txn(ops.Txn{Then: mine, Else: read(coord.Under("pay/"))}), "a"},
		{"put of pay's key in the other branch", txn(ops.Txn{Then: mine, Else: []ops.Step{{Put: &ops.Put{Key: "pay"}}}}), "a"},
		{"put of web's key in the other branch", txn(ops.Txn{Then: mine, Else: mine}), "wa"},
		{"put of web's key within", within(ops.Txn{If: []ops.Compare{ops.IfRevision("web", 0)}, Then: mine, Else: read(coord.Under("web/"))}), "wa"},
		{"comparison of pay's key within", within(ops.Txn{If: []ops.Compare{ops.IfRevision("pay", 0)}, Then: mine}), "a"},
		{"comparison with pay's lock within", within(ops.Txn{If: []ops.Compare{ops.IfHolds("pay", 1)}, Then: mine}), "a"},
		{"put of pay's key within", within(ops.Txn{Then: []ops.Step{{Put: &ops.Put{Key: "pay"}}}}), "a"},
		{"read of pay's keys within, in the other branch", within(ops.Txn{Then: mine, Else: read(coord.Under("pay/"))}), "a"},
		{"deletion of pay's keys deep within", within(ops.Txn{Else: []ops.Step{{Txn: &ops.Txn{Else: del(coord.Under("pay/"))(nil).(*ops.Txn).Then}}}}), "a"},
		{"put of the peer's entry within", within(ops.Txn{Then: []ops.Step{{Put: &ops.Put{Key: "directory/default/web/web-1"}}}}), ""},
		{"put of the peer's entry", put("directory/default/web/web-1"), ""},
		{"takeover of the peer's entry", func(w *world) ops.Op { return takeover(w.own) }, ""},
		{"takeover of the peer's entry under its lease", func(w *world) ops.Op { return takeover(w.peer) }, ""},
		{"requirement of web", func(*world) ops.Op {
			return &ops.SetRequirement{Requirement: requirements.Requirement{Name: "web", Min: 1}}
		}, "wa"},
		{"revocation of web's lease", func(w *world) ops.Op { return &ops.LeaseRevoke{ID: w.web} }, "wa"},
		{"revocation of a lease without a name", func(w *world) ops.Op { return &ops.LeaseRevoke{ID: w.anybody} }, "a"},
		{"revocation of the peer's lease", func(w *world) ops.Op { return &ops.LeaseRevoke{ID: w.peer} }, ""},
		{"put under web's lease", func(w *world) ops.Op { return &ops.Txn{Then: []ops.Step{{Put: &ops.Put{Key: "web/x", Lease: w.web}}}} }, "w"},
		{"put under a lease without a name", func(w *world) ops.Op {
			return &ops.Txn{Then: []ops.Step{{Put: &ops.Put{Key: "web/x", Lease: w.anybody}}}}
		}, ""},
		{"put under the peer's lease", func(w *world) ops.Op { return &ops.Txn{Then: []ops.Step{{Put: &ops.Put{Key: "web/x", Lease: w.peer}}}} }, ""},
		{"lock under a lease without a name", func(w *world) ops.Op { return &ops.Lock{Name: "web", Lease: w.anybody} }, ""},
		{"lock under web's own lease", func(w *world) ops.Op { return &ops.Lock{Name: "web", Lease: w.web} }, "w"},
		{"lock under the peer's lease", func(w *world) ops.Op { return &ops.Lock{Name: "web", Lease: w.peer} }, ""},
	} {
		for _, name := range principals {
			t.Run(row.name+" by "+name, func(t *testing.T) {
				w := newWorld(t)
				ctx := service(t, name)
				switch name {
				case "admin":
					ctx = as(t, access.RoleAdmin, name)
				case "root-without-services":
					ctx = as(t, access.RoleService, name)
				}
				w.own = w.grant(t, ctx)
				_, _, err := ops.Of(w).Do(ctx, ops.Command{Op: row.op(w)})
				if strings.Contains(row.may, name[:1]) {
					require.NoError(t, err)
				} else {
					require.Error(t, err)
					require.Contains(t, []fault.Kind{fault.Forbidden, fault.Conflict}, fault.KindOf(err), "%v", err)
				}
			})
		}
	}
}

// takeover is a registration of the instance web-1, as peers publish it.
func takeover(lease coord.LeaseID) ops.Op {
	return &ops.RegisterBatch{Lease: lease, Generation: 1, Puts: []directory.Entry{
		{Key: directory.Key("default", "web", "web-1"), Value: []byte("{}"), Adopt: true, Principal: "@web"},
	}}
}

// grant grants a lease of a caller.
func (w *world) grant(t testing.TB, ctx context.Context) coord.LeaseID {
	r, _, err := ops.Of(w).Do(ctx, ops.Command{Op: &ops.LeaseGrant{TTL: 60_000}})
	require.NoError(t, err)
	return r.Lease
}

func TestListsShowOnesOwn(t *testing.T) {
	w := newWorld(t)
	for _, c := range []struct {
		ctx  context.Context
		want []coord.LeaseID
	}{
		{service(t, "web"), []coord.LeaseID{w.web}},
		{service(t, "pay"), []coord.LeaseID{w.pay}},
		{t.Context(), []coord.LeaseID{coord.HiddenLease}},
		{as(t, access.RoleReadOnly, "eve"), nil},
		{as(t, access.RoleAdmin, "admin"), []coord.LeaseID{w.web, w.pay, w.anybody}},
	} {
		states, _, err := ops.Of(w).Leases(c.ctx, ops.LeaseQuery{})
		require.NoError(t, err)
		var ids []coord.LeaseID
		for _, s := range states {
			ids = append(ids, s.ID)
		}
		require.Equal(t, c.want, ids)
	}
	_, _, err := ops.Of(w).Leases(service(t, "pay"), ops.LeaseQuery{ID: w.web})
	require.ErrorIs(t, err, fault.NotFound)
	state, _, err := ops.Of(w).Leases(service(t, "web"), ops.LeaseQuery{ID: w.web})
	require.NoError(t, err)
	require.Equal(t, []any{"@web", "nginx"}, []any{state[0].Owner, state[0].Application})

	renewals, _, err := ops.Of(w).KeepAlive(service(t, "pay"), "@web", []coord.LeaseID{w.web, w.pay, w.peer, w.anybody})
	require.NoError(t, err)
	require.Equal(t, []bool{false, true, false, false}, []bool{renewals[0].TTL > 0, renewals[1].TTL > 0, renewals[2].TTL > 0, renewals[3].TTL > 0})
}

// Locks, keys and events tell no id of another's lease.
func TestReadsHideLeases(t *testing.T) {
	w := newWorld(t)
	for ctx, want := range map[context.Context]coord.LeaseID{
		service(t, "web"): w.web, service(t, "pay"): coord.HiddenLease, t.Context(): coord.HiddenLease, as(t, access.RoleAdmin, "admin"): w.web,
	} {
		locks, _, err := ops.Of(w).Locks(ctx, ops.LockQuery{Name: "web/leader"})
		require.NoError(t, err)
		require.Equal(t, want, locks[0].Holding[0].Lease)
		require.Equal(t, "nginx", locks[0].Holding[0].Application)
	}
	page, _, err := ops.Of(w).Range(t.Context(), ops.Query{}, ops.Linearizable)
	require.NoError(t, err)
	require.Equal(t, coord.HiddenLease, page.Keys[0].Lease)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	err = ops.Of(w).Events(ctx, coord.Watch{From: 1}, func(b coord.Batch, _ coord.Header) error {
		for _, e := range b.Events {
			require.Equal(t, coord.HiddenLease, e.KV.Lease)
			cancel()
		}
		return nil
	})
	require.ErrorIs(t, err, fault.Canceled)
	reads := ops.Command{Op: &ops.Txn{Then: []ops.Step{{Read: &ops.Read{Query: ops.Query{Span: coord.Under("web/")}}}}}}
	for ctx, want := range map[context.Context]coord.LeaseID{service(t, "web"): w.web, as(t, access.RoleAdmin, "admin"): w.web} {
		r, _, err := ops.Of(w).Do(ctx, reads)
		require.NoError(t, err)
		require.Equal(t, want, r.Txn.Steps[0].Keys[0].Lease)
	}
	page, _, err = ops.Of(w.solo).Range(t.Context(), ops.Query{}, ops.Linearizable)
	require.NoError(t, err)
	require.Equal(t, w.web, page.Keys[0].Lease, "the plane's own version stays")
}

// A transaction that is deeper than the group allows is not looked at to its end: it needs all keys.
func TestDepth(t *testing.T) {
	deep := &apiv1.TxnBranch{}
	for range 5000 {
		deep = &apiv1.TxnBranch{Then: []*apiv1.TxnStep{{Step: &apiv1.TxnStep_Txn{Txn: deep}}}}
	}
	w := newWorld(t)
	cmd := coord.CommandOf("", &apiv1.TxnRequest{Then: deep.GetThen()})
	_, err := w.Execute(service(t, "web"), cmd)
	require.ErrorIs(t, err, fault.Forbidden)
	require.Less(t, len(fault.FieldOf(err)), 300)
	_, err = w.Execute(as(t, access.RoleAdmin, "admin"), cmd)
	require.ErrorIs(t, err, fault.LimitReached)
}

// Without authentication nobody has a name: the id of a lease is the credential, at every peer.
func TestOpen(t *testing.T) {
	w := newWorld(t)
	open := authority.New(authority.Config{Service: w.solo, Peer: "peer-2", Open: true})
	_, _, err := ops.Of(open).Do(t.Context(), ops.Command{Op: &ops.Lock{Name: "any", Lease: w.anybody}})
	require.NoError(t, err)
	_, _, err = ops.Of(open).Do(t.Context(), ops.Command{Op: &ops.Lock{Name: "any", Lease: w.web}})
	require.ErrorIs(t, err, fault.Forbidden)
}

// Whatever takes something from somebody leaves one line.
func TestAudit(t *testing.T) {
	w := newWorld(t)
	for range 20 {
		_, _, err := ops.Of(w).Do(service(t, "pay"), ops.Command{Op: &ops.Lock{Name: "web", Lease: w.pay}})
		require.ErrorIs(t, err, fault.Forbidden)
		require.Equal(t, "name", fault.FieldOf(err))
	}
	require.Contains(t, w.log.String(), `audit=role_denied caller=pay role=service object="lock \"web\""`)
	require.LessOrEqual(t, strings.Count(w.log.String(), "role_denied"), 6)
	w.log.Reset()
	_, _, err := ops.Of(w).Do(as(t, access.RoleAdmin, "admin"), ops.Command{Op: &ops.LeaseRevoke{ID: w.web}})
	require.NoError(t, err)
	require.Contains(t, w.log.String(), "audit=lease_revoked caller=admin owner=@web application=nginx lease="+w.web.Tag())
	w.log.Reset()
	_, _, err = ops.Of(w).Do(service(t, "pay"), ops.Command{Op: &ops.LeaseRevoke{ID: w.pay}})
	require.NoError(t, err)
	require.Empty(t, w.log.String(), "one's own")
	var taken bytes.Buffer
	require.NoError(t, w.Admin(w.solo).Backup(as(t, access.RoleAdmin, "admin"), &taken))
	require.Contains(t, w.log.String(), fmt.Sprintf("audit=group_backup caller=admin bytes=%d error=<nil>", taken.Len()))
}

// TestReservedNames refuses locks whose keys would stand among those of a front, whoever asks.
func TestReservedNames(t *testing.T) {
	w := newWorld(t)
	w.Reserved = []string{"consul/", "etcd/"}
	ctx := as(t, access.RoleAdmin, "admin")
	w.own = w.grant(t, ctx)
	for name, ok := range map[string]bool{"etcd": false, "etcd/x": false, "etcd2": true, "x/etcd/": true} {
		_, _, err := ops.Of(w).Do(ctx, ops.Command{Op: &ops.Lock{Name: name, Lease: w.own}})
		if ok {
			require.NoError(t, err, name)
		} else {
			require.ErrorIs(t, err, fault.Forbidden, name)
		}
	}
	_, _, err := ops.Of(w).Do(ctx, ops.Command{Op: &ops.Txn{Then: []ops.Step{{Put: &ops.Put{Key: "etcd/x"}}}}})
	require.NoError(t, err, "keys may move there")
}

// TestHiddenHistoryIsForFronts: a caller of the own API, even an admin, hides nothing from others.
func TestHiddenHistoryIsForFronts(t *testing.T) {
	w := newWorld(t)
	hide := func() *coordv1.Command {
		step := &apiv1.TxnHide{Key: []byte("etcd/"), RangeEnd: []byte("etcd0"), Revision: 1}
		branch := &apiv1.TxnBranch{Then: []*apiv1.TxnStep{{Step: &apiv1.TxnStep_Hide{Hide: step}}}}
		return coord.CommandOf("", &apiv1.TxnRequest{Then: []*apiv1.TxnStep{{Step: &apiv1.TxnStep_Txn{Txn: branch}}}})
	}
	_, err := w.Execute(as(t, access.RoleAdmin, "admin"), hide())
	require.ErrorIs(t, err, fault.Forbidden)
	require.Equal(t, "then[0].txn.then[0].hide", fault.FieldOf(err))
	w.Front = "etcd"
	_, err = w.Execute(as(t, access.RoleAdmin, "admin"), hide())
	require.NoError(t, err)
	_, err = w.Execute(as(t, access.RoleService, "web"), hide())
	require.ErrorIs(t, err, fault.Forbidden, "it needs all keys of the front")
}
