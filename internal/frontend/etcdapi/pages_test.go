package etcdapi_test

import (
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/frontend/etcdapi"
	pb "github.com/blackhole/blackhole/internal/frontend/etcdapi/etcdserverpb"
)

const manyKeys = 12 * 128

// paged is a front with many keys. Between two pages of a read something happens.
func paged(t *testing.T) (f *front, plane *faulty) {
	plane = &faulty{}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	f = startWith(t, l, l.Addr().String(), etcdapi.Config{Service: plane}, nil)
	for i := range manyKeys / 128 {
		ops := make([]*pb.RequestOp, 128)
		for j := range ops {
			ops[j] = putOp(fmt.Sprintf("%02d/%03d", i, j))
		}
		_, err := f.Txn(t.Context(), &pb.TxnRequest{Success: ops})
		require.NoError(t, err)
	}
	return f, plane
}

// streamed reads a range by a stream, and merges its answers as clients do.
func (f *front) streamed(t *testing.T, r *pb.RangeRequest) (out *pb.RangeResponse, answers int, err error) {
	stream, err := f.RangeStream(t.Context(), r)
	require.NoError(t, err)
	for out = (&pb.RangeResponse{}); ; answers++ {
		part, err := stream.Recv()
		if err == io.EOF {
			return out, answers, nil
		}
		if err != nil {
			return nil, answers, err
		}
		proto.Merge(out, part.GetRangeResponse())
	}
}

// TestRangeStream: a stream has what a range has, of one revision, whatever is written between its pages.
func TestRangeStream(t *testing.T) {
	f, plane := paged(t)
	for name, r := range map[string]*pb.RangeRequest{
		"all":      all(),
		"limited":  all(func(r *pb.RangeRequest) { r.Limit = 1200 }),
		"exactly":  all(func(r *pb.RangeRequest) { r.Limit = manyKeys }),
		"one":      {Key: []byte("03/007")},
		"none":     {Key: []byte("x")},
		"keys":     all(func(r *pb.RangeRequest) { r.KeysOnly = true }),
		"counted":  all(func(r *pb.RangeRequest) { r.CountOnly = true }),
		"earlier":  all(func(r *pb.RangeRequest) { r.Revision = 4 }),
		"own copy": all(func(r *pb.RangeRequest) { r.Serializable = true }),
	} {
		want, err := f.Range(t.Context(), r)
		require.NoError(t, err, name)
		got, answers, err := f.streamed(t, r)
		require.NoError(t, err, name)
		require.True(t, proto.Equal(want, got), "%s: %v, not %v", name, got.GetHeader(), want.GetHeader())
		require.Equal(t, len(got.GetKvs()) > 1000, answers > 1, name)
	}
	before := f.put(t, "zz", "")
	plane.after = func(int64) { f.put(t, "zz", "later") }
	for name, read := range map[string]func() (*pb.RangeResponse, error){
		"range":  func() (*pb.RangeResponse, error) { return f.Range(t.Context(), all()) },
		"stream": func() (*pb.RangeResponse, error) { r, _, err := f.streamed(t, all()); return r, err },
	} {
		r, err := read()
		require.NoError(t, err, name)
		last := r.GetKvs()[len(r.GetKvs())-1]
		require.Equal(t, last.GetModRevision(), r.GetHeader().GetRevision(), "%s: a watch from the next revision misses nothing", name)
		require.GreaterOrEqual(t, r.GetHeader().GetRevision(), before)
	}
	for _, r := range []*pb.RangeRequest{
		all(func(r *pb.RangeRequest) { r.SortOrder = pb.RangeRequest_DESCEND }),
		all(func(r *pb.RangeRequest) { r.SortOrder, r.SortTarget = pb.RangeRequest_ASCEND, pb.RangeRequest_MOD }),
		all(func(r *pb.RangeRequest) { r.MinModRevision = 3 }),
	} {
		_, _, err := f.streamed(t, r)
		require.Equal(t, codes.Unimplemented, status.Code(err))
	}
}

// TestCompactionBetweenPages: a read of the present begins anew when a compaction overtakes it.
func TestCompactionBetweenPages(t *testing.T) {
	f, plane := paged(t)
	plane.after = func(n int64) {
		if n == plane.reads.Load() && n < 3 {
			_, err := f.Compact(t.Context(), &pb.CompactionRequest{Revision: f.put(t, "zz", "")})
			require.NoError(t, err)
		}
	}
	r, err := f.Range(t.Context(), all())
	require.NoError(t, err)
	require.Len(t, r.GetKvs(), manyKeys+1)
}
