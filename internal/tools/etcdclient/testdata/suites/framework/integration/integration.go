// Package integration stands in the place of etcd's package of the same path, which starts clusters of etcd. Here a cluster is one new peer, and each
// of its members a forwarder to it. Tests that look into a server, or set its limits, are skipped with a reason.
package integration

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/testutil"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// ThroughProxy reports whether the proxy of etcd stands between.
const ThroughProxy = false

// RequestWaitTimeout is etcd's.
const RequestWaitTimeout = 5 * time.Second

// ProgramOf names the environment variable with the path of the peer's program.
const ProgramOf = "ETCD_SUITE_PROGRAM"

// Peer is a running peer with a new, empty group.
type Peer struct {
	Address string // for clients of etcd
	run     *exec.Cmd
	data    string
}

// NewPeer starts a peer and waits until it is ready.
func NewPeer(t testutil.TB) *Peer {
	t.Helper()
	data, err := os.MkdirTemp("", "suite")
	if err != nil {
		t.Fatal(err)
	}
	p := &Peer{Address: free(t), data: data}
	api := free(t)
	p.run = exec.Command(os.Getenv(ProgramOf), "run", "--data", data, "--http", api, "--grpc", "off", "--dns", "off", "--listen", "/ip4/127.0.0.1/tcp/0")
	p.run.Env = append(os.Environ(), "BLACKHOLE_ETCD_LISTEN="+p.Address)
	if err := p.run.Start(); err != nil {
		t.Fatal(err)
	}
	for began := time.Now(); time.Since(began) < time.Minute; time.Sleep(20 * time.Millisecond) {
		answer, err := http.Get("http://" + api + "/readyz")
		if err == nil && answer.Body.Close() == nil && answer.StatusCode == http.StatusOK {
			http.DefaultClient.CloseIdleConnections()
			return p
		}
	}
	p.Close()
	t.Fatal("the peer is not ready after a minute")
	return nil
}

// Close ends a peer.
func (p *Peer) Close() {
	_ = p.run.Process.Kill()
	_ = p.run.Wait()
	_ = os.RemoveAll(p.data)
}

// free returns an address of loopback below the ports that systems give to who asks for any.
func free(t testutil.TB) string {
	for range 100 {
		l, err := net.Listen("tcp", fmt.Sprint("127.0.0.1:", 12000+rand.IntN(20000)))
		if err == nil {
			defer l.Close()
			return l.Addr().String()
		}
	}
	t.Fatal("no port of a hundred is free")
	return ""
}

// TestOption changes what BeforeTest does in etcd.
type TestOption func()

// BeforeTest does nothing: no test leaves anything to the next one.
func BeforeTest(testutil.TB, ...TestOption) {}

// SkipIfNoGoFail skips: failpoints are compiled into etcd's server.
func SkipIfNoGoFail(t testutil.TB) { t.Skip("failpoints of etcd's server") }

// ClusterConfig is etcd's.
type ClusterConfig struct {
	Size                                               int
	UseBridge, DisableStrictReconfigCheck              bool
	QuotaBackendBytes                                  int64
	MaxRequestBytes                                    uint
	SnapshotCount, SnapshotCatchUpEntries              uint64
	WatchProgressNotifyInterval                        time.Duration
	ClientMaxCallSendMsgSize, ClientMaxCallRecvMsgSize int
}

// Cluster is a cluster of etcd for its tests.
type Cluster struct {
	Members []*Member
	peer    *Peer
	clients []*clientv3.Client
}

// NewCluster begins a cluster with a client of each member.
func NewCluster(t testutil.TB, c *ClusterConfig) *Cluster {
	t.Helper()
	switch {
	case c.QuotaBackendBytes > 0:
		t.Skip("sets the quota of a server")
	case c.MaxRequestBytes > 0:
		t.Skip("sets the longest request of a server")
	case c.SnapshotCount > 0:
		t.Skip("sets when a server makes snapshots")
	case c.WatchProgressNotifyInterval > 0:
		t.Skip("sets when a server reports progress")
	}
	cluster := &Cluster{peer: NewPeer(t)}
	for range max(c.Size, 1) {
		m := &Member{t: t, peer: cluster.peer.Address, address: "127.0.0.1:0", open: map[net.Conn]bool{}, paused: make(chan struct{})}
		close(m.paused)
		if err := m.listen(); err != nil {
			t.Fatal(err)
		}
		m.address = m.listener.Addr().String()
		m.GRPCURL = "http://" + m.address
		client, err := NewClient(t, clientv3.Config{
			Endpoints: []string{m.GRPCURL}, MaxCallSendMsgSize: c.ClientMaxCallSendMsgSize, MaxCallRecvMsgSize: c.ClientMaxCallRecvMsgSize,
		})
		if err != nil {
			t.Fatal(err)
		}
		cluster.Members, cluster.clients = append(cluster.Members, m), append(cluster.clients, client)
	}
	return cluster
}

// Client returns the client of a member.
func (c *Cluster) Client(i int) *clientv3.Client { return c.clients[i] }

// RandClient returns the client of some member.
func (c *Cluster) RandClient() *clientv3.Client { return c.clients[rand.IntN(len(c.clients))] }

// TakeClient leaves the client of a member to the caller.
func (c *Cluster) TakeClient(i int) { c.clients[i] = nil }

// Terminate ends the cluster.
func (c *Cluster) Terminate(testutil.TB) {
	for _, client := range c.clients {
		if client != nil {
			_ = client.Close()
		}
	}
	for _, m := range c.Members {
		m.stop()
	}
	c.peer.Close()
}

// WaitLeader returns a member that leads.
func (c *Cluster) WaitLeader(testing.TB) int { return 0 }

// WaitMembersForLeader skips.
func (c *Cluster) WaitMembersForLeader(t testing.TB, _ []*Member) int {
	t.Skip("needs to know the leader of a cluster")
	return 0
}

// GetLearnerMembers skips.
func (c *Cluster) GetLearnerMembers() ([]*pb.Member, error) { return nil, nil }

// AddAndLaunchLearnerMember skips.
func (c *Cluster) AddAndLaunchLearnerMember(t testutil.TB) { t.Skip("adds a learner to a cluster") }

// Member is a forwarder to the peer.
type Member struct {
	GRPCURL       string
	ElectionTicks int
	ServerConfig  serverConfig
	Server        server
	LogObserver   logObserver

	t        testutil.TB
	peer     string
	address  string
	listener net.Listener

	mu     sync.Mutex
	open   map[net.Conn]bool
	paused chan struct{} // closed: bytes flow
}

type (
	serverConfig struct{}
	server       struct{}
	logObserver  struct{}
)

func (serverConfig) ReqTimeout() time.Duration { return 7 * time.Second }
func (server) MemberID() uint64                { return 0 }

func (logObserver) Expect(context.Context, string, int) ([]string, error) { return nil, nil }

func (m *Member) listen() (err error) {
	m.listener, err = net.Listen("tcp", m.address)
	if err == nil {
		go m.serve(m.listener)
	}
	return err
}

// serve forwards the connections of a listener until it closes.
func (m *Member) serve(l net.Listener) {
	for {
		in, err := l.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", m.peer)
		if err != nil {
			in.Close()
			continue
		}
		m.mu.Lock()
		m.open[in], m.open[out] = true, true
		m.mu.Unlock()
		go m.forward(in, out)
		go m.forward(out, in)
	}
}

func (m *Member) forward(from, to net.Conn) {
	_, _ = io.Copy(gate{m, to}, from)
	from.Close()
	to.Close()
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.open, from)
	delete(m.open, to)
}

// gate holds bytes back while a member is paused.
type gate struct {
	m  *Member
	to net.Conn
}

func (g gate) Write(b []byte) (int, error) {
	g.m.mu.Lock()
	paused := g.m.paused
	g.m.mu.Unlock()
	<-paused
	return g.to.Write(b)
}

func (m *Member) stop() {
	_ = m.listener.Close()
	m.UnpauseConnections()
	m.DropConnections()
}

// Stop makes a member unreachable.
func (m *Member) Stop(testutil.TB) { m.stop() }

// Restart makes it reachable again.
func (m *Member) Restart(testutil.TB) error { return m.listen() }

// WaitOK waits for a member.
func (m *Member) WaitOK(testutil.TB) {}

// Bridge is between clients and a member.
func (m *Member) Bridge() *Member { return m }

// DropConnections closes the connections of clients.
func (m *Member) DropConnections() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for c := range m.open {
		c.Close()
	}
}

// PauseConnections holds bytes back.
func (m *Member) PauseConnections() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.paused = make(chan struct{})
}

// UnpauseConnections lets bytes flow.
func (m *Member) UnpauseConnections() {
	m.mu.Lock()
	defer m.mu.Unlock()
	select {
	case <-m.paused:
	default:
		close(m.paused)
	}
}

// InjectPartition skips.
func (m *Member) InjectPartition(t testutil.TB, _ ...*Member) {
	t.Skip("parts the members of a cluster")
}

// RecoverPartition does nothing.
func (m *Member) RecoverPartition(testutil.TB, ...*Member) {}

// Metric skips.
func (m *Member) Metric(string, ...string) (string, error) {
	m.t.Skip("reads a metric of etcd's server")
	return "", nil
}

// ReadyNotify is closed.
func (m *Member) ReadyNotify() <-chan struct{} { return m.paused }

// StopNotify is closed.
func (m *Member) StopNotify() <-chan struct{} { return m.paused }

// NewClient returns a client.
func NewClient(_ testutil.TB, c clientv3.Config) (*clientv3.Client, error) {
	if c.DialTimeout == 0 {
		c.DialTimeout = 5 * time.Second
	}
	c.DialOptions = append(c.DialOptions, grpc.WithBlock()) //nolint:staticcheck // as etcd's tests do
	return clientv3.New(c)
}

// GRPCAPI is the API below the client.
type GRPCAPI struct {
	KV    pb.KVClient
	Lease pb.LeaseClient
	Watch pb.WatchClient
}

// ToGRPC returns the API below a client.
func ToGRPC(c *clientv3.Client) GRPCAPI {
	on := c.ActiveConnection()
	return GRPCAPI{pb.NewKVClient(on), pb.NewLeaseClient(on), pb.NewWatchClient(on)}
}

// CloseClients closes clients.
func CloseClients(t testutil.TB, clients []*clientv3.Client) {
	for _, c := range clients {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

// MakeSingleNodeClients returns a function that makes clients of the first member, which CloseClients closes.
func MakeSingleNodeClients(t testutil.TB, c *Cluster, clients *[]*clientv3.Client) func() *clientv3.Client {
	return makeClients(t, clients, func() int { return 0 }, c)
}

// MakeMultiNodeClients is MakeSingleNodeClients for any member.
func MakeMultiNodeClients(t testutil.TB, c *Cluster, clients *[]*clientv3.Client) func() *clientv3.Client {
	return makeClients(t, clients, func() int { return rand.IntN(len(c.Members)) }, c)
}

func makeClients(t testutil.TB, clients *[]*clientv3.Client, choose func() int, c *Cluster) func() *clientv3.Client {
	var mu sync.Mutex
	return func() *clientv3.Client {
		client, err := NewClient(t, clientv3.Config{Endpoints: []string{c.Members[choose()].GRPCURL}})
		if err != nil {
			t.Fatal(err)
		}
		mu.Lock()
		defer mu.Unlock()
		*clients = append(*clients, client)
		return client
	}
}

// WaitClientV3 waits until a client is served.
func WaitClientV3(t testutil.TB, kv clientv3.KV) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for {
		if _, err := kv.Get(ctx, "/"); err == nil {
			return
		}
		if ctx.Err() != nil {
			t.Fatal("no answer in a minute")
		}
		time.Sleep(10 * time.Millisecond)
	}
}
