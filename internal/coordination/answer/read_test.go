package answer

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/machine"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// TestHeader: an answer has the header of the state that was read, however much time has passed since its question.
func TestHeader(t *testing.T) {
	m := machine.New()
	now := coord.Header{Revision: 7}
	s := State{
		View:      func(read func(*machine.Machine)) coord.Header { read(m); return now },
		Keys:      func() (*machine.Keyspace, coord.Header) { return m.View(), now },
		Remaining: func(coord.LeaseID) int64 { return 0 },
		Age:       func(*coord.KeyValue) time.Duration { return 0 },
	}
	for name, q := range map[string]*coordv1.Question{
		"key":    {Request: &coordv1.Question_Range{Range: &apiv1.RangeRequest{Key: []byte("a")}}},
		"sorted": {Request: &coordv1.Question_Range{Range: &apiv1.RangeRequest{Key: []byte("a"), Prefix: true, Order: apiv1.TxnRange_VALUE}}},
		"locks":  {Request: &coordv1.Question_ListLocks{ListLocks: &apiv1.ListLocksRequest{}}},
		"leases": {Request: &coordv1.Question_ListLeases{ListLeases: &apiv1.ListLeasesRequest{}}},
	} {
		now.Revision++
		a, err := s.Read(q)
		require.NoError(t, err, name)
		h := map[string]*apiv1.Header{
			"key": a.GetRange().GetHeader(), "sorted": a.GetRange().GetHeader(), "locks": a.GetListLocks().GetHeader(), "leases": a.GetListLeases().GetHeader(),
		}[name]
		require.EqualValues(t, now.Revision, h.GetRevision(), name)
	}
}
