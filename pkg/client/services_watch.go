package client

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/blackhole/blackhole/internal/contract/coord/attempt"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// watch calls give for each batch. It returns nil after give returned false, or a permanent
// error. The Stale batch for a lost peer comes with the cause.
func (s *Services) watch(ctx context.Context, q instance.Query, after uint64, give func(b instance.Batch, lost error) bool) error {
	lost := false
	err := s.client.repeat(ctx, func(run *attempt.Run) error {
		err := s.agent.Watch(ctx, q, after, func(b instance.Batch) error {
			run.Progress()
			lost, after = false, b.Index
			if !give(b, nil) {
				return errEnough
			}
			return nil
		})
		if !s.client.passing(ctx, err) {
			return err
		}
		gone := instance.Batch{Index: after, Contact: instance.Contact{Stale: true, Reason: unreachableReason(err), Revision: after}}
		if !lost && !give(gone, err) {
			return errEnough
		}
		lost = true
		return err
	})
	if errors.Is(err, errEnough) {
		return nil
	}
	return ended(ctx, err)
}

// follow is watch with complete results.
func (s *Services) follow(ctx context.Context, q instance.Query, give func(r instance.Result, lost error) bool) error {
	m, err := newWatchCache(q)
	if err != nil {
		return err
	}
	return s.watch(ctx, q, 0, func(b instance.Batch, lost error) bool { return give(m.apply(b), lost) })
}

// unreachableReason explains a stale answer to users.
func unreachableReason(err error) string { return "the peer does not answer: " + fault.Message(err) }

// watchCache is the current result of a watch.
type watchCache struct {
	matcher instance.Matcher // for the order of instances
	all     map[instance.Key]*instance.Instance
	view    *instance.View
}

func newWatchCache(q instance.Query) (*watchCache, error) {
	m, err := q.Compile()
	return &watchCache{matcher: m, all: make(map[instance.Key]*instance.Instance), view: &instance.View{}}, err
}

// apply returns the result after a batch. The view changes only with the result.
func (m *watchCache) apply(b instance.Batch) instance.Result {
	if b.Reset {
		clear(m.all)
	}
	for _, e := range b.Events {
		if e.Type == instance.Removed {
			delete(m.all, e.Instance.Key)
		} else {
			m.all[e.Instance.Key] = e.Instance
		}
	}
	if b.Reset || len(b.Events) > 0 {
		m.view = &instance.View{Index: b.Index, Instances: slices.SortedFunc(maps.Values(m.all), m.matcher.Compare)}
	}
	return instance.Result{View: m.view, Contact: b.Contact}
}
