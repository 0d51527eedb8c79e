package trade

import (
	"bytes"
	"io"
	"net"
	"testing"
	"time"

	libp2p "github.com/libp2p/go-libp2p/core/network"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protodelim"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/platform/bounded"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	pb "github.com/blackhole/blackhole/proto/blackhole/trade/v1"
)

// check opens a stream to check what another side sells as gpu.
func (s *side) check(t *testing.T, of *side) (net.Conn, error) {
	t.Helper()
	c, err := Check(t.Context(), s.Host, name, of.Host.ID(), "gpu")
	if err == nil {
		t.Cleanup(func() { _ = c.Close() })
	}
	return c, err
}

// TestStrangersCheck: a stranger without a grant has a handshake with the service. It takes no unit, and its bytes count for no grant.
func TestStrangersCheck(t *testing.T) {
	seller := newSide(t)
	key := seller.sell(t, 4)
	seller.serve(t, echo)
	stranger := newSide(t, seller)
	newSide(t, seller).reserve(t, key)
	c, err := stranger.check(t, seller)
	require.NoError(t, err)
	require.Equal(t, stranger.Host.ID().String(), c.LocalAddr().String())
	require.Equal(t, seller.Host.ID().String(), c.RemoteAddr().String())
	require.Equal(t, "libp2p", c.RemoteAddr().Network())
	_, err = io.WriteString(c, "hello ")
	require.NoError(t, err)
	heard := make([]byte, 6)
	_, err = io.ReadFull(c, heard)
	require.NoError(t, err)
	require.Equal(t, "hello ", string(heard))
	require.NoError(t, c.(checkConn).CloseWrite())
	rest, err := io.ReadAll(c)
	require.NoError(t, err)
	require.Equal(t, "end", string(rest), "each direction ends by itself")
	list, err := seller.ListGrants(t.Context(), nil)
	require.NoError(t, err)
	require.Len(t, list.GetGiven(), 1)
	require.Zero(t, list.GetGiven()[0].GetSentBytes()+list.GetGiven()[0].GetReceivedBytes())
}

// TestBytesRightAfterTheOpening: either side may speak at once, as servers of SSH and of mail do, and nothing of that is lost.
func TestBytesRightAfterTheOpening(t *testing.T) {
	frame := func(m proto.Message, rest string) []byte {
		var b bytes.Buffer
		_, err := protodelim.MarshalTo(&b, m)
		require.NoError(t, err)
		b.WriteString(rest)
		return b.Bytes()
	}
	provider, seller := newSide(t), newSide(t)
	provider.Host.SetStreamHandler(AccessProtocol(name), func(s libp2p.Stream) {
		defer s.Close()
		_, _ = s.Write(frame(&pb.OpenResponse{}, "SSH-2.0-first"))
	})
	buyer := newSide(t, provider, seller)
	s, err := begin(t.Context(), buyer.Host, name, provider.Host.ID(), &pb.OpenRequest{Token: 7})
	require.NoError(t, err)
	heard, err := io.ReadAll(s)
	require.NoError(t, err)
	require.Equal(t, "SSH-2.0-first", string(heard))

	seller.sell(t, 4)
	seller.serve(t, echo)
	s, err = buyer.Host.NewStream(t.Context(), seller.Host.ID(), AccessProtocol(name))
	require.NoError(t, err)
	_, err = s.Write(frame(&pb.OpenRequest{CheckOffer: "gpu"}, "hello "))
	require.NoError(t, err)
	require.NoError(t, s.CloseWrite())
	heard, err = io.ReadAll(s)
	require.NoError(t, err)
	require.Equal(t, string(frame(&pb.OpenResponse{}, "hello end")), string(heard))
}

// TestCheckIsBounded: however much a stranger and a service say, and however long they wait, little goes through.
func TestCheckIsBounded(t *testing.T) {
	t.Run("bytes", func(t *testing.T) {
		seller := newSide(t)
		seller.sell(t, 4)
		heard := make(chan int, 1)
		seller.serve(t, func(c *net.TCPConn) {
			defer c.Close()
			asked, _ := io.ReadAll(c)
			heard <- len(asked)
			_, _ = c.Write(make([]byte, 4*maxAnswered))
		})
		c, err := newSide(t, seller).check(t, seller)
		require.NoError(t, err)
		_, err = c.Write(make([]byte, 4*maxAsked))
		require.NoError(t, err)
		require.Equal(t, maxAsked, <-heard)
		answer, err := io.ReadAll(c)
		require.NoError(t, err, "what came before the bound is whole: a check reads the beginning of an answer")
		require.Len(t, answer, maxAnswered)
	})
	t.Run("time", func(t *testing.T) {
		t.Parallel() // it waits for the bound
		seller := newSide(t)
		seller.sell(t, 4)
		ended := make(chan error, 1)
		seller.serve(t, func(c *net.TCPConn) {
			_, err := io.Copy(io.Discard, c)
			ended <- err
			_ = c.Close()
		})
		c, err := newSide(t, seller).check(t, seller)
		require.NoError(t, err)
		_, _ = io.ReadAll(c)
		require.Error(t, <-ended, "the service, too, sees that the check was cut")
	})
}

// TestCheckOfAResettingService: whoever checks learns that the service closed the connection, and sees no failure of the way.
func TestCheckOfAResettingService(t *testing.T) {
	seller := newSide(t)
	seller.sell(t, 4)
	seller.serve(t, func(c *net.TCPConn) {
		_, _ = c.Read(make([]byte, 1))
		_ = c.SetLinger(0)
		_ = c.Close()
	})
	c, err := newSide(t, seller).check(t, seller)
	require.NoError(t, err)
	_, err = c.Write([]byte("h"))
	require.NoError(t, err)
	answer, err := io.ReadAll(c)
	require.NoError(t, err)
	require.Empty(t, answer)
}

// TestSharesOfChecks: neither a peer nor its prefix uses the service by checks, and a refusal is no word about the service.
func TestSharesOfChecks(t *testing.T) {
	for what, shared := range map[string]bool{"peer": true, "prefix": false} {
		t.Run(what, func(t *testing.T) {
			seller := newSide(t)
			seller.sell(t, 4)
			seller.serve(t, echo)
			seller.Shared, seller.shares = shared, bounded.NewBuckets[string](maxKnown, 0, checkBurst)
			one, other := newSide(t, seller), newSide(t, seller)
			for range checkBurst {
				c, err := one.check(t, seller)
				require.NoError(t, err)
				require.NoError(t, c.(checkConn).CloseWrite())
				_, err = io.ReadAll(c)
				require.NoError(t, err)
			}
			_, err := one.check(t, seller)
			require.ErrorIs(t, err, fault.LimitReached)
			require.ErrorContains(t, err, "was checked 8 times by you or your network, and may be again each 20s")
			require.NotErrorIs(t, err, fault.Gone)
			_, err = other.check(t, seller)
			require.Equal(t, shared, err == nil, "%v", err)
		})
	}
	t.Run("at a time", func(t *testing.T) {
		seller := newSide(t)
		seller.sell(t, 4)
		seller.serve(t, echo)
		one, other := newSide(t, seller), newSide(t, seller)
		for range checksPerPeer {
			_, err := one.check(t, seller)
			require.NoError(t, err)
		}
		_, err := one.check(t, seller)
		require.ErrorIs(t, err, fault.LimitReached)
		require.NotErrorIs(t, err, fault.Gone)
		_, err = other.check(t, seller)
		require.NoError(t, err, "others have places")
	})
}

// TestChecksThatAreNone: what names no service for strangers is refused, and only a service that does not answer is dead.
func TestChecksThatAreNone(t *testing.T) {
	seller := newSide(t)
	stranger := newSide(t, seller)
	_, err := stranger.check(t, seller)
	require.ErrorIs(t, err, fault.NotFound)
	require.NotErrorIs(t, err, fault.Gone)

	seller.sell(t, 4)
	_, err = stranger.check(t, seller)
	require.ErrorIs(t, err, fault.Gone)
	require.ErrorContains(t, err, "check_offer: the provider serves no address for gpu")

	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	_, err = seller.Serve(t.Context(), &api.ServeRequest{Id: "gpu", Address: l.Addr().String()})
	require.NoError(t, err)
	require.NoError(t, l.Close())
	_, err = stranger.check(t, seller)
	require.ErrorIs(t, err, fault.Gone)
	require.ErrorContains(t, err, "check_offer: the service of the provider does not answer its peer")
	require.NotContains(t, err.Error(), l.Addr().String(), "its address stays private")

	_, err = begin(t.Context(), stranger.Host, name, seller.Host.ID(), &pb.OpenRequest{Token: 7, CheckOffer: "gpu"})
	require.ErrorIs(t, err, fault.Invalid)
	require.ErrorContains(t, err, "token: must be 0 beside check_offer")

	now := time.Now()
	r, err := records.Sign(name, seller.key, records.Offer{ID: "gpu", Metadata: records.Metadata{Type: "tool"}}, records.Stamp{Sequence: 1, Issued: now, Expires: now.Add(time.Hour)})
	require.NoError(t, err)
	seller.mu.Lock()
	seller.offers["gpu"] = r
	seller.mu.Unlock()
	seller.serve(t, func(c *net.TCPConn) {
		t.Error("a stranger reached what its offer does not give access to")
		_ = c.Close()
	})
	_, err = stranger.check(t, seller)
	require.ErrorIs(t, err, fault.Unsupported)

	require.NoError(t, seller.Host.Close())
	_, err = stranger.check(t, seller)
	require.Error(t, err)
	require.NotErrorIs(t, err, fault.Gone, "that a peer is gone says nothing about a service")
}
