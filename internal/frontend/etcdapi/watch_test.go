package etcdapi_test

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	pb "github.com/blackhole/blackhole/internal/frontend/etcdapi/etcdserverpb"
)

// TestRefusedWatches: a refused watch costs the group no read, the next request of its stream waits for its turn among those of the caller, and watches of the stream go on.
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
		f.put(t, "a", "1")
		require.Len(t, w.next().GetEvents(), 1)
	})
}
