// Package client is the Go SDK. It calls a local peer over gRPC.
//
// # Discovery
//
// A Client implements the contract of package discovery. Requests use the same types, and
// answers use the views of packages records and query. Errors keep their kinds: errors.Is
// works with the kinds of package fault and the templates of package discovery.
//
// Clients trust their peer, which has verified the records in its answers. For an
// independent check, Record.Envelope has the signed bytes for records.Open.
//
// # Instances
//
// Services is the agent plane. Services.Register keeps an instance registered while the
// program runs, Services.Discover caches the instances of other services, and
// Services.Watch and Services.Follow report changes. Package resolver finds instances for
// gRPC. Client.Agent is the contract of package instance without retries and caches.
//
// # Coordination
//
// A Session is a lease with automatic renewal. Its locks (Session.Lock) and elections
// (Session.Campaign) end for the holder before the group gives them to others.
// Client.KV reads, changes and watches keys, and repeats what was lost on the way. Client.Coordination is
// the contract of package coord without retries.
//
// A lock is a promise about time, and a paused or disconnected holder loses track of time.
// The resource behind a lock should check the fencing token: package fence does so for a
// file, a row in a database and an HTTP endpoint.
package client

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"github.com/blackhole/blackhole/internal/contract/coord/attempt"
	"github.com/blackhole/blackhole/internal/contract/coord/calls"
	"github.com/blackhole/blackhole/internal/contract/discovery"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
	agentv1 "github.com/blackhole/blackhole/proto/blackhole/agent/v1"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// DefaultAddress is the default gRPC address of a peer.
const DefaultAddress = "127.0.0.1:8502"

// maxMessage bounds received messages, in bytes. The peer bounds sent messages.
const maxMessage = 64 << 20

// Client is a connection to one peer. It is safe for concurrent use.
type Client struct {
	conn     *grpc.ClientConn
	records  api.RecordServiceClient
	peers    api.PeerServiceClient
	operator api.OperatorServiceClient
	events   api.EventServiceClient // on patient

	agent        *Agent
	services     *Services
	coordination *Coordination
	patient      *grpc.ClientConn // separate connection for long calls
	clock        Clock
	vary         func(time.Duration) time.Duration
	sessions     *renewer[*Session]
	identities   *attempt.Pool
	rules        attempt.Rules // of repeated calls
	application  string        // the name of this program for its leases
}

// Record is a record from the peer.
type Record struct {
	records.View
	Envelope []byte `json:"-"` // the signed bytes
}

// New returns a client of the peer at a gRPC address: host:port, or unix:///path of a socket.
// An empty address means DefaultAddress. The first call connects, and later calls reconnect
// after a loss. opts override the defaults, which suit a peer on loopback without TLS. See
// WithTLS and WithToken for other peers.
func New(address string, opts ...grpc.DialOption) (*Client, error) {
	address = cmp.Or(address, DefaultAddress)
	secret, err := tokenOptions(address, opts)
	if err != nil {
		return nil, fault.Wrap("client.New", err)
	}
	opts = append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 20 * time.Second, Timeout: 5 * time.Second}),
		grpc.WithConnectParams(reconnect()),
	}, slices.Concat(opts, secret, calls.Traced(spans(opts)))...)
	conn, err := grpc.NewClient(address, opts...)
	if err != nil {
		return nil, fault.As("client.New", fault.Invalid, err)
	}
	patient, err := grpc.NewClient(address, opts...)
	if err != nil { // impossible: the first client was created with the same address
		return nil, fault.As("client.New", fault.Invalid, errors.Join(err, conn.Close()))
	}
	c := &Client{conn: conn, records: api.NewRecordServiceClient(conn), peers: api.NewPeerServiceClient(conn), operator: api.NewOperatorServiceClient(conn),
		events: api.NewEventServiceClient(patient), patient: patient}
	c.agent = &Agent{service: agentv1.NewDiscoveryServiceClient(conn), watches: agentv1.NewDiscoveryServiceClient(patient)}
	connectCoordination(c, opts)
	c.services = newServices(c)
	return c, nil
}

// Close ends the connection and all its calls. It ends open sessions, whose leases expire in
// the group, and tries for one second to deregister open instances. A second Close does
// nothing.
func (c *Client) Close() error {
	if !c.sessions.close(lost(errClosed())) {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if c.conn.GetState() == connectivity.Ready {
		c.identities.Close(ctx, c.coordination.Execute)
	} else {
		cancel()
	}
	c.services.close(ctx)
	c.coordination.Close()
	err := errors.Join(c.conn.Close(), c.patient.Close())
	c.coordination.Wait()
	return fault.As("client.Close", fault.Internal, err)
}

// Register offers a service: see discovery.Writer.Register.
func (c *Client) Register(ctx context.Context, o records.Offer) (records.Receipt, error) {
	resp, err := c.records.Register(ctx, &api.RegisterRequest{Service: o.Service()})
	return toReceipt(resp.GetReceipt()), fromStatus("client.Register", err)
}

// RegisterBatch offers up to discovery.MaxBatch services. It returns their outcomes in order.
func (c *Client) RegisterBatch(ctx context.Context, offers []records.Offer) ([]discovery.Outcome, error) {
	req := &api.RegisterBatchRequest{}
	for _, o := range offers {
		req.Services = append(req.Services, o.Service())
	}
	resp, err := c.records.RegisterBatch(ctx, req)
	if err != nil {
		return nil, fromStatus("client.RegisterBatch", err)
	}
	out := make([]discovery.Outcome, len(resp.GetResults()))
	for i, r := range resp.GetResults() {
		out[i].Receipt = toReceipt(r.GetReceipt())
		if e := r.GetError(); e != nil {
			out[i].Err = toFault("client.RegisterBatch", e)
		}
	}
	return out, nil
}

// Update replaces the content of an offer of the peer. The offer of an instance is refused with Conflict: change the instance.
func (c *Client) Update(ctx context.Context, o records.Offer) (records.Receipt, error) {
	resp, err := c.records.Update(ctx, &api.UpdateRequest{Service: o.Service()})
	return toReceipt(resp.GetReceipt()), fromStatus("client.Update", err)
}

// Withdraw ends an offer of the peer in the whole network. The offer of an instance is refused with Conflict: deregister the instance.
func (c *Client) Withdraw(ctx context.Context, id string) (records.Receipt, error) {
	resp, err := c.records.Withdraw(ctx, &api.WithdrawRequest{Id: id})
	return toReceipt(resp.GetReceipt()), fromStatus("client.Withdraw", err)
}

// Pause leaves an offer of the peer out of all answers: see discovery.Writer.Pause.
func (c *Client) Pause(ctx context.Context, id string, length time.Duration) (records.Receipt, error) {
	if length < 0 {
		return records.Receipt{}, fault.Wrap("client.Pause", fault.Invalidf("for", length, "must not be negative"))
	}
	resp, err := c.records.Pause(ctx, &api.PauseRequest{Id: id, ForMs: uint64(length.Milliseconds())})
	return toReceipt(resp.GetReceipt()), fromStatus("client.Pause", err)
}

// Resume ends a pause of an offer of the peer.
func (c *Client) Resume(ctx context.Context, id string) (records.Receipt, error) {
	resp, err := c.records.Resume(ctx, &api.ResumeRequest{Id: id})
	return toReceipt(resp.GetReceipt()), fromStatus("client.Resume", err)
}

// Get returns the record of an offer of the peer.
func (c *Client) Get(ctx context.Context, id string) (Record, error) {
	resp, err := c.records.Get(ctx, &api.GetRequest{Id: id})
	return toRecord(resp.GetRecord()), fromStatus("client.Get", err)
}

// List returns the records of the peer's offers, sorted by id.
func (c *Client) List(ctx context.Context) ([]Record, error) {
	resp, err := c.records.List(ctx, &api.ListRequest{})
	if err != nil {
		return nil, fromStatus("client.List", err)
	}
	out := make([]Record, len(resp.GetRecords()))
	for i, r := range resp.GetRecords() {
		out[i] = toRecord(r)
	}
	return out, nil
}

// Resolve returns the live record of a key from the network.
func (c *Client) Resolve(ctx context.Context, key string) (Record, error) {
	resp, err := c.records.Resolve(ctx, &api.ResolveRequest{Key: key})
	return toRecord(resp.GetRecord()), fromStatus("client.Resolve", err)
}

// Query finds services: see discovery.Finder.Query.
func (c *Client) Query(ctx context.Context, q query.Query) (query.AnswerView, error) {
	resp, err := c.records.Query(ctx, &api.QueryRequest{Query: q.Proto()})
	if err != nil {
		return query.AnswerView{}, fromStatus("client.Query", err)
	}
	return toAnswer(resp), nil
}

// Event is one change to the results of a watch.
type Event struct {
	Kind   query.EventKind `json:"event"`
	Cursor string          `json:"cursor,omitempty"`
	Record *Record         `json:"record,omitempty"` // nil for Progress and Reset
	// As in discovery.Event.
	Complete bool           `json:"complete,omitempty"`
	Reason   string         `json:"reason,omitempty"`
	Beyond   *query.LeftOut `json:"beyond,omitempty"`
}

// Watcher is one watch for one goroutine. The end of the context of Watch ends it.
type Watcher struct{ stream api.RecordService_WatchClient }

// Watch follows a query: see discovery.Finder.Watch. after is the cursor of the last event
// seen, or empty. Watch returns after the peer has accepted or refused the watch.
func (c *Client) Watch(ctx context.Context, q query.Query, after string) (*Watcher, error) {
	const op = "client.Watch"
	stream, err := c.records.Watch(ctx, &api.WatchRequest{Query: q.Proto(), After: after})
	if err != nil {
		return nil, fromStatus(op, err)
	}
	header, err := stream.Header() // arrives after the peer has accepted the watch
	if err == nil && header == nil {
		_, err = stream.Recv() // the stream has ended already: this returns the cause
	}
	if err != nil {
		return nil, fromStatus(op, err)
	}
	return &Watcher{stream: stream}, nil
}

// Next waits for the next event. An error ends the watch; another watch can resume at the
// cursor of the last event.
func (w *Watcher) Next() (Event, error) {
	resp, err := w.stream.Recv()
	if err != nil {
		return Event{}, fromStatus("client.Watch", err)
	}
	return toEvent(resp), nil
}

// Status returns the state of the peer.
func (c *Client) Status(ctx context.Context) (discovery.Status, error) {
	resp, err := c.peers.Status(ctx, &api.StatusRequest{})
	if err != nil {
		return discovery.Status{}, fromStatus("client.Status", err)
	}
	var conditions []discovery.Condition
	for _, c := range resp.GetConditions() {
		conditions = append(conditions, discovery.Condition{
			Name: c.GetName(), Message: c.GetMessage(), Since: c.GetSince().AsTime(),
		})
	}
	return discovery.Status{
		PeerID: resp.GetPeerId(), IdentityNew: resp.GetIdentityNew(), Network: resp.GetNetwork(), NetworkClosed: resp.GetNetworkClosed(), Profile: resp.GetProfile(), Mode: resp.GetMode(), Listen: resp.GetListen(), Version: resp.GetVersion(),
		UptimeSeconds: resp.GetUptime().AsDuration().Seconds(), Ready: resp.GetReady(),
		Peers: int(resp.GetPeers()), RoutingTable: int(resp.GetRoutingTable()),
		RecordsKept: int(resp.GetRecordsKept()), RecordsOwn: int(resp.GetRecordsOwn()),
		RecordsUnstored: resp.GetRecordsUnstored(), RecordsAnnouncing: int(resp.GetRecordsAnnouncing()), Conditions: conditions, ClockOffset: resp.ClockOffsetSeconds,
		Reach: reachOf(resp.GetReach()), Name: resp.GetName(), Group: standingOf(resp.GetGroup()),
	}, nil
}

func standingOf(g *api.GroupStanding) *discovery.Group {
	if g == nil {
		return nil
	}
	return &discovery.Group{
		ID: g.GetGroupId(), Role: g.GetRole(), Term: g.GetTerm(), Leader: g.GetLeader(), LeaderName: g.GetLeaderName(),
		Survives: int(g.GetFailuresSurvived()), Tolerance: g.GetTolerance(), Missing: g.GetMissing(),
	}
}

func reachOf(r *api.Reach) discovery.Reach {
	return discovery.Reach{
		State: r.GetState(), Text: r.GetText(), Since: r.GetSince().AsTime(), Relays: r.GetRelays(),
		Direct: int(r.GetDirect()), Relayed: int(r.GetRelayed()), Punched: int(r.GetPunched()), Unpunched: int(r.GetUnpunched()),
	}
}

// Peers returns the connected peers of the peer.
func (c *Client) Peers(ctx context.Context) ([]discovery.PeerInfo, error) {
	resp, err := c.peers.ListPeers(ctx, &api.ListPeersRequest{})
	if err != nil {
		return nil, fromStatus("client.Peers", err)
	}
	out := make([]discovery.PeerInfo, len(resp.GetPeers()))
	for i, p := range resp.GetPeers() {
		out[i] = discovery.PeerInfo{
			ID: p.GetId(), Addrs: p.GetAddrs(), Agent: p.GetAgent(), LatencyMs: query.Millis(p.GetLatency().AsDuration()), Name: p.GetName(),
		}
	}
	return out, nil
}

// Page returns a link to the web page of the peer, on which the page acts for the caller.
func (c *Client) Page(ctx context.Context) (discovery.PageLink, error) {
	resp, err := c.peers.OpenPage(ctx, &api.OpenPageRequest{})
	if err != nil {
		return discovery.PageLink{}, fromStatus("client.Page", err)
	}
	link := discovery.PageLink{URL: resp.GetUrl()}
	if at := resp.GetExpiresAt(); at != nil {
		link.Expires = at.AsTime()
	}
	return link, nil
}
