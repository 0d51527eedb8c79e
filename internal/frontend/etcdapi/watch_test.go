package etcdapi_test

import (
	"context"
	"fmt"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	pb "github.com/blackhole/blackhole/internal/frontend/etcdapi/etcdserverpb"
)

// TestRefusedWatches: a refused watch costs the group no read, the next request of its stream waits for its turn among
// those of the caller, and watches of the stream go on.
func TestRefusedWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := bufconn.Listen(1 << 10)
		f := startOn(t, l, "passthrough:///peer", nil, nil, grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
		open := func() watching {
			stream, err := f.Watch(t.Context())
			require.NoError(t, err)
			return watching{stream, t}
		}
		w, other := open(), open() // of one caller
		at := w.create(&pb.WatchCreateRequest{Key: []byte("a"), WatchId: 5}).GetHeader()
		f.solo.Halt("no majority")
		began := time.Now()
		for n := range 20 {
			refused := w.create(&pb.WatchCreateRequest{Key: []byte("a"), WatchId: 5})
			require.True(t, refused.GetCanceled())
			require.Equal(t, at.GetRevision(), refused.GetHeader().GetRevision())
			require.GreaterOrEqual(t, time.Since(began), time.Duration(2*n-1)*10*time.Millisecond, "they wait for each other")
			require.True(t, other.create(&pb.WatchCreateRequest{StartRevision: -1}).GetCanceled())
		}
		for _, end := range []string{"a", "b"} {
			empty := w.create(&pb.WatchCreateRequest{Key: []byte("b"), RangeEnd: []byte(end)})
			require.True(t, empty.GetCanceled())
			require.Equal(t, []any{int64(-1), "mvcc: watcher range is empty"}, []any{empty.GetWatchId(), empty.GetCancelReason()})
		}
		f.solo.Resume()
		last := f.put(t, "a", "1")
		require.Len(t, w.next().GetEvents(), 1)

		_, err := f.Compact(t.Context(), &pb.CompactionRequest{Revision: last})
		require.NoError(t, err)
		began = time.Now()
		for n := range 20 {
			for _, stream := range []watching{w, other} {
				require.True(t, stream.create(&pb.WatchCreateRequest{Key: []byte("a"), StartRevision: last - 1}).GetCreated())
				gone := stream.next()
				require.True(t, gone.GetCanceled())
				require.Equal(t, last, gone.GetCompactRevision())
			}
			require.GreaterOrEqual(t, time.Since(began), time.Duration(2*n+1)*10*time.Millisecond, "they wait too")
		}
		require.False(t, w.create(&pb.WatchCreateRequest{Key: []byte("a"), StartRevision: last}).GetCanceled(), "it can begin there")
	})
}

type watching struct {
	pb.Watch_WatchClient
	t *testing.T
}

func (w watching) create(r *pb.WatchCreateRequest) *pb.WatchResponse {
	w.t.Helper()
	require.NoError(w.t, w.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: r}}))
	return w.next()
}

func (w watching) next() *pb.WatchResponse {
	w.t.Helper()
	r, err := w.Recv()
	require.NoError(w.t, err)
	return r
}

func TestWatch(t *testing.T) {
	f := start(t, nil)
	first := f.put(t, "a", "1")
	f.put(t, "a", "2")
	stream, err := f.Watch(t.Context())
	require.NoError(t, err)
	w := watching{stream, t}
	created := w.create(&pb.WatchCreateRequest{Key: []byte("a"), StartRevision: first, PrevKv: true})
	require.True(t, created.GetCreated())
	require.Zero(t, created.GetWatchId())
	events := w.next().GetEvents()
	require.Len(t, events, 2)
	require.Equal(t, "a", string(events[1].GetKv().GetKey()))
	require.Equal(t, "1", string(events[1].GetPrevKv().GetValue()))

	duplicate := w.create(&pb.WatchCreateRequest{Key: []byte("a"), WatchId: created.GetWatchId() + 5})
	require.False(t, duplicate.GetCanceled())
	duplicate = w.create(&pb.WatchCreateRequest{Key: []byte("a"), WatchId: created.GetWatchId() + 5})
	require.True(t, duplicate.GetCanceled())
	require.EqualValues(t, -1, duplicate.GetWatchId())
	negative := w.create(&pb.WatchCreateRequest{Key: []byte("a"), StartRevision: -1})
	require.True(t, negative.GetCanceled())
	require.Equal(t, rpctypes.ErrCompacted.Error(), negative.GetCancelReason())

	for _, id := range []int64{0, 5} {
		require.NoError(t, w.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CancelRequest{CancelRequest: &pb.WatchCancelRequest{WatchId: id}}}))
		end := w.next()
		require.True(t, end.GetCanceled())
		require.Equal(t, id, end.GetWatchId())
		require.Empty(t, end.GetCancelReason())
	}

	filtered := w.create(&pb.WatchCreateRequest{RangeEnd: []byte{0}, Filters: []pb.WatchCreateRequest_FilterType{pb.WatchCreateRequest_NOPUT}, ProgressNotify: true})
	f.put(t, "b", "1")
	_, err = f.DeleteRange(t.Context(), &pb.DeleteRangeRequest{Key: []byte("b")})
	require.NoError(t, err)
	got := w.next()
	require.Equal(t, filtered.GetWatchId(), got.GetWatchId())
	require.Len(t, got.GetEvents(), 1)
	require.Equal(t, mvccpb.Event_DELETE, got.GetEvents()[0].GetType())
	require.NoError(t, w.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_ProgressRequest{ProgressRequest: &pb.WatchProgressRequest{}}}))
	mark := w.next()
	require.EqualValues(t, -1, mark.GetWatchId())
	require.Empty(t, mark.GetEvents())
	require.Equal(t, got.GetHeader().GetRevision(), mark.GetHeader().GetRevision())

	_, err = f.Compact(t.Context(), &pb.CompactionRequest{Revision: first + 1})
	require.NoError(t, err)
	old := w.create(&pb.WatchCreateRequest{Key: []byte("a"), StartRevision: first})
	require.True(t, old.GetCreated())
	gone := w.next()
	require.True(t, gone.GetCanceled())
	require.Equal(t, first+1, gone.GetCompactRevision())
}

// askProgress asks for a mark of the stream.
func (w watching) askProgress() {
	w.t.Helper()
	require.NoError(w.t, w.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_ProgressRequest{ProgressRequest: &pb.WatchProgressRequest{}}}))
}

// TestProgress: time stands still, so no mark comes from silence.
func TestProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := bufconn.Listen(1 << 10)
		f := startOn(t, l, "passthrough:///peer", nil, nil, grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
		began := time.Now()
		open := func() watching {
			stream, err := f.Watch(t.Context())
			require.NoError(t, err)
			return watching{stream, t}
		}
		first := f.put(t, "a", "1")
		w := open()
		w.askProgress() // without a watch there is no answer, as in etcd
		w.create(&pb.WatchCreateRequest{Key: []byte("quiet"), RangeEnd: []byte("s")})
		w.create(&pb.WatchCreateRequest{Key: []byte("a"), StartRevision: 1})
		require.Len(t, w.next().GetEvents(), 1)
		for range 3 {
			present := f.put(t, "other", "")
			w.askProgress()
			mark := w.next()
			require.Equal(t, []any{int64(-1), present, 0}, []any{mark.GetWatchId(), mark.GetHeader().GetRevision(), len(mark.GetEvents())})
			require.Greater(t, present, first)
		}
		for n := range 20 { // a mark never comes before the events that it tells of
			sent := f.put(t, []string{"a", "r"}[n%2], "")
			w.askProgress()
			require.Equal(t, sent, w.next().GetEvents()[0].GetKv().GetModRevision())
			mark := w.next()
			require.Equal(t, []int64{-1, sent}, []int64{mark.GetWatchId(), mark.GetHeader().GetRevision()})
		}

		past := open() // what wants marks gets none before its time, as in etcd
		past.create(&pb.WatchCreateRequest{Key: []byte("a"), StartRevision: 1, ProgressNotify: true})
		require.Len(t, past.next().GetEvents(), 11)
		past.askProgress()
		mark := past.next()
		require.EqualValues(t, -1, mark.GetWatchId())
		require.Equal(t, w.create(&pb.WatchCreateRequest{Key: []byte("b")}).GetHeader().GetRevision(), mark.GetHeader().GetRevision())

		future := open() // a mark before the start would let the client resume too early
		start := mark.GetHeader().GetRevision() + 3
		future.create(&pb.WatchCreateRequest{Key: []byte("a"), StartRevision: start, ProgressNotify: true})
		future.askProgress()
		f.put(t, "other", "")
		f.put(t, "other", "")
		future.askProgress()
		mark = future.next()
		require.Equal(t, []int64{-1, start - 1}, []int64{mark.GetWatchId(), mark.GetHeader().GetRevision()})

		f.solo.Halt("no majority")
		w.askProgress()
		synctest.Wait()
		f.solo.Resume()
		sent := f.put(t, "a", "")
		require.Equal(t, sent, w.next().GetEvents()[0].GetKv().GetModRevision(), "the watches go on")
		require.Less(t, time.Since(began), 10*time.Second)
	})
}

func TestFragments(t *testing.T) {
	f := start(t, nil)
	stream, err := f.Watch(t.Context())
	require.NoError(t, err)
	w := watching{stream, t}
	w.create(&pb.WatchCreateRequest{RangeEnd: []byte{0}, Fragment: true})
	ops := make([]*pb.RequestOp, 3)
	for i := range ops {
		ops[i] = &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: fmt.Append(nil, i), Value: make([]byte, 1<<20)}}}
	}
	_, err = f.Txn(t.Context(), &pb.TxnRequest{Success: ops})
	require.NoError(t, err)
	for i := range ops {
		part := w.next()
		require.Len(t, part.GetEvents(), 1)
		require.Equal(t, i < len(ops)-1, part.GetFragment())
	}
}
