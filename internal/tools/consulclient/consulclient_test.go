// Package consulclient plays HashiCorp's own Go client against a peer that serves Consul's API.
package consulclient

import (
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/blackhole/blackhole/internal/tools/peers"
	"github.com/hashicorp/consul/api"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestClient: the parts of the client against one peer, unchanged.
func TestClient(t *testing.T) {
	address := peer(t)
	c, err := api.NewClient(&api.Config{Address: address})
	require.NoError(t, err)
	for name, test := range map[string]func(*testing.T, *api.Client){
		"keys": keys, "blocking queries": blocking, "transactions": transactions, "sessions": sessions, "locks": locks, "lost lock": lostLock,
		"semaphores": semaphores, "status": status, "services": services, "active check": activeCheck,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, c)
		})
	}
}

// TestWaitTime: a client whose configuration has a time to wait sends it with each request, and is served.
func TestWaitTime(t *testing.T) {
	address := peer(t)
	c, err := api.NewClient(&api.Config{Address: address, WaitTime: 5 * time.Second, Namespace: "default", Partition: "default", Datacenter: "dc1"})
	require.NoError(t, err)
	_, err = c.KV().Put(&api.KVPair{Key: "wait/a", Value: []byte("1")}, nil)
	require.NoError(t, err)
	_, meta, err := c.KV().List("wait/", nil)
	require.NoError(t, err)
	list, after, err := c.KV().List("wait/", &api.QueryOptions{WaitIndex: meta.LastIndex, Near: "_agent"})
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.Equal(t, meta.LastIndex, after.LastIndex)
	ok, _, _, err := c.KV().Txn(api.KVTxnOps{{Verb: api.KVGet, Key: "wait/a"}}, nil)
	require.NoError(t, err)
	require.True(t, ok)
	id, _, err := c.Session().Create(&api.SessionEntry{TTL: "24h"}, nil)
	require.NoError(t, err)
	_, _, err = c.Session().List(nil)
	require.NoError(t, err)
	held, _, err := c.KV().Acquire(&api.KVPair{Key: "wait/lock", Session: id}, nil)
	require.NoError(t, err)
	require.True(t, held)
	_, err = c.Session().Destroy(id, nil)
	require.NoError(t, err)
	a := c.Agent()
	require.NoError(t, a.ServiceRegisterOpts(&api.AgentServiceRegistration{
		Name: "Acme.Orders_1", Check: &api.AgentServiceCheck{TTL: "1h", Status: api.HealthPassing, TLSSkipVerify: true}, Locality: &api.Locality{Region: "eu", Zone: "eu-1"},
	}, api.ServiceRegisterOpts{}))
	require.NoError(t, a.PassTTL("service:Acme.Orders_1", ""))
	found, _, err := c.Health().Service("Acme.Orders_1", "", true, &api.QueryOptions{Near: "_agent"})
	require.NoError(t, err)
	require.Len(t, found, 1)
	one, _, err := a.Service("Acme.Orders_1", &api.QueryOptions{WaitHash: "x"})
	require.NoError(t, err)
	require.Zero(t, one.Port)
	_, err = a.Self()
	require.NoError(t, err)
	_, _, err = c.Catalog().Nodes(nil)
	require.NoError(t, err)
	err = a.ServiceRegister(&api.AgentServiceRegistration{Name: "mesh", Kind: api.ServiceKindConnectProxy, Port: 1, Proxy: &api.AgentServiceConnectProxyConfig{DestinationServiceName: "x"}})
	require.ErrorContains(t, err, "Kind is not supported here")
	require.False(t, api.IsRetryableError(err))
	require.NoError(t, a.ServiceDeregister("Acme.Orders_1"))
}

func keys(t *testing.T, c *api.Client) {
	kv := c.KV()
	_, err := kv.Put(&api.KVPair{Key: "keys/a/b", Flags: 42, Value: []byte("1")}, nil)
	require.NoError(t, err)
	got, meta, err := kv.Get("keys/a/b", nil)
	require.NoError(t, err)
	require.Equal(t, "1", string(got.Value))
	require.EqualValues(t, 42, got.Flags)
	require.Equal(t, got.ModifyIndex, meta.LastIndex)
	none, meta, err := kv.Get("keys/none", nil)
	require.NoError(t, err)
	require.Nil(t, none)
	require.NotZero(t, meta.LastIndex)

	got.Value = []byte("2")
	ok, _, err := kv.CAS(got, nil)
	require.NoError(t, err)
	require.True(t, ok)
	ok, _, err = kv.CAS(got, nil)
	require.NoError(t, err)
	require.False(t, ok, "the index is old")
	ok, _, err = kv.DeleteCAS(got, nil)
	require.NoError(t, err)
	require.False(t, ok)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for done := 0; done < 10; {
				p, _, err := kv.Get("keys/n", nil)
				if !assert.NoError(t, err) {
					return
				}
				if p == nil {
					p = &api.KVPair{Key: "keys/n", Value: []byte("0")}
				}
				n, err := strconv.Atoi(string(p.Value))
				assert.NoError(t, err)
				p.Value = []byte(strconv.Itoa(n + 1))
				ok, _, err := kv.CAS(p, nil)
				assert.NoError(t, err)
				if ok {
					done++
				}
			}
		})
	}
	all.Wait()
	got, _, err = kv.Get("keys/n", &api.QueryOptions{RequireConsistent: true})
	require.NoError(t, err)
	require.Equal(t, "40", string(got.Value))

	list, _, err := kv.List("keys/", nil)
	require.NoError(t, err)
	require.Len(t, list, 2)
	names, _, err := kv.Keys("keys/", "/", nil)
	require.NoError(t, err)
	require.Equal(t, []string{"keys/a/", "keys/n"}, names)
	_, err = kv.DeleteTree("keys/", nil)
	require.NoError(t, err)
	list, _, err = kv.List("keys/", nil)
	require.NoError(t, err)
	require.Empty(t, list)
}

func blocking(t *testing.T, c *api.Client) {
	kv := c.KV()
	_, err := kv.Put(&api.KVPair{Key: "blocking/a", Value: []byte("1")}, nil)
	require.NoError(t, err)
	_, meta, err := kv.List("blocking/", nil)
	require.NoError(t, err)
	changed := make(chan *api.KVPair, 1)
	go func() {
		list, _, err := kv.List("blocking/", &api.QueryOptions{WaitIndex: meta.LastIndex, WaitTime: time.Minute})
		assert.NoError(t, err)
		if assert.Len(t, list, 2) {
			changed <- list[1]
		}
		close(changed)
	}()
	_, err = kv.Put(&api.KVPair{Key: "elsewhere"}, nil)
	require.NoError(t, err)
	_, err = kv.Put(&api.KVPair{Key: "blocking/b", Value: []byte("2")}, nil)
	require.NoError(t, err)
	require.Equal(t, "2", string((<-changed).Value))
	_, meta, err = kv.Get("blocking/a", nil)
	require.NoError(t, err)
	_, again, err := kv.Get("blocking/a", &api.QueryOptions{WaitIndex: meta.LastIndex, WaitTime: time.Second})
	require.NoError(t, err)
	require.Equal(t, meta.LastIndex, again.LastIndex, "nothing changed")
}

func transactions(t *testing.T, c *api.Client) {
	ok, answer, _, err := c.KV().Txn(api.KVTxnOps{
		{Verb: api.KVCheckNotExists, Key: "txn/a"}, {Verb: api.KVSet, Key: "txn/a", Value: []byte("1")}, {Verb: api.KVGetTree, Key: "txn/"},
	}, nil)
	require.NoError(t, err)
	require.True(t, ok)
	require.Len(t, answer.Results, 2)
	ok, answer, _, err = c.KV().Txn(api.KVTxnOps{{Verb: api.KVSet, Key: "txn/b"}, {Verb: api.KVCheckNotExists, Key: "txn/a"}}, nil)
	require.NoError(t, err)
	require.False(t, ok)
	require.EqualValues(t, 1, answer.Errors[0].OpIndex)
	p, _, err := c.KV().Get("txn/b", nil)
	require.NoError(t, err)
	require.Nil(t, p)
}

func sessions(t *testing.T, c *api.Client) {
	s := c.Session()
	id, _, err := s.Create(&api.SessionEntry{Name: "short", TTL: "10s", Behavior: api.SessionBehaviorDelete, LockDelay: time.Second}, nil)
	require.NoError(t, err)
	entry, _, err := s.Info(id, nil)
	require.NoError(t, err)
	require.Equal(t, "short", entry.Name)
	require.Equal(t, time.Second, entry.LockDelay)
	ok, _, err := c.KV().Acquire(&api.KVPair{Key: "sessions/a", Session: id}, nil)
	require.NoError(t, err)
	require.True(t, ok)
	entry, _, err = s.Renew(id, nil)
	require.NoError(t, err)
	require.Equal(t, id, entry.ID)
	kept, _, err := s.CreateNoChecks(&api.SessionEntry{}, nil)
	require.NoError(t, err)
	list, _, err := s.List(nil)
	require.NoError(t, err)
	require.NotEmpty(t, list)

	stop := make(chan struct{})
	renewing := make(chan error, 1)
	renewed, _, err := s.Create(&api.SessionEntry{TTL: "10s"}, nil)
	require.NoError(t, err)
	go func() { renewing <- s.RenewPeriodic("10s", renewed, nil, stop) }()

	// The end of the session deletes its key.
	_, meta, err := c.KV().Get("sessions/a", nil)
	require.NoError(t, err)
	p, _, err := c.KV().Get("sessions/a", &api.QueryOptions{WaitIndex: meta.LastIndex, WaitTime: time.Minute})
	require.NoError(t, err)
	require.Nil(t, p)
	entry, _, err = s.Renew(id, nil)
	require.NoError(t, err)
	require.Nil(t, entry, "it has ended")
	for _, lives := range []string{kept, renewed} {
		entry, _, err = s.Info(lives, nil)
		require.NoError(t, err)
		require.NotNil(t, entry)
	}
	close(stop)
	require.NoError(t, <-renewing)
	entry, _, err = s.Info(renewed, nil)
	require.NoError(t, err)
	require.Nil(t, entry, "its owner destroyed it")
	_, err = s.Destroy(kept, nil)
	require.NoError(t, err)
}

func locks(t *testing.T, c *api.Client) {
	holders, counter := make(chan struct{}, 1), 0
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 3 {
				lock, err := c.LockKey("locks/one")
				if !assert.NoError(t, err) {
					return
				}
				lost, err := lock.Lock(nil)
				if !assert.NoError(t, err) || !assert.NotNil(t, lost) {
					return
				}
				select {
				case holders <- struct{}{}:
				default:
					t.Error("two hold the lock")
				}
				counter++
				<-holders
				assert.NoError(t, lock.Unlock())
			}
		})
	}
	all.Wait()
	require.Equal(t, 12, counter)
	lock, err := c.LockKey("locks/one")
	require.NoError(t, err)
	require.NoError(t, lock.Destroy())
}

// lostLock: the holder hears of the end of its session, and the next one waits for the lock delay.
func lostLock(t *testing.T, c *api.Client) {
	id, _, err := c.Session().Create(&api.SessionEntry{TTL: "1h", LockDelay: 5 * time.Second}, nil)
	require.NoError(t, err)
	first, err := c.LockOpts(&api.LockOptions{Key: "locks/lost", Session: id})
	require.NoError(t, err)
	lost, err := first.Lock(nil)
	require.NoError(t, err)
	_, err = c.Session().Destroy(id, nil)
	require.NoError(t, err)
	destroyed := time.Now()
	<-lost
	second, err := c.LockOpts(&api.LockOptions{Key: "locks/lost", LockTryOnce: true, LockWaitTime: time.Second})
	require.NoError(t, err)
	held, err := second.Lock(nil)
	require.NoError(t, err)
	if held == nil { // the delay ran: without the option the client tries again
		second, err = c.LockOpts(&api.LockOptions{Key: "locks/lost"})
		require.NoError(t, err)
		held, err = second.Lock(nil)
		require.NoError(t, err)
	}
	require.NotNil(t, held)
	require.Greater(t, time.Since(destroyed), 4*time.Second)
	require.NoError(t, second.Unlock())
}

func semaphores(t *testing.T, c *api.Client) {
	var held []*api.Semaphore
	for range 2 {
		s, err := c.SemaphorePrefix("semaphore", 2)
		require.NoError(t, err)
		lost, err := s.Acquire(nil)
		require.NoError(t, err)
		require.NotNil(t, lost)
		held = append(held, s)
	}
	third, err := c.SemaphoreOpts(&api.SemaphoreOptions{Prefix: "semaphore", Limit: 2, SemaphoreTryOnce: true, SemaphoreWaitTime: time.Second})
	require.NoError(t, err)
	lost, err := third.Acquire(nil)
	require.NoError(t, err)
	require.Nil(t, lost, "two have all")
	require.NoError(t, held[0].Release())
	third, err = c.SemaphorePrefix("semaphore", 2)
	require.NoError(t, err)
	lost, err = third.Acquire(nil)
	require.NoError(t, err)
	require.NotNil(t, lost)
	require.NoError(t, third.Release())
	require.NoError(t, held[1].Release())
	require.NoError(t, third.Destroy())
}

func status(t *testing.T, c *api.Client) {
	leader, err := c.Status().Leader()
	require.NoError(t, err)
	require.NotEmpty(t, leader)
	voters, err := c.Status().Peers()
	require.NoError(t, err)
	require.Len(t, voters, 1)
}

// services registers, finds with blocking queries, and reports checks with a TTL.
func services(t *testing.T, c *api.Client) {
	name, err := c.Agent().NodeName()
	require.NoError(t, err)
	require.NotEmpty(t, name)
	register := &api.AgentServiceRegistration{
		ID: "web-1", Name: "web", Port: 8080, Tags: []string{"v2"}, Meta: map[string]string{"team": "a"}, Weights: &api.AgentWeights{Passing: 10, Warning: 1},
		Checks: api.AgentServiceChecks{
			{CheckID: "web-1-ttl", TTL: "3s", DeregisterCriticalServiceAfter: "1h"}, {CheckID: "web-1-other", TTL: "1h", Status: api.HealthPassing},
		},
	}
	require.NoError(t, c.Agent().ServiceRegister(register))
	found, meta, err := c.Health().Service("web", "", true, nil)
	require.NoError(t, err)
	require.Empty(t, found, "a check with a TTL is critical until it passes")
	passes := make(chan []*api.ServiceEntry, 1)
	go func() {
		var list []*api.ServiceEntry
		for err := error(nil); err == nil && len(list) == 0; {
			list, meta, err = c.Health().Service("web", "v2", true, &api.QueryOptions{WaitIndex: meta.LastIndex, WaitTime: time.Minute})
			assert.NoError(t, err)
		}
		passes <- list
	}()
	require.NoError(t, c.Agent().PassTTL("web-1-ttl", "fine"))
	list := <-passes
	require.Len(t, list, 1)
	require.Equal(t, "web-1", list[0].Service.ID)
	require.Equal(t, 8080, list[0].Service.Port)
	require.Equal(t, map[string]string{"team": "a"}, list[0].Service.Meta)
	require.Equal(t, api.HealthPassing, list[0].Checks.AggregatedStatus())
	require.Len(t, list[0].Checks, 3)
	for filter, count := range map[string]int{`"v2" in Service.Tags and Service.Meta.team == a`: 1, `Service.Meta.team != a`: 0} {
		some, _, err := c.Health().Service("web", "", true, &api.QueryOptions{Filter: filter})
		require.NoError(t, err)
		require.Len(t, some, count)
	}
	_, err = c.Agent().ServicesWithFilter("Typo == 1")
	require.ErrorContains(t, err, "400")

	names, _, err := c.Catalog().Services(nil)
	require.NoError(t, err)
	require.Equal(t, []string{"v2"}, names["web"])
	catalog, _, err := c.Catalog().Service("web", "v2", nil)
	require.NoError(t, err)
	require.Equal(t, "web-1", catalog[0].ServiceID)
	require.Equal(t, name, catalog[0].Node)
	nodes, _, err := c.Catalog().Nodes(nil)
	require.NoError(t, err)
	require.Equal(t, name, nodes[0].Node)
	node, _, err := c.Catalog().Node(name, nil)
	require.NoError(t, err)
	require.NotNil(t, node.Services["web-1"])
	own, err := c.Agent().Services()
	require.NoError(t, err)
	require.Equal(t, "web", own["web-1"].Service)

	require.NoError(t, c.Agent().UpdateTTL("web-1-other", "slow", api.HealthWarning))
	checks, meta, err := c.Health().Checks("web", nil)
	require.NoError(t, err)
	require.Equal(t, api.HealthWarning, checks.AggregatedStatus())
	for checks.AggregatedStatus() != api.HealthCritical { // the silent one
		checks, meta, err = c.Health().Checks("web", &api.QueryOptions{WaitIndex: meta.LastIndex, WaitTime: time.Minute})
		require.NoError(t, err)
	}
	state, _, err := c.Health().State(api.HealthCritical, nil)
	require.NoError(t, err)
	require.NotEmpty(t, state)
	require.NoError(t, c.Agent().EnableServiceMaintenance("web-1", "upgrade"))
	require.NoError(t, c.Agent().DisableServiceMaintenance("web-1"))
	require.NoError(t, c.Agent().CheckRegister(&api.AgentCheckRegistration{ID: "third", Name: "third", ServiceID: "web-1", AgentServiceCheck: api.AgentServiceCheck{TTL: "1h"}}))
	require.NoError(t, c.Agent().CheckDeregister("third"))
	require.NoError(t, c.Agent().ServiceDeregister("web-1"))
	found, _, err = c.Health().Service("web", "", false, nil)
	require.NoError(t, err)
	require.Empty(t, found)
}

// activeCheck: the peer checks a service by HTTP and by TCP.
func activeCheck(t *testing.T, c *api.Client) {
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer server.Close()
	at := server.Listener.Addr().(*net.TCPAddr)
	require.NoError(t, c.Agent().ServiceRegister(&api.AgentServiceRegistration{
		Name: "checked", Address: at.IP.String(), Port: at.Port, Checks: api.AgentServiceChecks{
			{CheckID: "page", HTTP: server.URL, Interval: "1s", Timeout: "1s"}, {CheckID: "port", TCP: at.String(), Interval: "1s"},
		},
	}))
	for index := uint64(1); ; {
		found, meta, err := c.Health().Service("checked", "", true, &api.QueryOptions{WaitIndex: index, WaitTime: time.Minute})
		require.NoError(t, err)
		if index = meta.LastIndex; len(found) == 1 {
			break
		}
	}
	require.NoError(t, c.Agent().ServiceDeregister("checked"))
}

// peer starts a peer of this tree, and returns its HTTP address.
func peer(t *testing.T) string {
	return peers.New(t, 1, peers.Options{Env: []string{enabled}}).Peers[0].HTTP
}
