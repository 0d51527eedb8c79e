package etcdapi_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	"github.com/blackhole/blackhole/internal/frontend/authority"
	"github.com/blackhole/blackhole/internal/frontend/etcdapi"
	pb "github.com/blackhole/blackhole/internal/frontend/etcdapi/etcdserverpb"
	"github.com/blackhole/blackhole/internal/frontend/etcdapi/v3electionpb"
	"github.com/blackhole/blackhole/internal/frontend/etcdapi/v3lockpb"
	"github.com/blackhole/blackhole/internal/platform/access"
	"github.com/blackhole/blackhole/internal/platform/secret"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// front is a server over a group in this process.
type front struct {
	pb.KVClient
	pb.LeaseClient
	pb.WatchClient
	pb.ClusterClient
	pb.MaintenanceClient
	pb.AuthClient
	v3lockpb.LockClient
	v3electionpb.ElectionClient
	solo *coordtest.Solo
	addr string
}

func start(t *testing.T, guard *access.Guard) *front {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	return startOn(t, l, l.Addr().String(), nil, guard)
}

func startOn(t *testing.T, l net.Listener, target string, answers *access.Pool, guard *access.Guard, options ...grpc.DialOption) *front {
	t.Helper()
	return startWith(t, l, target, etcdapi.Config{Answers: answers}, guard, options...)
}

func startWith(t testing.TB, l net.Listener, target string, bounds etcdapi.Config, guard *access.Guard, options ...grpc.DialOption) *front {
	t.Helper()
	solo := coordtest.New(coordtest.Config{})
	if bounds.AtOnce == nil {
		bounds.AtOnce = access.NewPool("calls", 1<<15, nil)
	}
	c := etcdapi.Config{
		Service: authority.New(authority.Config{Service: solo, Peer: coordtest.Peer, Front: etcdapi.Front, Open: guard == nil}),
		Group:   solo.Group, Peer: coordtest.Peer, Prefix: "etcd/", Authenticated: guard != nil, Answers: bounds.Answers, Requests: bounds.Requests, AtOnce: bounds.AtOnce,
	}
	if bounds.Group != nil {
		c.Group = bounds.Group
	}
	c.Leading, c.NoLeader = bounds.Leading, bounds.NoLeader
	if broken, ok := bounds.Service.(*faulty); ok {
		broken.Service, c.Service = c.Service, broken
	}
	if guard != nil {
		need := func(method string) access.Need { return access.Need{Role: etcdapi.Need(method)} }
		c.Unary, c.Stream = []grpc.UnaryServerInterceptor{guard.Unary(need)}, []grpc.StreamServerInterceptor{guard.Stream(need)}
	}
	s, err := etcdapi.New(c)
	require.NoError(t, err)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l, "http://"+l.Addr().String()) }()
	conn, err := grpc.NewClient(target, append([]grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}, options...)...)
	require.NoError(t, err)
	t.Cleanup(func() {
		conn.Close()
		s.Close()
		require.NoError(t, <-served)
	})
	return &front{
		pb.NewKVClient(conn), pb.NewLeaseClient(conn), pb.NewWatchClient(conn), pb.NewClusterClient(conn), pb.NewMaintenanceClient(conn), pb.NewAuthClient(conn),
		v3lockpb.NewLockClient(conn), v3electionpb.NewElectionClient(conn), solo, l.Addr().String(),
	}
}

func (f *front) put(t *testing.T, key, value string) int64 {
	t.Helper()
	r, err := f.Put(t.Context(), &pb.PutRequest{Key: []byte(key), Value: []byte(value)})
	require.NoError(t, err)
	return r.GetHeader().GetRevision()
}

// all is a range of all keys.
func all(more ...func(*pb.RangeRequest)) *pb.RangeRequest {
	r := &pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}}
	for _, f := range more {
		f(r)
	}
	return r
}

func keysOf(kvs []*mvccpb.KeyValue) string {
	var keys []string
	for _, kv := range kvs {
		keys = append(keys, string(kv.GetKey()))
	}
	return strings.Join(keys, " ")
}

// refusedAs requires an error of etcd, with its code and text.
func refusedAs(t *testing.T, want, got error) {
	t.Helper()
	require.Equal(t, status.Convert(want).Code(), status.Convert(got).Code(), "%v", got)
	require.Equal(t, status.Convert(want).Message(), status.Convert(got).Message())
}

func TestRange(t *testing.T) {
	f := start(t, nil)
	_, err := f.solo.Execute(t.Context(), coord.CommandOf("@x", &apiv1.TxnRequest{Then: []*apiv1.TxnStep{
		coord.PutStep("etc", nil, 0), coord.PutStep("etcd0", nil, 0), coord.PutStep("etcd", nil, 0),
	}}))
	require.NoError(t, err, "keys around the prefix belong to others")
	first := f.put(t, "c", "1")
	f.put(t, "a", "3")
	f.put(t, "b", "2")
	last := f.put(t, "c", "4")
	for _, c := range []struct {
		name  string
		req   *pb.RangeRequest
		keys  string
		count int64
		more  bool
	}{
		{"all", all(), "a b c", 3, false},
		{"one", &pb.RangeRequest{Key: []byte("b")}, "b", 1, false},
		{"none", &pb.RangeRequest{Key: []byte("d")}, "", 0, false},
		{"from a to c", &pb.RangeRequest{Key: []byte("a"), RangeEnd: []byte("c")}, "a b", 2, false},
		{"from b on", &pb.RangeRequest{Key: []byte("b"), RangeEnd: []byte{0}}, "b c", 2, false},
		{"backwards", &pb.RangeRequest{Key: []byte("c"), RangeEnd: []byte("a")}, "", 0, false},
		{"limit", all(func(r *pb.RangeRequest) { r.Limit = 2 }), "a b", 3, true},
		{"limit that fits", all(func(r *pb.RangeRequest) { r.Limit = 3 }), "a b c", 3, false},
		{"descending", all(func(r *pb.RangeRequest) { r.SortOrder = pb.RangeRequest_DESCEND }), "c b a", 3, false},
		{"by value", all(func(r *pb.RangeRequest) { r.SortTarget = pb.RangeRequest_VALUE }), "b a c", 3, false},
		{"by create revision", all(func(r *pb.RangeRequest) { r.SortTarget = pb.RangeRequest_CREATE }), "c a b", 3, false},
		{"by mod revision, the last", all(func(r *pb.RangeRequest) {
			r.SortTarget, r.SortOrder, r.Limit = pb.RangeRequest_MOD, pb.RangeRequest_DESCEND, 1
		}), "c", 3, true},
		{"by version", all(func(r *pb.RangeRequest) { r.SortTarget, r.SortOrder = pb.RangeRequest_VERSION, pb.RangeRequest_DESCEND }), "c a b", 3, false},
		{"count", all(func(r *pb.RangeRequest) { r.CountOnly = true }), "", 3, false},
		{"at a revision", all(func(r *pb.RangeRequest) { r.Revision = first }), "c", 1, false},
		{"max create revision", all(func(r *pb.RangeRequest) { r.MaxCreateRevision = first }), "c", 3, false},
		{"min create revision", all(func(r *pb.RangeRequest) { r.MinCreateRevision = first + 1 }), "a b", 3, false},
		{"min mod revision", all(func(r *pb.RangeRequest) { r.MinModRevision = last }), "c", 3, false},
		{"max mod revision and a limit", all(func(r *pb.RangeRequest) { r.MaxModRevision, r.Limit = last-1, 1 }), "a", 3, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, err := f.Range(t.Context(), c.req)
			require.NoError(t, err)
			require.Equal(t, c.keys, keysOf(r.GetKvs()))
			require.Equal(t, c.count, r.GetCount())
			require.Equal(t, c.more, r.GetMore())
			require.Equal(t, last, r.GetHeader().GetRevision())
		})
	}
	r, err := f.Range(t.Context(), all(func(r *pb.RangeRequest) { r.KeysOnly = true }))
	require.NoError(t, err)
	require.Empty(t, r.GetKvs()[0].GetValue())
	_, err = f.Range(t.Context(), &pb.RangeRequest{})
	refusedAs(t, rpctypes.ErrGRPCEmptyKey, err)
	_, err = f.Range(t.Context(), all(func(r *pb.RangeRequest) { r.Revision = last + 1 }))
	refusedAs(t, rpctypes.ErrGRPCFutureRev, err)
	_, err = f.Range(t.Context(), all(func(r *pb.RangeRequest) { r.SortTarget = 9 }))
	refusedAs(t, rpctypes.ErrGRPCInvalidSortOption, err)
}

func TestPutAndDelete(t *testing.T) {
	f := start(t, nil)
	f.put(t, "a", "1")
	put, err := f.Put(t.Context(), &pb.PutRequest{Key: []byte("a"), Value: []byte("2"), PrevKv: true})
	require.NoError(t, err)
	require.Equal(t, "1", string(put.GetPrevKv().GetValue()))
	require.Equal(t, "a", string(put.GetPrevKv().GetKey()))
	for _, c := range []struct {
		want error
		req  *pb.PutRequest
	}{
		{rpctypes.ErrGRPCEmptyKey, &pb.PutRequest{}},
		{rpctypes.ErrGRPCKeyNotFound, &pb.PutRequest{Key: []byte("x"), IgnoreValue: true}},
		{rpctypes.ErrGRPCKeyNotFound, &pb.PutRequest{Key: []byte("x"), IgnoreLease: true}},
		{rpctypes.ErrGRPCValueProvided, &pb.PutRequest{Key: []byte("a"), Value: []byte("3"), IgnoreValue: true}},
		{rpctypes.ErrGRPCLeaseProvided, &pb.PutRequest{Key: []byte("a"), Lease: 3, IgnoreLease: true}},
		{rpctypes.ErrGRPCLeaseNotFound, &pb.PutRequest{Key: []byte("a"), Lease: 3}},
		{rpctypes.ErrGRPCRequestTooLarge, &pb.PutRequest{Key: []byte("a"), Value: bytes.Repeat([]byte("x"), coord.MaxValue+1)}},
	} {
		_, err := f.Put(t.Context(), c.req)
		refusedAs(t, c.want, err)
	}
	f.put(t, "b", "1")
	gone, err := f.DeleteRange(t.Context(), &pb.DeleteRangeRequest{Key: []byte{0}, RangeEnd: []byte{0}, PrevKv: true})
	require.NoError(t, err)
	require.EqualValues(t, 2, gone.GetDeleted())
	require.Equal(t, "a b", keysOf(gone.GetPrevKvs()))
}

func putOp(key string) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte(key), Value: []byte("v")}}}
}

func rangeOp(r *pb.RangeRequest) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: r}}
}

func TestTxn(t *testing.T) {
	f := start(t, nil)
	at := f.put(t, "a", "1")
	cmp := func(result pb.Compare_CompareResult) *pb.Compare {
		return &pb.Compare{Key: []byte("a"), Target: pb.Compare_VALUE, Result: result, TargetUnion: &pb.Compare_Value{Value: []byte("1")}}
	}
	r, err := f.Txn(t.Context(), &pb.TxnRequest{Compare: []*pb.Compare{cmp(pb.Compare_EQUAL)}, Success: []*pb.RequestOp{putOp("b"), rangeOp(all())}})
	require.NoError(t, err)
	require.True(t, r.GetSucceeded())
	require.Equal(t, "a b", keysOf(r.GetResponses()[1].GetResponseRange().GetKvs()))
	require.Equal(t, at+1, r.GetHeader().GetRevision())
	r, err = f.Txn(t.Context(), &pb.TxnRequest{
		Compare: []*pb.Compare{cmp(pb.Compare_NOT_EQUAL)}, Success: []*pb.RequestOp{putOp("c")},
		Failure: []*pb.RequestOp{rangeOp(all(func(r *pb.RangeRequest) { r.Limit = 1 }))},
	})
	require.NoError(t, err)
	require.False(t, r.GetSucceeded())
	require.True(t, r.GetResponses()[0].GetResponseRange().GetMore())
	require.EqualValues(t, 2, r.GetResponses()[0].GetResponseRange().GetCount())

	r, err = f.Txn(t.Context(), &pb.TxnRequest{})
	require.NoError(t, err)
	require.True(t, r.GetSucceeded())
	require.Equal(t, at+1, r.GetHeader().GetRevision())
	r, err = f.Txn(t.Context(), &pb.TxnRequest{Success: []*pb.RequestOp{rangeOp(all()), rangeOp(&pb.RangeRequest{Key: []byte("a")})}})
	require.NoError(t, err)
	require.Equal(t, "a", keysOf(r.GetResponses()[1].GetResponseRange().GetKvs()))

	gone := &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: &pb.DeleteRangeRequest{Key: []byte{0}, RangeEnd: []byte{0}}}}
	many := make([]*pb.RequestOp, 129)
	for i := range many {
		many[i] = putOp(fmt.Sprint(i))
	}
	for _, c := range []struct {
		want error
		req  *pb.TxnRequest
	}{
		{rpctypes.ErrGRPCTooManyOps, &pb.TxnRequest{Success: many}},
		{rpctypes.ErrGRPCDuplicateKey, &pb.TxnRequest{Success: []*pb.RequestOp{putOp("x"), putOp("x")}}},
		{rpctypes.ErrGRPCDuplicateKey, &pb.TxnRequest{Failure: []*pb.RequestOp{gone, putOp("x")}}},
		{rpctypes.ErrGRPCEmptyKey, &pb.TxnRequest{Compare: []*pb.Compare{{}}}},
		{rpctypes.ErrGRPCKeyNotFound, &pb.TxnRequest{Success: []*pb.RequestOp{{}}}},
	} {
		_, err := f.Txn(t.Context(), c.req)
		refusedAs(t, c.want, err)
	}
}

func txnOp(r *pb.TxnRequest) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: r}}
}

// TestTxnWithin: transactions within one, as etcd has them.
func TestTxnWithin(t *testing.T) {
	f := start(t, nil)
	at := f.put(t, "a", "1")
	absent := &pb.Compare{Key: []byte("b"), Target: pb.Compare_VERSION}
	gone := &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: &pb.DeleteRangeRequest{Key: []byte("a"), PrevKv: true}}}
	r, err := f.Txn(t.Context(), &pb.TxnRequest{Success: []*pb.RequestOp{
		putOp("b"),
		txnOp(&pb.TxnRequest{Compare: []*pb.Compare{absent}, Success: []*pb.RequestOp{gone, txnOp(&pb.TxnRequest{})}}),
		txnOp(&pb.TxnRequest{
			Compare: []*pb.Compare{{Key: []byte("b"), Target: pb.Compare_VERSION, Result: pb.Compare_GREATER}},
			Success: []*pb.RequestOp{putOp("c")}, Failure: []*pb.RequestOp{rangeOp(all())},
		}),
	}})
	require.NoError(t, err)
	require.Equal(t, at+1, r.GetHeader().GetRevision())
	first, second := r.GetResponses()[1].GetResponseTxn(), r.GetResponses()[2].GetResponseTxn()
	require.True(t, first.GetSucceeded(), "the comparison looks at the state before")
	require.Equal(t, "a", keysOf(first.GetResponses()[0].GetResponseDeleteRange().GetPrevKvs()))
	require.True(t, first.GetResponses()[1].GetResponseTxn().GetSucceeded())
	require.False(t, second.GetSucceeded())
	require.Equal(t, "b", keysOf(second.GetResponses()[0].GetResponseRange().GetKvs()))

	deep := func(depth int, op *pb.RequestOp) *pb.TxnRequest {
		r := &pb.TxnRequest{Success: []*pb.RequestOp{op}}
		for range depth {
			r = &pb.TxnRequest{Success: []*pb.RequestOp{txnOp(r)}}
		}
		return r
	}
	_, err = f.Txn(t.Context(), deep(coord.TxnDepth, putOp("d")))
	require.NoError(t, err)
	_, err = f.Txn(t.Context(), deep(coord.TxnDepth+1, putOp("d")))
	require.ErrorContains(t, err, "too many transactions within one another")
	old := all(func(r *pb.RangeRequest) { r.Revision = at })
	_, err = f.Compact(t.Context(), &pb.CompactionRequest{Revision: at + 1})
	require.NoError(t, err)
	many := make([]*pb.RequestOp, 127)
	for i := range many {
		many[i] = putOp(fmt.Sprint(i))
	}
	for _, c := range []struct {
		want error
		req  *pb.TxnRequest
	}{
		{nil, &pb.TxnRequest{Success: []*pb.RequestOp{txnOp(&pb.TxnRequest{Success: many})}}},
		{rpctypes.ErrGRPCTooManyOps, deep(2, txnOp(&pb.TxnRequest{Success: many}))},
		{rpctypes.ErrGRPCTooManyOps, deep(1000, putOp("x"))},
		{rpctypes.ErrGRPCEmptyKey, deep(2, txnOp(&pb.TxnRequest{Compare: []*pb.Compare{{}}}))},
		{rpctypes.ErrGRPCKeyNotFound, deep(2, &pb.RequestOp{})},
		{rpctypes.ErrGRPCCompacted, deep(2, rangeOp(old))},
		{rpctypes.ErrGRPCDuplicateKey, &pb.TxnRequest{Success: []*pb.RequestOp{putOp("x"), txnOp(deep(2, putOp("x")))}}},
		{rpctypes.ErrGRPCDuplicateKey, &pb.TxnRequest{Success: []*pb.RequestOp{txnOp(deep(0, gone)), putOp("a")}}},
		{rpctypes.ErrGRPCDuplicateKey, &pb.TxnRequest{Success: []*pb.RequestOp{rangeOp(all())}, Failure: []*pb.RequestOp{gone, putOp("a")}}},
		{nil, &pb.TxnRequest{Success: []*pb.RequestOp{txnOp(&pb.TxnRequest{Success: []*pb.RequestOp{putOp("x")}, Failure: []*pb.RequestOp{putOp("x"), rangeOp(all())}})}}},
	} {
		_, err := f.Txn(t.Context(), c.req)
		if c.want == nil {
			require.NoError(t, err)
			continue
		}
		refusedAs(t, c.want, err)
	}
}

func TestCompact(t *testing.T) {
	f := start(t, nil)
	first := f.put(t, "a", "1")
	second := f.put(t, "a", "2")
	_, err := f.Compact(t.Context(), &pb.CompactionRequest{Revision: second + 9})
	refusedAs(t, rpctypes.ErrGRPCFutureRev, err)
	_, err = f.Compact(t.Context(), &pb.CompactionRequest{Revision: second})
	require.NoError(t, err)
	_, err = f.Compact(t.Context(), &pb.CompactionRequest{Revision: second})
	refusedAs(t, rpctypes.ErrGRPCCompacted, err)
	old := all(func(r *pb.RangeRequest) { r.Revision = first })
	_, err = f.Range(t.Context(), old)
	refusedAs(t, rpctypes.ErrGRPCCompacted, err)
	_, err = f.Txn(t.Context(), &pb.TxnRequest{Success: []*pb.RequestOp{rangeOp(old)}})
	refusedAs(t, rpctypes.ErrGRPCCompacted, err)
	r, err := f.Range(t.Context(), all(func(r *pb.RangeRequest) { r.Revision = second }))
	require.NoError(t, err)
	require.Equal(t, "a", keysOf(r.GetKvs()))
	require.Equal(t, second, r.GetHeader().GetRevision(), "a compaction has no revision of its own")
	_, err = f.Txn(t.Context(), &pb.TxnRequest{Success: []*pb.RequestOp{rangeOp(all())}, Failure: []*pb.RequestOp{putOp("b"), rangeOp(old)}})
	require.NoError(t, err, "the branch that is not taken reads nothing")
	_, err = coord.Range(t.Context(), f.solo, &apiv1.RangeRequest{Key: []byte("etcd"), RangeEnd: []byte("etce"), Revision: first})
	require.NoError(t, err, "others keep their history")
}

func TestLease(t *testing.T) {
	f := start(t, nil)
	l, err := f.LeaseGrant(t.Context(), &pb.LeaseGrantRequest{ID: 7, TTL: 60})
	require.NoError(t, err)
	require.EqualValues(t, 7, l.GetID())
	_, err = f.LeaseGrant(t.Context(), &pb.LeaseGrantRequest{ID: 7, TTL: 60})
	refusedAs(t, rpctypes.ErrGRPCLeaseExist, err)
	_, err = f.LeaseGrant(t.Context(), &pb.LeaseGrantRequest{TTL: 1 << 30})
	refusedAs(t, rpctypes.ErrGRPCLeaseTTLTooLarge, err)
	_, err = f.Put(t.Context(), &pb.PutRequest{Key: []byte("a"), Lease: 7})
	require.NoError(t, err)
	kv, err := f.Range(t.Context(), all())
	require.NoError(t, err)
	require.EqualValues(t, 7, kv.GetKvs()[0].GetLease(), "clients read which lease is theirs")
	left, err := f.LeaseTimeToLive(t.Context(), &pb.LeaseTimeToLiveRequest{ID: 7, Keys: true})
	require.NoError(t, err)
	require.EqualValues(t, 60, left.GetGrantedTTL())
	require.Equal(t, [][]byte{[]byte("a")}, left.GetKeys())

	_, err = f.solo.Execute(t.Context(), coord.CommandOf("~"+coordtest.Peer, &apiv1.LeaseGrantRequest{Ttl: 60}))
	require.NoError(t, err)
	list, err := f.LeaseLeases(t.Context(), &pb.LeaseLeasesRequest{})
	require.NoError(t, err)
	require.Len(t, list.GetLeases(), 1, "the leases of others stay out of sight")
	require.EqualValues(t, 7, list.GetLeases()[0].GetID())

	stream, err := f.LeaseKeepAlive(t.Context())
	require.NoError(t, err)
	for _, c := range []struct{ id, ttl int64 }{{7, 60}, {8, 0}} {
		require.NoError(t, stream.Send(&pb.LeaseKeepAliveRequest{ID: c.id}))
		alive, err := stream.Recv()
		require.NoError(t, err)
		require.Equal(t, c.id, alive.GetID())
		require.Equal(t, c.ttl, alive.GetTTL())
	}
	require.NoError(t, stream.CloseSend())
	_, err = stream.Recv()
	require.ErrorIs(t, err, io.EOF)
	_, err = f.LeaseRevoke(t.Context(), &pb.LeaseRevokeRequest{ID: 7})
	require.NoError(t, err)
	_, err = f.LeaseRevoke(t.Context(), &pb.LeaseRevokeRequest{ID: 7})
	refusedAs(t, rpctypes.ErrGRPCLeaseNotFound, err)
	left, err = f.LeaseTimeToLive(t.Context(), &pb.LeaseTimeToLiveRequest{ID: 7})
	require.NoError(t, err)
	require.EqualValues(t, -1, left.GetTTL())
}

// watching is an open stream of watches.
// TestMemberList has the addresses of all fronts, so that a client that asks one of them goes on when it dies.
func TestMemberList(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	f := startWith(t, l, l.Addr().String(), etcdapi.Config{Group: func(context.Context) (coord.GroupState, error) {
		return coord.GroupState{
			Voters:   []coord.Member{{Peer: coordtest.Peer, ID: 1}, {Peer: "b", ID: 2, Etcd: "https://b.example.com:2379"}},
			Learners: []coord.Member{{Peer: "c", ID: 3}},
		}, nil
	}}, nil)
	got, err := f.MemberList(t.Context(), &pb.MemberListRequest{})
	require.NoError(t, err)
	require.Len(t, got.GetMembers(), 3)
	require.Equal(t, []string{"http://" + f.addr}, got.GetMembers()[0].GetClientURLs())
	require.Equal(t, []string{"https://b.example.com:2379"}, got.GetMembers()[1].GetClientURLs())
	require.Empty(t, got.GetMembers()[2].GetClientURLs(), "it answers on its own host alone, or nowhere")
}

// TestStatusOfAClient: a peer that is no member of the group names itself, no voter and no leader.
func TestStatusOfAClient(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	f := startWith(t, l, l.Addr().String(), etcdapi.Config{Group: func(context.Context) (coord.GroupState, error) {
		return coord.GroupState{Leader: "b", Voters: []coord.Member{{Peer: "b", ID: 2}}}, nil
	}}, nil)
	got, err := f.Status(t.Context(), &pb.StatusRequest{})
	require.NoError(t, err)
	require.EqualValues(t, 2, got.GetLeader())
	require.NotEqualValues(t, 2, got.GetHeader().GetMemberId())
	require.True(t, got.GetIsLearner())
	members, err := f.MemberList(t.Context(), &pb.MemberListRequest{})
	require.NoError(t, err)
	require.Equal(t, got.GetHeader().GetMemberId(), members.GetMembers()[1].GetID())
}

func TestCluster(t *testing.T) {
	f := start(t, nil)
	members, err := f.MemberList(t.Context(), &pb.MemberListRequest{})
	require.NoError(t, err)
	require.Equal(t, []string{"http://" + f.addr}, members.GetMembers()[0].GetClientURLs())
	require.NotEmpty(t, members.GetMembers()[0].GetName(), "clients skip a member without a name")
	st, err := f.Status(t.Context(), &pb.StatusRequest{})
	require.NoError(t, err)
	require.Equal(t, etcdapi.Version, st.GetVersion())
	require.Positive(t, st.GetDbSize(), "clients divide by it")
	require.Equal(t, st.GetDbSize(), st.GetDbSizeInUse())
	require.Equal(t, members.GetMembers()[0].GetID(), st.GetLeader())
	alarms, err := f.Alarm(t.Context(), &pb.AlarmRequest{})
	require.NoError(t, err)
	require.Empty(t, alarms.GetAlarms())
	_, err = f.Defragment(t.Context(), &pb.DefragmentRequest{})
	require.NoError(t, err)
	_, err = f.MemberAdd(t.Context(), &pb.MemberAddRequest{})
	require.Equal(t, codes.Unimplemented, status.Code(err))
	_, err = f.MoveLeader(t.Context(), &pb.MoveLeaderRequest{})
	require.Equal(t, codes.Unimplemented, status.Code(err))
	enabled, err := f.AuthStatus(t.Context(), &pb.AuthStatusRequest{})
	require.NoError(t, err)
	require.False(t, enabled.GetEnabled())
	_, err = f.Authenticate(t.Context(), &pb.AuthenticateRequest{Name: "a", Password: "b"})
	refusedAs(t, rpctypes.ErrGRPCAuthNotEnabled, err)
	f.solo.Halt("no majority")
	_, err = f.Range(t.Context(), all())
	refusedAs(t, rpctypes.ErrGRPCNoLeader, err)
}

const (
	adminToken = "an-admin-token-of-32-characters!"
	webToken   = "the-service-token-of-web-has-32-c"

	compactToken = "the-token-for-all-of-etcd-has-32c"
)

func TestAuthentication(t *testing.T) {
	guard, err := access.New(access.Config{Enabled: true, Method: access.MethodToken, Anonymous: "none", Tokens: []access.Token{
		{Token: secret.New(adminToken), Name: "root", Role: access.RoleAdmin},
		{Token: secret.New(webToken), Name: "web", Role: access.RoleService, Services: []string{"etcd/web"}},
		{Token: secret.New(compactToken), Name: "compactor", Role: access.RoleService, Services: []string{"etcd*"}},
	}}, access.Options{})
	require.NoError(t, err)
	f := start(t, guard)
	_, err = f.Range(t.Context(), all())
	refusedAs(t, rpctypes.ErrGRPCInvalidAuthToken, err)
	_, err = f.Authenticate(t.Context(), &pb.AuthenticateRequest{Name: "web", Password: "wrong"})
	refusedAs(t, rpctypes.ErrGRPCAuthFailed, err)
	as := func(password string) context.Context {
		r, err := f.Authenticate(t.Context(), &pb.AuthenticateRequest{Name: "anybody", Password: password})
		require.NoError(t, err)
		return metadata.AppendToOutgoingContext(t.Context(), rpctypes.TokenFieldNameGRPC, r.GetToken())
	}
	web, root := as(webToken), as(adminToken)
	_, err = f.Put(web, &pb.PutRequest{Key: []byte("web/leader")})
	require.NoError(t, err)
	_, err = f.Put(web, &pb.PutRequest{Key: []byte("pay/leader")})
	refusedAs(t, rpctypes.ErrGRPCPermissionDenied, err)
	within := txnOp(&pb.TxnRequest{Success: []*pb.RequestOp{putOp("web/a")}, Failure: []*pb.RequestOp{putOp("pay/a")}})
	_, err = f.Txn(web, &pb.TxnRequest{Success: []*pb.RequestOp{within}})
	refusedAs(t, rpctypes.ErrGRPCPermissionDenied, err)
	_, err = f.Put(root, &pb.PutRequest{Key: []byte("pay/leader")})
	require.NoError(t, err)
	_, err = f.Compact(web, &pb.CompactionRequest{Revision: 2})
	refusedAs(t, rpctypes.ErrGRPCPermissionDenied, err)
	_, err = f.Compact(as(compactToken), &pb.CompactionRequest{Revision: 2})
	require.NoError(t, err)
	l, err := f.LeaseGrant(web, &pb.LeaseGrantRequest{TTL: 60})
	require.NoError(t, err)
	_, err = f.LeaseRevoke(root, &pb.LeaseRevokeRequest{ID: l.GetID()})
	require.Error(t, err, "nobody ends the leases of another name here")
	list, err := f.LeaseLeases(root, &pb.LeaseLeasesRequest{})
	require.NoError(t, err)
	require.Empty(t, list.GetLeases())
	require.Equal(t, http.StatusUnauthorized, f.post(t, "kv/range", `{"key":"AA==","range_end":"AA=="}`, "").code)
	require.Equal(t, http.StatusOK, f.post(t, "kv/range", `{"key":"AA==","range_end":"AA=="}`, webToken).code)
}

// TestEtcdctl plays a session with the client of etcd itself, where it is installed.
func TestEtcdctl(t *testing.T) {
	path, err := exec.LookPath("etcdctl")
	if err != nil {
		t.Skip("etcdctl is not installed: package etcd-client of Debian has it")
	}
	f := start(t, nil)
	run := func(stdin string, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), path, append([]string{"--endpoints", f.addr}, args...)...)
		cmd.Env, cmd.Stdin = append(cmd.Environ(), "ETCDCTL_API=3"), strings.NewReader(stdin)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		return string(out)
	}
	require.Equal(t, "OK\n", run("", "put", "a", "1"))
	require.Equal(t, "OK\n", run("", "put", "a", "2"))
	require.Equal(t, "a\n2\n", run("", "get", "a"))
	require.Equal(t, "a\n1\n", run("", "get", "a", "--rev", "2"))
	require.Equal(t, "SUCCESS\n\nOK\n", run("mod(\"a\") > \"0\"\n\nput b 3\n\n\n", "txn"))
	require.Equal(t, []string{"a", "b"}, strings.Fields(run("", "get", "--prefix", "", "--keys-only")))
	require.Contains(t, run("", "lease", "grant", "60"), "granted with TTL(60s)")
	require.Contains(t, run("", "lease", "list"), "found 1 leases")
	require.Equal(t, "2\n", run("", "del", "", "--prefix"))
	require.Contains(t, run("", "endpoint", "health"), "is healthy")
	require.Contains(t, run("", "endpoint", "status"), etcdapi.Version)
	require.Contains(t, run("", "member", "list"), f.addr)
	require.Contains(t, run("", "compaction", "3"), "compacted revision 3")
	require.Contains(t, run("", "defrag"), "Finished defragmenting")
	require.Equal(t, "", run("", "alarm", "list"))
}

// TestTLS: behind TLS a client that speaks HTTP/2 alone, as those of gRPC do, gets gRPC, and one that speaks both gets
// JSON. A connection that says nothing keeps nobody from closing.
func TestTLS(t *testing.T) {
	certified := httptest.NewTLSServer(http.NotFoundHandler())
	defer certified.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	silent, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	defer silent.Close()
	roots := x509.NewCertPool()
	roots.AddCert(certified.Certificate())
	secure := tls.NewListener(l, &tls.Config{Certificates: certified.TLS.Certificates, NextProtos: []string{"http/1.1", "h2"}})
	f := startOn(t, secure, l.Addr().String(), nil, nil, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: roots, ServerName: "example.com"})))
	f.put(t, "a", "1")

	web := &http.Client{Transport: &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "example.com"}}}
	defer web.CloseIdleConnections()
	resp, err := web.Post("https://"+f.addr+"/v3/kv/range", "application/json", strings.NewReader(`{"key":"YQ=="}`))
	require.NoError(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Contains(t, string(text), `"value":"MQ=="`)
}
