package etcdapi

import (
	"context"
	"errors"
	"io"
	"strings"

	pb "github.com/blackhole/blackhole/internal/frontend/etcdapi/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// LeaseGrant implements etcdserverpb.LeaseServer. The group raises a short time to live to its least one, and the
// answer says so. A time above its longest is refused: the client would rely on it.
func (s *Server) LeaseGrant(ctx context.Context, req *pb.LeaseGrantRequest) (*pb.LeaseGrantResponse, error) {
	a, err := s.Service.Execute(ctx, coord.CommandOf("", &apiv1.LeaseGrantRequest{Ttl: max(req.GetTTL(), 1), Id: req.GetID(), Application: Front}))
	if err != nil {
		return nil, err
	}
	r := a.GetLeaseGrant()
	if r.GetTtl() < req.GetTTL() {
		_, _ = s.Service.Execute(ctx, coord.CommandOf("", &apiv1.LeaseRevokeRequest{Id: r.GetId()})) // otherwise it ends by itself
		return nil, rpctypes.ErrGRPCLeaseTTLTooLarge
	}
	return &pb.LeaseGrantResponse{Header: header(r.GetHeader()), ID: r.GetId(), TTL: r.GetTtl()}, nil
}

// LeaseRevoke implements etcdserverpb.LeaseServer.
func (s *Server) LeaseRevoke(ctx context.Context, req *pb.LeaseRevokeRequest) (*pb.LeaseRevokeResponse, error) {
	a, err := s.Service.Execute(ctx, coord.CommandOf("", &apiv1.LeaseRevokeRequest{Id: req.GetID()}))
	if err != nil {
		return nil, err
	}
	return &pb.LeaseRevokeResponse{Header: header(a.GetLeaseRevoke().GetHeader())}, nil
}

// LeaseKeepAlive implements etcdserverpb.LeaseServer. Each request has one answer, in order; a lease that has ended
// has the time 0. Without a majority it waits.
func (s *Server) LeaseKeepAlive(stream grpc.BidiStreamingServer[pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse]) error {
	ctx, cancel := s.untilClosing(stream.Context())
	defer cancel()
	received := make(chan *pb.LeaseKeepAliveRequest)
	failed := make(chan error, 1)
	go func() { // ends with the stream's call, which unblocks Recv
		for {
			req, err := stream.Recv()
			if err != nil {
				failed <- err
				return
			}
			select {
			case received <- req:
			case <-ctx.Done():
				return
			}
		}
	}()
	for {
		select {
		case req := <-received:
			a, err := s.Service.Execute(ctx, coord.CommandOf("", &apiv1.LeaseKeepAliveRequest{Id: req.GetID()}))
			for s.waits(ctx, err) {
				a, err = s.Service.Execute(ctx, coord.CommandOf("", &apiv1.LeaseKeepAliveRequest{Id: req.GetID()}))
			}
			switch {
			case ctx.Err() != nil:
				return s.ended(ctx)
			case err != nil:
				return err
			}
			r := a.GetKeepAlive()
			if err := stream.Send(&pb.LeaseKeepAliveResponse{Header: header(r.GetHeader()), ID: req.GetID(), TTL: r.GetTtl()}); err != nil {
				return err
			}
		case err := <-failed:
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		case <-ctx.Done():
			return s.ended(ctx)
		}
	}
}

// untilClosing returns a context that also ends when the server closes.
func (s *Server) untilClosing(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.closing, cancel)
	return ctx, func() { stop(); cancel() }
}

// ended is the error of a stream whose context has ended. Unless the client ended it, it is one after which clients
// try again.
func (s *Server) ended(ctx context.Context) error {
	cause := context.Cause(ctx)
	switch {
	case s.closing.Err() != nil:
		return rpctypes.ErrGRPCStopped
	case cause == ctx.Err():
		return cause
	}
	return status.Error(codes.Unavailable, status.Convert(toStatus(cause)).Message())
}

// LeaseTimeToLive implements etcdserverpb.LeaseServer. A lease that has ended has the time -1.
func (s *Server) LeaseTimeToLive(ctx context.Context, req *pb.LeaseTimeToLiveRequest) (*pb.LeaseTimeToLiveResponse, error) {
	a, err := s.Service.Read(ctx, coord.QuestionOf("", &apiv1.LeaseTimeToLiveRequest{Id: req.GetID()}))
	if fault.KindOf(err) == fault.NotFound {
		now, err := s.readable(ctx, 0)
		return &pb.LeaseTimeToLiveResponse{Header: now, ID: req.GetID(), TTL: -1}, err
	}
	if err != nil {
		return nil, err
	}
	r := a.GetLeaseTimeToLive()
	out := &pb.LeaseTimeToLiveResponse{
		Header: header(r.GetHeader()), ID: req.GetID(), TTL: r.GetLease().GetRemainingMs() / 1000, GrantedTTL: r.GetLease().GetGrantedTtlMs() / 1000,
	}
	for _, key := range r.GetLease().GetKeys() {
		if mine, ok := strings.CutPrefix(key, s.Prefix); ok && req.GetKeys() {
			out.Keys = append(out.Keys, []byte(mine))
		}
	}
	return out, nil
}

// LeaseLeases implements etcdserverpb.LeaseServer. It lists the leases that the caller may use: those of its name, or
// without a name those of all callers of this front without one.
func (s *Server) LeaseLeases(ctx context.Context, _ *pb.LeaseLeasesRequest) (*pb.LeaseLeasesResponse, error) {
	out := &pb.LeaseLeasesResponse{}
	for after := uint64(0); ; {
		a, err := s.Service.Read(ctx, coord.QuestionOf("", &apiv1.ListLeasesRequest{After: after}))
		if err != nil {
			return nil, err
		}
		page := a.GetListLeases()
		out.Header = header(page.GetHeader())
		if len(page.GetLeases()) == 0 {
			return out, nil
		}
		for _, l := range page.GetLeases() {
			if after = l.GetGranted(); l.GetId() > 0 {
				out.Leases = append(out.Leases, &pb.LeaseStatus{ID: l.GetId()})
			}
		}
	}
}
