package discoverytest

import (
	"context"

	"github.com/blackhole/blackhole/pkg/discovery"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// API is the contract of package discovery as its users have it, in process or over a
// wire: what is asked in its own types, what comes back as views.
type API struct {
	Registrar
	Finder
}

// Registrar is discovery.Registrar in views.
type Registrar interface {
	// Register announces a service.
	Register(ctx context.Context, o records.Offer) (discovery.Receipt, error)
	// RegisterBatch announces several, each with its own outcome.
	RegisterBatch(ctx context.Context, offers []records.Offer) ([]discovery.Outcome, error)
	// Update replaces the content of a service.
	Update(ctx context.Context, o records.Offer) (discovery.Receipt, error)
	// Withdraw ends a service everywhere.
	Withdraw(ctx context.Context, id string) (discovery.Receipt, error)
	// Get gives one own record.
	Get(ctx context.Context, id string) (records.View, error)
	// List gives the own records by id.
	List(ctx context.Context) ([]records.View, error)
}

// Finder is discovery.Finder in views.
type Finder interface {
	// Resolve gives the live record under a key.
	Resolve(ctx context.Context, key string) (records.View, error)
	// Query finds services.
	Query(ctx context.Context, q query.Query) (query.AnswerView, error)
	// Watch follows a query until its context ends.
	Watch(ctx context.Context, q query.Query, after string) (Next, error)
}

// Next waits for the next event of a watch.
type Next func() (Event, error)

// Event is discovery.Event with a view.
type Event struct {
	Kind   discovery.EventKind
	Cursor string
	Record *records.View // nil for Progress and Reset
}

// InProcess is the contract without a wire.
func InProcess(s *discovery.Service) API { return API{inProcess{s}, inProcess{s}} }

type inProcess struct{ *discovery.Service }

func (p inProcess) Get(_ context.Context, id string) (records.View, error) {
	return view(p.Own(id))
}

func (p inProcess) List(context.Context) ([]records.View, error) {
	var views []records.View
	for _, r := range p.OwnAll() {
		views = append(views, records.ViewOf(r))
	}
	return views, nil
}

func (p inProcess) Resolve(ctx context.Context, key string) (records.View, error) {
	return view(p.Service.Resolve(ctx, key))
}

func (p inProcess) Query(ctx context.Context, q query.Query) (query.AnswerView, error) {
	a, err := p.Service.Query(ctx, q)
	if err != nil {
		return query.AnswerView{}, err
	}
	return a.View(), nil
}

func (p inProcess) Watch(ctx context.Context, q query.Query, after string) (Next, error) {
	w, err := p.Service.Watch(ctx, q, after)
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, w.Close)
	return func() (Event, error) {
		ev, err := w.Next(ctx)
		if err != nil {
			return Event{}, err
		}
		seen := Event{Kind: ev.Kind, Cursor: ev.Cursor}
		if ev.Record != nil {
			v := records.ViewOf(ev.Record)
			seen.Record = &v
		}
		return seen, nil
	}, nil
}

func view(r *records.Record, err error) (records.View, error) {
	if err != nil {
		return records.View{}, err
	}
	return records.ViewOf(r), nil
}
