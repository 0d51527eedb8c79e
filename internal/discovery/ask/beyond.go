package ask

import (
	"maps"
	"slices"
	"time"

	"github.com/blackhole/blackhole/internal/discovery/index"
	"github.com/blackhole/blackhole/internal/discovery/protocol"
	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

// addBeyond adds the records to a response that may match but need features which this peer lacks. The asker may have
// them.
func (a *Asker) addBeyond(resp *pb.QueryResponse, p *queries.Plan, cells []records.CellKey) {
	some, more := index.SomeBeyond(a.Index, p, cells, a.Now(), protocol.MaxBeyond)
	for _, r := range some {
		resp.Beyond = append(resp.Beyond, r.Envelope())
	}
	resp.MoreBeyond = more
}

// readBeyond adds the records of a response that need features which the keeper lacks. If this peer has the features,
// it applies the filters itself.
func (a *answer) readBeyond(q cellQuery, resp *pb.QueryResponse, verifier protocol.Opener, now time.Time) error {
	if n := len(resp.Beyond); n > protocol.MaxBeyond {
		return protocol.Breach("%d records beyond the keeper's version for a limit of %d", n, protocol.MaxBeyond)
	}
	a.moreBeyond = resp.MoreBeyond
	for _, envelope := range resp.Beyond {
		r, left, err := protocol.Receive(verifier, envelope, now)
		switch {
		case err != nil:
			return err
		case left != nil:
			a.left = append(a.left, left)
		case q.matches(r):
			a.records = append(a.records, r)
			a.total++
		case q.beyond(r):
			a.beyond = append(a.beyond, r)
		}
	}
	return nil
}

// beyond reports whether a record may answer the query but needs features that this peer lacks.
func (q cellQuery) beyond(r *records.Record) bool {
	return q.plan.Beyond(r) && slices.ContainsFunc(q.cells, r.In)
}

// beyond counts the records that the answers leave out because this version does not understand them.
// It adds the records to the index, so that they replace earlier versions.
func (a *Asker) beyond(groups []group) *query.LeftOut {
	newest := make(map[records.Name]*records.Record)
	more, unreadable := false, 0
	for _, g := range groups {
		for _, x := range g.answers {
			more = more || x.moreBeyond
			unreadable = max(unreadable, x.unread())
			for _, r := range x.beyond {
				_, _ = a.intake.Put(r) // if the index is full, the record is left out all the same
				if latest, ok := a.Index.Latest(r.Name()); !ok || records.Compare(latest, r) <= 0 {
					newest[r.Name()] = r
				}
			}
		}
	}
	return index.LeftOut(slices.Collect(maps.Values(newest)), unreadable, more)
}

// unread returns the number of records that this version could not read.
func (a *answer) unread() int {
	return count(a.left, func(left *error) bool { return protocol.Unread(*left) })
}

// untimely returns the number of records that were not valid by this peer's clock.
func (a *answer) untimely() int {
	return count(a.left, func(left *error) bool { return protocol.Untimely(*left) })
}
