package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/test/bufconn"

	"github.com/blackhole/blackhole/internal/agent/agenttest"
	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
	agentv1 "github.com/blackhole/blackhole/proto/blackhole/agent/v1"
)

// host is a peer with only an agent, on its own network.
type host struct {
	*agenttest.Agent
	t     testing.TB
	began time.Time

	mu       sync.Mutex
	listener *bufconn.Listener // nil: not listening
	server   *grpc.Server
	done     chan struct{}
	calls    map[string]int
	refuse   func(method string) error // nil refuses nothing
}

func newHost(t testing.TB) *host {
	h := &host{Agent: agenttest.New(), t: t, began: time.Now(), calls: map[string]int{}}
	h.start()
	t.Cleanup(h.stop)
	return h
}

func (h *host) start() {
	l, done := bufconn.Listen(1<<20), make(chan struct{})
	s := grpc.NewServer(grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}))
	agentv1.RegisterDiscoveryServiceServer(s, &agenttest.Server{Agent: h.Agent, Before: h.before})
	go func() { defer close(done); _ = s.Serve(l) }()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.listener, h.server, h.done = l, s, done
}

// stop closes every connection and refuses new ones.
func (h *host) stop() {
	h.mu.Lock()
	s, done := h.server, h.done
	h.listener = nil
	h.mu.Unlock()
	s.Stop()
	<-done
}

func (h *host) before(_ context.Context, method string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls[method]++
	if h.refuse != nil {
		return h.refuse(method)
	}
	return nil
}

func (h *host) refusing(refuse func(method string) error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.refuse = refuse
}

func (h *host) count(method string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.calls[method]
}

func (h *host) dial(ctx context.Context, _ string) (net.Conn, error) {
	h.mu.Lock()
	l := h.listener
	h.mu.Unlock()
	if l == nil {
		return nil, errors.New("connection refused")
	}
	return l.DialContext(ctx)
}

func (h *host) client(opts ...Option) *Client {
	c, err := New("passthrough:///peer", append([]Option{
		Dial(grpc.WithContextDialer(h.dial)), WithClock(func() time.Duration { return time.Since(h.began) }),
	}, opts...)...)
	require.NoError(h.t, err)
	h.t.Cleanup(func() { require.NoError(h.t, c.Close()) })
	return c
}

// pass advances the time of the client in the bubble and of the agent.
func (h *host) pass(d time.Duration) {
	for ; d > 0; d -= time.Second {
		time.Sleep(min(d, time.Second))
		synctest.Wait()
		h.Pass(min(d, time.Second))
	}
}

// inBubble runs a test in virtual time.
func inBubble(t *testing.T, f func(t *testing.T, h *host, s *Services)) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t)
		f(t, h, h.client().Services())
	})
}

func (h *host) status(k instance.Key) string {
	if i := h.Instances()[k]; i != nil {
		return i.Status.String()
	}
	return "gone"
}

// TestServicesContract runs the suite on Services for the methods that it shares.
func TestServicesContract(t *testing.T) {
	agenttest.Run(t, func(t testing.TB) agenttest.API {
		h := newHost(t)
		api := agenttest.InProcess(h.Agent)
		c := h.client()
		api.Registrar, api.Finder, api.Wire = c.link.Agent, eager{c.Services()}, true
		return api
	})
}

// eager implements instance.Catalog with Services, without the cache: the suite expects to read
// its own writes, and the cache is slightly late.
type eager struct{ s *Services }

func (e eager) Discover(ctx context.Context, q instance.Query) (instance.Result, error) {
	if q.Consistency == instance.Linearizable {
		return e.s.Discover(ctx, q)
	}
	return e.s.agent.Discover(ctx, q)
}

func (e eager) List(ctx context.Context, q instances.ListQuery) (instance.Result, error) {
	return e.s.agent.List(ctx, q)
}

func (e eager) Services(ctx context.Context, namespace string) (instance.Services, error) {
	return e.s.List(ctx, namespace)
}

func (e eager) Watch(ctx context.Context, q instance.Query, after uint64, send func(instance.Batch) error) error {
	for b, err := range e.s.Watch(ctx, q, after) {
		if err != nil {
			return err
		}
		if err := send(b); err != nil {
			return err
		}
	}
	return nil
}

// TestListInPages expects one result from several pages, which is stale if contact was lost
// between two pages.
func TestListInPages(t *testing.T) {
	inBubble(t, func(t *testing.T, h *host, s *Services) {
		var want []string
		for n := range 2*1000 + 1 {
			want = append(want, fmt.Sprintf("%05d", n))
			_, err := h.Agent.Register(t.Context(), agenttest.Web(want[n]))
			require.NoError(t, err)
		}
		pages := 0
		h.refusing(func(string) error {
			if pages++; pages == 3 {
				h.Lose("cut off")
			}
			return nil
		})
		r, err := s.agent.List(t.Context(), instances.ListQuery{Namespace: instance.DefaultNamespace})
		require.NoError(t, err)
		require.Equal(t, 3, pages)
		var got []string
		for _, i := range r.Instances {
			got = append(got, i.ID)
		}
		require.Equal(t, want, got)
		require.Equal(t, []any{true, "cut off"}, []any{r.Stale, r.Reason})
	})
}

func TestPresenceStays(t *testing.T) {
	inBubble(t, func(t *testing.T, h *host, s *Services) {
		var all []*InstanceHandle
		for range 100 {
			p, err := s.Register(t.Context(), agenttest.Web(""))
			require.NoError(t, err)
			all = append(all, p)
		}
		h.pass(5 * time.Minute)
		require.Len(t, h.Instances(), 100)
		for _, p := range all {
			require.NoError(t, p.Err())
			require.Equal(t, "UP", h.status(p.Instance().Key))
		}
		require.LessOrEqual(t, h.count("Heartbeat"), 5*60/10+1, "all go along with the first")

		require.NoError(t, all[0].Close(t.Context()))
		require.NoError(t, all[0].Close(t.Context()))
		require.Equal(t, "gone", h.status(all[0].Instance().Key))
		require.ErrorIs(t, all[0].Err(), fault.Canceled)
		<-all[0].Done()
		require.NoError(t, s.client.Close())
		require.Empty(t, h.Instances(), "what was not closed is deregistered with the client")
		require.ErrorIs(t, all[1].Err(), fault.Canceled)
		_, err := s.Register(t.Context(), agenttest.Web(""))
		require.ErrorIs(t, err, fault.Canceled)
	})
}

// TestHandleRegistersAgain expects a lost instance to return with its override.
func TestHandleRegistersAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, h *host, s *Services) {
		p, err := s.Register(t.Context(), agenttest.Web("a"))
		require.NoError(t, err)
		require.NoError(t, p.SetStatus(t.Context(), instance.StatusOutOfService))
		first := p.Instance()
		h.Vanish(first.Key)
		h.pass(11 * time.Second)
		require.Equal(t, "OUT_OF_SERVICE", h.status(first.Key))
		require.NotEqual(t, first.Lease, p.Instance().Lease)
		require.NoError(t, p.SetStatus(t.Context(), instance.StatusUp))

		h.stop()
		h.pass(10 * time.Minute)
		require.Equal(t, "gone", h.status(first.Key))
		require.NoError(t, p.Err(), "it is not given up")
		require.Error(t, p.Missed())
		h.start()
		h.pass(10 * time.Second)
		require.NoError(t, p.Missed())
		require.Equal(t, "UP", h.status(first.Key))

		spec := agenttest.Web("a").Spec
		spec.Port = 9090
		require.NoError(t, p.Update(t.Context(), spec))
		require.Equal(t, 9090, p.Instance().Spec.Port)
		h.Vanish(first.Key)
		h.pass(11 * time.Second)
		require.Equal(t, 9090, h.Instances()[first.Key].Spec.Port, "as it was last")
	})
}

// TestHandleIsRefused expects a refusal to end the handle.
func TestHandleIsRefused(t *testing.T) {
	inBubble(t, func(t *testing.T, h *host, s *Services) {
		p, err := s.Register(t.Context(), agenttest.Web("a"))
		require.NoError(t, err)
		h.refusing(func(method string) error {
			if method == "Register" {
				return fault.New("test", fault.Forbidden, "not here")
			}
			return nil
		})
		h.Vanish(p.Instance().Key)
		h.pass(11 * time.Second)
		<-p.Done()
		require.ErrorIs(t, p.Err(), fault.Forbidden)
		require.Error(t, p.Update(t.Context(), agenttest.Web("a").Spec))
		tries := h.count("Register")
		h.pass(time.Minute)
		require.Equal(t, tries, h.count("Register"))
	})
}

// TestHandleRetriesLater expects a retry after a limit of the peer.
func TestHandleRetriesLater(t *testing.T) {
	inBubble(t, func(t *testing.T, h *host, s *Services) {
		p, err := s.Register(t.Context(), agenttest.Web("a"))
		require.NoError(t, err)
		h.refusing(func(method string) error {
			if method == "Register" {
				return fault.New("test", fault.LimitReached, "100 a minute")
			}
			return nil
		})
		h.Vanish(p.Instance().Key)
		h.pass(time.Minute)
		require.NoError(t, p.Err())
		require.Less(t, h.count("Register"), 60, "with growing pauses")
		h.refusing(func(method string) error {
			if method == "Register" {
				return &fault.Error{Kind: fault.LimitReached, Field: "client", Value: 20 * time.Second, Err: errors.New("100 a minute")}
			}
			return nil
		})
		h.pass(3 * time.Second)
		asked := h.count("Register")
		h.pass(time.Minute)
		require.Equal(t, 3, h.count("Register")-asked, "as the peer says")
		h.refusing(nil)
		h.pass(21 * time.Second)
		require.Equal(t, "UP", h.status(p.Instance().Key))
	})
}

func TestRegisterPersists(t *testing.T) {
	inBubble(t, func(t *testing.T, h *host, s *Services) {
		h.stop()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		_, err := s.Register(ctx, agenttest.Web("a"))
		cancel()
		require.ErrorIs(t, err, fault.Unavailable)
		time.AfterFunc(10*time.Second, h.start)
		p, err := s.Register(t.Context(), agenttest.Web(""))
		require.NoError(t, err)
		require.Regexp(t, `^web-[0-9a-f]{8}$`, p.Instance().ID)

		r := agenttest.Web(p.Instance().ID)
		r.Strict = true
		_, err = s.Register(t.Context(), r)
		require.ErrorIs(t, err, fault.Exists)
		r.Spec.Port = -1
		calls := h.count("Register")
		_, err = s.Register(t.Context(), r)
		require.Equal(t, "port", fault.FieldOf(err))
		require.Equal(t, calls, h.count("Register"), "nobody need be asked")
	})
}

// TestClosingWhileLost expects Close to end while the peer is unreachable.
func TestClosingWhileLost(t *testing.T) {
	inBubble(t, func(t *testing.T, h *host, s *Services) {
		p, err := s.Register(t.Context(), agenttest.Web("a"))
		require.NoError(t, err)
		h.stop()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		require.ErrorIs(t, p.Close(ctx), fault.Unavailable)
		h.start()
		h.pass(time.Minute)
		require.Equal(t, "gone", h.status(p.Instance().Key), "it ran out")
	})
}
