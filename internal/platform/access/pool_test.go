package access

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/peer"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/pkg/fault"
)

func TestPool(t *testing.T) {
	var refused []Refusal
	p := NewPool("watches", 2, func(r Refusal) { refused = append(refused, r) })
	release, err := p.Take(t.Context(), "op")
	require.NoError(t, err)
	_, err = p.Take(t.Context(), "op")
	require.NoError(t, err)
	_, err = p.Take(t.Context(), "op")
	require.ErrorIs(t, err, fault.PoolExhausted)
	require.Equal(t, "all 2 watches are in use: close one or retry later", fault.Message(err))
	require.Equal(t, "pool.watches", fault.FieldOf(err))
	require.Equal(t, []Refusal{{Resource: "watches", Full: true, Err: err}}, refused)
	require.Equal(t, []string{"full", "share"}, []string{refused[0].Reason(), Refusal{}.Reason()})
	release()
	_, err = p.Take(t.Context(), "op")
	require.NoError(t, err)
}

// takeAll takes places until the pool refuses, and returns the last refusal.
func takeAll(ctx context.Context, p *Pool) (taken int, err error) {
	for ; err == nil; taken++ {
		_, err = p.Take(ctx, "op")
	}
	return taken - 1, err
}

// TestPoolIsShared: a client that takes all it can leaves room for others, under any way to tell clients apart.
func TestPoolIsShared(t *testing.T) {
	alice, bob := With(t.Context(), Principal{Name: "alice"}), With(t.Context(), Principal{Name: "bob"})
	here := ConnContext(t.Context(), conn{remote: &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 1}})
	there := peer.NewContext(t.Context(), &peer.Peer{Addr: &net.TCPAddr{IP: net.IPv4(192, 0, 2, 2), Port: 2}})
	p := NewPool("watches", 100, nil)
	taken, err := takeAll(alice, p)
	require.Equal(t, 75, taken)
	require.Equal(t, "this client has 75 of all 100 watches, and the rest is for others: close one or retry later", fault.Message(err))
	for n, ctx := range []context.Context{bob, here, there} {
		taken, err := takeAll(ctx, p)
		require.ErrorIs(t, err, fault.PoolExhausted)
		require.Positive(t, taken, n)
	}
	next := ConnContext(t.Context(), conn{remote: &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 3}})
	_, err = p.Take(next, "op")
	require.ErrorIs(t, err, fault.PoolExhausted, "another port is no other client")
}

type conn struct {
	net.Conn
	remote net.Addr
}

func (c conn) RemoteAddr() net.Addr { return c.remote }

// TestPoolProperties: never more than the total, a newcomer gets a place while two are free, and all places come back.
func TestPoolProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := NewPool("watches", rapid.IntRange(1, 40).Draw(t, "total"), nil)
		var held []func()
		for range rapid.IntRange(0, 200).Draw(t, "steps") {
			if len(held) > 0 && rapid.Bool().Draw(t, "release") {
				last := len(held) - 1
				held[last]()
				held = held[:last]
				continue
			}
			client := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "client")
			newcomer := p.by[client] == 0 && p.Used() < p.total
			release, err := p.Take(With(context.Background(), Principal{Name: client}), "op")
			if err != nil {
				require.False(t, newcomer, "a newcomer is refused only by a full pool")
				continue
			}
			held = append(held, release)
			require.LessOrEqual(t, p.Used(), p.total)
		}
		for _, release := range held {
			release()
		}
		require.Zero(t, p.Used())
		require.Empty(t, p.by)
	})
}

// TestGreedyClients: clients that keep what they get leave a place to an honest one, and then nothing.
func TestGreedyClients(t *testing.T) {
	p := NewPool("watches", 1024, nil)
	for n := range 6 {
		greedy := With(t.Context(), Principal{Name: string(rune('a' + n))})
		var err error
		for err == nil {
			_, err = p.Take(greedy, "op")
		}
		require.ErrorIs(t, err, fault.PoolExhausted)
		release, err := p.Take(With(t.Context(), Principal{Name: "honest"}), "op")
		if n == 5 {
			require.ErrorIs(t, err, fault.PoolExhausted, "six together take all")
			return
		}
		require.NoError(t, err, "%d greedy clients", n+1)
		release()
	}
}

// TestLoopbackIsOneClient: a program does not become several clients by its choice of a loopback address.
func TestLoopbackIsOneClient(t *testing.T) {
	for address, want := range map[string]string{
		"127.0.0.1:1": "loopback", "127.7.7.7:1": "loopback", "[::1]:1": "loopback", "[::ffff:127.0.0.9]:1": "loopback",
		"192.0.2.1:1": "192.0.2.1", "[2001:db8::1:2]:1": "2001:db8::/64",
	} {
		require.Equal(t, want, clientOf(callCredentials{address: address}), address)
	}
}

// TestKeptPlaces: strangers, however many, leave a quarter of the places and of the bytes to those who are known.
func TestKeptPlaces(t *testing.T) {
	named := func(name string) context.Context { return With(t.Context(), Principal{Name: name}) }
	asked := 0
	known := func(ctx context.Context) bool {
		asked++
		return From(ctx).Name == "known"
	}
	places, bytes := NewPool("watches", 100, nil).Keep(known), NewPool("answer_bytes", 100*Small, nil).Keep(known)
	for n := range 50 {
		stranger := named("stranger-" + string(rune('a'+n)))
		for err := error(nil); err == nil; {
			_, err = places.Take(stranger, "op")
		}
		for err := error(nil); err == nil; {
			_, err = bytes.TakeBytes(stranger, "op", Small+1, 0)
		}
	}
	require.Equal(t, 75, places.Used())
	require.LessOrEqual(t, bytes.Used(), 75*Small)
	asked = 0
	for range 18 { // it leaves some of its part to others of its kind
		_, err := places.Take(named("known"), "op")
		require.NoError(t, err)
		_, err = bytes.TakeBytes(named("known"), "op", Small+1, 0)
		require.NoError(t, err)
	}
	require.Equal(t, 2*18, asked)
	idle := NewPool("watches", 100, nil).Keep(known)
	_, err := idle.Take(named("known"), "op")
	require.NoError(t, err)
	require.Equal(t, 2*18, asked, "nobody is asked while there is room")
}

// TestBytes: a pool of bytes gives large answers room, leaves a quarter to other clients, and makes streams wait.
func TestBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		alice, bob := With(t.Context(), Principal{Name: "alice"}), With(t.Context(), Principal{Name: "bob"})
		p := NewPool("answer_bytes", 1<<20, nil)
		none, err := p.TakeBytes(alice, "op", Small, 0)
		require.NoError(t, err)
		require.Nil(t, none, "small answers cost nothing")
		whole, err := p.TakeBytes(alice, "op", 64<<20, 0)
		require.NoError(t, err, "an idle pool has room for each answer")
		require.Equal(t, 1<<19, p.Used())
		second, err := p.TakeBytes(alice, "op", 1<<18, 0)
		require.NoError(t, err)
		_, err = p.TakeBytes(alice, "op", 1<<17, 0)
		require.ErrorIs(t, err, fault.PoolExhausted)
		require.Equal(t, "pool.answer_bytes.share", fault.FieldOf(err))
		release, err := p.TakeBytes(bob, "op", 1<<17, 0)
		require.NoError(t, err, "the rest is for others")
		release()

		_, err = p.TakeBytes(alice, "op", 1<<17, time.Second)
		require.ErrorIs(t, err, fault.PoolExhausted, "a stream waits in vain")
		gone, cancel := context.WithTimeout(alice, time.Millisecond)
		defer cancel()
		_, err = p.TakeBytes(gone, "op", 1<<17, time.Second)
		require.ErrorIs(t, err, fault.Canceled)
		waited := make(chan func())
		for range 2 {
			go func() {
				release, err := p.TakeBytes(alice, "op", 1<<17, time.Hour)
				if err != nil {
					release = nil
				}
				waited <- release
			}()
		}
		synctest.Wait()
		second()
		for range 2 {
			release := <-waited
			require.NotNil(t, release)
			release()
		}
		whole()
		require.Zero(t, p.Used())
		var unbounded *Pool
		none, err = unbounded.TakeBytes(alice, "op", 64<<20, 0)
		require.NoError(t, err)
		require.Nil(t, none)
	})
}
