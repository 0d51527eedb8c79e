package client

import (
	"strings"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

func toReceipt(r *api.Receipt) records.Receipt {
	if r == nil {
		return records.Receipt{}
	}
	return records.Receipt{
		ID: r.GetId(), Key: r.GetKey(), Sequence: r.GetSequence(), ExpiresAt: r.GetExpiresAt().AsTime(),
		Stored: records.Stored{
			On: int(r.GetStored().GetOn()), Of: int(r.GetStored().GetOf()), ThisPeerOnly: r.GetStored().GetThisPeerOnly(),
		},
		Warnings: r.GetWarnings(),
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
		AgeMs: queries.Millis(resp.GetAge().AsDuration()), TookMs: queries.Millis(resp.GetTook().AsDuration()),
		Notes: resp.GetNotes(), ExcludedTotal: int(resp.GetExcludedTotal()),
		Next: resp.GetNext(), Beyond: toLeftOut(resp.GetBeyond()),
	}
	for _, g := range resp.GetPriceGroups() {
		a.Groups = append(a.Groups, query.PriceGroup{
			Terms: query.Terms{Currency: g.GetCurrency(), PriceUnit: g.GetPriceUnit()},
			First: int(g.GetFirst()), Results: int(g.GetResults()), Total: int(g.GetTotal()), AtLeast: g.GetTotalAtLeast(),
		})
	}
	if c := resp.GetCells(); c != nil {
		a.Cells = &query.Cells{Length: int(c.GetLength()), Unplaced: int(c.GetUnplaced()), Counts: make([]query.CellCount, len(c.GetCounts())), Menu: queries.MenuFromProto(c.GetMenu())}
		for i, n := range c.GetCounts() {
			a.Cells.Counts[i] = query.CellCount{Cell: geo.Cell(n.GetCell()), Count: int(n.GetCount()), Least: n.LeastPrice, Menu: queries.MenuFromProto(n.GetMenu())}
		}
	}
	for _, e := range resp.GetExcluded() {
		a.Excluded = append(a.Excluded, query.Excluded{Provider: e.GetProviderId(), ID: e.GetRecordId(), Reason: e.GetReason(), Since: orZero(e.GetSince())})
	}
	for i, r := range resp.GetResults() {
		a.Results[i] = query.ResultView{
			Record: toRecord(r.GetRecord()).View, DistanceKM: r.DistanceKm, Score: r.GetScore(), Explain: r.GetExplain(), Doubts: r.GetDoubts(),
		}
		a.Results[i].Endpoint, a.Results[i].Domain = toEndpoint(r.GetEndpoint()), toEndpoint(r.GetDomain())
		if m := r.GetRecord().GetMeasured(); m != nil {
			a.Results[i].Measured = toMeasured(m)
		}
	}
	return a
}

func toEndpoint(e *api.Endpoint) *records.Measured {
	if e == nil {
		return nil
	}
	return &records.Measured{
		State: records.Reachability(e.GetState()), RoundTrip: e.GetRoundTrip().AsDuration(), Peers: int(e.GetPeers()), Detail: e.GetDetail(),
		CheckedAt: orZero(e.GetCheckedAt()), Since: orZero(e.GetSince()), EndpointText: e.GetEndpointText(),
	}
}

func orZero(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}

func toMeasured(m *api.Measured) *records.Measured {
	out := &records.Measured{
		State: records.Reachability(word(m.GetState(), "STATE_")), RoundTrip: m.GetRoundTrip().AsDuration(), CheckedAt: orZero(m.GetCheckedAt()), Peers: int(m.GetPeers()),
	}
	if m.GetSince() != nil {
		out.Since = m.GetSince().AsTime()
	}
	return out
}

func toLeftOut(b *api.Beyond) *query.LeftOut {
	if b == nil {
		return nil
	}
	return &query.LeftOut{Records: int(b.GetRecords()), AtLeast: b.GetRecordsAtLeast(), Features: b.GetFeatures()}
}

// word is the name of the value of an enum as in JSON: in lower case, without its prefix. It is empty for 0 and for a value
// of a later version.
func word(value protoreflect.Enum, prefix string) string {
	known := value.Descriptor().Values().ByNumber(value.Number())
	if known == nil || value.Number() == 0 {
		return ""
	}
	return strings.ToLower(strings.TrimPrefix(string(known.Name()), prefix))
}

func toEvent(resp *api.WatchResponse) Event {
	ev := Event{Kind: query.EventKind(word(resp.GetKind(), "KIND_")), Cursor: resp.GetCursor(), Complete: resp.GetComplete(), Reason: resp.GetReason(), Beyond: toLeftOut(resp.GetBeyond())}
	if resp.GetRecord() != nil {
		r := toRecord(resp.GetRecord())
		ev.Record = &r
	}
	return ev
}
