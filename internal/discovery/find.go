package discovery

import (
	"context"
	"time"

	"github.com/blackhole/blackhole/internal/discovery/index"
	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/gossip"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// propagation is the time that a new version may need to reach its keepers. Until then, a version from a live
// update is valid without a keeper.
const propagation = 15 * time.Second

// Query finds services. The caller must not modify the answer: the cache shares it. Errors: Invalid with the
// field, Timeout. An empty answer, or one that lacks some keepers, is not an error.
func (s *Service) Query(ctx context.Context, q query.Query) (*query.Answer, error) {
	a, err := s.find(ctx, q)
	if err != nil {
		return nil, err
	}
	return &a.Answer, nil
}

// find is Query with the places of the results.
func (s *Service) find(ctx context.Context, q query.Query) (*ranked, error) {
	if q.Sort == query.SortRandom && q.Seed == 0 {
		q.Seed = max(s.Random(), 1)
	}
	switch {
	case q.Cells != 0:
		return (&counter{&s.Parts, s.defaults}).answer(ctx, q)
	case q.GroupPrices:
		return (&several{s.find, s.defaults, s.Now}).grouped(ctx, q)
	case len(q.Types) > 0:
		return (&several{s.queryOne, s.defaults, s.Now}).ofTypes(ctx, q)
	default:
		return s.queryOne(ctx, q)
	}
}

// queryOne answers a query of one type in one order.
func (s *Service) queryOne(ctx context.Context, q query.Query) (*ranked, error) {
	start := s.Now()
	q = s.defaults.Fill(q) // the keys of the cache are those of plans
	var buf [512]byte
	key := queries.AppendKey(buf[:0], &q)
	if e, renew := s.cache.get(key, start); e != nil && s.cache.stands(e) {
		if renew {
			s.renew(q)
		}
		return s.fromCache(e, start), nil
	}
	plan, err := s.plan(q)
	if err != nil {
		s.Metrics.Failed("discovery.Query", err)
		return nil, fault.Wrap("discovery.Query", err)
	}
	answer := s.local(plan)
	if answer == nil {
		if answer, err = s.cache.searches.wait(ctx, plan); err != nil {
			s.Metrics.Failed("discovery.Query", err)
			return nil, fault.Wrap("discovery.Query", err)
		}
	}
	answer.Took = s.Now().Sub(start)
	s.Metrics.Queried(string(answer.Source), answer.Took, len(answer.Results))
	return answer, nil
}

// fromCache returns a cached answer with its own times. All other parts are shared.
func (s *Service) fromCache(e *cached, start time.Time) *ranked {
	a := *e.answer
	s.truth.Want(firstOf(&a.Answer, likely))
	a.Source, a.Age = query.SourceCache, start.Sub(e.at)
	a.Took = s.Now().Sub(start)
	s.Metrics.Queried(string(a.Source), a.Took, len(a.Results))
	return &a
}

// renew asks the keepers a question again, and does not wait for the answer.
func (s *Service) renew(q query.Query) {
	if plan, err := s.plan(q); err == nil {
		s.cache.searches.begin(s.ctx, plan)
	}
}

// plan compiles a query. It asks for more matches by those that the answer will leave out.
func (s *Service) plan(q query.Query) (*queries.Plan, error) {
	plan, err := queries.Compile(q, s.defaults)
	if err != nil {
		return nil, err
	}
	more := s.truth.DeadMatching(plan)
	if plan.Spreads() {
		more += reserve
	}
	return plan.Window(more), nil
}

// local answers and caches a plan whose cells this peer keeps. The cached answer serves while it keeps them: until
// then it receives all changes, without a topic. It returns nil if other keepers are needed.
func (s *Service) local(plan *queries.Plan) *ranked {
	e := &cached{plan: plan, release: func() {}, at: s.Now(), epoch: s.truth.Epoch(), custody: s.cache.custody(), seq: s.Index.Seq()}
	found, ok := s.Keepers.Local(plan)
	if !ok {
		return nil
	}
	return s.finish(e, found)
}

// ask answers a plan from the network.
func (s *Service) ask(ctx context.Context, plan *queries.Plan) (*ranked, error) {
	topics := topicsFor(plan)
	release, err := s.Updates.Follow(topics)
	if fault.KindOf(err) == fault.LimitReached {
		s.cache.unfollow(s.Now())
		release, err = s.Updates.Follow(topics)
	}
	if err != nil { // too many topics: the answer lives for heardFor without live updates
		s.Metrics.Failed("gossip.Follow", err)
		release = func() {}
	}
	e := &cached{plan: plan, release: release, heard: true}
	found, err := s.askSteadily(ctx, e)
	if err != nil {
		release()
		return s.fallback(e, err)
	}
	s.confirm(ctx, plan, found)
	e.seq = s.Index.Seq()
	return s.finish(e, found), nil
}

// topicsFor returns the topics of every possible match of a plan.
func topicsFor(plan *queries.Plan) []gossip.Topic {
	if disc, ok := plan.Disc(); ok {
		return gossip.TopicsFor(plan.Type(), &disc)
	}
	return gossip.TopicsFor(plan.Type(), nil)
}

// askSteadily asks the keepers, and once more if this peer may have missed changes meanwhile: it slept, was cut
// off, or a keeper joined. It fills in the times of e.
func (s *Service) askSteadily(ctx context.Context, e *cached) (found queries.Found, err error) {
	for range 2 {
		e.at, e.epoch, e.custody = s.Now(), s.truth.Epoch(), s.cache.custody()
		found, err = s.Keepers.Query(ctx, e.plan)
		if err != nil || s.cache.custody() == e.custody {
			return found, err
		}
	}
	if found.Complete {
		found.Complete, found.Reason = false, "keepers joined or returned during the search"
	}
	return found, nil
}

// finish builds the answer and caches it as e, if nothing is missing. The caller may change the fields of the result.
func (s *Service) finish(e *cached, found queries.Found) *ranked {
	a := s.assemble(e.plan, found)
	s.tellPaused(e.plan, &a.Answer)
	s.reportOutdated(a.Beyond)
	if !a.Complete {
		e.release()
		return a
	}
	kept := *a
	e.answer, e.fresh = &kept, s.cache.ttl
	if e.heard || e.plan.Judged() { // measurements change the order
		e.fresh = min(e.fresh, heardFor)
	}
	if len(a.Results) == 0 {
		e.fresh = negativeTTL
	}
	s.cache.put(e)
	// A change after the search is either in the index, where altered finds it, or comes after put and drops the answer. So check
	// after put. So it is with what was measured since.
	if s.feed.altered(e.plan, e.seq) || s.truth.Epoch() != e.epoch {
		s.cache.drop(e)
	}
	return a
}

// likely is the number of offers of an answer that its reader probably uses. Only they are measured: each measurement
// costs the provider a connection.
const likely = 10

// reserve is the number of further offers that are measured, beyond the limit of the answer too: they take the places
// of those that die, and of those whose network has its turn already, so it should be known before whether they serve.
const reserve = 5

// firstOf returns the first records of an answer, at most n.
func firstOf(a *query.Answer, n int) []*records.Record {
	list := make([]*records.Record, 0, n)
	for i := range a.Results[:min(len(a.Results), n)] {
		list = append(list, a.Results[i].Record)
	}
	return list
}

// fallback answers from an expired answer or from the index, and marks the answer as incomplete.
func (s *Service) fallback(asked *cached, cause error) (*ranked, error) {
	plan := asked.plan
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
	s.tellPaused(plan, &a.Answer)
	return a, nil
}

// Resolve returns the live record under a key. Errors: Invalid, NotFound, Unavailable, Timeout.
func (s *Service) Resolve(ctx context.Context, key string) (*records.Record, error) {
	const op = "discovery.Resolve"
	k, err := records.ParseKey(key)
	if err != nil {
		return nil, fault.Wrap(op, err)
	}
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	r, err := s.Keepers.Resolve(ctx, k)
	if err != nil {
		s.Metrics.Failed(op, err)
		return nil, fault.Wrap(op, err)
	}
	s.truth.Want([]*records.Record{r})
	return r, nil
}
