package rpc

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/peerstore"
	"github.com/libp2p/go-libp2p/core/protocol"
	quic "github.com/libp2p/go-libp2p/p2p/transport/quic"
	"github.com/libp2p/go-libp2p/x/simlibp2p"
	"github.com/marcopolo/simnet"
	"github.com/multiformats/go-multiaddr"
	"github.com/multiformats/go-varint"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/blackhole/blackhole/pkg/fault"
)

const echo protocol.ID = "/test/echo/1"

// newHosts returns n hosts, 10 ms apart, that know each other's addresses. It must run in a bubble of synctest.
func newHosts(t *testing.T, n int) []host.Host {
	t.Helper()
	settings := simnet.LinkSettings{BitsPerSecond: 100 * simlibp2p.OneMbps}
	net := &simnet.Simnet{LatencyFunc: simnet.StaticLatency(5 * time.Millisecond)}
	net.Start()
	hosts := make([]host.Host, n)
	for i := range hosts {
		h, err := libp2p.New(
			libp2p.ListenAddrStrings(fmt.Sprintf("/ip4/%s/udp/4801/quic-v1", simnet.IntToPublicIPv4(i))),
			libp2p.Transport(quic.NewTransport), simlibp2p.QUICSimnet(net, simnet.NodeBiDiLinkSettings{Downlink: settings, Uplink: settings}),
			libp2p.DisableIdentifyAddressDiscovery(), // its timers would stall the bubble
			libp2p.ResourceManager(&network.NullResourceManager{}), libp2p.DisableRelay(), libp2p.DisableMetrics())
		require.NoError(t, err)
		hosts[i] = h
	}
	for _, h := range hosts {
		for _, other := range hosts {
			if other != h {
				h.Peerstore().AddAddrs(other.ID(), other.Addrs(), peerstore.PermanentAddrTTL)
			}
		}
	}
	t.Cleanup(func() {
		for _, h := range hosts {
			require.NoError(t, h.Close())
		}
		net.Close()
	})
	return hosts
}

// newEcho returns a server that answers each request with itself, unless configure changes it.
func newEcho(t *testing.T, h host.Host, configure func(*ServerConfig)) *Server {
	t.Helper()
	c := ServerConfig{
		Host: h, Protocol: echo, Service: "test",
		Request: new(wrapperspb.BytesValue), Format: Format{MaxSize: maxSize},
		Handler: func(_ *Stream, req proto.Message, malformed error) (proto.Message, error) {
			if malformed != nil {
				return bytesOf([]byte(fault.KindOf(malformed).String())), nil
			}
			return req, nil
		},
		Streams: 8, StreamsPerPeer: 4, IdleTimeout: time.Minute, FrameTimeout: 10 * time.Second,
	}
	if configure != nil {
		configure(&c)
	}
	s := NewServer(c)
	t.Cleanup(s.Close)
	return s
}

func newTestPool(t *testing.T, h host.Host) *Pool {
	t.Helper()
	p := NewPool(PoolConfig{
		Host: h, Protocol: echo, Service: "test", Format: Format{MaxSize: maxSize},
		CallsPerPeer: 4, IdlePerPeer: 2, Idle: 3, IdleFor: 30 * time.Second,
	})
	t.Cleanup(p.Close)
	return p
}

// active returns the streams that a server serves.
func active(s *Server) []network.Stream {
	s.limiter.mu.Lock()
	defer s.limiter.mu.Unlock()
	return slices.Collect(maps.Keys(s.limiter.streams))
}

// idle returns the number of idle streams of a pool, and the number of its peers.
func idle(p *Pool) (streams, peers int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.idle, len(p.peers)
}

// call sends text and returns the text of the response.
func call(ctx context.Context, p *Pool, h host.Host, text string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	resp := new(wrapperspb.BytesValue)
	err := p.Call(ctx, h.ID(), bytesOf([]byte(text)), resp)
	return string(resp.Value), err
}

func TestCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hosts := newHosts(t, 2)
		server, pool := newEcho(t, hosts[1], nil), newTestPool(t, hosts[0])
		for range 3 {
			got, err := call(t.Context(), pool, hosts[1], "hello")
			require.NoError(t, err)
			require.Equal(t, "hello", got)
		}
		require.Len(t, active(server), 1, "one stream serves all requests")
		streams, peers := idle(pool)
		require.Equal(t, [2]int{1, 1}, [2]int{streams, peers})

		for _, s := range active(server) {
			_ = s.Reset()
		}
		time.Sleep(100 * time.Millisecond)
		got, err := call(t.Context(), pool, hosts[1], "again")
		require.NoError(t, err, "a dead idle stream is replaced")
		require.Equal(t, "again", got)

		time.Sleep(31 * time.Second)
		require.Empty(t, active(server), "idle streams expire")
		_, peers = idle(pool)
		require.Zero(t, peers)
	})
}

func TestCallErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hosts := newHosts(t, 3)
		release := make(chan struct{})
		newEcho(t, hosts[1], func(c *ServerConfig) {
			c.Handler = func(_ *Stream, req proto.Message, _ error) (proto.Message, error) {
				switch string(req.(*wrapperspb.BytesValue).Value) {
				case "wait":
					<-release
				case "large":
					return bytesOf(make([]byte, maxSize+1)), nil
				}
				return nil, errors.New("the stream ends")
			}
		})
		defer close(release)
		pool := newTestPool(t, hosts[0])
		for text, kind := range map[string]fault.Kind{
			"wait": fault.Timeout, "large": fault.TooLarge, "reset": fault.Unavailable,
		} {
			_, err := call(t.Context(), pool, hosts[1], text)
			require.ErrorIs(t, err, kind, text)
		}
		_, err := call(t.Context(), pool, hosts[2], "not served")
		require.ErrorIs(t, err, fault.Unavailable)

		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		_, err = call(ctx, pool, hosts[1], "wait")
		require.ErrorIs(t, err, fault.Canceled)
		_, peers := idle(pool)
		require.Zero(t, peers)
	})
}

func TestPrepareSeesTheTimeLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hosts := newHosts(t, 2)
		newEcho(t, hosts[1], nil)
		pool := newTestPool(t, hosts[0])
		pool.config.Prepare = func(_ proto.Message, left time.Duration) proto.Message {
			return bytesOf([]byte(left.Round(time.Second).String()))
		}
		got, err := call(t.Context(), pool, hosts[1], "")
		require.NoError(t, err)
		require.Equal(t, "5s", got)
	})
}

// Concurrent requests use a bounded number of streams, and fewer remain idle.
func TestPoolIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hosts := newHosts(t, 3)
		var mu sync.Mutex
		var now, most int
		full := make(chan struct{}) // closed once as many requests are served as allowed; the first wait for it
		newEcho(t, hosts[1], func(c *ServerConfig) {
			c.Streams, c.StreamsPerPeer = 100, 100
			c.Handler = func(_ *Stream, req proto.Message, _ error) (proto.Message, error) {
				mu.Lock()
				if now++; now == 4 && most < 4 {
					close(full)
				}
				most = max(most, now)
				mu.Unlock()
				<-full
				time.Sleep(50 * time.Millisecond)
				mu.Lock()
				defer mu.Unlock()
				now--
				return req, nil
			}
		})
		newEcho(t, hosts[2], nil)
		pool := newTestPool(t, hosts[0])
		errs := make(chan error, 40)
		for range cap(errs) {
			go func() {
				_, err := call(t.Context(), pool, hosts[1], "x")
				errs <- err
			}()
		}
		for range cap(errs) {
			require.NoError(t, <-errs)
		}
		require.Equal(t, 4, most)
		streams, _ := idle(pool)
		require.Equal(t, 2, streams, "the bound of one peer")
		for range 2 { // at the same time, so each opens a stream
			go func() {
				_, err := call(t.Context(), pool, hosts[2], "x")
				errs <- err
			}()
		}
		require.NoError(t, <-errs)
		require.NoError(t, <-errs)
		streams, _ = idle(pool)
		require.Equal(t, 3, streams, "the bound of all peers")
		pool.Close()
		_, err := call(t.Context(), pool, hosts[2], "x")
		require.NoError(t, err)
		streams, _ = idle(pool)
		require.Zero(t, streams)
	})
}

func TestServerLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hosts := newHosts(t, 3)
		var refused atomic.Int32
		server := newEcho(t, hosts[2], func(c *ServerConfig) {
			c.Streams, c.StreamsPerPeer = 3, 2
			c.Refused = func() { refused.Add(1) }
		})
		pools := []*Pool{newTestPool(t, hosts[0]), newTestPool(t, hosts[1])}
		answered := func(from int) bool {
			s, err := pools[from].Open(t.Context(), hosts[2].ID())
			return err == nil && s.WriteMessage(bytesOf(nil)) == nil && s.ReadMessage(new(wrapperspb.BytesValue)) == nil
		}
		require.True(t, answered(0))
		require.True(t, answered(0))
		require.False(t, answered(0), "above the limit per peer")
		require.True(t, answered(1))
		require.False(t, answered(1), "above the limit of all peers")
		require.EqualValues(t, 2, refused.Load())
		server.Close()
		require.Empty(t, active(server))
		require.False(t, answered(1))
	})
}

// TestRestingStreams: a server with many streams ends those that only wait for a next request. Nobody notices.
func TestRestingStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hosts := newHosts(t, 5)
		s := newEcho(t, hosts[0], func(c *ServerConfig) { c.Resting = 2 })
		pools := make([]*Pool, 4)
		for i := range pools {
			pools[i] = newTestPool(t, hosts[i+1])
		}
		for range 10 {
			for _, p := range pools {
				text, err := call(t.Context(), p, hosts[0], "x")
				require.NoError(t, err)
				require.Equal(t, "x", text)
				time.Sleep(time.Second)
				require.LessOrEqual(t, len(active(s)), 2)
			}
		}
		require.Len(t, active(s), 2)
	})
}

// Strangers of one address prefix, whatever ids they make, leave places to other prefixes and to known peers.
func TestLimiterShares(t *testing.T) {
	const total = 64
	known := peer.ID("member")
	l := NewLimiter(total, 8, func(id peer.ID) bool { return id == known })
	flood := func(prefix string) (entered int) {
		for i := range 4 * total {
			if l.Enter(streamFrom{peer: peer.ID(fmt.Sprint(prefix, i)), at: "/ip4/" + prefix + ".7/tcp/1"}.open()) {
				entered++
			}
		}
		return entered
	}
	require.Equal(t, 36, flood("198.51.100"), "three quarters of 48 places: 16 are kept for known peers")
	require.Equal(t, 9, flood("203.0.113"), "three quarters of the 12 that are left")
	require.True(t, l.Enter(streamFrom{peer: "honest", at: "/ip4/192.0.2.1/tcp/1"}.open()), "a third prefix finds a place")
	var own []network.Stream
	for range 8 {
		s := streamFrom{peer: known, at: "/ip4/198.51.100.8/tcp/1"}.open()
		require.True(t, l.Enter(s), "a known peer of the flooded prefix")
		own = append(own, s)
	}
	require.False(t, l.Enter(streamFrom{peer: known, at: "/ip4/198.51.100.8/tcp/1"}.open()), "above the limit of one peer")
	for s := range l.streams {
		l.Leave(s)
	}
	l.Leave(own[0])
	require.Empty(t, l.ofPeer)
	require.Empty(t, l.ofPrefix)
	require.Equal(t, 36, flood("198.51.100"))
}

// streamFrom is a stream of a peer at an address.
type streamFrom struct {
	network.Conn
	peer peer.ID
	at   string
}

func (s streamFrom) open() network.Stream                 { return openStream{conn: &s} }
func (s streamFrom) RemotePeer() peer.ID                  { return s.peer }
func (s streamFrom) RemoteMultiaddr() multiaddr.Multiaddr { return multiaddr.StringCast(s.at) }

type openStream struct {
	network.Stream
	conn *streamFrom
}

func (s openStream) Conn() network.Conn { return s.conn }

// A peer that sends half a message, or nothing, does not hold a stream for long.
func TestSlowSender(t *testing.T) {
	for name, tc := range map[string]struct {
		bytes []byte
		after time.Duration
	}{
		"half a message": {append(varint.ToUvarint(100), 1, 2, 3), 10 * time.Second},
		"silence":        {nil, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				hosts := newHosts(t, 2)
				newEcho(t, hosts[1], nil)
				s, err := hosts[0].NewStream(t.Context(), hosts[1].ID(), echo)
				require.NoError(t, err)
				_, err = s.Write(tc.bytes)
				require.NoError(t, err)
				require.NoError(t, s.SetReadDeadline(time.Now().Add(2*time.Minute)))
				start := time.Now()
				_, err = s.Read(make([]byte, 1))
				require.Error(t, err)
				require.InDelta(t, tc.after, time.Since(start), float64(time.Second))
			})
		})
	}
}

// A request that breaks the protocol gets its response, and the stream ends.
func TestMalformedRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hosts := newHosts(t, 2)
		newEcho(t, hosts[1], nil)
		s, err := newTestPool(t, hosts[0]).Open(t.Context(), hosts[1].ID())
		require.NoError(t, err)
		_, err = s.Write(varint.ToUvarint(maxSize + 1))
		require.NoError(t, err)
		resp := new(wrapperspb.BytesValue)
		require.NoError(t, s.ReadMessage(resp))
		require.Equal(t, "too_large", string(resp.Value))
		require.ErrorContains(t, s.WaitMessage(), "EOF")
	})
}

// A peer of another minor version is spoken to, whichever side is the later one, and also if it serves its own
// version only. A peer of another major version is not.
func TestVersionsAreNegotiated(t *testing.T) {
	const later protocol.ID = "/test/echo/1.3.0"
	for name, tc := range map[string]struct {
		client, server protocol.ID
		exact          bool // the server accepts its own id only
		ok             bool
	}{
		"later server":            {echo, later, false, true},
		"later client":            {later, echo, false, true},
		"an exact later server":   {echo, later, true, true},
		"an exact earlier server": {later, echo, true, true},
		"another major version":   {echo, "/test/echo/2.0.0", false, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				hosts := newHosts(t, 2)
				s := newEcho(t, hosts[1], func(c *ServerConfig) { c.Protocol = tc.server })
				if tc.exact {
					hosts[1].SetStreamHandler(tc.server, s.Serve)
				}
				require.NoError(t, hosts[0].Connect(t.Context(), peer.AddrInfo{ID: hosts[1].ID()}))
				time.Sleep(time.Second) // identify
				p := NewPool(PoolConfig{
					Host: hosts[0], Protocol: tc.client, Service: "test", Format: Format{MaxSize: maxSize},
					CallsPerPeer: 4, IdlePerPeer: 2, Idle: 3, IdleFor: 30 * time.Second,
				})
				defer p.Close()
				resp := new(wrapperspb.BytesValue)
				err := p.Call(t.Context(), hosts[1].ID(), bytesOf([]byte("hello")), resp)
				require.Equal(t, tc.ok, err == nil, "%v", err)
				require.Equal(t, tc.ok, string(resp.Value) == "hello")
				require.Equal(t, tc.ok, len(Offered(hosts[0], hosts[1].ID(), tc.client)) > 0)
			})
		})
	}
}

// A refused request of a later version does not cost the stream.
func TestStreamOutlivesAnUnsupportedRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hosts := newHosts(t, 2)
		served := 0
		newEcho(t, hosts[1], func(c *ServerConfig) {
			handler := c.Handler
			c.Handler = func(s *Stream, req proto.Message, malformed error) (proto.Message, error) {
				served++
				require.True(t, malformed == nil || proto.Size(req) == 0, "the handler sees no part of a refused request")
				return handler(s, req, malformed)
			}
		})
		s, err := newTestPool(t, hosts[0]).Open(t.Context(), hosts[1].ID())
		require.NoError(t, err)
		for _, unknown := range []bool{true, false, true} {
			req, resp := bytesOf([]byte("hello")), new(wrapperspb.BytesValue)
			want := "hello"
			if unknown {
				req.ProtoReflect().SetUnknown([]byte{9 << 3, 1})
				want = "unsupported"
			}
			require.NoError(t, s.WriteMessage(req))
			require.NoError(t, s.ReadMessage(resp))
			require.Equal(t, want, string(resp.Value))
		}
		require.Equal(t, 3, served)
	})
}
