package offer

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// TestNarrowAnswer: 80 columns keep the id, what is sold, the place and the price whole, and say what is left out.
func TestNarrowAnswer(t *testing.T) {
	price, km := 2.7136, 285.0
	view := records.View{ProviderID: "12D3KooWLnf1GdmD17qaAn8sYACPYggSSps1gQD1aL3gpEUuqCVB"}
	view.ID = "compute-0123456789"
	view.Metadata = records.Metadata{Type: "compute", Subtype: "gpu", Name: "Two H100 in Suva", Endpoints: []string{"https://gpu.example.com"}}
	view.Capabilities = &records.Capabilities{Compute: &records.Compute{GPUs: []records.GPU{{Model: "H100", MemoryMB: 80_000}}}}
	view.Location = &records.Location{City: "Suva", Country: "FJ"}
	view.Pricing = &records.Pricing{Currency: "USDC", BasePrice: &price, PriceUnit: "per-hour"}
	other := view
	other.Metadata.Type = "cdn"
	one, two := query.ResultView{Record: view, DistanceKM: &km}, query.ResultView{Record: other}

	shown := answerTable(query.AnswerView{Results: []query.ResultView{one}}, time.Time{}).On(term.Screen{Columns: 80})
	for _, whole := range []string{"compute-0123456789", "1x H100 80 GB", "Suva, FJ", "2.7136 USDC per-hour", "columns left out: widen, or -o json)"} {
		require.Contains(t, shown, whole)
	}
	require.NotContains(t, shown, "TYPE", "all are of one type")
	long := one
	long.Record.ID, long.Record.Location = "gpu-box-frankfurt-0123456789", &records.Location{City: "Frankfurt am Main", Country: "DE"}
	long.DistanceKM = nil
	wrapped := answerTable(query.AnswerView{Results: []query.ResultView{long}}, time.Time{}).On(term.Screen{Columns: 80})
	for _, whole := range []string{"gpu-box-frankfurt-0123456789", "1x H100", "80 GB", "Frankfurt am", "DE", "2.7136 USDC per-hour"} {
		require.Contains(t, wrapped, whole, "it wraps, and nothing is cut:\n%s", wrapped)
	}
	require.NotContains(t, shown, "CLAIMED")

	large := one
	large.Record.Capabilities = &records.Capabilities{Compute: &records.Compute{CPUCores: 64, MemoryMB: 512_000, GPUs: []records.GPU{{Model: "H100", MemoryMB: 80_000}}}}
	near := answerTable(query.AnswerView{Results: []query.ResultView{large}}, time.Time{}).On(term.Screen{Columns: 80})
	for _, whole := range []string{"compute-0123456789", "1x H100 80 GB", "64-core CPU", "Suva, FJ", "DISTANCE", "285 km", "2.7136 USDC per-hour", "columns left out"} {
		require.Contains(t, near, whole, "who asks for a place learns the distance:\n%s", near)
	}
	large.DistanceKM = nil
	require.NotContains(t, answerTable(query.AnswerView{Results: []query.ResultView{large}}, time.Time{}).On(term.Screen{Columns: 80}), "DISTANCE")
	require.Contains(t, answerTable(query.AnswerView{Results: []query.ResultView{one, two}}, time.Time{}).On(term.Screen{Columns: 100}), "TYPE")
	require.NotContains(t, answerTable(query.AnswerView{Results: []query.ResultView{one}}, time.Time{}).On(term.Screen{}), "left out", "a pipe gets everything")
}
