package keeper

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

// occupy takes all places, and returns what gives them back.
func (t *turns) occupy(tb testing.TB) (leave func()) {
	n := t.free
	for range n {
		require.NoError(tb, t.enter(tb.Context(), netip.Prefix{}))
	}
	return func() {
		for range n {
			t.leave()
		}
	}
}

// TestTurns: a crowd in one address prefix delays a request from another one by one request, and no place is lost by those who
// give up.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, c := netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("2001:db8::/48")
		turns := newTurns(2)
		turns.occupy(t)
		var done []string
		work := func(from netip.Prefix, name string, patience time.Duration) {
			go func() {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				if err := turns.enter(ctx, from); err != nil {
					done = append(done, name+" gave up")
					return
				}
				defer turns.leave()
				done = append(done, name)
			}()
			synctest.Wait()
		}
		for i := range 3 {
			work(a, fmt.Sprint("a", i), time.Hour)
		}
		work(b, "b0", time.Second)
		work(b, "b1", time.Hour)
		work(c, "c0", time.Second)
		time.Sleep(time.Minute)
		require.ElementsMatch(t, []string{"b0 gave up", "c0 gave up"}, done)
		work(c, "c1", time.Hour)
		done = nil
		turns.leave() // one place: the requests work one after the other
		synctest.Wait()
		require.Equal(t, []string{"a0", "b1", "c1", "a1", "a2"}, done)
		require.Empty(t, turns.waiting)
		require.Empty(t, turns.order)
		turns.leave()
		require.Equal(t, 2, turns.free)
	})
}

// A turn that comes at the moment in which its request gives up passes to the next one.
func TestTurnThatNobodyTakes(t *testing.T) {
	turns := newTurns(1)
	leave := turns.occupy(t)
	from := netip.MustParsePrefix("198.51.100.0/24")
	mine := turns.queue(from)
	leave()
	<-mine
	require.False(t, turns.giveUp(from, mine))
	turns.leave()
	require.Equal(t, 1, turns.free)
}

// TestBulkIsPaced: large answers to comparisons leave at bulkRate, whoever asks for them, and delay no question.
func TestBulkIsPaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, _ := bare(t, 3, Limits{})
		var ids []byte
		for _, r := range many(t, maxPull, 100) {
			_, err := k.Index.Put(r, time.Now())
			require.NoError(t, err)
			e := entryOf(r, r.Name().Provider.String())
			ids = append(ids, e.ID[:]...)
		}
		pull := &pb.Request{Op: &pb.Request_Pull{Pull: &pb.PullRequest{Ids: ids}}}
		resolve := &pb.Request{Op: &pb.Request_Resolve{Resolve: &pb.ResolveRequest{Key: many(t, 1, 1)[0].Key().String()}}}
		began, sent := time.Now(), 0
		for i := range byte(16) {
			from := source{prefix: netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 51, i, 0}), 24)}
			resp := k.server.respond(from, pull, nil)
			require.Nil(t, resp.Refusal)
			sent += proto.Size(resp)
			asked := time.Now()
			k.server.respond(from, resolve, nil)
			require.Equal(t, asked, time.Now(), "a question does not wait")
		}
		require.Greater(t, sent, 1<<20)
		require.InDelta(t, float64(sent)*15/16/bulkRate, time.Since(began).Seconds(), 0.01)
	})
}
