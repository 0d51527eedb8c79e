package ask

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/discovery/protocol"
	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// A keeper that missed a STORE learns of it from the repeated announcement or from a comparison. Until then its
// answers look full. So the asker compares the answers of a group. If one answer lists a record that a full one
// must list and does not, the asker asks the keeper of the full one for its version. A keeper without the record, or with
// an older version, is behind: its answer is not full, and another keeper is asked. To be behind is no offence, but who lacks an older change is
// asked last for a while. A change of the last two minutes that one keeper alone lists says nothing about the others: its provider may be slow, or the
// keeper may have it from nobody else. The result has it all the same.
// An answer that is not full is evidence too, this peer's own above all: two keepers that hide the same records agree
// with each other alone.
const (
	maxProbes   = 4               // of one keeper for a query
	expiresSoon = time.Minute     // clocks differ: one keeper may drop a record so long before another
	arrives     = 2 * time.Minute // since its announcement, in four comparisons: a keeper that lacks an older record missed it, and one that has it hid it
)

// probe asks a keeper for its version of a record that its answer should list.
type probe struct {
	of      int             // index of the answer
	listed  *records.Record // by another keeper
	version versionReply
}

// judge finds the full answers of a group whose keepers may be behind, and starts a probe for each doubt. Until its end the answer counts
// for nothing: a keeper that answers, and does not tell its version, must not hold up a question.
func (g *group) judge(p *queries.Plan, now time.Time, start func(probe)) {
	newest := make(map[records.Name]*records.Record)
	addNewest(newest, g.answers)
	for i := range g.answers {
		if x := &g.answers[i]; x.proven() {
			for _, r := range x.unlisted(p, newest, now) {
				x.pending++
				start(probe{of: i, listed: r})
			}
		}
	}
}

// askProbe ends a probe.
func (a *Asker) askProbe(ctx context.Context, of peer.ID, p probe) probe {
	ctx, cancel := context.WithTimeout(ctx, a.AskTime)
	defer cancel()
	p.version = a.askVersion(ctx, of, p.listed.Key())
	return p
}

// unlisted returns records that the answer must list and does not, or lists in an older version. Each record is
// returned once in the life of the answer.
func (x *answer) unlisted(p *queries.Plan, newest map[records.Name]*records.Record, now time.Time) (some []*records.Record) {
	if x.around {
		return nil // a peer around the keepers need not have all
	}
	listed := make(map[records.Name]*records.Record, len(x.records))
	for _, r := range x.records {
		listed[r.Name()] = r
	}
	for _, r := range x.beyond {
		listed[r.Name()] = r
	}
	for _, name := range slices.SortedFunc(maps.Keys(newest), records.Name.Compare) {
		r := newest[name]
		mine, ok := listed[name]
		switch {
		case len(x.probed) >= maxProbes:
			return some
		case slices.ContainsFunc(x.crowded, r.In): // full cells differ
		case slices.Contains(x.probed, name) || r.Expires().Before(now.Add(expiresSoon)):
		case ok && records.Compare(mine, r) >= 0:
		case !ok && x.withheld && (p.Value(r) >= x.bound || p.Spreads() && !p.Before(r, x.records)):
		default:
			x.probed = append(x.probed, name)
			some = append(some, r)
		}
	}
	return some
}

// conclude applies the result of a probe. A newer version than the listed one, as after a withdrawal, enters the
// index, and the keepers that list the record are behind. A keeper that does not tell its version proves nothing.
func (a *Asker) conclude(p probe, g *group, trace *queryTrace) {
	v, of := p.version, &g.answers[p.of]
	of.pending--
	name := p.listed.Name()
	switch {
	case v.untold:
		of.full = false
		g.failure = v.err
		trace.add("%s does not tell its version of %s, which its answer lacks: %v", of.from, name, v.err)
	case v.err != nil && !errors.Is(v.err, errNotKeeper): // a version that this peer does not read
	case v.newest != nil && records.Compare(v.newest, p.listed) == 0 && a.young(p.listed): // meanwhile
	case v.newest != nil && records.Compare(v.newest, p.listed) > 0:
		_, _ = a.intake.Put(v.newest) // if the index is full, the listed version stays in the answer
		for i := range g.answers {
			if x := &g.answers[i]; slices.ContainsFunc(x.records, func(r *records.Record) bool { return r.Name() == name }) {
				a.fallBehind(g, x, v.newest, trace)
			}
		}
	case v.keptOut:
	case a.young(p.listed): // the result has it, and whether others are as far is seen with their answers
		of.awaits = append(of.awaits, p.listed)
	default:
		a.fallBehind(g, of, p.listed, trace)
	}
	for i := range g.answers {
		x := &g.answers[i]
		if at := slices.IndexFunc(x.awaits, g.spread); at >= 0 {
			a.fallBehind(g, x, x.awaits[at], trace)
		}
	}
}

// young reports whether a record may be on its way to some keepers.
func (a *Asker) young(r *records.Record) bool { return a.Now().Sub(r.Issued()) < arrives }

// spread reports whether several answers list a record, or all others of a small group: else its provider, or the one that lists it, may be the
// odd one.
func (g *group) spread(r *records.Record) bool {
	listed := count(g.answers, func(a *answer) bool {
		return slices.ContainsFunc(a.records, func(o *records.Record) bool { return o.Name() == r.Name() && records.Compare(o, r) >= 0 })
	})
	return listed >= min(protocol.AskedAtOnce, len(g.set.Peers)-1)
}

// fallBehind marks an answer without the newest version of a record. If it is this peer's own, this peer has to compare, unless the
// version is so new that it may be on its way.
func (a *Asker) fallBehind(g *group, x *answer, newest *records.Record, trace *queryTrace) {
	if x.behind || !x.full {
		return
	}
	x.full, x.behind, x.outdated = false, true, !a.young(newest)
	trace.add("%s lacks the newest version of %s: its answer is not full", x.from, newest.Name())
	switch spread := g.spread(newest); {
	case !x.own:
	case x.outdated && (spread || newest.Withdrawn()):
		a.authority.FallBehind()
	case !x.outdated && spread:
		a.authority.Await(newest)
	}
}
