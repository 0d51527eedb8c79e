package operator

import (
	"context"
	"fmt"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/blackhole/blackhole/pkg/fault"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// reporter is a peer that breaks its first stream of events. Its second continues, and then refuses.
type reporter struct {
	api.UnimplementedEventServiceServer
	asked chan *api.FollowRequest
}

func (r reporter) Follow(req *api.FollowRequest, out grpc.ServerStreamingServer[api.FollowResponse]) error {
	r.asked <- req
	if req.GetAfter() == "" {
		if err := out.Send(&api.FollowResponse{Id: "7", Data: []byte(`{"kind":"past","notes":[]}`)}); err != nil {
			return err
		}
		return status.Error(codes.Unavailable, "the peer is shutting down")
	}
	if err := out.Send(&api.FollowResponse{Id: "8", Data: []byte(`{"kind":"change","notes":[{"kind":"leader","text":"b leads"}]}`)}); err != nil {
		return err
	}
	return status.Error(codes.Unimplemented, "later")
}

func reporting(t *testing.T) (*Client, reporter) {
	l, s, r := bufconn.Listen(1<<16), grpc.NewServer(), reporter{asked: make(chan *api.FollowRequest, 8)}
	api.RegisterEventServiceServer(s, r)
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() { s.Stop(); require.NoError(t, <-done) })
	c, err := New("passthrough:///peer", Dial(grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
		return l.DialContext(ctx)
	})))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c, r
}

// TestEventsContinue: a broken stream continues at the last id, and a lasting error ends it.
func TestEventsContinue(t *testing.T) {
	c, r := reporting(t)
	var events []string
	var last error
	for e, err := range c.Events(t.Context(), EventQuery{Since: "1h"}) {
		if last = err; err == nil {
			events = append(events, fmt.Sprint(e.ID, " ", len(e.Notes)))
		}
	}
	require.Equal(t, []string{"7 0", "8 1"}, events)
	require.ErrorIs(t, last, fault.Unsupported)
	first, second := <-r.asked, <-r.asked
	require.Equal(t, []string{"", "1h"}, []string{first.GetAfter(), first.GetSince()})
	require.Equal(t, "7", second.GetAfter())
}

func TestEventsEndWithTheLoop(t *testing.T) {
	c, r := reporting(t)
	for _, err := range c.Events(t.Context(), EventQuery{}) {
		require.NoError(t, err)
		break
	}
	<-r.asked
	require.Empty(t, r.asked, "no second stream")
}
