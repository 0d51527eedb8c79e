package client

import (
	"errors"
	"io"
	"math"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/blackhole/blackhole/pkg/discovery"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

func toReceipt(r *api.Receipt) discovery.Receipt {
	if r == nil {
		return discovery.Receipt{}
	}
	return discovery.Receipt{
		ID: r.GetId(), Key: r.GetKey(), Sequence: r.GetSequence(), ExpiresAt: r.GetExpiresAt().AsTime(),
		Stored: records.Stored{On: int(r.GetStored().GetOn()), Of: int(r.GetStored().GetOf())}, Warnings: r.GetWarnings(),
	}
}

func toRecord(r *api.Record) Record {
	if r == nil {
		return Record{}
	}
	v := records.ViewOfService(r.GetService())
	v.Key, v.ContentID = r.GetKey(), r.GetContentId()
	return Record{View: v, Envelope: r.GetEnvelope()}
}

func toAnswer(resp *api.QueryResponse) query.AnswerView {
	a := query.AnswerView{
		Results: make([]query.ResultView, len(resp.GetResults())), Total: int(resp.GetTotal()), AtLeast: resp.GetTotalAtLeast(),
		Source: query.Source(resp.GetSource()), Complete: resp.GetComplete(), Reason: resp.GetIncompleteReason(),
		AgeMs: query.Millis(resp.GetAge().AsDuration()), TookMs: query.Millis(resp.GetTook().AsDuration()),
		Notes: resp.GetNotes(), ExcludedTotal: int(resp.GetExcludedTotal()),
		Next: resp.GetNext(),
	}
	for _, g := range resp.GetPriceGroups() {
		a.Groups = append(a.Groups, query.PriceGroup{
			Terms: query.Terms{Currency: g.GetCurrency(), PriceUnit: g.GetPriceUnit()},
			First: int(g.GetFirst()), Results: int(g.GetResults()), Total: int(g.GetTotal()), AtLeast: g.GetTotalAtLeast(),
		})
	}
	if c := resp.GetCells(); c != nil {
		a.Cells = &query.Cells{Length: int(c.GetLength()), Unplaced: int(c.GetUnplaced()), Counts: make([]query.CellCount, len(c.GetCounts()))}
		for i, n := range c.GetCounts() {
			a.Cells.Counts[i] = query.CellCount{Cell: geo.Cell(n.GetCell()), Count: int(n.GetCount())}
		}
	}
	for _, e := range resp.GetExcluded() {
		a.Excluded = append(a.Excluded, query.Excluded{Provider: e.GetProviderId(), Reason: e.GetReason(), Since: e.GetSince().AsTime()})
	}
	for i, r := range resp.GetResults() {
		a.Results[i] = query.ResultView{
			Record: toRecord(r.GetRecord()).View, DistanceKM: r.DistanceKm, Score: r.GetScore(), Explain: r.GetExplain(),
		}
		if m := r.GetRecord().GetMeasured(); m != nil {
			a.Results[i].Measured = toMeasured(m)
		}
	}
	return a
}

func toMeasured(m *api.Measured) *records.Measured {
	states := map[api.Measured_State]records.Reachability{
		api.Measured_STATE_REACHABLE:   records.Reachable,
		api.Measured_STATE_BUSY:        records.Busy,
		api.Measured_STATE_UNREACHABLE: records.Unreachable,
	}
	out := &records.Measured{
		State: states[m.GetState()], RoundTrip: m.GetRoundTrip().AsDuration(), CheckedAt: m.GetCheckedAt().AsTime(), Peers: int(m.GetPeers()),
	}
	if m.GetSince() != nil {
		out.Since = m.GetSince().AsTime()
	}
	return out
}

func toEvent(resp *api.WatchResponse) Event {
	kinds := map[api.WatchResponse_Kind]discovery.EventKind{
		api.WatchResponse_KIND_ADDED:     discovery.Added,
		api.WatchResponse_KIND_UPDATED:   discovery.Updated,
		api.WatchResponse_KIND_WITHDRAWN: discovery.Withdrawn,
		api.WatchResponse_KIND_EXPIRED:   discovery.Expired,
		api.WatchResponse_KIND_REMOVED:   discovery.Removed,
		api.WatchResponse_KIND_PROGRESS:  discovery.Progress,
		api.WatchResponse_KIND_RESET:     discovery.Reset,
	}
	ev := Event{Kind: kinds[resp.GetKind()], Cursor: resp.GetCursor(), Reason: resp.GetReason()}
	if resp.GetRecord() != nil {
		r := toRecord(resp.GetRecord())
		ev.Record = &r
	}
	return ev
}

// fromStatus converts the error of a call to the fault that the server sent, or to a fault
// with the kind of the gRPC code.
func fromStatus(op string, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, io.EOF) { // a stream ended without a cause
		return fault.As(op, fault.Unavailable, err)
	}
	st, ok := status.FromError(err)
	if !ok {
		return fault.Wrap(op, err)
	}
	for _, d := range st.Details() {
		if e, ok := d.(*api.Error); ok {
			if past := compaction(st); past != nil {
				return withCompaction(op, e, past)
			}
			return restored(op, e, valueOf(st))
		}
	}
	return fault.As(op, kind(st.Code()), errors.New(st.Message()))
}

// toFault converts an error of the API to a fault.
func toFault(op string, e *api.Error) error { return restored(op, e, nil) }

// restored returns the peer's fault, with a value that came with it, inside a fault of the
// client, so that the templates of package discovery match. A kind out of range is Internal.
func restored(op string, e *api.Error, value any) error {
	inner := &fault.Error{Op: e.GetOp(), Field: e.GetField(), Value: value, Err: errors.New(e.GetMessage())}
	if k := e.GetKind(); k <= math.MaxUint8 {
		inner.Kind = fault.Kind(k)
	}
	return fault.Wrap(op, inner)
}

// kind returns the kind of a status that gRPC itself made: only these lack a detail.
func kind(c codes.Code) fault.Kind {
	switch c {
	case codes.Unavailable:
		return fault.Unavailable
	case codes.DeadlineExceeded:
		return fault.Timeout
	case codes.Canceled:
		return fault.Canceled
	case codes.ResourceExhausted:
		return fault.TooLarge
	case codes.Unimplemented:
		return fault.Unsupported
	default:
		return fault.Internal
	}
}
