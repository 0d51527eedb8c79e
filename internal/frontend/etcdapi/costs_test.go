package etcdapi_test

import (
	"fmt"
	"net"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/blackhole/blackhole/internal/frontend/etcdapi"
	pb "github.com/blackhole/blackhole/internal/frontend/etcdapi/etcdserverpb"
	"github.com/blackhole/blackhole/internal/frontend/etcdapi/v3lockpb"
	"github.com/blackhole/blackhole/internal/platform/access"
)

// cost tells the calls of the plane since the last call of cost.
func (f *faulty) cost() string {
	return fmt.Sprintf("%d commands, %d reads, %d of them local, %d watches", f.commands.Swap(0), f.reads.Swap(0), f.local.Swap(0), f.watches.Swap(0))
}

// TestCosts: a call asks the group for no more than etcd asks its own, and a call that waits holds no room of answers.
func TestCosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answers := access.NewPool("answer_bytes", 16<<20, nil)
		f := newGroup(t, etcdapi.Config{Answers: answers})
		f.put(t, "a", "1")
		f.put(t, "b", "2")
		count := func(r *pb.RangeRequest) int64 {
			answer, err := f.Range(t.Context(), r)
			require.NoError(t, err)
			return answer.GetCount()
		}
		first, second := f.lease(t), f.lease(t)
		lock := func(lease int64) error {
			_, err := f.Lock(t.Context(), &v3lockpb.LockRequest{Name: []byte("jobs"), Lease: lease})
			return err
		}
		unlock := func(lease int64) {
			_, err := f.Unlock(t.Context(), &v3lockpb.UnlockRequest{Key: fmt.Appendf(nil, "jobs/%x", lease)})
			require.NoError(t, err)
		}
		f.cost()

		require.EqualValues(t, 1, count(&pb.RangeRequest{Key: []byte("a"), Serializable: true}))
		require.Equal(t, "0 commands, 1 reads, 1 of them local, 0 watches", f.cost())
		require.EqualValues(t, 1, count(&pb.RangeRequest{Key: []byte("a")}))
		require.Equal(t, "0 commands, 1 reads, 0 of them local, 0 watches", f.cost())
		require.EqualValues(t, 2, count(all(func(r *pb.RangeRequest) { r.MinModRevision = 1 << 40 })))
		require.Equal(t, "0 commands, 1 reads, 0 of them local, 0 watches", f.cost(), "who reads all keys counts them")
		require.EqualValues(t, 2, count(all(func(r *pb.RangeRequest) { r.Limit = 1 })))
		require.Equal(t, "0 commands, 1 reads, 0 of them local, 0 watches", f.cost(), "who has met the last key has counted")

		require.NoError(t, lock(first))
		require.Equal(t, "1 commands, 0 reads, 0 of them local, 0 watches", f.cost())
		require.NoError(t, lock(first))
		require.Equal(t, "1 commands, 1 reads, 0 of them local, 0 watches", f.cost(), "it looks who else is there")
		next := make(chan error, 1)
		go func() { next <- lock(second) }()
		synctest.Wait()
		require.Equal(t, "1 commands, 1 reads, 0 of them local, 1 watches", f.cost())
		require.Zero(t, answers.Used())
		unlock(first)
		require.NoError(t, <-next)
		require.Equal(t, "1 commands, 1 reads, 0 of them local, 0 watches", f.cost(), "of the end of the one ahead")
		unlock(second)
		require.Equal(t, "1 commands, 0 reads, 0 of them local, 0 watches", f.cost())
	})
}

// TestOneKeyNeedsNoRoom: the transaction of etcd's own mutex reads the first key of a queue, while others have the room of
// answers.
func TestOneKeyNeedsNoRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answers := access.NewPool("answer_bytes", 4<<20, nil)
		f := newGroup(t, etcdapi.Config{Answers: answers})
		for _, name := range []string{"x", "y"} {
			_, err := answers.TakeBytes(access.With(t.Context(), access.Principal{Name: name}), "test", 1<<20, 0)
			require.NoError(t, err)
		}
		f.put(t, "q/a", "1")
		read := func(limit int64) error {
			r := all(func(r *pb.RangeRequest) { r.Limit, r.SortTarget = limit, pb.RangeRequest_CREATE })
			_, err := f.Txn(t.Context(), &pb.TxnRequest{Success: []*pb.RequestOp{
				{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte("q/b")}}}, {Request: &pb.RequestOp_RequestRange{RequestRange: r}},
			}})
			return err
		}
		require.NoError(t, read(1))
		refusedAs(t, rpctypes.ErrGRPCRequestTooManyRequests, read(2))
	})
}

// BenchmarkRange is what a serializable read of one key costs, on both ends.
func BenchmarkRange(b *testing.B) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(b, err)
	room := access.NewPool("answer_bytes", 16<<20, nil)
	f := startWith(b, access.NewConnections(64, nil).Listener(l), l.Addr().String(), etcdapi.Config{Answers: room, Requests: room.Twin("request_bytes")}, nil)
	_, err = f.Put(b.Context(), &pb.PutRequest{Key: []byte("a"), Value: make([]byte, 128)})
	require.NoError(b, err)
	b.ReportAllocs()
	for b.Loop() {
		_, err := f.Range(b.Context(), &pb.RangeRequest{Key: []byte("a"), Serializable: true})
		require.NoError(b, err)
	}
}
