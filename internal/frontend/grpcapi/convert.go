package grpcapi

import (
	"context"
	"strings"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/blackhole/blackhole/internal/contract/discovery"
	"github.com/blackhole/blackhole/internal/frontend/budget"
	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	pb "github.com/blackhole/blackhole/proto/blackhole/discovery/v1"
)

// toOffer refuses fields that only the peer sets, like the JSON form.
func toOffer(s *pb.ServiceRecord) (records.Offer, error) {
	const why = "must be empty: the peer sets it"
	switch {
	case s == nil:
		return records.Offer{}, fault.Invalidf("service", nil, "is required: send the offer")
	case s.ProviderId != "":
		return records.Offer{}, fault.Invalidf("provider_id", s.ProviderId, why)
	case s.CreatedAt != nil:
		return records.Offer{}, fault.Invalidf("created_at", nil, why)
	case s.UpdatedAt != nil:
		return records.Offer{}, fault.Invalidf("updated_at", nil, why)
	case s.ExpiresAt != nil:
		return records.Offer{}, fault.Invalidf("expires_at", nil, why)
	case s.Sequence != 0:
		return records.Offer{}, fault.Invalidf("sequence", s.Sequence, why)
	case s.Withdrawn:
		return records.Offer{}, fault.Invalidf("withdrawn", true, why)
	case len(s.Signature) != 0:
		return records.Offer{}, fault.Invalidf("signature", nil, why)
	}
	return records.OfferOf(s), nil
}

// growFor takes room for an answer with a list, of whose elements size tells about how many bytes they have there.
func growFor[T any](ctx context.Context, list []T, size func(T) int) error {
	n := 0
	for _, one := range list {
		n += size(one)
	}
	return budget.Grow(ctx, n)
}

// recordBytes returns about how many bytes a record has in an answer: its fields, and the same in its envelope.
func recordBytes(r *records.Record) int { return 2*len(r.Envelope()) + 512 }

func fromRecord(r *records.Record, m *records.Measured) *api.Record {
	out := &api.Record{
		Service: r.Service(), Envelope: r.Envelope(), Key: r.Key().String(), ContentId: r.ContentID().String(),
	}
	if m != nil {
		out.Measured = fromMeasured(m)
	}
	return out
}

func fromMeasured(m *records.Measured) *api.Measured {
	state := api.Measured_State_value["STATE_"+strings.ToUpper(string(m.State))]
	out := &api.Measured{
		State: api.Measured_State(state), RoundTrip: durationpb.New(m.RoundTrip), CheckedAt: timestamppb.New(m.CheckedAt), Peers: uint32(m.Peers),
	}
	if !m.Since.IsZero() {
		out.Since = timestamppb.New(m.Since)
	}
	return out
}

func fromReceipt(r records.Receipt) *api.Receipt {
	return &api.Receipt{
		Id: r.ID, Key: r.Key, Sequence: r.Sequence, ExpiresAt: timestamppb.New(r.ExpiresAt),
		Stored:   &api.Stored{On: uint32(r.Stored.On), Of: uint32(r.Stored.Of), ThisPeerOnly: r.Stored.ThisPeerOnly},
		Warnings: r.Warnings,
	}
}

func fromOutcomes(outcomes []discovery.Outcome) []*api.RegisterBatchResponse_Result {
	results := make([]*api.RegisterBatchResponse_Result, len(outcomes))
	for i, o := range outcomes {
		results[i] = &api.RegisterBatchResponse_Result{}
		if o.Err != nil {
			results[i].Outcome = &api.RegisterBatchResponse_Result_Error{Error: toError(o.Err)}
		} else {
			results[i].Outcome = &api.RegisterBatchResponse_Result_Receipt{Receipt: fromReceipt(o.Receipt)}
		}
	}
	return results
}

func fromAnswer(a *query.Answer) *api.QueryResponse {
	resp := &api.QueryResponse{
		Results: make([]*api.QueryResult, len(a.Results)), Total: uint64(a.Total), TotalAtLeast: a.AtLeast, Source: string(a.Source),
		Complete: a.Complete, IncompleteReason: a.Reason,
		Age: durationpb.New(a.Age), Took: durationpb.New(a.Took), Notes: a.Notes, ExcludedTotal: uint64(a.ExcludedTotal),
		Next: a.Next, Beyond: fromLeftOut(a.Beyond),
	}
	for _, g := range a.Groups {
		resp.PriceGroups = append(resp.PriceGroups, &api.PriceGroup{
			Currency: g.Currency, PriceUnit: g.PriceUnit, First: uint32(g.First), Results: uint32(g.Results),
			Total: uint64(g.Total), TotalAtLeast: g.AtLeast,
		})
	}
	if a.Cells != nil {
		resp.Cells = &api.Cells{Length: uint32(a.Cells.Length), Unplaced: uint64(a.Cells.Unplaced), Menu: queries.MenuProto(a.Cells.Menu)}
		for _, n := range a.Cells.Counts {
			resp.Cells.Counts = append(resp.Cells.Counts, &api.CellCount{Cell: string(n.Cell), Count: uint64(n.Count), LeastPrice: n.Least, Menu: queries.MenuProto(n.Menu)})
		}
	}
	for _, e := range a.Excluded {
		one := &api.Excluded{ProviderId: e.Provider, RecordId: e.ID, Reason: e.Reason}
		if !e.Since.IsZero() {
			one.Since = timestamppb.New(e.Since)
		}
		resp.Excluded = append(resp.Excluded, one)
	}
	for i, r := range a.Results {
		resp.Results[i] = &api.QueryResult{
			Record: fromRecord(r.Record, r.Measured), DistanceKm: r.DistanceKM, Score: r.Score, Explain: r.Explain, Doubts: r.Doubts,
			Endpoint: fromEndpoint(r.Endpoint), Domain: fromEndpoint(r.Domain),
		}
	}
	return resp
}

func fromLeftOut(b *query.LeftOut) *api.Beyond {
	if b == nil {
		return nil
	}
	return &api.Beyond{Records: uint64(b.Records), RecordsAtLeast: b.AtLeast, Features: b.Features}
}

func fromEndpoint(m *records.Measured) *api.Endpoint {
	if m == nil {
		return nil
	}
	e := &api.Endpoint{State: string(m.State), Peers: uint32(m.Peers), Detail: m.Detail, EndpointText: m.EndpointText}
	if m.RoundTrip > 0 {
		e.RoundTrip = durationpb.New(m.RoundTrip)
	}
	if !m.CheckedAt.IsZero() {
		e.CheckedAt = timestamppb.New(m.CheckedAt)
	}
	if !m.Since.IsZero() {
		e.Since = timestamppb.New(m.Since)
	}
	return e
}

func fromEvent(ev query.Event) *api.WatchResponse {
	kind := api.WatchResponse_Kind_value["KIND_"+strings.ToUpper(string(ev.Kind))]
	resp := &api.WatchResponse{Kind: api.WatchResponse_Kind(kind), Cursor: ev.Cursor, Complete: ev.Complete, Reason: ev.Reason, Beyond: fromLeftOut(ev.Beyond)}
	if ev.Record != nil {
		resp.Record = fromRecord(ev.Record, nil)
	}
	return resp
}
