package grpcapi_test

import (
	"bytes"
	"context"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	"github.com/blackhole/blackhole/internal/frontend/grpcapi"
	"github.com/blackhole/blackhole/internal/platform/access"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// deaf is a connection that stops reading.
type deaf struct {
	net.Conn
	silent, closed chan struct{}
	once           sync.Once
}

func (d *deaf) Read(p []byte) (int, error) {
	select {
	case <-d.silent:
		<-d.closed
		return 0, net.ErrClosed
	default:
		return d.Conn.Read(p[:min(len(p), 1024)])
	}
}

func (d *deaf) Close() error {
	d.once.Do(func() { close(d.closed) })
	return d.Conn.Close()
}

// TestSilentReaders: answers that nobody takes stay in the budget until their connection ends, in all three ways to ask, and who
// asks for more is refused by the name of the pool.
func TestSilentReaders(t *testing.T) {
	answers := access.NewPool("answer_bytes", 16<<20, nil)
	solo := coordtest.New(coordtest.Config{})
	s := grpcapi.New(grpcapi.Config{Coordination: plane(solo), Answers: answers})
	l := bufconn.Listen(1 << 10)
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(access.NewConnections(64, nil).Listener(l)) }()
	t.Cleanup(func() {
		s.Close()
		require.NoError(t, <-ended)
	})
	dial := func(silent chan struct{}) *grpc.ClientConn {
		c, err := grpc.NewClient("passthrough:///peer", grpc.WithPerRPCCredentials(named("a")), grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
				c, err := l.DialContext(ctx)
				return &deaf{Conn: c, silent: silent, closed: make(chan struct{})}, err
			}))
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	honest := api.NewCoordinationServiceClient(dial(make(chan struct{})))
	for _, key := range []string{"big/a", "big/b"} {
		_, err := honest.Txn(t.Context(), &api.TxnRequest{Then: []*api.TxnStep{{Step: &api.TxnStep_Put{Put: &api.TxnPut{Key: []byte(key), Value: bytes.Repeat([]byte("v"), 1<<20)}}}}})
		require.NoError(t, err)
	}
	all := &api.RangeRequest{Key: []byte("big/"), Prefix: true}
	empty := func() bool { return answers.Used() == 0 }
	resp, err := honest.Range(t.Context(), all)
	require.NoError(t, err)
	require.NotEmpty(t, resp.GetKvs())
	require.Eventually(t, empty, time.Minute, time.Millisecond, "the transport has written it")

	for name, ask := range map[string]func(context.Context, *grpc.ClientConn){
		"call": func(ctx context.Context, c *grpc.ClientConn) {
			_, _ = api.NewCoordinationServiceClient(c).Range(ctx, all)
		},
		"watch": func(ctx context.Context, c *grpc.ClientConn) {
			w, err := api.NewLockServiceClient(c).Watch(ctx)
			if err == nil { // the test has not ended
				_ = w.Send(&api.WatchKeysRequest{Key: "big/", Prefix: true, StartRevision: 1, PrevKv: true})
			}
		},
		"stream of calls": func(ctx context.Context, c *grpc.ClientConn) {
			w, err := coordv1.NewCallServiceClient(c).Calls(ctx)
			if err == nil {
				_ = w.Send(&coordv1.CallsRequest{Calls: []*coordv1.Call{{Id: 1, Body: &coordv1.Call_Question{Question: &coordv1.Question{Request: &coordv1.Question_Range{Range: all}}}}}})
			}
		},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		var conns []*grpc.ClientConn
		for range 16 {
			silent := make(chan struct{})
			c := dial(silent)
			conns = append(conns, c)
			_, err := api.NewCoordinationServiceClient(c).Range(ctx, &api.RangeRequest{Key: []byte("none")})
			require.NoError(t, err, name)
			close(silent)
			go ask(ctx, c)
		}
		var err error
		require.Eventually(t, func() bool {
			_, err = honest.Range(t.Context(), all)
			return err != nil
		}, time.Minute, time.Millisecond, name)
		refused(t, err, codes.ResourceExhausted, "pool.answer_bytes.share")
		require.LessOrEqual(t, answers.Used(), 12<<20, name)
		_, err = honest.Range(t.Context(), &api.RangeRequest{Key: []byte("none")})
		require.NoError(t, err, "small answers go on")
		cancel()
		for _, c := range conns {
			require.NoError(t, c.Close())
		}
		require.Eventually(t, empty, time.Minute, time.Millisecond, name)
	}
}

// TestSilentReadersAreCutOff: a client that does not take an answer in 30 s loses its connection, and the budget has room again.
func TestSilentReadersAreCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answers := access.NewPool("answer_bytes", 16<<20, nil)
		solo := coordtest.New(coordtest.Config{})
		s := grpcapi.New(grpcapi.Config{Coordination: plane(solo), Answers: answers})
		l := bufconn.Listen(1 << 10)
		ended := make(chan error, 1)
		go func() { ended <- s.Serve(access.NewConnections(64, nil).Listener(l)) }()
		silent := make(chan struct{})
		conn, err := grpc.NewClient("passthrough:///peer", grpc.WithPerRPCCredentials(named("a")), grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
				c, err := l.DialContext(ctx)
				return &deaf{Conn: c, silent: silent, closed: make(chan struct{})}, err
			}))
		require.NoError(t, err)
		c := api.NewCoordinationServiceClient(conn)
		_, err = c.Txn(t.Context(), &api.TxnRequest{Then: []*api.TxnStep{{Step: &api.TxnStep_Put{Put: &api.TxnPut{Key: []byte("a"), Value: make([]byte, 1<<20)}}}}})
		require.NoError(t, err)
		close(silent)
		ctx, cancel := context.WithCancel(t.Context())
		asked := make(chan error, 1)
		go func() {
			_, err := c.Range(ctx, &api.RangeRequest{Key: []byte("a")})
			asked <- err
		}()
		time.Sleep(29 * time.Second)
		synctest.Wait()
		require.Greater(t, answers.Used(), 1<<20)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		require.Zero(t, answers.Used())
		cancel()
		require.Error(t, <-asked)
		require.NoError(t, conn.Close())
		s.Close()
		require.NoError(t, <-ended)
	})
}

// TestChangesAreNotRefused: a transaction that was carried out waits for room for its answer, and then its outcome is unknown to the client,
// not refused. So it is for a call alone and for one on a stream.
func TestChangesAreNotRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answers := access.NewPool("answer_bytes", 16<<20, nil)
		solo := coordtest.New(coordtest.Config{})
		s := grpcapi.New(grpcapi.Config{Coordination: plane(solo), Answers: answers})
		l := bufconn.Listen(1 << 20)
		ended := make(chan error, 1)
		go func() { ended <- s.Serve(l) }()
		conn, err := grpc.NewClient("passthrough:///peer", grpc.WithPerRPCCredentials(named("a")), grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
		require.NoError(t, err)
		c := api.NewCoordinationServiceClient(conn)
		txn := &api.TxnRequest{Then: []*api.TxnStep{
			{Step: &api.TxnStep_Put{Put: &api.TxnPut{Key: []byte("a"), Value: make([]byte, 1<<20)}}},
			{Step: &api.TxnStep_Range{Range: &api.TxnRange{Key: []byte("a")}}},
		}}
		_, err = c.Txn(t.Context(), txn)
		require.NoError(t, err)
		synctest.Wait()
		require.Zero(t, answers.Used())
		var releases []func()
		for n, bytes := range []int{8 << 20, 6 << 20, 5 << 18} {
			release, err := answers.TakeBytes(access.With(t.Context(), access.Principal{Name: string(rune('x' + n))}), "test", bytes, 0)
			require.NoError(t, err)
			releases = append(releases, release)
		}

		_, err = c.Range(t.Context(), &api.RangeRequest{Key: []byte("a")})
		refused(t, err, codes.ResourceExhausted, "pool.answer_bytes")
		_, err = c.Txn(t.Context(), txn)
		refused(t, err, codes.DeadlineExceeded, "pool.answer_bytes")
		require.ErrorContains(t, err, "was carried out")
		stream, err := coordv1.NewCallServiceClient(conn).Calls(t.Context())
		require.NoError(t, err)
		require.NoError(t, stream.Send(&coordv1.CallsRequest{Calls: []*coordv1.Call{{Id: 1, Body: &coordv1.Call_Command{Command: &coordv1.Command{Request: &coordv1.Command_Txn{Txn: txn}}}}}}))
		got, err := stream.Recv()
		require.NoError(t, err)
		require.Contains(t, string(got.GetReplies()[0].GetStatus()), "was carried out")
		time.AfterFunc(5*time.Second, releases[0])
		resp, err := c.Txn(t.Context(), txn)
		require.NoError(t, err, "it waits for room")
		require.EqualValues(t, 4, resp.GetResults()[1].GetKvs()[0].GetVersion(), "all were carried out")
		require.NoError(t, conn.Close())
		s.Close()
		require.NoError(t, <-ended)
	})
}
