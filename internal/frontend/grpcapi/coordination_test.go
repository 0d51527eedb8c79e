package grpcapi_test

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/internal/frontend/grpcapi"
	"github.com/blackhole/blackhole/pkg/fault"
	agentv1 "github.com/blackhole/blackhole/proto/blackhole/agent/v1"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// raw is the wire without the client.
type raw struct {
	api.LockServiceClient
	api.CoordinationServiceClient
	coordv1.CallServiceClient
	served
	solo *coordtest.Solo
}

func newRaw(t testing.TB, owner string, edits ...func(*grpcapi.Config)) raw {
	t.Helper()
	solo := coordtest.New(coordtest.Config{})
	c := grpcapi.Config{Coordination: plane(solo)}
	for _, edit := range edits {
		edit(&c)
	}
	s := serve(t, c)
	conn := s.named(t, owner)
	return raw{api.NewLockServiceClient(conn), api.NewCoordinationServiceClient(conn), coordv1.NewCallServiceClient(conn), s, solo}
}

func (s served) named(t testing.TB, owner string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///peer", s.dialer(), grpc.WithPerRPCCredentials(named(owner)),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() }) // the test may have closed it
	return conn
}

func (r raw) lease(t testing.TB) int64 {
	t.Helper()
	resp, err := r.LeaseGrant(t.Context(), &api.LeaseGrantRequest{Ttl: 30})
	require.NoError(t, err)
	require.Equal(t, []int64{30, 30_000}, []int64{resp.GetTtl(), resp.GetTtlMs()})
	return resp.GetId()
}

// refused holds a status to a code and to the detail beside it.
func refused(t testing.TB, err error, code codes.Code, field string) {
	t.Helper()
	st := status.Convert(err)
	require.Equal(t, code, st.Code(), "%v", err)
	require.NotEmpty(t, st.Details(), "%v", err)
	require.Equal(t, field, st.Details()[0].(*api.Error).GetField())
}

// calls returns every unary call of both services, with harmless requests.
func (r raw) calls(ctx context.Context) map[string]error {
	all := make(map[string]error)
	note := func(method string, _ any, err error) { all[method] = err }
	run := func(method string, call func() (any, error)) { a, err := call(); note(method, a, err) }
	run("Lock", func() (any, error) { return r.Lock(ctx, &api.LockRequest{LeaseId: 1}) })
	run("TryLock", func() (any, error) { return r.TryLock(ctx, &api.TryLockRequest{LeaseId: 1}) })
	run("Unlock", func() (any, error) { return r.Unlock(ctx, &api.UnlockRequest{LeaseId: 1, FencingToken: 1}) })
	run("LockInfo", func() (any, error) { return r.LockInfo(ctx, &api.LockInfoRequest{Name: "db"}) })
	run("ListLocks", func() (any, error) { return r.ListLocks(ctx, &api.ListLocksRequest{}) })
	run("LeaseGrant", func() (any, error) { return r.LeaseGrant(ctx, &api.LeaseGrantRequest{Ttl: 30}) })
	run("LeaseRevoke", func() (any, error) { return r.LeaseRevoke(ctx, &api.LeaseRevokeRequest{Id: 1}) })
	run("LeaseTimeToLive", func() (any, error) { return r.LeaseTimeToLive(ctx, &api.LeaseTimeToLiveRequest{Id: 1}) })
	run("ListLeases", func() (any, error) { return r.ListLeases(ctx, &api.ListLeasesRequest{}) })
	run("Txn", func() (any, error) { return r.Txn(ctx, &api.TxnRequest{}) })
	run("Range", func() (any, error) { return r.Range(ctx, &api.RangeRequest{Prefix: true}) })
	run("OpenClient", func() (any, error) { return r.OpenClient(ctx, &api.OpenClientRequest{}) })
	run("CloseClient", func() (any, error) { return r.CloseClient(ctx, &api.CloseClientRequest{}) })
	run("Group", func() (any, error) { return r.Group(ctx, &api.GroupRequest{}) })
	run("ChangeMembers", func() (any, error) { return r.ChangeMembers(ctx, &api.ChangeMembersRequest{}) })
	run("Backup", func() (any, error) {
		s, err := r.Backup(ctx, &api.BackupRequest{})
		if err == nil {
			_, err = s.Recv()
		}
		return nil, err
	})
	run("PublishInstances", func() (any, error) { return r.PublishInstances(ctx, &api.PublishInstancesRequest{}) })
	run("SetRequirement", func() (any, error) {
		return r.SetRequirement(ctx, &api.SetRequirementRequest{Query: &agentv1.DiscoverRequest{ServiceName: "s"}})
	})
	run("DeleteRequirement", func() (any, error) { return r.DeleteRequirement(ctx, &api.DeleteRequirementRequest{}) })
	run("LeaseKeepAlive", func() (any, error) { s, err := r.LeaseKeepAlive(ctx); return last(s, err) })
	run("Watch", func() (any, error) { s, err := r.LockServiceClient.Watch(ctx); return last(s, err) })
	run("Calls", func() (any, error) { s, err := r.Calls(ctx); return last(s, err) })
	return all
}

// last closes a stream and reads its end.
func last[S interface {
	Recv() (T, error)
	CloseSend() error
}, T any](s S, err error) (any, error) {
	if err == nil {
		_ = s.CloseSend()
		_, err = s.Recv()
	}
	return nil, err
}

// TestWhoMayNotIsRefused: every method refuses strangers. The test counts the methods of the services.
func TestWhoMayNotIsRefused(t *testing.T) {
	r := newRaw(t, "mallory")
	all := r.calls(t.Context())
	methods := 0
	for _, d := range []grpc.ServiceDesc{api.LockService_ServiceDesc, api.CoordinationService_ServiceDesc, coordv1.CallService_ServiceDesc} {
		methods += len(d.Methods) + len(d.Streams)
	}
	require.Len(t, all, methods)
	for method, err := range all {
		require.Equal(t, codes.PermissionDenied, status.Code(err), "%s: %v", method, err)
	}
}

func TestWithoutItsPartsAPlaneIsNotServed(t *testing.T) {
	whole, _ := whole(t)
	conn := whole.conn(t)
	none := raw{
		LockServiceClient: api.NewLockServiceClient(conn), CoordinationServiceClient: api.NewCoordinationServiceClient(conn),
		CallServiceClient: coordv1.NewCallServiceClient(conn),
	}
	for method, err := range none.calls(t.Context()) {
		require.Equal(t, codes.Unimplemented, status.Code(err), method)
	}
	r := newRaw(t, "alice")
	conn = r.named(t, "alice")
	_, err := api.NewRecordServiceClient(conn).List(t.Context(), &api.ListRequest{})
	require.Equal(t, codes.Unimplemented, status.Code(err))
	for service, code := range map[string]codes.Code{
		"": codes.OK, "blackhole.api.v1.LockService": codes.OK, "blackhole.api.v1.CoordinationService": codes.OK,
		"blackhole.api.v1.RecordService": codes.NotFound,
	} {
		_, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{Service: service})
		require.Equal(t, code, status.Code(err), service)
	}
}

// TestUnavailable: without a group every call fails at once, with the reason.
func TestUnavailable(t *testing.T) {
	r := newRaw(t, "alice")
	r.solo.Halt("2 of 3 voters cannot be reached")
	for method, err := range r.calls(t.Context()) {
		switch method {
		case "Group":
			require.NoError(t, err)
		case "PublishInstances": // is for peers
			require.Equal(t, codes.PermissionDenied, status.Code(err))
		case "LeaseKeepAlive", "Watch", "Calls": // asked for nothing
			require.ErrorIs(t, err, io.EOF)
		default:
			require.Equal(t, codes.Unavailable, status.Code(err), "%s: %v", method, err)
			require.ErrorContains(t, err, "2 of 3 voters")
		}
	}
	g, err := r.Group(t.Context(), &api.GroupRequest{})
	require.NoError(t, err)
	require.Equal(t, "2 of 3 voters cannot be reached", g.GetMissing())
}

func TestCoordinationRefuses(t *testing.T) {
	r, ctx := newRaw(t, "alice"), t.Context()
	_, err := r.Lock(ctx, &api.LockRequest{Name: "db", LeaseId: 1, TimeoutMs: -2})
	refused(t, err, codes.InvalidArgument, "timeout_ms")
	_, err = r.TryLock(ctx, &api.TryLockRequest{Name: "db", LeaseId: 1, Mode: -1})
	refused(t, err, codes.InvalidArgument, "mode")
	_, err = r.TryLock(ctx, &api.TryLockRequest{Name: "db", LeaseId: 1, Mode: 256})
	refused(t, err, codes.InvalidArgument, "mode")
	// A number that is missing is no lease or claim 0.
	_, err = r.Lock(ctx, &api.LockRequest{Name: "db"})
	refused(t, err, codes.InvalidArgument, "lease_id")
	_, err = r.TryLock(ctx, &api.TryLockRequest{Name: "db"})
	refused(t, err, codes.InvalidArgument, "lease_id")
	_, err = r.Unlock(ctx, &api.UnlockRequest{Name: "db", FencingToken: 1})
	refused(t, err, codes.InvalidArgument, "lease_id")
	_, err = r.Unlock(ctx, &api.UnlockRequest{Name: "db", LeaseId: 1})
	refused(t, err, codes.InvalidArgument, "fencing_token")
	_, err = r.LeaseRevoke(ctx, &api.LeaseRevokeRequest{})
	refused(t, err, codes.InvalidArgument, "id")
	_, err = r.LockInfo(ctx, &api.LockInfoRequest{})
	refused(t, err, codes.InvalidArgument, "name")
	_, err = r.LeaseGrant(ctx, &api.LeaseGrantRequest{Ttl: -1})
	refused(t, err, codes.InvalidArgument, "ttl")
	_, err = r.LeaseGrant(ctx, &api.LeaseGrantRequest{})
	refused(t, err, codes.InvalidArgument, "ttl_ms")
	_, err = r.LeaseTimeToLive(ctx, &api.LeaseTimeToLiveRequest{})
	refused(t, err, codes.InvalidArgument, "id")
	for field, step := range map[string]*api.TxnStep{
		"step":  {},
		"key":   {Step: &api.TxnStep_Delete{Delete: &api.TxnDelete{}}},
		"order": {Step: &api.TxnStep_Range{Range: &api.TxnRange{Key: []byte("a"), Order: 7}}},
	} {
		_, err = r.Txn(ctx, &api.TxnRequest{Then: putting("x", nil).Then, Else: []*api.TxnStep{step}})
		refused(t, err, codes.InvalidArgument, "else[0]."+field)
	}
	_, err = r.Txn(ctx, &api.TxnRequest{Compare: []*api.Compare{{Key: []byte("a"), Target: 9}}})
	refused(t, err, codes.InvalidArgument, "compare[0].target")
	_, err = r.Range(ctx, &api.RangeRequest{})
	refused(t, err, codes.InvalidArgument, "key")
	_, err = r.Range(ctx, &api.RangeRequest{Prefix: true, RangeEnd: []byte("a")})
	refused(t, err, codes.InvalidArgument, "range_end")
	_, err = r.ChangeMembers(ctx, &api.ChangeMembersRequest{Action: "transfer", PeerId: "nobody"})
	refused(t, err, codes.NotFound, "peer_id")
	_, err = r.CloseClient(ctx, &api.CloseClientRequest{})
	refused(t, err, codes.InvalidArgument, "client")
}

// TestLockWithoutWait: a request without timeout_ms tries once and leaves no claim behind, in line with the
// Distributed Lock Manager design.
func TestLockWithoutWait(t *testing.T) {
	r := newRaw(t, "alice")
	held, err := r.Lock(t.Context(), &api.LockRequest{Name: "db", LeaseId: r.lease(t)})
	require.NoError(t, err)
	require.True(t, held.GetAcquired())
	missed, err := r.Lock(t.Context(), &api.LockRequest{Name: "db", LeaseId: r.lease(t)})
	require.NoError(t, err)
	require.False(t, missed.GetAcquired())
	require.Equal(t, held.GetHeader().GetRevision(), missed.GetHeader().GetRevision())
	r.waiting(t, 0)
}

func TestTimesAreNotTooLong(t *testing.T) {
	r := newRaw(t, "alice")
	resp, err := r.LeaseGrant(t.Context(), &api.LeaseGrantRequest{Ttl: 1 << 62})
	require.NoError(t, err)
	require.Equal(t, coord.DefaultLimits().MaxTTL, resp.GetTtlMs())
	lock, err := r.Lock(t.Context(), &api.LockRequest{Name: "db", LeaseId: resp.GetId(), TimeoutMs: 1 << 62})
	require.NoError(t, err)
	require.True(t, lock.GetAcquired())
}

// TestRangeEnds: to the end of the keyspace, as in etcd.
func TestRangeEnds(t *testing.T) {
	r, ctx := newRaw(t, "alice"), t.Context()
	for _, key := range []string{"a", "b", "c"} {
		_, err := r.Txn(ctx, putting(key, nil))
		require.NoError(t, err)
	}
	resp, err := r.Range(ctx, &api.RangeRequest{Key: []byte("b"), RangeEnd: []byte{0}})
	require.NoError(t, err)
	require.Len(t, resp.GetKvs(), 2)
	all, err := r.Range(ctx, &api.RangeRequest{RangeEnd: []byte{0}})
	require.NoError(t, err)
	require.Len(t, all.GetKvs(), 3)
	gone, err := r.Txn(ctx, &api.TxnRequest{Then: []*api.TxnStep{{Step: &api.TxnStep_Delete{Delete: &api.TxnDelete{Key: []byte("b"), RangeEnd: []byte{0}}}}}})
	require.NoError(t, err)
	require.Equal(t, uint32(2), gone.GetChanged())
}

// TestLargePagesEndEarly: without losing entries.
func TestLargePagesEndEarly(t *testing.T) {
	r, ctx := newRaw(t, "alice"), t.Context()
	const keys = 400 // of 64 KiB
	value := make([]byte, 64<<10)
	for i := range keys {
		_, err := r.Txn(ctx, putting(fmt.Sprintf("k%03d", i), value))
		require.NoError(t, err)
	}
	from, seen, pages := []byte("k"), 0, 0
	for ; len(from) > 0; pages++ {
		resp, err := r.Range(ctx, &api.RangeRequest{Key: from, RangeEnd: []byte("l")})
		require.NoError(t, err)
		for _, kv := range resp.GetKvs() {
			require.Equal(t, fmt.Sprintf("k%03d", seen), string(kv.GetKey()))
			seen++
		}
		from = resp.GetNext()
	}
	require.Equal(t, []int{keys, 13}, []int{seen, pages})
	_, err := r.Txn(ctx, putting("a", make([]byte, 4<<20)))
	refused(t, err, codes.ResourceExhausted, "then")
}

// TestWaitsAreBounded, and a server that closes lets who waits go, with a reason to come back.
func TestWaitsAreBounded(t *testing.T) {
	r := newRaw(t, "alice", func(c *grpcapi.Config) { c.Places.MaxWaits = 1 })
	ctx := t.Context()
	_, err := r.Lock(ctx, &api.LockRequest{Name: "db", LeaseId: r.lease(t), TimeoutMs: -1})
	require.NoError(t, err)
	second, done := r.lease(t), make(chan error, 1)
	go func() {
		_, err := r.Lock(ctx, &api.LockRequest{Name: "db", LeaseId: second, TimeoutMs: -1})
		done <- err
	}()
	r.waiting(t, 1)
	_, err = r.Lock(ctx, &api.LockRequest{Name: "other", LeaseId: second, TimeoutMs: -1})
	refused(t, err, codes.ResourceExhausted, "pool.waits")
	_, err = r.TryLock(ctx, &api.TryLockRequest{Name: "other", LeaseId: second})
	require.NoError(t, err, "what does not wait needs no place")
	r.Close()
	err = <-done
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.ErrorContains(t, err, "shutting down")
	r.waiting(t, 0)
}

// waiting waits until n claims wait for the lock db.
func (r raw) waiting(t testing.TB, n int) {
	t.Helper()
	require.Eventually(t, func() bool {
		locks, _, err := ops.Of(r.solo).Locks(t.Context(), ops.LockQuery{Name: "db"})
		return err == nil && len(locks[0].Waiting) == n
	}, time.Minute, time.Millisecond)
}

// TestWhoHangsUpLosesHisPlace: the server notices, nobody else need.
func TestWhoHangsUpLosesHisPlace(t *testing.T) {
	r := newRaw(t, "alice")
	_, err := r.Lock(t.Context(), &api.LockRequest{Name: "db", LeaseId: r.lease(t), TimeoutMs: -1})
	require.NoError(t, err)
	conn := r.named(t, "bob")
	bob := api.NewLockServiceClient(conn)
	lease, err := bob.LeaseGrant(t.Context(), &api.LeaseGrantRequest{Ttl: 30})
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() {
		_, err := bob.Lock(t.Context(), &api.LockRequest{Name: "db", LeaseId: lease.GetId(), TimeoutMs: -1})
		done <- err
	}()
	r.waiting(t, 1)
	lock, err := r.LockInfo(t.Context(), &api.LockInfoRequest{Name: "db"})
	require.NoError(t, err)
	require.Equal(t, []string{"alice", "bob"}, []string{lock.GetLock().GetHolding()[0].GetHolderId(), lock.GetLock().GetWaiting()[0].GetHolderId()})
	require.NoError(t, conn.Close())
	require.Error(t, <-done)
	r.waiting(t, 0)
}

// TestQuotas: a refused owner learns the reason.
func TestQuotas(t *testing.T) {
	r := newRaw(t, "alice", func(c *grpcapi.Config) {
		c.Coordination.Owner = func(context.Context) (string, error) {
			return "", fault.New("test.Owner", fault.LimitReached, "100 leases are enough for one peer")
		}
	})
	_, err := r.LeaseGrant(t.Context(), &api.LeaseGrantRequest{Ttl: 30})
	refused(t, err, codes.ResourceExhausted, "")
	require.True(t, strings.Contains(err.Error(), "enough for one peer"))
}
