package place

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/discovery/cell"
	"github.com/blackhole/blackhole/internal/discovery/keepertest"
	"github.com/blackhole/blackhole/internal/discovery/wire"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

// A hint applies to its keeper only, and expires.
func TestSplitHints(t *testing.T) {
	h, now := newSplitHints(), time.Now()
	r := keepertest.Many(t, 1, 1)[0]
	c := keepertest.CellOfBerlin(4)
	var s cell.Summary
	s.Add(r)
	child, _ := cell.ChildOf(c.Cell, r)
	split := &pb.Split{Cell: c.String(), Children: []*pb.Summary{s.Proto(child)}}
	asked := func(o records.CellKey) bool { return o == c }
	require.True(t, h.wants("a", c, r, now))
	require.NoError(t, h.add("a", []*pb.Split{split}, asked, now))
	require.False(t, h.wants("a", c, r, now))
	require.True(t, h.wants("b", c, r, now))
	require.True(t, h.isSplit(c, now))
	require.NoError(t, h.add("a", []*pb.Split{{Cell: c.String()}}, asked, now.Add(hintTTL/2)))
	require.False(t, h.wants("a", c, r, now.Add(hintTTL-1)))
	require.True(t, h.wants("a", c, r, now.Add(hintTTL)), "an addition does not extend the lifetime")
	require.False(t, h.isSplit(c, now.Add(2*hintTTL)))
	require.ErrorIs(t, h.add("a", []*pb.Split{{Cell: keepertest.CellOfBerlin(5).String()}}, asked, now), fault.Unauthentic)
	require.ErrorIs(t, h.add("a", []*pb.Split{{Cell: "x"}}, asked, now), fault.Unauthentic)
}

// The largest hint fits into an answer, and lacks only children.
func TestHintsFitIntoAnswers(t *testing.T) {
	s := &Splits{cells: make(map[records.CellKey]*splitCell)}
	asked := make(map[records.CellKey][]geo.Cell)
	full := cell.Summary{Count: 1}
	for i := range full.Tokens {
		full.Tokens[i], full.Lots[i] = 0xff, 0xff
	}
	for _, place := range geo.Cell("u").Children() {
		for _, subtype := range []string{records.AnySubtype, "gpu"} {
			c := records.CellKey{Type: "compute", Subtype: subtype, Cell: place}
			x := cell.New(place, cell.Split, time.Now())
			for _, child := range place.Children() {
				x.Adopt(child, full)
			}
			s.cells[c], asked[c] = &splitCell{Cell: x}, place.Children()
		}
	}
	splits := s.forPublisher(asked)
	require.Len(t, splits, wire.MaxQueryCells)
	children := 0
	for _, m := range splits {
		children += len(m.Children)
	}
	require.Equal(t, hintedChildren, children)
	require.Less(t, proto.Size(&pb.StoreResponse{Splits: splits}), 5<<19, "of 3 MiB")
}
