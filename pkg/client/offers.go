package client

import (
	"context"
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
