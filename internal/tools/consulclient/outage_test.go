package consulclient

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/blackhole/blackhole/internal/tools/peers"
	"github.com/hashicorp/consul/api"
	"github.com/hashicorp/consul/api/watch"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// outage is longer than a session of the library's locks lives without renewals.
const outage = 30 * time.Second

// TestOutage kills the leader of three peers, then a second one, and starts both again. One client works all the time
// at the third.
func TestOutage(t *testing.T) {
	peers.Long(t)
	program := peers.Build(t)
	t.Parallel()
	g := peers.New(t, 3, peers.Options{Program: program, Env: []string{enabled}})
	leader := g.Leader(t)
	own, other := (leader+1)%3, (leader+2)%3
	c, _ := client(t, g.Peers[own], "")
	kv := c.KV()
	require.NoError(t, c.Agent().ServiceRegister(&api.AgentServiceRegistration{
		Name: "web", Port: 80, Check: &api.AgentServiceCheck{TTL: "1h", Status: api.HealthPassing},
	}))
	put := func(value string) error {
		_, err := kv.Put(&api.KVPair{Key: "seen", Value: []byte(value)}, nil)
		return err
	}
	require.NoError(t, put("first"))
	news := follow(t, c, "seen")
	news.await(t, "first")
	session, _, err := c.Session().Create(&api.SessionEntry{TTL: "1h"}, nil)
	require.NoError(t, err)
	lasting, kept := lock(t, c, api.LockOptions{Key: "lasting", SessionTTL: "10m", MonitorRetries: 100})
	_, short := lock(t, c, api.LockOptions{Key: "short", MonitorRetries: 100})
	var waiter sync.WaitGroup
	defer waiter.Wait()
	stop := make(chan struct{})
	defer close(stop)
	waited := make(chan struct{})
	waiter.Go(func() { // as a program does that waits for a lock: the library returns the error of a read
		for held := (<-chan struct{})(nil); held == nil; {
			l, err := c.LockOpts(&api.LockOptions{Key: "lasting", SessionTTL: "10m", LockWaitTime: 5 * time.Second})
			if !assert.NoError(t, err) {
				return
			}
			if held, err = l.Lock(stop); !open(stop) {
				return
			}
			if err != nil && !assert.True(t, strings.Contains(err.Error(), "code: 500"), "%v", err) {
				return
			}
		}
		close(waited)
	})

	g.Kill(leader) // one voter of three
	transiently(t, func() error { return put("second") })
	news.await(t, "second")
	transiently(t, func() error { _, _, err := c.Session().Renew(session, nil); return err })
	transiently(t, func() error {
		l, err := c.LockKey("new")
		if err == nil {
			_, err = l.Lock(stop)
		}
		return err
	})
	require.True(t, open(kept), "the lock is held")
	require.True(t, open(short), "the lock is held")

	g.Kill(other) // no majority
	began := time.Now()
	peers.Eventually(t, "the peer knows that nobody leads", time.Minute, func() bool { return put("lost") != nil })
	var calls sync.WaitGroup
	for name, call := range map[string]func() error{
		"put":        func() error { return put("lost") },
		"get":        func() error { _, _, err := kv.Get("seen", nil); return err },
		"consistent": func() error { _, _, err := kv.Get("seen", &api.QueryOptions{RequireConsistent: true}); return err },
		"list":       func() error { _, _, err := kv.List("", nil); return err },
		"delete":     func() error { _, err := kv.DeleteTree("none/", nil); return err },
		"txn":        func() error { _, _, _, err := kv.Txn(api.KVTxnOps{{Verb: api.KVSet, Key: "lost"}}, nil); return err },
		"create":     func() error { _, _, err := c.Session().Create(&api.SessionEntry{TTL: "10s"}, nil); return err },
		"renew":      func() error { _, _, err := c.Session().Renew(session, nil); return err },
		"info":       func() error { _, _, err := c.Session().Info(session, nil); return err },
		"acquire":    func() error { _, _, err := kv.Acquire(&api.KVPair{Key: "lost", Session: session}, nil); return err },
		"lock":       func() error { l, _ := c.LockKey("lost"); _, err := l.Lock(stop); return err },
	} {
		calls.Go(func() {
			err := call()
			if name == "txn" { // the library leaves the code out
				assert.ErrorContains(t, err, "No cluster leader", name)
				return
			}
			assert.True(t, api.IsRetryableError(err), "%s: %v", name, err)
			if name != "renew" { // the library leaves the words out
				assert.ErrorContains(t, err, "No cluster leader", name)
			}
		})
	}
	calls.Wait()
	old, meta, err := kv.Get("seen", &api.QueryOptions{AllowStale: true})
	require.NoError(t, err)
	require.Equal(t, "second", string(old.Value))
	require.False(t, meta.KnownLeader, "the client can tell that it is old")
	found, meta, err := c.Health().Service("web", "", true, nil)
	require.NoError(t, err)
	require.Len(t, found, 1)
	require.False(t, meta.KnownLeader)
	require.Positive(t, meta.LastContact)
	none, err := c.Status().Leader()
	require.NoError(t, err)
	require.Empty(t, none)
	time.Sleep(time.Until(began.Add(outage)))
	require.True(t, open(kept), "its session has time left")

	g.Start(t, leader)
	g.Start(t, other)
	peers.Eventually(t, "the group works again", 2*time.Minute, func() bool { return put("third") == nil })
	news.await(t, "third")
	entry, _, err := c.Session().Renew(session, nil)
	require.NoError(t, err)
	require.NotNil(t, entry, "a session outlasts the outage")
	require.True(t, open(kept), "the lock is still held")
	require.NoError(t, lasting.Unlock())
	receive(t, waited, "the waiting lock")
	receive(t, short, "the loss of a lock whose session was not renewed") // the library stops after a time to live without success
	pair, _, err := kv.Get("short", nil)
	require.NoError(t, err)
	require.Empty(t, pair.Session)
}

// TestRevokedToken: a client whose token is taken out of the settings gets Consul's refusal, and does not repeat its
// calls without end. Another client of the peer notices nothing.
func TestRevokedToken(t *testing.T) {
	peers.Long(t)
	program := peers.Build(t)
	t.Parallel()
	const head = "auth:\n  enabled: true\n  method: token\n  anonymous: none\n  tokens:\n"
	const stays = `    - {token: the-token-that-is-good, name: good, role: service, services: ["consul/*", web]}` + "\n"
	const ends = `    - {token: the-token-that-ends-soon, name: app, role: service, services: ["consul/*", web]}` + "\n"
	g := peers.New(t, 1, peers.Options{Program: program, Env: []string{enabled}, Config: head + stays + ends})
	app, calls := client(t, g.Peers[0], "the-token-that-ends-soon")
	good, _ := client(t, g.Peers[0], "the-token-that-is-good")
	for _, c := range []*api.Client{app, good} {
		_, err := c.KV().Put(&api.KVPair{Key: "seen", Value: []byte("first")}, nil)
		require.NoError(t, err)
	}
	theirs, news := follow(t, app, "seen"), follow(t, good, "seen")
	theirs.await(t, "first")
	news.await(t, "first")
	_, lost := lock(t, app, api.LockOptions{Key: "theirs", MonitorRetries: 1000, MonitorRetryTime: time.Millisecond})
	held, kept := lock(t, good, api.LockOptions{Key: "held"})
	require.NoError(t, good.Agent().ServiceRegister(&api.AgentServiceRegistration{Name: "web", Port: 80}))
	waiting, asked := make(chan error, 2), new(atomic.Int64)
	for name, ask := range map[string]func(*api.QueryOptions) (*api.QueryMeta, error){
		"service": func(o *api.QueryOptions) (*api.QueryMeta, error) {
			_, meta, err := app.Health().Service("web", "", true, o)
			return meta, err
		},
		"keys": func(o *api.QueryOptions) (*api.QueryMeta, error) {
			_, meta, err := app.KV().List("seen", o)
			return meta, err
		},
	} {
		go func() {
			for query := (&api.QueryOptions{WaitTime: 2 * time.Minute}); ; {
				meta, err := ask(query)
				if err != nil {
					waiting <- fmt.Errorf("%s: %w", name, err)
					return
				}
				query.WaitIndex = meta.LastIndex
				asked.Add(1)
			}
		}()
	}

	g.Configure(t, head+stays)
	g.Reload(t, 0)
	get := func() error { _, _, err := app.KV().Get("seen", nil); return err }
	peers.Eventually(t, "the token has ended", time.Minute, func() bool { return get() != nil })
	for name, call := range map[string]func() error{
		"get":      get,
		"put":      func() error { _, err := app.KV().Put(&api.KVPair{Key: "seen"}, nil); return err },
		"session":  func() error { _, _, err := app.Session().Create(nil, nil); return err },
		"lock":     func() error { l, _ := app.LockKey("other"); _, err := l.Lock(nil); return err },
		"health":   func() error { _, _, err := app.Health().Service("web", "", true, nil); return err },
		"register": func() error { return app.Agent().ServiceRegister(&api.AgentServiceRegistration{Name: "web"}) },
		"absent":   func() error { _, _, err := app.ACL().TokenReadSelf(nil); return err },
	} {
		refused(t, call(), name)
	}
	before := asked.Load()
	for range cap(waiting) {
		refused(t, receive(t, waiting, "the end of a blocking query"), "waiting")
	}
	require.Equal(t, before, asked.Load(), "no query that waited tells a state after the end of its token")
	receive(t, lost, "the loss of the lock")
	calls.Store(0)
	const seconds = 10 // of a renewal a second, and of the library's watch
	for range 10 * seconds {
		time.Sleep(100 * time.Millisecond)
		_, err := good.KV().Put(&api.KVPair{Key: "seen", Value: []byte("second")}, nil)
		require.NoError(t, err)
	}
	t.Logf("%d calls within %d s with a token that has ended", calls.Load(), seconds)
	require.LessOrEqual(t, calls.Load(), int64(3*seconds), "no storm")
	news.await(t, "second")
	require.True(t, open(kept))
	require.NoError(t, held.Unlock())

	nobody, _ := client(t, g.Peers[0], "")
	_, _, err := nobody.KV().Get("seen", nil)
	require.ErrorContains(t, err, "403 (Permission denied")
	require.Equal(t, "second", news.last())
}

// TestRestore: a client that waits with an index from before a restore is answered at once, and can wait with the
// index of the answer.
func TestRestore(t *testing.T) {
	program := peers.Build(t)
	t.Parallel()
	g := peers.New(t, 1, peers.Options{Program: program, Env: []string{enabled}})
	c, _ := client(t, g.Peers[0], "")
	put := func(key, value string) {
		_, err := c.KV().Put(&api.KVPair{Key: key, Value: []byte(value)}, nil)
		require.NoError(t, err)
	}
	put("app/colour", "blue")
	backup := filepath.Join(t.TempDir(), "backup")
	peers.Output(t, ".", g.Program, "group", "backup", backup, "--grpc", g.Peers[0].GRPC)
	put("app/colour", "red")
	put("app/late", "lost")
	require.NoError(t, c.Agent().ServiceRegister(&api.AgentServiceRegistration{Name: "web", Port: 80}))
	type query func(*api.QueryOptions) (string, *api.QueryMeta, error)
	queries := map[string]query{
		"key": func(o *api.QueryOptions) (string, *api.QueryMeta, error) {
			p, meta, err := c.KV().Get("app/colour", o)
			if p == nil {
				return "", meta, err
			}
			return string(p.Value), meta, err
		},
		"lost key": func(o *api.QueryOptions) (string, *api.QueryMeta, error) {
			p, meta, err := c.KV().Get("app/late", o)
			if p == nil {
				return "", meta, err
			}
			return string(p.Value), meta, err
		},
		"prefix": func(o *api.QueryOptions) (string, *api.QueryMeta, error) {
			list, meta, err := c.KV().List("app/", o)
			values := ""
			for _, p := range list {
				values += string(p.Value)
			}
			return values, meta, err
		},
	}
	restored := map[string]string{"key": "blue", "lost key": "", "prefix": "blue"}
	type result struct {
		name, value string
		index       uint64
	}
	results := make(chan result, len(queries))
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for name, ask := range queries {
		before, meta, err := ask(nil)
		require.NoError(t, err)
		require.NotEqual(t, restored[name], before)
		go func() {
			for ctx.Err() == nil { // until the peer is back
				value, after, err := ask((&api.QueryOptions{WaitIndex: meta.LastIndex, WaitTime: 10 * time.Minute}).WithContext(ctx))
				if err == nil {
					results <- result{name, value, after.LastIndex}
					return
				}
				time.Sleep(50 * time.Millisecond)
			}
		}()
	}
	g.Stop(t, 0)
	peers.Output(t, ".", g.Program, "group", "restore", backup, "--data", g.Peers[0].Data, "--yes")
	g.Start(t, 0)
	for range queries {
		got := receive(t, results, "an answer to a blocking query")
		require.Equal(t, restored[got.name], got.value, got.name)
		_, meta, err := queries[got.name](&api.QueryOptions{WaitIndex: got.index, WaitTime: time.Second})
		require.NoError(t, err)
		require.GreaterOrEqual(t, meta.LastIndex, got.index, got.name)
	}
}

// news are the values of a key that the library's own watch saw.
type news struct {
	mu   sync.Mutex // guards seen
	seen string
}

// follow watches a key by the library's loop, which repeats what fails.
func follow(t *testing.T, c *api.Client, key string) *news {
	n := new(news)
	plan, err := watch.Parse(map[string]any{"type": "key", "key": key})
	require.NoError(t, err)
	plan.Handler = func(_ uint64, got any) {
		if pair, ok := got.(*api.KVPair); ok {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.seen = string(pair.Value)
		}
	}
	ended := make(chan error, 1)
	go func() { ended <- plan.RunWithClientAndHclog(c, nil) }()
	t.Cleanup(func() { plan.Stop(); assert.NoError(t, <-ended) })
	return n
}

func (n *news) last() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.seen
}

func (n *news) await(t *testing.T, value string) {
	t.Helper()
	peers.Eventually(t, "the watch tells "+value, 2*time.Minute, func() bool { return n.last() == value })
}

// lock takes one. The channel is closed at its loss.
func lock(t *testing.T, c *api.Client, o api.LockOptions) (*api.Lock, <-chan struct{}) {
	t.Helper()
	l, err := c.LockOpts(&o)
	require.NoError(t, err)
	lost, err := l.Lock(nil)
	require.NoError(t, err)
	require.NotNil(t, lost)
	return l, lost
}

func open(c <-chan struct{}) bool {
	select {
	case <-c:
		return false
	default:
		return true
	}
}

func receive[T any](t *testing.T, c <-chan T, what string) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(2 * time.Minute):
		require.Fail(t, "nothing tells of "+what)
	}
	return v
}

// transiently repeats a call until it works, as programs do: each error says that they may.
func transiently(t *testing.T, call func() error) {
	t.Helper()
	peers.Eventually(t, "the call works", time.Minute, func() bool {
		err := call()
		require.True(t, err == nil || strings.Contains(err.Error(), "code: 500"), "%v", err)
		return err == nil
	})
}

// refused requires the error of Consul for a token that it does not know. Nobody repeats it.
func refused(t *testing.T, err error, name string) {
	t.Helper()
	require.ErrorContains(t, err, "403 (ACL not found", name)
	require.False(t, api.IsRetryableError(errors.Unwrap(err)) || api.IsRetryableError(err), name)
}

const enabled = "BLACKHOLE_CONSUL_ENABLED=true"

// counter counts requests.
type counter struct {
	atomic.Int64
	next http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (c *counter) RoundTrip(r *http.Request) (*http.Response, error) {
	c.Add(1)
	return c.next.RoundTrip(r)
}

// client is one of a peer, whose requests are counted.
func client(t *testing.T, p *peers.Peer, token string) (*api.Client, *counter) {
	t.Helper()
	calls := &counter{next: new(http.Transport)}
	c, err := api.NewClient(&api.Config{Address: p.HTTP, Token: token, HttpClient: &http.Client{Transport: calls}})
	require.NoError(t, err)
	return c, calls
}
