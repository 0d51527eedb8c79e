package keeper

import (
	"context"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/discovery/keepertest"
	"github.com/blackhole/blackhole/internal/discovery/protocol"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

// occupy takes all places, and returns what gives them back.
func (t *turns) occupy(tb testing.TB) (leave func()) {
	n := t.free
	for range n {
		require.NoError(tb, t.enter(tb.Context(), protocol.Source{}))
	}
	return func() {
		for range n {
			t.leave()
		}
	}
}

// strangers is the known of turns without known peers.
func strangers(peer.ID) bool { return false }

// TestTurns: a crowd in one address prefix delays a request from another one by one request, and no place is lost by those who
// give up. Known peers have every second turn, however many prefixes others come from.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := newTurns(2, func(id peer.ID) bool { return id == "known" })
		turns.occupy(t)
		var mu sync.Mutex // guards done
		var done []string
		ends := func(name string) {
			mu.Lock()
			defer mu.Unlock()
			done = append(done, name)
		}
		work := func(id peer.ID, prefix, name string, patience time.Duration) {
			go func() {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				if err := turns.enter(ctx, protocol.Source{Peer: id, Prefix: netip.MustParsePrefix(prefix)}); err != nil {
					ends(name + " gave up")
					return
				}
				defer turns.leave()
				ends(name)
			}()
			synctest.Wait()
		}
		const a, b, c = "198.51.100.0/24", "203.0.113.0/24", "2001:db8::/48"
		for _, name := range []string{"a0", "a1", "a2"} {
			work("crowd", a, name, time.Hour)
		}
		work("honest", b, "b0", time.Second)
		work("honest", b, "b1", time.Hour)
		work("honest", c, "c0", time.Second)
		work("known", b, "k0", time.Hour)
		work("known", b, "k1", time.Hour)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.ElementsMatch(t, []string{"b0 gave up", "c0 gave up"}, done)
		work("honest", c, "c1", time.Hour)
		done = nil
		turns.leave() // one place: the requests work one after the other
		synctest.Wait()
		require.Equal(t, []string{"a0", "k0", "b1", "k1", "c1", "a1", "a2"}, done)
		for _, l := range turns.lines {
			require.Empty(t, l.waiting)
			require.Empty(t, l.order)
		}
		turns.leave()
		require.Equal(t, 2, turns.free)
	})
}

// A turn that comes at the moment in which its request gives up passes to the next one.
func TestTurnThatNobodyTakes(t *testing.T) {
	turns := newTurns(1, strangers)
	leave := turns.occupy(t)
	from, in := netip.MustParsePrefix("198.51.100.0/24"), &turns.lines[1]
	mine := turns.queue(in, from)
	leave()
	<-mine
	require.False(t, turns.giveUp(in, from, mine))
	turns.leave()
	require.Equal(t, 1, turns.free)
}

// TestBulkIsPaced: large answers to comparisons leave at bulkRate, whoever asks for them, and delay no question.
func TestBulkIsPaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, _ := bare(t, 3, protocol.Limits{})
		var ids []byte
		for _, r := range keepertest.Many(t, protocol.PullRecords, 100) {
			_, err := k.Index.Put(r, time.Now())
			require.NoError(t, err)
			e := protocol.EntryOf(r, r.Name().Provider.String())
			ids = append(ids, e.ID[:]...)
		}
		pull := &pb.Request{Op: &pb.Request_Pull{Pull: &pb.PullRequest{Ids: ids}}}
		resolve := &pb.Request{Op: &pb.Request_Resolve{Resolve: &pb.ResolveRequest{Key: keepertest.Many(t, 1, 1)[0].Key().String()}}}
		began, sent := time.Now(), 0
		for i := range byte(16) {
			from := protocol.Source{Prefix: netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 51, i, 0}), 24)}
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
