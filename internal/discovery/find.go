package discovery

import (
	"context"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/discovery/index"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// propagation is the time that a new version may need to reach its keepers. Until then, a version from a live
// update is valid without a keeper.
const propagation = 15 * time.Second

// Query finds services. The caller must not modify the answer: the cache shares it. Errors: Invalid with the
// field, Timeout. An empty answer, or one that lacks some keepers, is not an error.
func (s *Service) Query(ctx context.Context, q query.Query) (*query.Answer, error) {
	start := s.Now()
	if q.Sort == query.SortRandom && q.Seed == 0 {
		q.Seed = max(s.Random(), 1)
	}
	q = s.defaults.Fill(q) // the keys of the cache are those of plans
	var buf [512]byte
	key := query.AppendKey(buf[:0], &q)
	if e := s.cache.get(key, start, s.Prober); e != nil {
		return s.fromCache(e, start), nil
	}
	plan, excluded, err := s.plan(q)
	if err != nil {
		s.Recorder.Failed("discovery.Query", err)
		return nil, fault.Wrap("discovery.Query", err)
	}
	answer := s.local(plan, excluded)
	if answer == nil {
		if answer, err = s.search(ctx, plan, excluded); err != nil {
			s.Recorder.Failed("discovery.Query", err)
			return nil, fault.Wrap("discovery.Query", err)
		}
	}
	answer.Took = s.Now().Sub(start)
	s.Recorder.Queried(string(answer.Source), answer.Took, len(answer.Results))
	return answer, nil
}

// fromCache returns a cached answer with its own times. All other parts are shared.
func (s *Service) fromCache(e *cached, start time.Time) *query.Answer {
	a := *e.answer
	a.Source, a.Age = query.SourceCache, start.Sub(e.at)
	a.Took = s.Now().Sub(start)
	s.Recorder.Queried(string(a.Source), a.Took, len(a.Results))
	return &a
}

// plan compiles a query. It excludes unreachable providers, except for health "any".
func (s *Service) plan(q query.Query) (*query.Plan, []peer.ID, error) {
	if q.Health != query.HealthAny {
		q.Exclude = s.Prober.Unreachable()
	}
	plan, err := query.Compile(q, s.defaults)
	return plan, q.Exclude, err
}

// search answers a plan from the network and caches the answer. Concurrent callers with one question share one
// search, which outlives its first caller.
func (s *Service) search(ctx context.Context, plan *query.Plan, excluded []peer.ID) (*query.Answer, error) {
	if ctx.Err() != nil { // before a fast answer, so that a canceled call always fails
		return nil, ctx.Err()
	}
	done := s.flights.DoChan(plan.Key(), func() (any, error) {
		ctx, cancel := context.WithTimeout(s.ctx, queryTimeout)
		defer cancel()
		return s.ask(ctx, plan, excluded)
	})
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case r := <-done:
		if r.Err != nil {
			return nil, r.Err
		}
		a := *r.Val.(*query.Answer)
		return &a, nil
	}
}

// local answers and caches a plan whose cells this peer keeps. As their keeper it receives all changes. It
// returns nil if other keepers are needed.
func (s *Service) local(plan *query.Plan, excluded []peer.ID) *query.Answer {
	e := &cached{plan: plan, excluded: excluded, release: func() {}, at: s.Now(), epoch: s.Prober.Epoch(), seq: s.Index.Seq()}
	found, ok := s.Keepers.Local(plan)
	if !ok {
		return nil
	}
	return s.finish(e, found)
}

// ask answers a plan from the network.
func (s *Service) ask(ctx context.Context, plan *query.Plan, excluded []peer.ID) (*query.Answer, error) {
	release, err := s.Updates.Follow(plan)
	if err != nil { // too many topics: the answer lives for its TTL without live updates
		s.Recorder.Failed("gossip.Follow", err)
		release = func() {}
	}
	e := &cached{plan: plan, excluded: excluded, release: release, at: s.Now(), epoch: s.Prober.Epoch()}
	found, err := s.Keepers.Query(ctx, plan)
	if err != nil {
		release()
		return s.fallback(plan, err)
	}
	e.seq = s.Index.Seq()
	return s.finish(e, found), nil
}

// finish builds the answer, tracks its providers and caches a complete answer as e. The caller may change the
// fields of the result.
func (s *Service) finish(e *cached, found query.Found) *query.Answer {
	a := s.assemble(e.plan, found)
	s.Prober.Track(providers(a)...)
	if !a.Complete {
		e.release()
		return a
	}
	kept := *a
	e.answer, e.fresh = &kept, s.cache.ttl
	if len(a.Results) == 0 {
		e.fresh = negativeTTL
	}
	s.cache.put(e)
	// A change after the search is either in the feed's ring, which altered checks, or arrives after put and
	// drops the answer. So check after put.
	if s.feed.altered(e.plan, e.seq) {
		s.cache.remove(e)
	}
	return a
}

// providers returns the providers of an answer, with few duplicates.
func providers(a *query.Answer) []peer.ID {
	ids := make([]peer.ID, 0, len(a.Results))
	for _, r := range a.Results {
		if id := r.Record.Name().Provider; len(ids) == 0 || ids[len(ids)-1] != id {
			ids = append(ids, id)
		}
	}
	return ids
}

// fallback answers from an expired answer or from the index, and marks the answer as incomplete.
func (s *Service) fallback(plan *query.Plan, cause error) (*query.Answer, error) {
	if e := s.cache.stale(plan.Key(), s.Now()); e != nil {
		a := *e.answer
		a.Source, a.Age, a.Complete, a.Reason = query.SourceCache, s.Now().Sub(e.at), false, cause.Error()
		return &a, nil
	}
	known := s.Index.Search(plan, index.SearchOptions{Now: s.Now(), AtLeast: !plan.ExactTotal()})
	if len(known.Hits) == 0 {
		return nil, cause
	}
	a := s.answer(plan, known.Hits, known.Total)
	a.Source, a.AtLeast, a.Reason = query.SourceLocal, true, cause.Error()
	return a, nil
}

// Resolve returns the live record under a key. Errors: Invalid, NotFound, Timeout.
func (s *Service) Resolve(ctx context.Context, key string) (*records.Record, error) {
	const op = "discovery.Resolve"
	k, err := records.ParseKey(key)
	if err != nil {
		return nil, fault.Wrap(op, err)
	}
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	r, err := s.Keepers.Resolve(ctx, k)
	if err == nil {
		return r, nil
	}
	if latest, ok := s.Index.Latest(k.Name); ok && latest.Withdrawn() {
		return nil, fault.Wrap(op, err)
	}
	if r := s.resolveByCell(ctx, k); r != nil {
		return r, nil
	}
	s.Recorder.Failed(op, err)
	return nil, fault.Wrap(op, err)
}

// resolveByCell queries the keepers of the key's cells, which receive a record before the DHT.
func (s *Service) resolveByCell(ctx context.Context, k records.Key) *records.Record {
	q := query.Query{Type: k.Type, Subtype: k.Subtype, ProviderID: k.Name.Provider.String(), Limit: query.MaxLimit}
	q.Health = query.HealthAny
	plan, err := query.Compile(q, query.Defaults{})
	if err != nil {
		return nil
	}
	if _, err := s.Keepers.Query(ctx, plan); err != nil {
		return nil
	}
	if r, ok := s.Index.Get(k.Name); ok && !r.Expired(s.Now()) && k.Matches(r) == nil {
		return r
	}
	return nil
}
