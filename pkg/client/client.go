// Package client is the Go SDK: a local peer, over gRPC.
//
// # Discovery
//
// It has the contract of package discovery, with the same types for what is asked and the
// views of package records and query for what comes back; errors are of the same kinds,
// so errors.Is works with the kinds of package fault and the templates of package
// discovery on either side of the wire.
//
// A peer is trusted by its clients: it verified what it returns. Who does not trust it
// finds the signed bytes in Record.Envelope and can open them with records.Open.
//
// # Instances
//
// Services is the agent plane: Services.Register keeps an instance of the application registered for as
// long as the program runs, Services.Discover has those of others at hand, Services.Watch and
// Services.Follow tell what becomes of them. Package resolver finds them for gRPC. Below lies the
// contract of package instance as it is: Client.Agent.
//
// # Coordination
//
// A Session is a lease that is kept alive; locks (Session.Lock) and elections (Session.Campaign)
// are held in its name, and end for their holder before the group gives them to others.
// Client.Follow is a watch on keys that survives lost connections. Below them lies the
// contract of package coord as it is: Client.Coordination.
//
// A lock is a promise about time, and time is what a paused or cut-off holder does not have.
// Have the resource behind it check the fencing token: package fence does, for a file, a
// row in a database, an HTTP endpoint.
package client

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"github.com/blackhole/blackhole/pkg/discovery"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
	agentv1 "github.com/blackhole/blackhole/proto/blackhole/agent/v1"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// DefaultAddress is where a peer serves gRPC unless told otherwise.
const DefaultAddress = "127.0.0.1:8502"

// maxMessage bounds what is received; what is sent is for the peer to bound.
const maxMessage = 64 << 20

// Client speaks to one peer. It is safe for concurrent use.
type Client struct {
	conn    *grpc.ClientConn
	records api.RecordServiceClient
	peers   api.PeerServiceClient

	agent        *Agent
	services     *Services
	coordination *Coordination
	patient      *grpc.ClientConn // for calls that may take forever: they leave the others room
	clock        Clock
	vary         func(time.Duration) time.Duration
	keeper       *keeper
	calls, waits slots
}

// Record is a record as the peer gave it.
type Record struct {
	records.View
	Envelope []byte `json:"-"` // the signed bytes
}

// New makes a client of the peer at a gRPC address (host:port, or unix:///path of a socket; empty
// is DefaultAddress). It connects when first used, and again whenever the connection was lost.
// Options come after the defaults, which use no TLS: peers serve on loopback. See WithTLS and
// WithToken for those that do not.
func New(address string, opts ...grpc.DialOption) (*Client, error) {
	if address == "" {
		address = DefaultAddress
	}
	secret, err := tokenOptions(address, opts)
	if err != nil {
		return nil, fault.Wrap("client.New", err)
	}
	opts = append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 20 * time.Second, Timeout: 5 * time.Second}),
		grpc.WithConnectParams(reconnect()),
	}, append(opts, secret...)...)
	conn, err := grpc.NewClient(address, opts...)
	if err != nil {
		return nil, fault.As("client.New", fault.Invalid, err)
	}
	patient, err := grpc.NewClient(address, opts...)
	if err != nil { // it was good a moment ago
		return nil, fault.As("client.New", fault.Invalid, errors.Join(err, conn.Close()))
	}
	c := &Client{conn: conn, records: api.NewRecordServiceClient(conn), peers: api.NewPeerServiceClient(conn), patient: patient}
	c.agent = &Agent{service: agentv1.NewDiscoveryServiceClient(conn), watches: agentv1.NewDiscoveryServiceClient(patient)}
	c.coordinate(opts)
	c.services = newServices(c)
	return c, nil
}

// Close ends the connection and every call on it. Sessions that were not closed end, and their
// leases run out by themselves; instances that were not closed are deregistered, as far as
// that is quick. Closing again does nothing.
func (c *Client) Close() error {
	if !c.keeper.close() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if c.conn.GetState() == connectivity.Ready {
		c.closeSlots(ctx)
	} else {
		cancel()
	}
	c.services.close(ctx)
	c.coordination.renew.close()
	c.coordination.bundles.close()
	err := errors.Join(c.conn.Close(), c.patient.Close())
	c.coordination.renew.streams.Wait()
	c.coordination.bundles.streams.Wait()
	return fault.As("client.Close", fault.Internal, err)
}

// Register announces a service: see discovery.Writer.Register.
func (c *Client) Register(ctx context.Context, o records.Offer) (discovery.Receipt, error) {
	resp, err := c.records.Register(ctx, &api.RegisterRequest{Service: o.Service()})
	return toReceipt(resp.GetReceipt()), fromStatus("client.Register", err)
}

// RegisterBatch announces up to discovery.MaxBatch services, each with its own outcome, in order.
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

// Update replaces the content of one of the peer's services.
func (c *Client) Update(ctx context.Context, o records.Offer) (discovery.Receipt, error) {
	resp, err := c.records.Update(ctx, &api.UpdateRequest{Service: o.Service()})
	return toReceipt(resp.GetReceipt()), fromStatus("client.Update", err)
}

// Withdraw ends one of the peer's services everywhere.
func (c *Client) Withdraw(ctx context.Context, id string) (discovery.Receipt, error) {
	resp, err := c.records.Withdraw(ctx, &api.WithdrawRequest{Id: id})
	return toReceipt(resp.GetReceipt()), fromStatus("client.Withdraw", err)
}

// Get gives one of the peer's own records.
func (c *Client) Get(ctx context.Context, id string) (Record, error) {
	resp, err := c.records.Get(ctx, &api.GetRequest{Id: id})
	return toRecord(resp.GetRecord()), fromStatus("client.Get", err)
}

// List gives the peer's own records by id.
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

// Resolve gives the live record under a key, from the network.
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

// Event is one change to what a watch matches.
type Event struct {
	Kind   discovery.EventKind `json:"event"`
	Cursor string              `json:"cursor,omitempty"`
	Record *Record             `json:"record,omitempty"` // nil for Progress and Reset
}

// Watcher is one watch. It is for one goroutine; cancel the context of Watch to end it.
type Watcher struct{ stream api.RecordService_WatchClient }

// Watch follows a query: see discovery.Finder.Watch. After is the cursor of the last event
// seen, or empty. It returns when the peer has accepted the watch, or with its refusal.
func (c *Client) Watch(ctx context.Context, q query.Query, after string) (*Watcher, error) {
	const op = "client.Watch"
	stream, err := c.records.Watch(ctx, &api.WatchRequest{Query: q.Proto(), After: after})
	if err != nil {
		return nil, fromStatus(op, err)
	}
	header, err := stream.Header() // comes once the peer has accepted the watch
	if err == nil && header == nil {
		_, err = stream.Recv() // the stream ended before it began: this says why
	}
	if err != nil {
		return nil, fromStatus(op, err)
	}
	return &Watcher{stream: stream}, nil
}

// Next waits for the next event. After an error the watch is over; resume it with the
// cursor of the last event.
func (w *Watcher) Next() (Event, error) {
	resp, err := w.stream.Recv()
	if err != nil {
		return Event{}, fromStatus("client.Watch", err)
	}
	return toEvent(resp), nil
}

// Status tells of the peer.
func (c *Client) Status(ctx context.Context) (discovery.Status, error) {
	resp, err := c.peers.Status(ctx, &api.StatusRequest{})
	if err != nil {
		return discovery.Status{}, fromStatus("client.Status", err)
	}
	return discovery.Status{
		PeerID: resp.GetPeerId(), Profile: resp.GetProfile(), Listen: resp.GetListen(), Version: resp.GetVersion(),
		UptimeSeconds: resp.GetUptime().AsDuration().Seconds(), Ready: resp.GetReady(),
		Peers: int(resp.GetPeers()), RoutingTable: int(resp.GetRoutingTable()),
		RecordsKept: int(resp.GetRecordsKept()), RecordsOwn: int(resp.GetRecordsOwn()),
	}, nil
}

// Peers lists the peers that this one is connected to.
func (c *Client) Peers(ctx context.Context) ([]discovery.PeerInfo, error) {
	resp, err := c.peers.ListPeers(ctx, &api.ListPeersRequest{})
	if err != nil {
		return nil, fromStatus("client.Peers", err)
	}
	out := make([]discovery.PeerInfo, len(resp.GetPeers()))
	for i, p := range resp.GetPeers() {
		out[i] = discovery.PeerInfo{
			ID: p.GetId(), Addrs: p.GetAddrs(), Agent: p.GetAgent(), LatencyMs: query.Millis(p.GetLatency().AsDuration()),
		}
	}
	return out, nil
}
