package grpcapi_test

import (
	"context"
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/internal/frontend/grpcapi"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// gate is a Service that holds back and counts keepalives.
type gate struct {
	coord.Service
	let   chan struct{}
	sizes chan int
}

func (g gate) Execute(ctx context.Context, cmd *coordv1.Command) (*coordv1.Result, error) {
	if r := cmd.GetKeepAlive(); r != nil {
		g.sizes <- 1 + len(r.GetIds())
		<-g.let
	}
	return g.Service.Execute(ctx, cmd)
}

// TestKeepAliveBatches: requests in the inbox make one call; each gets an answer, in order.
func TestKeepAliveBatches(t *testing.T) { synctest.Test(t, keepAliveBatches) }

func keepAliveBatches(t *testing.T) {
	g := gate{let: make(chan struct{}), sizes: make(chan int, 1000)}
	r := newRaw(t, "alice", func(c *grpcapi.Config) { g.Service = c.Coordination.Service; c.Coordination.Service = g })
	lease := r.lease(t)
	stream, err := r.LeaseKeepAlive(t.Context())
	require.NoError(t, err)
	require.NoError(t, stream.Send(&api.LeaseKeepAliveRequest{Id: lease}))
	require.Equal(t, 1, <-g.sizes)
	const waiting = 100
	for i := range int64(waiting) {
		require.NoError(t, stream.Send(&api.LeaseKeepAliveRequest{Id: 1000 + i, Ids: []int64{lease, 2000 + i}}))
	}
	for range 2 { // more than one inbox can renew at once
		require.NoError(t, stream.Send(&api.LeaseKeepAliveRequest{Id: lease, Ids: make([]int64, coord.MaxKeepAlive-1)}))
	}
	require.NoError(t, stream.CloseSend())
	synctest.Wait() // until the inbox has them all
	close(g.let)
	first, err := stream.Recv()
	require.NoError(t, err)
	require.Equal(t, []int64{lease, 30, 30_000}, []int64{first.GetId(), first.GetTtl(), first.GetTtlMs()})
	require.NotZero(t, first.GetHeader().GetClusterId())
	for i := range int64(waiting) {
		resp, err := stream.Recv()
		require.NoError(t, err)
		require.Equal(t, 1000+i, resp.GetId())
		require.Zero(t, resp.GetTtlMs())
		require.Equal(t, []int64{30_000, 0}, resp.GetTtlsMs())
	}
	for range 2 {
		resp, err := stream.Recv()
		require.NoError(t, err)
		require.Len(t, resp.GetTtlsMs(), coord.MaxKeepAlive-1)
	}
	_, err = stream.Recv()
	require.ErrorIs(t, err, io.EOF)
	close(g.sizes)
	calls := 0
	for size := range g.sizes {
		require.LessOrEqual(t, size, coord.MaxKeepAlive)
		calls++
	}
	require.Less(t, calls, waiting/2, "they are asked together")
}

func TestKeepAliveRefuses(t *testing.T) {
	r := newRaw(t, "alice")
	stream, err := r.LeaseKeepAlive(t.Context())
	require.NoError(t, err)
	require.NoError(t, stream.Send(&api.LeaseKeepAliveRequest{Ids: make([]int64, coord.MaxKeepAlive)}))
	_, err = stream.Recv()
	refused(t, err, codes.InvalidArgument, "ids")

	stream, err = r.LeaseKeepAlive(t.Context())
	require.NoError(t, err)
	r.solo.Halt("no majority")
	require.NoError(t, stream.Send(&api.LeaseKeepAliveRequest{Id: 1}))
	_, err = stream.Recv()
	refused(t, err, codes.Unavailable, "")
}

// watches is a stream of watches.
type watches struct {
	api.LockService_WatchClient
	t testing.TB
}

func (r raw) watches(t testing.TB) watches {
	t.Helper()
	stream, err := r.LockServiceClient.Watch(t.Context())
	require.NoError(t, err)
	return watches{stream, t}
}

func (w watches) ask(req *api.WatchKeysRequest) {
	w.t.Helper()
	require.NoError(w.t, w.Send(req))
}

func (w watches) next() *api.WatchKeysResponse {
	w.t.Helper()
	resp, err := w.Recv()
	require.NoError(w.t, err)
	require.NotNil(w.t, resp.GetHeader())
	return resp
}

// open starts a watch and reads its first answer.
func (w watches) open(req *api.WatchKeysRequest) *api.WatchKeysResponse {
	w.t.Helper()
	w.ask(req)
	resp := w.next()
	require.Equal(w.t, []any{true, req.GetWatchId()}, []any{resp.GetCreated(), resp.GetWatchId()}, "%v", resp)
	require.NotZero(w.t, resp.GetHeader().GetClusterId())
	require.Empty(w.t, resp.GetEvents())
	return resp
}

func (r raw) put(t testing.TB, key string) {
	t.Helper()
	_, err := r.Txn(t.Context(), putting(key, nil))
	require.NoError(t, err)
}

func putting(key string, value []byte) *api.TxnRequest {
	return &api.TxnRequest{Then: []*api.TxnStep{{Step: &api.TxnStep_Put{Put: &api.TxnPut{Key: []byte(key), Value: value}}}}}
}

func TestOneStreamCarriesManyWatches(t *testing.T) {
	r := newRaw(t, "alice")
	w := r.watches(t)
	for id := range int64(100) {
		require.Equal(t, int64(2), w.open(&api.WatchKeysRequest{WatchId: id, Key: fmt.Sprintf("k%02d", id)}).GetNextRevision())
	}
	for id := range 100 {
		r.put(t, fmt.Sprintf("k%02d", id))
	}
	seen := make(map[int64]string)
	for range 100 {
		resp := w.next()
		require.Len(t, resp.GetEvents(), 1)
		seen[resp.GetWatchId()] = string(resp.GetEvents()[0].GetKv().GetKey())
		require.Greater(t, resp.GetNextRevision(), resp.GetEvents()[0].GetKv().GetModRevision())
	}
	require.Len(t, seen, 100)
	for id, key := range seen {
		require.Equal(t, fmt.Sprintf("k%02d", id), key)
	}
}

func TestWatchesEndAlone(t *testing.T) {
	r := newRaw(t, "alice")
	for range 3 {
		r.put(t, "a")
	}
	_, _, err := ops.Of(r.solo).Do(t.Context(), ops.Command{Op: &ops.Compact{Revision: 3}})
	require.NoError(t, err)
	w := r.watches(t)
	w.open(&api.WatchKeysRequest{WatchId: 1, Key: "a"})
	w.ask(&api.WatchKeysRequest{WatchId: 2, Prefix: true, StartRevision: 2})
	gone := w.next()
	require.Equal(t, []any{int64(2), true, int64(3), int64(4)}, []any{
		gone.GetWatchId(), gone.GetCanceled(), gone.GetCompactRevision(), gone.GetHeader().GetRevision(),
	})
	w.ask(&api.WatchKeysRequest{WatchId: 2, Key: "a", StartRevision: -1})
	refusal := w.next()
	require.True(t, refusal.GetCanceled())
	require.NotEmpty(t, refusal.GetReason())
	require.Zero(t, refusal.GetCompactRevision())

	w.open(&api.WatchKeysRequest{WatchId: 2, Key: "a"}) // the id is free again
	w.ask(&api.WatchKeysRequest{WatchId: 3, Cancel: true})
	w.ask(&api.WatchKeysRequest{WatchId: 2, Cancel: true})
	ended := w.next()
	require.Equal(t, []any{int64(2), true, ""}, []any{ended.GetWatchId(), ended.GetCanceled(), ended.GetReason()})
	r.put(t, "a")
	require.Equal(t, int64(1), w.next().GetWatchId(), "the first one goes on")

	require.NoError(t, w.CloseSend()) // it continues
	r.put(t, "a")
	require.Equal(t, int64(1), w.next().GetWatchId())
}

func TestWatchStreamEndsWithItsLastWatch(t *testing.T) {
	r := newRaw(t, "alice")
	w := r.watches(t)
	w.open(&api.WatchKeysRequest{WatchId: 1, Key: "a"})
	w.ask(&api.WatchKeysRequest{WatchId: 1, Cancel: true})
	require.NoError(t, w.CloseSend())
	require.True(t, w.next().GetCanceled())
	_, err := w.Recv()
	require.ErrorIs(t, err, io.EOF)
}

func TestWatchRequestsThatMakeNoSense(t *testing.T) {
	r := newRaw(t, "alice")
	for field, req := range map[string]*api.WatchKeysRequest{
		"watch_id": {WatchId: 1, Key: "b"}, "key": {WatchId: 2},
	} {
		w := r.watches(t)
		w.open(&api.WatchKeysRequest{WatchId: 1, Key: "a"})
		w.ask(req)
		_, err := w.Recv()
		refused(t, err, codes.InvalidArgument, field)
	}
	w := r.watches(t)
	w.ask(&api.WatchKeysRequest{Key: string(make([]byte, 1<<20))})
	_, err := w.Recv()
	refused(t, err, codes.ResourceExhausted, "key")
}

func TestKeyWatchesAreBounded(t *testing.T) {
	r := newRaw(t, "alice", func(c *grpcapi.Config) { c.Places.MaxWatches = 400 }) // of which one client may have 300
	one, two := r.watches(t), r.watches(t)
	for id := range int64(256) {
		one.open(&api.WatchKeysRequest{WatchId: id, Key: "a"})
	}
	one.ask(&api.WatchKeysRequest{WatchId: 256, Key: "a"})
	require.Contains(t, one.next().GetReason(), "256 watches are open on this stream")
	r.solo.Halt("no majority")
	began := time.Now()
	for range 5 {
		one.ask(&api.WatchKeysRequest{WatchId: 256, Key: "a"})
		require.NotZero(t, one.next().GetHeader().GetRevision(), "without a read of the group")
	}
	require.GreaterOrEqual(t, time.Since(began), 50*time.Millisecond, "refusals wait for their turn")
	r.solo.Resume()
	for id := range int64(44) {
		two.open(&api.WatchKeysRequest{WatchId: id, Key: "a"})
	}
	two.ask(&api.WatchKeysRequest{WatchId: 44, Key: "a"})
	require.Contains(t, two.next().GetReason(), "this client has 300 of all 400 watches")
	one.ask(&api.WatchKeysRequest{WatchId: 7, Cancel: true})
	require.True(t, one.next().GetCanceled())
	require.Eventually(t, func() bool { // its slot is free soon
		two.ask(&api.WatchKeysRequest{WatchId: 44, Key: "a"})
		return two.next().GetCreated()
	}, time.Minute, time.Millisecond)
}

func TestCloseEndsStreams(t *testing.T) {
	r := newRaw(t, "alice")
	w := r.watches(t)
	w.open(&api.WatchKeysRequest{Key: "a"})
	keep, err := r.LeaseKeepAlive(t.Context())
	require.NoError(t, err)
	require.NoError(t, keep.Send(&api.LeaseKeepAliveRequest{Id: 1}))
	_, err = keep.Recv()
	require.NoError(t, err)
	r.Close()
	for _, recv := range []func() (any, error){
		func() (any, error) { return w.Recv() }, func() (any, error) { return keep.Recv() },
	} {
		_, err := recv()
		require.Equal(t, codes.Unavailable, status.Code(err))
		require.ErrorContains(t, err, "shutting down")
	}
}
