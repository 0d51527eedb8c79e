package discoverytest

import (
	"context"

	"github.com/blackhole/blackhole/internal/contract/discovery"
	engine "github.com/blackhole/blackhole/internal/discovery"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// API is the contract of package discovery for its users, in process or over a wire: its writes, and reads that
// return views.
type API struct {
	discovery.Writer
	Views
}

// Views are the reads of discovery.Registrar and discovery.Finder with views as results, because a wire carries
// no *records.Record.
type Views interface {
	// Get returns one own record.
	Get(ctx context.Context, id string) (records.View, error)
	// List returns the own records by id.
	List(ctx context.Context) ([]records.View, error)
	// Resolve returns the live record under a key.
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
	Kind   query.EventKind
	Cursor string
	Record *records.View // nil for Progress and Reset
}

// InProcess returns the contract without a wire.
func InProcess(s *engine.Service) API { return API{inProcess{s}, inProcess{s}} }

type inProcess struct{ *engine.Service }

func (p inProcess) Get(_ context.Context, id string) (records.View, error) {
	return view(p.Own(id))
}

func (p inProcess) List(context.Context) ([]records.View, error) {
	var views []records.View
	for _, r := range p.OwnAll() {
		views = append(views, r.View())
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
			v := ev.Record.View()
			seen.Record = &v
		}
		return seen, nil
	}, nil
}

func view(r *records.Record, err error) (records.View, error) {
	if err != nil {
		return records.View{}, err
	}
	return r.View(), nil
}
