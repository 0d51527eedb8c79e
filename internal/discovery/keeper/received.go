package keeper

import (
	"slices"
	"time"

	"github.com/blackhole/blackhole/internal/discovery/index"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

// Records of other keepers may come from later versions of the program. An unknown field changes nothing. A record
// with an unknown critical feature is kept and served like any other, but no answer of this peer shows it. Bytes that
// this version does not read are left out. None of that is an offence.

// opener verifies an envelope; *records.Verifier implements it.
type opener interface {
	Open(envelope []byte, now time.Time) (*records.Record, error)
}

// receive verifies an envelope of another keeper. Left is the reason for leaving the record out without blame: it is
// not valid by this peer's clock, or this version does not read it. Err is a breach: a forged or oversized record.
func receive(verifier opener, envelope []byte, now time.Time) (r *records.Record, left, err error) {
	r, err = verifier.Open(envelope, now)
	switch {
	case err == nil:
		return r, nil, nil
	case records.Blameless(err):
		return nil, err, nil
	default:
		return nil, nil, breach("a record does not verify: %w", err)
	}
}

// unread reports whether a record was left out because this version does not read it.
func unread(left error) bool { return !untimely(left) && !records.OfOtherNetwork(left) }

// untimely reports whether a record was left out as expired or from the future by this peer's clock.
func untimely(left error) bool { return fault.KindOf(left) == fault.Conflict }

// countLeft counts a record that was left out.
func (k *Keeper) countLeft(left error) {
	switch {
	case untimely(left):
		k.Recorder.Refused("untimely")
	case records.OfOtherNetwork(left):
		k.Recorder.Refused("other_network")
	default:
		k.Recorder.Refused(fault.KindOf(left).String())
	}
}

// addBeyond adds the records to a response that may match but need features which this peer lacks. The asker may have
// them.
func (s *server) addBeyond(resp *pb.QueryResponse, p *query.Plan, cells []records.CellKey) {
	some, more := index.SomeBeyond(s.k.Index, p, cells, s.k.Now(), maxBeyond)
	for _, r := range some {
		resp.Beyond = append(resp.Beyond, r.Envelope())
	}
	resp.MoreBeyond = more
}

// readBeyond adds the records of a response that need features which the keeper lacks. If this peer has the features,
// it applies the filters itself.
func (a *answer) readBeyond(q cellQuery, resp *pb.QueryResponse, verifier opener, now time.Time) error {
	if n := len(resp.Beyond); n > maxBeyond {
		return breach("%d records beyond the keeper's version for a limit of %d", n, maxBeyond)
	}
	a.moreBeyond = resp.MoreBeyond
	for _, envelope := range resp.Beyond {
		r, left, err := receive(verifier, envelope, now)
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
	return query.Beyond(q.plan, r) && slices.ContainsFunc(q.cells, r.In)
}

// beyond describes the records that the answers leave out because this version does not understand them; "" for none.
// It adds the records to the index, so that they replace earlier versions.
func (k *Keeper) beyond(groups []group) string {
	newest := make(map[records.Name]*records.Record)
	more, unreadable := false, 0
	for _, g := range groups {
		for _, a := range g.answers {
			more = more || a.moreBeyond
			unreadable = max(unreadable, a.unread())
			for _, r := range a.beyond {
				_, _ = k.put(r) // if the index is full, the record is left out all the same
				if latest, ok := k.Index.Latest(r.Name()); !ok || records.Compare(latest, r) <= 0 {
					newest[r.Name()] = r
				}
			}
		}
	}
	some := make([]*records.Record, 0, len(newest))
	for _, r := range newest {
		some = append(some, r)
	}
	return index.DescribeBeyond(some, unreadable, more)
}

// unread returns the number of records that this version could not read.
func (a *answer) unread() int {
	n := 0
	for _, left := range a.left {
		if unread(left) {
			n++
		}
	}
	return n
}

// untimely returns the number of records that were not valid by this peer's clock.
func (a *answer) untimely() int {
	n := 0
	for _, left := range a.left {
		if untimely(left) {
			n++
		}
	}
	return n
}
