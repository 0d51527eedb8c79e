package client

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/blackhole/blackhole/internal/contract/coord/calls"
	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// Offers is the discovery plane for applications: the offers of the peer, and those of all others. Its calls do not
// repeat themselves.
type Offers struct{ client *Client }

// Offers returns the discovery plane. It is safe for concurrent use and ends with the client.
func (c *Client) Offers() Offers { return Offers{c} }

// Record is a record from the peer.
type Record struct {
	records.View
	Envelope []byte `json:"-"` // the signed bytes
}

// Outcome is the result of one offer of a batch: a receipt, or an error.
type Outcome struct {
	Receipt records.Receipt
	Err     error
}

// Register offers a service: see discovery.Writer.Register.
func (o Offers) Register(ctx context.Context, offer records.Offer) (records.Receipt, error) {
	resp, err := o.client.records.Register(ctx, &api.RegisterRequest{Service: offer.Service()})
	return toReceipt(resp.GetReceipt()), calls.Fault("client.Offers.Register", err)
}

// RegisterBatch offers up to discovery.MaxBatch services. It returns their outcomes in order.
func (o Offers) RegisterBatch(ctx context.Context, offers []records.Offer) ([]Outcome, error) {
	req := &api.RegisterBatchRequest{}
	for _, offer := range offers {
		req.Services = append(req.Services, offer.Service())
	}
	resp, err := o.client.records.RegisterBatch(ctx, req)
	if err != nil {
		return nil, calls.Fault("client.Offers.RegisterBatch", err)
	}
	out := make([]Outcome, len(resp.GetResults()))
	for i, r := range resp.GetResults() {
		out[i].Receipt = toReceipt(r.GetReceipt())
		if e := r.GetError(); e != nil {
			out[i].Err = calls.Restored("client.Offers.RegisterBatch", e, nil)
		}
	}
	return out, nil
}

// Update replaces the content of an offer of the peer. The offer of an instance is refused with Conflict: change
// the instance.
func (o Offers) Update(ctx context.Context, offer records.Offer) (records.Receipt, error) {
	resp, err := o.client.records.Update(ctx, &api.UpdateRequest{Service: offer.Service()})
	return toReceipt(resp.GetReceipt()), calls.Fault("client.Offers.Update", err)
}

// Withdraw ends an offer of the peer in the whole network. The offer of an instance is refused with Conflict:
// deregister the instance.
func (o Offers) Withdraw(ctx context.Context, id string) (records.Receipt, error) {
	resp, err := o.client.records.Withdraw(ctx, &api.WithdrawRequest{Id: id})
	return toReceipt(resp.GetReceipt()), calls.Fault("client.Offers.Withdraw", err)
}

// Pause leaves an offer of the peer out of all answers: see discovery.Writer.Pause.
func (o Offers) Pause(ctx context.Context, id string, length time.Duration) (records.Receipt, error) {
	if length < 0 {
		return records.Receipt{}, fault.Wrap("client.Offers.Pause", fault.Invalidf("for", length, "must not be negative"))
	}
	resp, err := o.client.records.Pause(ctx, &api.PauseRequest{Id: id, ForMs: uint64(length.Milliseconds())})
	return toReceipt(resp.GetReceipt()), calls.Fault("client.Offers.Pause", err)
}

// Resume ends a pause of an offer of the peer.
func (o Offers) Resume(ctx context.Context, id string) (records.Receipt, error) {
	resp, err := o.client.records.Resume(ctx, &api.ResumeRequest{Id: id})
	return toReceipt(resp.GetReceipt()), calls.Fault("client.Offers.Resume", err)
}

// Get returns the record of an offer of the peer.
func (o Offers) Get(ctx context.Context, id string) (Record, error) {
	resp, err := o.client.records.Get(ctx, &api.GetRequest{Id: id})
	return toRecord(resp.GetRecord()), calls.Fault("client.Offers.Get", err)
}

// List returns the records of the peer's offers, sorted by id.
func (o Offers) List(ctx context.Context) ([]Record, error) {
	resp, err := o.client.records.List(ctx, &api.ListRequest{})
	if err != nil {
		return nil, calls.Fault("client.Offers.List", err)
	}
	out := make([]Record, len(resp.GetRecords()))
	for i, r := range resp.GetRecords() {
		out[i] = toRecord(r)
	}
	return out, nil
}

// Resolve returns the live record of a key from the network.
func (o Offers) Resolve(ctx context.Context, key string) (Record, error) {
	resp, err := o.client.records.Resolve(ctx, &api.ResolveRequest{Key: key})
	return toRecord(resp.GetRecord()), calls.Fault("client.Offers.Resolve", err)
}

// Query finds services: see discovery.Finder.Query.
func (o Offers) Query(ctx context.Context, q query.Query) (query.AnswerView, error) {
	resp, err := o.client.records.Query(ctx, &api.QueryRequest{Query: queries.Proto(q)})
	if err != nil {
		return query.AnswerView{}, calls.Fault("client.Offers.Query", err)
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
func (o Offers) Watch(ctx context.Context, q query.Query, after string) (*Watcher, error) {
	const op = "client.Offers.Watch"
	stream, err := o.client.records.Watch(ctx, &api.WatchRequest{Query: queries.Proto(q), After: after})
	if err != nil {
		return nil, calls.Fault(op, err)
	}
	header, err := stream.Header() // arrives after the peer has accepted the watch
	if err == nil && header == nil {
		_, err = stream.Recv() // the stream has ended already: this returns the cause
	}
	if err != nil {
		return nil, calls.Fault(op, err)
	}
	return &Watcher{stream: stream}, nil
}

// Next waits for the next event. An error ends the watch; another watch can resume at the
// cursor of the last event.
func (w *Watcher) Next() (Event, error) {
	resp, err := w.stream.Recv()
	if err != nil {
		return Event{}, calls.Fault("client.Offers.Watch", err)
	}
	return toEvent(resp), nil
}

// Reservation asks for units of an offer.
type Reservation struct {
	Key      string        // of the record
	Units    uint32        // 0 means 1
	For      time.Duration // 0: as long as the offer allows
	Sequence uint64        // version of the record that was read; 0: any
	MaxPrice *float64      // most that the base price may be; nil: any
	Request  string        // makes a repetition safe; empty: the peer makes one
	Hold     bool          // for a minute at most, until Extend or the first connection
	Proof    []byte        // what the provider asks for, such as a proof of payment or a public key: at most 4 KiB
}

// Grant is the right to units of an offer, signed by its provider.
type Grant struct {
	Token      uint64   `json:"token,string"` // rises over all grants of the provider
	Key        string   `json:"key"`
	ProviderID string   `json:"provider_id"`
	ConsumerID string   `json:"consumer_id"`
	Units      uint32   `json:"units"`
	TTLMs      uint64   `json:"ttl_ms"`
	LeftMs     uint64   `json:"left_ms"` // by the count of the answering peer
	State      string   `json:"state"`   // held, active, expired, released or revoked
	RequestID  string   `json:"request_id"`
	Price      *float64 `json:"price,omitempty"`
	Currency   string   `json:"currency,omitempty"`
	PriceUnit  string   `json:"price_unit,omitempty"`
	Reason     string   `json:"reason,omitempty"` // of a revocation
	Sent       uint64   `json:"sent_bytes"`       // by the holder; known to the provider
	Received   uint64   `json:"received_bytes"`
	Handover   string   `json:"handover,omitempty"` // of the provider for the holder, such as a certificate or a URL; empty in lists
	Signed     []byte   `json:"-"`                  // a blackhole.trade.v1.SignedGrant; empty in lists
}

func toGrant(g *api.Grant, signed []byte) Grant {
	if g == nil {
		return Grant{}
	}
	return Grant{
		Token: g.GetToken(), Key: g.GetKey(), ProviderID: g.GetProviderId(), ConsumerID: g.GetConsumerId(), Units: g.GetUnits(), TTLMs: g.GetTtlMs(),
		LeftMs: g.GetLeftMs(), State: strings.ToLower(strings.TrimPrefix(g.GetState().String(), "STATE_")), RequestID: g.GetRequestId(), Price: g.Price,
		Currency: g.GetCurrency(), PriceUnit: g.GetPriceUnit(), Reason: g.GetReason(), Sent: g.GetSentBytes(), Received: g.GetReceivedBytes(),
		Handover: g.GetHandover(), Signed: signed,
	}
}

// Quote is what the provider of an offer says of it now. It promises nothing: a grant does.
type Quote struct {
	Key       string   `json:"key"`
	Sequence  uint64   `json:"sequence,omitempty"` // of the newest version of the record
	Free      uint32   `json:"free"`
	Total     uint32   `json:"total"`
	Most      uint32   `json:"most"` // units that this peer may take now: its share may be less than what is free
	Price     *float64 `json:"price,omitempty"`
	Currency  string   `json:"currency,omitempty"`
	PriceUnit string   `json:"price_unit,omitempty"`
	Err       error    `json:"-"` // why there is no quote; Timeout and Unavailable: nothing is known
}

// MaxQuotes is the most keys of one call of Quote.
const MaxQuotes = 100

// Quote asks providers what is free of their offers, and at which price, for two seconds at most. It returns one
// Quote for each key, in order. Error: Invalid for a wrong key, and for none or more than MaxQuotes.
func (o Offers) Quote(ctx context.Context, keys ...string) ([]Quote, error) {
	resp, err := o.client.trade.Quote(ctx, &api.QuoteRequest{Keys: keys})
	if err != nil {
		return nil, calls.Fault("client.Offers.Quote", err)
	}
	all := make([]Quote, len(resp.GetQuotes()))
	for i, q := range resp.GetQuotes() {
		all[i] = Quote{
			Key: q.GetKey(), Sequence: q.GetSequence(), Free: q.GetFree(), Total: q.GetTotal(), Most: q.GetMost(),
			Price: q.Price, Currency: q.GetCurrency(), PriceUnit: q.GetPriceUnit(),
		}
		if no := q.GetRefusal(); no != nil {
			all[i].Err = &fault.Error{Kind: fault.Kind(no.GetCode()), Field: no.GetField(), Err: errors.New(no.GetMessage())}
		}
	}
	return all, nil
}

// Stock says what is free of an own offer.
type Stock struct {
	ID    string `json:"id"`
	Unit  string `json:"unit"`
	Free  uint32 `json:"free"`
	Total uint32 `json:"total"`
	Serve string `json:"serve,omitempty"` // local address; empty: none
}

// Grants are those that the peer holds since its start, those that it gave, and what is free of its offers.
type Grants struct {
	Held   []Grant `json:"held"`
	Given  []Grant `json:"given"`
	Stocks []Stock `json:"stocks"`
}

// Reserve takes units of an offer from its provider. Errors name their numbers: Conflict for another version or
// price, and for too few free units; LimitReached for a share that is used up; Unsupported for an offer without
// stock; PaymentRequired, whose fault.ValueOf is the terms: repeat the request under its id, with a proof; Gone for a
// grant that the provider revoked at once, with its reason, or a request whose grant has ended; Unavailable.
func (o Offers) Reserve(ctx context.Context, r Reservation) (Grant, error) {
	const op = "client.Offers.Reserve"
	if r.For < 0 {
		return Grant{}, fault.Wrap(op, fault.Invalidf("for", r.For, "must not be negative"))
	}
	resp, err := o.client.trade.Reserve(ctx, &api.ReserveRequest{
		Key: r.Key, Units: r.Units, TtlMs: uint64(r.For.Milliseconds()), Sequence: r.Sequence, MaxPrice: r.MaxPrice, RequestId: r.Request, Hold: r.Hold,
		Proof: r.Proof,
	})
	return toGrant(resp.GetGrant(), resp.GetSigned()), calls.Fault(op, err)
}

// Extend gives a grant its time anew, and confirms one that is held; 0: the time that it has. Errors: NotFound and
// Gone for one that is over; Conflict for an offer with another price by now; Unavailable.
func (o Offers) Extend(ctx context.Context, g Grant, to time.Duration) (Grant, error) {
	const op = "client.Offers.Extend"
	if to < 0 {
		return Grant{}, fault.Wrap(op, fault.Invalidf("for", to, "must not be negative"))
	}
	resp, err := o.client.trade.Extend(ctx, &api.ExtendRequest{Token: g.Token, ProviderId: g.ProviderID, TtlMs: uint64(to.Milliseconds())})
	return toGrant(resp.GetGrant(), resp.GetSigned()), calls.Fault(op, err)
}

// Release gives the units of a grant back. Without ProviderID it must be one that the peer holds.
func (o Offers) Release(ctx context.Context, g Grant) (Grant, error) {
	resp, err := o.client.trade.Release(ctx, &api.ReleaseRequest{Token: g.Token, ProviderId: g.ProviderID})
	return toGrant(resp.GetGrant(), nil), calls.Fault("client.Offers.Release", err)
}

// Revoke takes a grant that the peer gave from its holder. Its connections end at once.
func (o Offers) Revoke(ctx context.Context, token uint64, reason string) (Grant, error) {
	resp, err := o.client.trade.Revoke(ctx, &api.RevokeRequest{Token: token, Reason: reason})
	return toGrant(resp.GetGrant(), nil), calls.Fault("client.Offers.Revoke", err)
}

// Grants lists grants.
func (o Offers) Grants(ctx context.Context) (all Grants, err error) {
	resp, err := o.client.trade.ListGrants(ctx, &api.ListGrantsRequest{})
	for _, g := range resp.GetHeld() {
		all.Held = append(all.Held, toGrant(g, nil))
	}
	for _, g := range resp.GetGiven() {
		all.Given = append(all.Given, toGrant(g, nil))
	}
	for _, s := range resp.GetStocks() {
		all.Stocks = append(all.Stocks, Stock{ID: s.GetId(), Unit: s.GetUnit(), Free: s.GetFree(), Total: s.GetTotal(), Serve: s.GetServe()})
	}
	return all, calls.Fault("client.Offers.Grants", err)
}

// Serve names the local TCP address that holders of grants of an own offer reach through the peer; empty: none any
// more. Nobody else learns it.
func (o Offers) Serve(ctx context.Context, id, address string) error {
	_, err := o.client.trade.Serve(ctx, &api.ServeRequest{Id: id, Address: address})
	return calls.Fault("client.Offers.Serve", err)
}

// Connection is a local address of the peer whose TCP connections go to what a grant is for. One goroutine at a
// time may use it. The end of the context of Connect ends it.
type Connection struct {
	stream api.TradeService_ConnectClient
}

// ConnectionState says how a connection stands.
type ConnectionState struct {
	Listen      string `json:"listen"`
	Path        string `json:"path"` // direct or relayed; empty: no way yet
	RoundTripUs uint64 `json:"round_trip_us"`
	LeftMs      uint64 `json:"left_ms"` // of the grant
	Connections uint32 `json:"connections"`
	Sent        uint64 `json:"sent_bytes"`
	Received    uint64 `json:"received_bytes"`
	RelayBytes  uint64 `json:"relay_bytes,omitempty"` // that the relay lets pass; 0: no bound known
	RelayMs     uint64 `json:"relay_ms,omitempty"`    // for which the relay lets it last
	Error       string `json:"error,omitempty"`       // of the last TCP connection
}

// Connect listens at a loopback address of the peer's machine, as long as ctx and the grant last. It returns when
// the peer listens.
func (o Offers) Connect(ctx context.Context, g Grant, listen string) (*Connection, ConnectionState, error) {
	stream, err := o.client.trade.Connect(ctx, &api.ConnectRequest{Token: g.Token, ProviderId: g.ProviderID, Listen: listen})
	if err != nil {
		return nil, ConnectionState{}, calls.Fault("client.Offers.Connect", err)
	}
	c := &Connection{stream}
	state, err := c.Next()
	return c, state, err
}

// Next waits for the next change, at most one each second. Errors: Gone at the end of the grant; ctx's.
func (c *Connection) Next() (ConnectionState, error) {
	r, err := c.stream.Recv()
	return ConnectionState{
		Listen: r.GetListen(), Path: r.GetPath(), RoundTripUs: r.GetRoundTripUs(), LeftMs: r.GetLeftMs(), Connections: r.GetConnections(),
		Sent: r.GetSentBytes(), Received: r.GetReceivedBytes(), RelayBytes: r.GetRelayBytes(), RelayMs: r.GetRelayMs(), Error: r.GetError(),
	}, calls.Fault("client.Offers.Connect", err)
}
