package place

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/cell"
	"github.com/blackhole/blackhole/internal/discovery/keepertest"
	"github.com/blackhole/blackhole/pkg/fault"
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
