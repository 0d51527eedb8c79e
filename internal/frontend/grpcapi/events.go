package grpcapi

import (
	"context"

	"google.golang.org/grpc"

	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// eventService passes the stream of all events on.
type eventService struct {
	api.UnimplementedEventServiceServer
	server *Server
}

// Follow implements api.EventServiceServer.
func (e *eventService) Follow(r *api.FollowRequest, out grpc.ServerStreamingServer[api.FollowResponse]) error {
	ctx, cancel := context.WithCancel(out.Context())
	defer cancel()
	defer context.AfterFunc(e.server.closing, cancel)()
	return e.server.orClosing(e.server.Web.Events(ctx, r, out.Send))
}
