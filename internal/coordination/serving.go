package coordination

import (
	"context"
	"time"

	"github.com/blackhole/blackhole/pkg/coord"
)

// Do implements coord.Writer.
func (s Serving) Do(ctx context.Context, cmd coord.Command) (coord.Result, coord.Header, error) {
	l, err := s.at()
	if err != nil {
		return coord.Result{}, coord.Header{}, err
	}
	return l.Do(ctx, cmd)
}

// Acquire implements coord.Writer.
func (s Serving) Acquire(ctx context.Context, cmd coord.Command, wait time.Duration) (coord.Result, coord.Header, error) {
	l, err := s.at()
	if err != nil {
		return coord.Result{}, coord.Header{}, err
	}
	return l.Acquire(ctx, cmd, wait)
}

// KeepAlive implements coord.Writer.
func (s Serving) KeepAlive(ctx context.Context, owner string, ids []coord.LeaseID) ([]coord.Renewal, coord.Header, error) {
	l, err := s.at()
	if err != nil {
		return nil, coord.Header{}, err
	}
	return l.KeepAlive(ctx, owner, ids)
}

// Leases implements coord.Reader.
func (s Serving) Leases(ctx context.Context, q coord.LeaseQuery) ([]coord.LeaseState, coord.Header, error) {
	l, err := s.at()
	if err != nil {
		return nil, coord.Header{}, err
	}
	return l.Leases(ctx, q)
}

// Locks implements coord.Reader.
func (s Serving) Locks(ctx context.Context, q coord.LockQuery) ([]coord.LockState, coord.Header, error) {
	l, err := s.at()
	if err != nil {
		return nil, coord.Header{}, err
	}
	return l.Locks(ctx, q)
}

// Range implements coord.Reader.
func (s Serving) Range(ctx context.Context, q coord.Query, c coord.Consistency) (coord.Page, coord.Header, error) {
	l, err := s.at()
	if err != nil {
		return coord.Page{}, coord.Header{}, err
	}
	return l.Range(ctx, q, c)
}

// Watch implements coord.Reader.
func (s Serving) Watch(ctx context.Context, w coord.Watch, send func(coord.Batch, coord.Header) error) error {
	l, err := s.at()
	if err != nil {
		return err
	}
	return l.Watch(ctx, w, send)
}

// Group implements coord.Admin.
func (s Serving) Group(ctx context.Context) (coord.GroupState, error) {
	l, err := s.at()
	if err != nil {
		return coord.GroupState{}, err
	}
	return l.Group(ctx)
}
