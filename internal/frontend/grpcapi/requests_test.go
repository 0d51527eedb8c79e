package grpcapi_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	"github.com/blackhole/blackhole/internal/frontend/grpcapi"
	"github.com/blackhole/blackhole/internal/platform/access"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// hosts is a listener whose connections come from a host of the test's choice.
type hosts struct {
	*bufconn.Listener
	next chan net.IP // one for each dial
}

func (h hosts) Accept() (net.Conn, error) {
	c, err := h.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return from{c, <-h.next}, nil
}

type from struct {
	net.Conn
	host net.IP
}

func (f from) RemoteAddr() net.Addr { return &net.TCPAddr{IP: f.host, Port: 1} }

// dial connects from host n.
func (h hosts) dial(ctx context.Context, n byte) (net.Conn, error) {
	h.next <- net.IPv4(192, 0, 2, n)
	return h.DialContext(ctx)
}

func (h hosts) client(t *testing.T, n byte) *grpc.ClientConn {
	c, err := grpc.NewClient("passthrough:///peer", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithPerRPCCredentials(named("honest")),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return h.dial(ctx, n) }))
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// half is a client that begins calls and does not end them.
type half struct {
	*http2.Framer
	net.Conn
	stream uint32
	ended  chan struct{} // the server closed the connection
}

func (h hosts) half(t *testing.T, n byte) *half {
	c, err := h.dial(t.Context(), n)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	a := &half{Framer: http2.NewFramer(c, nil), Conn: c, stream: 1, ended: make(chan struct{})}
	go func() {
		defer close(a.ended)
		_, _ = io.Copy(io.Discard, c)
	}()
	_, err = io.WriteString(c, http2.ClientPreface)
	require.NoError(t, err)
	require.NoError(t, a.WriteSettings())
	return a
}

// begin begins a call, and with size the request of it.
func (a *half) begin(t *testing.T, method string, size int) error {
	var head bytes.Buffer
	e := hpack.NewEncoder(&head)
	for _, f := range []hpack.HeaderField{
		{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "http"}, {Name: ":path", Value: method}, {Name: ":authority", Value: "peer"},
		{Name: "content-type", Value: "application/grpc"}, {Name: "te", Value: "trailers"}, {Name: "owner", Value: "greedy"},
	} {
		require.NoError(t, e.WriteField(f))
	}
	err := a.WriteHeaders(http2.HeadersFrameParam{StreamID: a.stream, BlockFragment: head.Bytes(), EndHeaders: true})
	if err == nil && size > 0 {
		part := make([]byte, 1000)
		binary.BigEndian.PutUint32(part[1:], uint32(size))
		err = a.WriteData(a.stream, false, part)
	}
	a.stream += 2
	return err
}

func put(size int) *api.TxnRequest {
	return &api.TxnRequest{Then: []*api.TxnStep{{Step: &api.TxnStep_Put{Put: &api.TxnPut{Key: []byte("a"), Value: make([]byte, size)}}}}}
}

// serveHosts serves a group in this process to hosts, in a bubble.
func serveHosts(t *testing.T, c grpcapi.Config) hosts {
	c.Coordination = plane(coordtest.New(coordtest.Config{}))
	s, h, ended := grpcapi.New(c), hosts{bufconn.Listen(1 << 16), make(chan net.IP, 1)}, make(chan error, 1)
	go func() { ended <- s.Serve(access.NewConnections(4096, nil).Listener(h)) }()
	t.Cleanup(func() {
		s.Close()
		require.NoError(t, <-ended)
	})
	return h
}

// TestHalfRequests: hosts that begin large requests and do not end them, in every kind of call, take no more than the budget, leave some to
// others, and lose their connections after a while. A small request of anybody is answered meanwhile.
func TestHalfRequests(t *testing.T) {
	for _, greedy := range []byte{1, 5} {
		synctest.Test(t, func(t *testing.T) {
			var mu sync.Mutex
			var refusals []access.Refusal
			requests := access.NewPool("request_bytes", 16<<20, func(r access.Refusal) {
				mu.Lock()
				defer mu.Unlock()
				refusals = append(refusals, r)
			})
			h := serveHosts(t, grpcapi.Config{Requests: requests})
			honest := api.NewCoordinationServiceClient(h.client(t, 200))
			_, err := honest.Txn(t.Context(), put(1<<20))
			require.NoError(t, err)
			var all []*half
			for n := range greedy {
				for _, method := range []string{api.CoordinationService_Txn_FullMethodName, coordv1.CallService_Calls_FullMethodName, api.LockService_Watch_FullMethodName} {
					a := h.half(t, n)
					all = append(all, a)
					for range 20 {
						for size := 4 << 20; size > access.Small; size /= 2 {
							require.NoError(t, a.begin(t, method, size))
						}
					}
				}
			}
			synctest.Wait()
			mu.Lock()
			seen := slices.Clone(refusals)
			mu.Unlock()
			require.NotEmpty(t, seen)
			for _, r := range seen {
				require.Equal(t, "arriving_bytes", r.Resource)
				require.Regexp(t, `^192\.0\.2\.[0-4]$`, r.Client)
			}
			_, err = honest.Txn(t.Context(), put(10_000))
			require.NoError(t, err)
			_, err = api.NewCoordinationServiceClient(h.client(t, 0)).Txn(t.Context(), put(10_000))
			require.NoError(t, err, "of an attacker's host")
			_, err = honest.Txn(t.Context(), put(1<<20))
			if greedy == 1 {
				require.NoError(t, err)
			} else {
				require.Equal(t, codes.ResourceExhausted, status.Code(err))
				_, err = honest.Txn(t.Context(), put(10_000))
				require.NoError(t, err, "the connection goes on")
			}
			time.Sleep(31 * time.Second)
			for _, a := range all {
				<-a.ended
			}
			_, err = honest.Txn(t.Context(), put(1<<20))
			require.NoError(t, err)
			synctest.Wait()
			require.Zero(t, requests.Used())
		})
	}
}

// TestRequestsAtWork: the requests of calls, also of those on a stream, have room until they are answered, and are refused by the name of
// the pool without it.
func TestRequestsAtWork(t *testing.T) {
	requests := access.NewPool("request_bytes", 16<<20, nil)
	r := newRaw(t, "a", func(c *grpcapi.Config) { c.Requests = requests })
	_, err := r.Txn(t.Context(), put(1<<20))
	require.NoError(t, err)
	require.Zero(t, requests.Used())
	var taken []func()
	for n, bytes := range []int{8 << 20, 4 << 20, 3 << 20} {
		release, err := requests.TakeBytes(access.With(t.Context(), access.Principal{Name: string(rune('x' + n))}), "test", bytes, 0)
		require.NoError(t, err)
		taken = append(taken, release)
	}
	_, err = r.Txn(t.Context(), put(1<<20))
	refused(t, err, codes.ResourceExhausted, "pool.request_bytes")
	_, err = r.Txn(t.Context(), put(10_000))
	require.NoError(t, err)
	for _, release := range taken {
		release()
	}
	_, err = r.Txn(t.Context(), put(1<<20))
	require.NoError(t, err)
}

// TestBegunCalls: hosts that begin calls without a request, one or five, shut out nobody, neither another host nor their own.
func TestBegunCalls(t *testing.T) {
	for _, greedy := range []byte{1, 5} {
		synctest.Test(t, func(t *testing.T) {
			h := serveHosts(t, grpcapi.Config{})
			for n := range greedy {
				for range 3 {
					a := h.half(t, n)
					for range 2000 {
						if a.begin(t, api.CoordinationService_Txn_FullMethodName, 0) != nil {
							break // the server closed the connection
						}
					}
				}
			}
			synctest.Wait()
			for _, host := range []byte{200, 0} {
				c := h.client(t, host)
				for range 100 {
					_, err := api.NewCoordinationServiceClient(c).Txn(t.Context(), put(1))
					require.NoError(t, err)
				}
				_, err := healthpb.NewHealthClient(c).Check(t.Context(), &healthpb.HealthCheckRequest{})
				require.NoError(t, err)
			}
		})
	}
}

// TestCallsHavePlaces: a caller that takes all places of calls that it gets, by streams, leaves some to others, and is refused by the name
// of the pool. Probes of health need none.
func TestCallsHavePlaces(t *testing.T) {
	calls := access.NewPool("calls", 64, nil)
	r := newRaw(t, "a", func(c *grpcapi.Config) { c.AtOnce = calls })
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range 48 {
		_, err := r.Calls(ctx)
		require.NoError(t, err)
	}
	require.Eventually(t, func() bool { return calls.Used() == 48 }, time.Minute, time.Millisecond)
	_, err := r.Txn(t.Context(), put(1))
	refused(t, err, codes.ResourceExhausted, "pool.calls.share")
	release, err := calls.Take(access.With(t.Context(), access.Principal{Name: "other"}), "test")
	require.NoError(t, err)
	release()
	_, err = healthpb.NewHealthClient(r.named(t, "a")).Check(t.Context(), &healthpb.HealthCheckRequest{})
	require.NoError(t, err)
	cancel()
	require.Eventually(t, func() bool { return calls.Used() == 0 }, time.Minute, time.Millisecond)
}
