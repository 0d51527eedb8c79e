package etcdapi_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/blackhole/blackhole/internal/contract/coord"
	pb "github.com/blackhole/blackhole/internal/frontend/etcdapi/etcdserverpb"
	"github.com/blackhole/blackhole/internal/frontend/etcdapi/v3electionpb"
	"github.com/blackhole/blackhole/internal/frontend/etcdapi/v3lockpb"
	"github.com/blackhole/blackhole/internal/platform/access"
	"github.com/blackhole/blackhole/internal/platform/secret"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// TestRefusedChangesLeaveNothing: each call that changes something, by a caller without the right to it, leaves keys
// and leases as they were. The owner keeps its lease alive for two lifetimes afterwards, and nobody else does.
func TestRefusedChangesLeaveNothing(t *testing.T) {
	guard, err := access.New(access.Config{Enabled: true, Method: access.MethodToken, Anonymous: "none", Tokens: []access.Token{
		{Token: secret.New(webToken), Name: "web", Role: access.RoleService, Services: []string{"etcd/web"}},
		{Token: secret.New(compactToken), Name: "pay", Role: access.RoleService, Services: []string{"etcd/pay"}},
	}}, access.Options{})
	require.NoError(t, err)
	f := start(t, guard)
	as := func(token string) context.Context {
		return metadata.AppendToOutgoingContext(t.Context(), rpctypes.TokenFieldNameGRPC, token)
	}
	web, pay := as(webToken), as(compactToken)
	grant := func() int64 {
		l, err := f.LeaseGrant(pay, &pb.LeaseGrantRequest{TTL: 60})
		require.NoError(t, err)
		return l.GetID()
	}
	kept, ends := grant(), grant()
	_, err = f.Put(pay, &pb.PutRequest{Key: []byte("pay/k"), Value: []byte("v"), Lease: kept})
	require.NoError(t, err)
	leads, err := f.Campaign(pay, &v3electionpb.CampaignRequest{Name: []byte("pay/chief"), Lease: kept, Value: []byte("1")})
	require.NoError(t, err)
	state := func() string {
		a, err := f.solo.Read(t.Context(), coord.QuestionOf("", &apiv1.ListLeasesRequest{}))
		require.NoError(t, err)
		r, err := coord.Range(t.Context(), f.solo, &apiv1.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}})
		require.NoError(t, err)
		text := ""
		for _, kv := range r.GetKvs() {
			text += fmt.Sprintf(" %s=%s at %d", kv.GetKey(), kv.GetValue(), kv.GetModRevision())
		}
		for _, l := range a.GetListLeases().GetLeases() {
			text += fmt.Sprint(" ", l.GetId(), l.GetClientId(), l.GetGrantedTtlMs())
		}
		return text
	}
	before := state()
	payPut := &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte("pay/k")}}}
	for name, call := range map[string]func() error{
		"put": func() error { _, err := f.Put(web, payPut.GetRequestPut()); return err },
		"put under a foreign lease": func() error {
			_, err := f.Put(web, &pb.PutRequest{Key: []byte("web/k"), Lease: kept})
			return err
		},
		"delete": func() error {
			_, err := f.DeleteRange(web, &pb.DeleteRangeRequest{Key: []byte("pay/k")})
			return err
		},
		"txn": func() error {
			_, err := f.Txn(web, &pb.TxnRequest{Failure: []*pb.RequestOp{payPut}})
			return err
		},
		"compact": func() error { _, err := f.Compact(web, &pb.CompactionRequest{Revision: 2}); return err },
		"revoke":  func() error { _, err := f.LeaseRevoke(web, &pb.LeaseRevokeRequest{ID: kept}); return err },
		"keepalive": func() error {
			s, err := f.LeaseKeepAlive(web)
			require.NoError(t, err)
			require.NoError(t, s.Send(&pb.LeaseKeepAliveRequest{ID: ends}))
			r, err := s.Recv()
			require.NoError(t, err)
			require.Zero(t, r.GetTTL())
			return status.Error(codes.NotFound, "it has ended, for this caller")
		},
		"lock": func() error { _, err := f.Lock(web, &v3lockpb.LockRequest{Name: []byte("pay/l")}); return err },
		"lock under a foreign lease": func() error {
			_, err := f.Lock(web, &v3lockpb.LockRequest{Name: []byte("web/l"), Lease: kept})
			return err
		},
		"unlock": func() error { _, err := f.Unlock(web, &v3lockpb.UnlockRequest{Key: []byte("pay/k")}); return err },
		"campaign": func() error {
			_, err := f.Campaign(web, &v3electionpb.CampaignRequest{Name: []byte("pay/chief"), Value: []byte("2")})
			return err
		},
		"proclaim": func() error {
			_, err := f.Proclaim(web, &v3electionpb.ProclaimRequest{Leader: leads.GetLeader(), Value: []byte("2")})
			return err
		},
		"resign": func() error {
			_, err := f.Resign(web, &v3electionpb.ResignRequest{Leader: leads.GetLeader()})
			return err
		},
	} {
		require.Error(t, call(), name)
		require.Equal(t, before, state(), name)
	}
	alive, err := f.LeaseKeepAlive(pay)
	require.NoError(t, err)
	for range 4 {
		f.solo.Advance(30 * time.Second)
		require.NoError(t, alive.Send(&pb.LeaseKeepAliveRequest{ID: kept}))
		r, err := alive.Recv()
		require.NoError(t, err)
		require.EqualValues(t, 60, r.GetTTL())
	}
	left, err := f.LeaseLeases(pay, &pb.LeaseLeasesRequest{})
	require.NoError(t, err)
	require.Len(t, left.GetLeases(), 1)
	got, err := f.Range(pay, &pb.RangeRequest{Key: []byte("pay/k")})
	require.NoError(t, err)
	require.Equal(t, "v", string(got.GetKvs()[0].GetValue()))
}

// TestHealthService: what needs no role answers without a credential, and with an ended one.
func TestHealthService(t *testing.T) {
	guard, err := access.New(access.Config{
		Enabled: true, Method: access.MethodToken, Token: secret.New(adminToken), Anonymous: "none",
	}, access.Options{})
	require.NoError(t, err)
	f := start(t, guard)
	conn, err := grpc.NewClient(f.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	ended := metadata.AppendToOutgoingContext(t.Context(), rpctypes.TokenFieldNameGRPC, "ended")
	for _, ctx := range []context.Context{t.Context(), ended} {
		r, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
		require.NoError(t, err)
		require.Equal(t, healthpb.HealthCheckResponse_SERVING, r.GetStatus())
	}
	_, err = f.AuthStatus(ended, &pb.AuthStatusRequest{})
	require.NoError(t, err)
	_, err = f.Authenticate(ended, &pb.AuthenticateRequest{Name: "a", Password: adminToken})
	require.NoError(t, err)
	_, err = f.Range(ended, all())
	refusedAs(t, rpctypes.ErrGRPCInvalidAuthToken, err)
}
