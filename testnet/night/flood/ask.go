package flood

import (
	"context"
	"crypto/rand"
	"fmt"
	"github.com/libp2p/go-libp2p/core/protocol"

	dht "github.com/libp2p/go-libp2p-kad-dht/pb"
	record "github.com/libp2p/go-libp2p-record/pb"
	"google.golang.org/protobuf/proto"

	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
	keeperv1 "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

// hotCells returns keys of the cells of the honest offers.
func hotCells() []string {
	var keys []string
	for _, c := range geo.IndexCells(geo.Point{Lat: latitude, Lon: longitude}) {
		keys = append(keys, records.CellKey{Type: kind, Subtype: records.AnySubtype, Cell: c}.String())
	}
	return keys
}

// random returns n random bytes.
func random(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return b
}

// askQueries asks questions that cost a keeper work.
func askQueries(ctx context.Context, h *hostile) {
	cells, asked := hotCells(), 0
	h.askKeeper(ctx, func() *keeperv1.Request {
		asked++
		switch asked % 3 {
		case 0:
			return &keeperv1.Request{Op: &keeperv1.Request_Resolve{Resolve: &keeperv1.ResolveRequest{
				Key: fmt.Sprintf("/blackhole/services/%s/_/u33dc0/%s/x-%d", kind, h.host.ID(), asked),
			}}}
		default:
			return hotQuery(cells[asked%len(cells)], float64(asked)/1e9)
		}
	})
}

// hotQuery asks for all of a hot cell. No cache knows a new least uptime.
func hotQuery(cell string, least float64) *keeperv1.Request {
	q := query.Query{Type: kind, Limit: 100}
	q.MinUptime = &least
	return &keeperv1.Request{Op: &keeperv1.Request_Query{Query: &keeperv1.QueryRequest{Query: queries.Proto(q), Cells: []string{cell}}}}
}

// askSyncs compares with the keeper as if everything differed, and pulls what does not exist.
func askSyncs(ctx context.Context, h *hostile) {
	const sums, cell, ids = 4096, 16, 16 * 512
	cells, asked := hotCells(), 0
	h.askKeeper(ctx, func() *keeperv1.Request {
		asked++
		switch asked % 3 {
		case 0:
			return &keeperv1.Request{Op: &keeperv1.Request_Sync{Sync: &keeperv1.SyncRequest{Whole: true, Sums: random(sums)}}}
		case 1:
			return &keeperv1.Request{Op: &keeperv1.Request_Sync{Sync: &keeperv1.SyncRequest{
				Cells: []*keeperv1.SyncCell{{Cell: cells[0], Sums: random(sums)}},
			}}}
		default:
			return &keeperv1.Request{Op: &keeperv1.Request_Pull{Pull: &keeperv1.PullRequest{Ids: random(ids)}}}
		}
	})
}

// askKeeper asks on the protocol of keepers.
func (h *hostile) askKeeper(ctx context.Context, next func() *keeperv1.Request) {
	h.converse(ctx, h.keepers(), func() (proto.Message, proto.Message, int) {
		return next(), &keeperv1.Response{}, 1
	}, func(m proto.Message, n int) { h.tally.send(int64(n), reason(m.(*keeperv1.Response).Refusal)) })
}

// floodDHT looks up random keys, asks for values, and puts false ones.
func floodDHT(ctx context.Context, h *hostile) {
	group := []byte(fmt.Sprintf("/%s/%x", h.order.Network.Namespace("group"), random(32)))
	asked := 0
	h.converse(ctx, protocol.ID(h.order.Network.Protocol("kad", "1.0.0")), func() (proto.Message, proto.Message, int) {
		asked++
		m := &dht.Message{Type: dht.Message_FIND_NODE, Key: append([]byte{0x12, 0x20}, random(32)...)}
		switch asked % 8 {
		case 5:
			m = &dht.Message{Type: dht.Message_GET_VALUE, Key: group}
		case 6:
			m = &dht.Message{Type: dht.Message_PUT_VALUE, Key: group, Record: &record.Record{Key: group, Value: random(4096)}}
		case 7:
			key := append([]byte("/pk/"), random(34)...)
			m = &dht.Message{Type: dht.Message_PUT_VALUE, Key: key, Record: &record.Record{Key: key, Value: random(4096)}}
		}
		return m, &dht.Message{}, 1
	}, func(_ proto.Message, n int) { h.tally.send(int64(n), "") })
}
