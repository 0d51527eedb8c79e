package client

import (
	"context"
	"strings"
	"time"

	"github.com/blackhole/blackhole/internal/contract/coord/calls"
	"github.com/blackhole/blackhole/pkg/fault"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// Reservation asks for units of an offer.
type Reservation struct {
	Key      string        // of the record
	Units    uint32        // 0 means 1
	For      time.Duration // 0: as long as the offer allows
	Sequence uint64        // version of the record that was read; 0: any
	MaxPrice *float64      // most that the base price may be; nil: any
	Request  string        // makes a repetition safe; empty: the peer makes one
	Hold     bool          // for a minute at most, until Extend or the first connection
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
	Signed     []byte   `json:"-"` // a blackhole.trade.v1.SignedGrant; empty in lists
}

func toGrant(g *api.Grant, signed []byte) Grant {
	return Grant{
		Token: g.GetToken(), Key: g.GetKey(), ProviderID: g.GetProviderId(), ConsumerID: g.GetConsumerId(), Units: g.GetUnits(), TTLMs: g.GetTtlMs(),
		LeftMs: g.GetLeftMs(), State: strings.ToLower(strings.TrimPrefix(g.GetState().String(), "STATE_")), RequestID: g.GetRequestId(), Price: g.Price,
		Currency: g.GetCurrency(), PriceUnit: g.GetPriceUnit(), Reason: g.GetReason(), Sent: g.GetSentBytes(), Received: g.GetReceivedBytes(), Signed: signed,
	}
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

// Reserve takes units of an offer from its provider. Errors name their numbers: Conflict for another version or price, and for too few
// free units; LimitReached for a share that is used up; Unsupported for an offer without stock; Unavailable.
func (o Offers) Reserve(ctx context.Context, r Reservation) (Grant, error) {
	const op = "client.Offers.Reserve"
	if r.For < 0 {
		return Grant{}, fault.Wrap(op, fault.Invalidf("for", r.For, "must not be negative"))
	}
	resp, err := o.client.trade.Reserve(ctx, &api.ReserveRequest{
		Key: r.Key, Units: r.Units, TtlMs: uint64(r.For.Milliseconds()), Sequence: r.Sequence, MaxPrice: r.MaxPrice, RequestId: r.Request, Hold: r.Hold,
	})
	return toGrant(resp.GetGrant(), resp.GetSigned()), calls.Fault(op, err)
}

// Extend gives a grant its time anew, and confirms one that is held; 0: the time that it has. Errors: NotFound and Gone for one that is over;
// Conflict for an offer with another price by now; Unavailable.
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

// Serve names the local TCP address that holders of grants of an own offer reach through the peer; empty: none any more. Nobody else
// learns it.
func (o Offers) Serve(ctx context.Context, id, address string) error {
	_, err := o.client.trade.Serve(ctx, &api.ServeRequest{Id: id, Address: address})
	return calls.Fault("client.Offers.Serve", err)
}

// Connection is a local address of the peer whose TCP connections go to what a grant is for. One goroutine at a time may use it. The end of the
// context of Connect ends it.
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

// Connect listens at a loopback address of the peer's machine, as long as ctx and the grant last. It returns when the peer listens.
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
