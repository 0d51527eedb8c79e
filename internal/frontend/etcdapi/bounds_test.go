package etcdapi_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/frontend/etcdapi"
	pb "github.com/blackhole/blackhole/internal/frontend/etcdapi/etcdserverpb"
	"github.com/blackhole/blackhole/internal/platform/access"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// deaf is a connection that reads nothing more once silent is closed.
type deaf struct {
	net.Conn
	silent chan struct{}
	open   context.Context
	close  context.CancelFunc
}

func (d deaf) Read(p []byte) (int, error) {
	select {
	case <-d.silent:
		<-d.open.Done()
		return 0, net.ErrClosed
	default:
		return d.Conn.Read(p[:min(len(p), 1024)])
	}
}

func (d deaf) Close() error {
	d.close()
	return d.Conn.Close()
}

// TestAnswersAreBounded: what a client has not taken stays in the budget until its connection is cut, over gRPC and
// JSON. Without room a read is refused as busy, and a change that was carried out as one of unknown outcome.
func TestAnswersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answers, l, silent := access.NewPool("answer_bytes", 16<<20, nil), bufconn.Listen(1<<10), make(chan struct{})
		f := startOn(t, access.NewConnections(64, nil).Listener(l), "passthrough:///peer", answers, nil, grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			c, err := l.DialContext(ctx)
			open, end := context.WithCancel(context.Background())
			return deaf{c, silent, open, end}, err
		}))
		large := &pb.PutRequest{Key: []byte("a"), Value: make([]byte, 1<<20), PrevKv: true}
		_, err := f.Put(t.Context(), large)
		require.NoError(t, err)
		got, err := f.Range(t.Context(), all())
		require.NoError(t, err)
		require.Len(t, got.GetKvs()[0].GetValue(), 1<<20)
		synctest.Wait()
		require.Zero(t, answers.Used(), "it was taken")

		var releases []func()
		for n, bytes := range []int{8 << 20, 6 << 20, 5 << 18} {
			release, err := answers.TakeBytes(access.With(t.Context(), access.Principal{Name: string(rune('x' + n))}), "test", bytes, 0)
			require.NoError(t, err)
			releases = append(releases, release)
		}
		_, err = f.Range(t.Context(), all())
		refusedAs(t, rpctypes.ErrGRPCRequestTooManyRequests, err)
		_, err = f.Put(t.Context(), large)
		refusedAs(t, rpctypes.ErrGRPCTimeout, err)
		for _, release := range releases {
			release()
		}

		ask := func(path, body string) {
			c, err := l.DialContext(t.Context())
			require.NoError(t, err)
			t.Cleanup(func() { c.Close() })
			_, err = fmt.Fprintf(c, "POST /v3/%s HTTP/1.1\r\nHost: peer\r\nContent-Length: %d\r\n\r\n%s", path, len(body), body)
			require.NoError(t, err)
		}
		stream, err := f.Watch(t.Context())
		require.NoError(t, err)
		watching{stream, t}.create(&pb.WatchCreateRequest{RangeEnd: []byte{0}})
		for name, silence := range map[string]func(){
			"a range over JSON": func() { ask("kv/range", `{"key":"YQ=="}`) },
			"a watch over JSON": func() { ask("watch", `{"create_request":{"key":"YQ==","start_revision":"2"}}`) },
			"a watch": func() {
				close(silent)
				_, err := f.solo.Execute(t.Context(), coord.CommandOf("@x", &apiv1.TxnRequest{Then: []*apiv1.TxnStep{coord.PutStep("etcd/a", make([]byte, 1<<20), 0)}}))
				require.NoError(t, err)
			},
		} {
			silence()
			time.Sleep(29 * time.Second)
			synctest.Wait()
			require.GreaterOrEqual(t, answers.Used(), 1<<20, name)
			time.Sleep(2 * time.Second)
			synctest.Wait()
			require.Zero(t, answers.Used(), name)
		}
	})
}

// TestRoomBeforeReading: forty clients that read nothing of answers of 50 MiB hold no more than their share, and one
// without room is refused before the second page is read. A transaction without room changes nothing. Another caller
// is served meanwhile.
func TestRoomBeforeReading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answers := access.NewPool("answer_bytes", 16<<20, nil)
		g := newGroup(t, etcdapi.Config{Answers: answers})
		for n := range 50 {
			_, err := g.solo.Execute(t.Context(), coord.CommandOf("@x", &apiv1.TxnRequest{Then: []*apiv1.TxnStep{
				coord.PutStep(fmt.Sprintf("etcd/large/%d", n), make([]byte, 1<<20), 0),
			}}))
			require.NoError(t, err)
		}
		g.put(t, "small", "1")
		release, err := answers.TakeBytes(access.With(t.Context(), access.Principal{Name: "x"}), "test", 2<<20, 0)
		require.NoError(t, err)
		most := 0
		ended := make(chan error, 40)
		for range cap(ended) {
			go func() {
				_, err := g.Range(t.Context(), all())
				ended <- err
			}()
		}
		busy := 0
		for range cap(ended) {
			if err := <-ended; status.Code(err) == codes.ResourceExhausted {
				busy++
			}
			most = max(most, answers.Used())
		}
		require.Positive(t, busy)
		require.LessOrEqual(t, most, 16<<20)
		synctest.Wait()
		require.Equal(t, 2<<20, answers.Used(), "all of it came back")

		whole, err := answers.TakeBytes(access.With(t.Context(), access.Principal{Name: "y"}), "test", 8<<20, 0)
		require.NoError(t, err)
		third, err := answers.TakeBytes(access.With(t.Context(), access.Principal{Name: "z"}), "test", 4<<20, 0)
		require.NoError(t, err)
		before := g.reads.Load()
		_, err = g.Range(t.Context(), all())
		refusedAs(t, rpctypes.ErrGRPCRequestTooManyRequests, err)
		require.Equal(t, before, g.reads.Load(), "nothing was read")
		one, err := g.Range(t.Context(), &pb.RangeRequest{Key: []byte("small")})
		require.NoError(t, err)
		require.Len(t, one.GetKvs(), 1)
		_, err = g.Txn(t.Context(), &pb.TxnRequest{Success: []*pb.RequestOp{
			{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte("small"), Value: []byte("2")}}},
			{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: []byte("large/"), RangeEnd: []byte("large0")}}},
		}})
		refusedAs(t, rpctypes.ErrGRPCRequestTooManyRequests, err)
		one, err = g.Range(t.Context(), &pb.RangeRequest{Key: []byte("small")})
		require.NoError(t, err)
		require.Equal(t, "1", string(one.GetKvs()[0].GetValue()))
		for _, release := range []func(){release, whole, third} {
			release()
		}
		require.Zero(t, answers.Used())
	})
}

// TestRequestsAreBounded: requests that do not end take no more than their budget, over gRPC and JSON, and small ones
// are answered meanwhile. What a call sends ahead of what it reads waits at its own end. Calls have places.
func TestRequestsAreBounded(t *testing.T) {
	requests, calls := access.NewPool("request_bytes", 16<<20, nil), access.NewPool("calls", 64, nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	f := startWith(t, access.NewConnections(256, nil).Listener(l), l.Addr().String(), etcdapi.Config{Requests: requests, AtOnce: calls}, nil)
	large := &pb.PutRequest{Key: []byte("a"), Value: make([]byte, 1<<20)}
	_, err = f.Put(t.Context(), large)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return requests.Used() == 0 && calls.Used() == 0 }, time.Minute, time.Millisecond)

	for range 40 {
		c, err := net.Dial("tcp", f.addr)
		require.NoError(t, err)
		defer c.Close()
		_, err = fmt.Fprintf(c, "POST /v3/kv/put HTTP/1.1\r\nHost: peer\r\nContent-Length: %d\r\n\r\n{\"value\":\"%s", 5<<20, strings.Repeat("a", access.Small))
		require.NoError(t, err)
	}
	require.Eventually(t, func() bool { return requests.Used() > 0 }, time.Minute, time.Millisecond)
	require.LessOrEqual(t, requests.Used(), 12<<20)
	f.put(t, "small", "a")
	_, err = f.Put(t.Context(), &pb.PutRequest{Key: []byte("a"), Value: make([]byte, 6<<20)})
	require.Equal(t, codes.ResourceExhausted, status.Code(err))

	// A watch whose answers nobody reads is not read either.
	watch, err := f.Watch(t.Context())
	require.NoError(t, err)
	watching{watch, t}.create(&pb.WatchCreateRequest{RangeEnd: []byte{0}, ProgressNotify: true})
	var sent atomic.Int64
	go func() { // until the connection closes
		for watch.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_ProgressRequest{ProgressRequest: &pb.WatchProgressRequest{}}}) == nil {
			sent.Add(1)
		}
	}()
	last := int64(0)
	require.Eventually(t, func() bool {
		before := last
		last = sent.Load()
		return before > 0 && last == before
	}, time.Minute, 300*time.Millisecond)
}
