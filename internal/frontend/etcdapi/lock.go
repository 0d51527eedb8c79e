package etcdapi

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	pb "github.com/blackhole/blackhole/internal/frontend/etcdapi/etcdserverpb"
	"github.com/blackhole/blackhole/internal/frontend/etcdapi/v3electionpb"
	"github.com/blackhole/blackhole/internal/frontend/etcdapi/v3lockpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/frontend/budget"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// Locks and elections are queues of keys, as etcd's library concurrency has them, so that callers of the two services
// and users of the library wait for each other: NAME/LEASE in hexadecimal, and the key with the least create revision
// is first.

const (
	sessionTTL  = 60 // seconds, of a lease that a call without one gets
	leavingTime = 5 * time.Second
)

// place is a key in a queue.
type place struct {
	name, key []byte
	lease     int64
	created   int64 // revision
	value     []byte
	entered   bool               // by this call
	granted   bool               // the lease, for this call: nobody else knows it before the answer
	alone     *pb.ResponseHeader // of the change that put the key, if the queue was empty before
}

// enter puts a key at the end of the queue of a name. A lease with a key there keeps its place. Without a lease it
// grants one, which the caller keeps alive.
func (s *Server) enter(ctx context.Context, name []byte, lease int64, value []byte) (*place, error) {
	p := &place{name: name, lease: lease, value: value}
	if lease == 0 {
		granted, err := s.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: sessionTTL})
		if err != nil {
			return nil, err
		}
		p.lease, p.granted = granted.GetID(), true
	}
	p.key = fmt.Appendf(nil, "%s/%x", name, p.lease)
	absent := func(key, end []byte) []*pb.Compare {
		return []*pb.Compare{{Key: key, RangeEnd: end, Target: pb.Compare_CREATE, TargetUnion: &pb.Compare_CreateRevision{}}}
	}
	put := []*pb.RequestOp{putOp(p.key, value, p.lease)}
	from, to := queue(name).Bounds()
	r, err := s.Txn(ctx, &pb.TxnRequest{
		Compare: absent(from, to), // which looks at one key, however long the queue is
		Success: put,
		Failure: []*pb.RequestOp{{Request: &pb.RequestOp_RequestTxn{RequestTxn: &pb.TxnRequest{
			Compare: absent(p.key, nil), Success: put,
			Failure: []*pb.RequestOp{{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: p.key}}}},
		}}}},
	})
	if err != nil {
		s.giveUp(ctx, p)
		return nil, err
	}
	p.created, p.entered = r.GetHeader().GetRevision(), true
	if r.GetSucceeded() {
		p.alone = r.GetHeader()
	} else if behind := r.GetResponses()[0].GetResponseTxn(); !behind.GetSucceeded() {
		there := behind.GetResponses()[0].GetResponseRange().GetKvs()[0]
		p.created, p.value, p.entered = there.GetCreateRevision(), there.GetValue(), false
	}
	return p, nil
}

// queue returns the keys of a queue.
func queue(name []byte) coord.Span { return coord.Under(string(name) + "/") }

// first waits until a place is the first of its queue, and returns the header of that state and whether its key is still
// there. If the call ends before, the key that it put goes.
func (s *Server) first(ctx context.Context, p *place) (now *pb.ResponseHeader, there bool, err error) {
	if p.alone != nil {
		return p.alone, true, nil
	}
	if now, there, err = s.await(ctx, p); err != nil {
		s.giveUp(ctx, p)
	}
	return now, there, err
}

// giveUp takes back what a call that fails put, and the lease that it got. Otherwise it ends with the lease.
func (s *Server) giveUp(ctx context.Context, p *place) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leavingTime)
	defer cancel()
	if p.granted {
		_, _ = s.LeaseRevoke(ctx, &pb.LeaseRevokeRequest{ID: p.lease})
	} else if p.entered {
		_, _ = s.leave(ctx, p)
	}
}

// await is first, and leaves the key. It counts as a watch. Without a majority it goes on waiting.
func (s *Server) await(ctx context.Context, p *place) (now *pb.ResponseHeader, there bool, err error) {
	release, err := s.watches.TakeWithin(ctx, "etcdapi.Lock", waitBytes, 0)
	if err != nil {
		return nil, false, err
	}
	defer release()
	ctx, cancel := s.untilClosing(ctx)
	defer cancel()
	for {
		reading, room := budget.Growing(ctx, s.Answers, "etcdapi.Lock")
		up, err := s.upTo(reading, p)
		_ = room.To(ctx, 0, 0) // the call may wait for long
		kvs := up.GetKvs()
		ahead := slices.IndexFunc(kvs, func(kv *mvccpb.KeyValue) bool { return kv.GetCreateRevision() < p.created })
		if err == nil && ahead < 0 {
			return up.GetHeader(), slices.ContainsFunc(kvs, func(kv *mvccpb.KeyValue) bool { return bytes.Equal(kv.GetKey(), p.key) }), nil
		}
		if err == nil { // one waits for the last key before it alone: an end wakes one
			err = s.changes(ctx, s.keys.span(kvs[ahead].GetKey(), nil), up.GetHeader().GetRevision(), func(e *apiv1.KeyEvent, _ *pb.ResponseHeader) error {
				if e.GetType() == apiv1.KeyEvent_DELETE {
					return io.EOF
				}
				return nil
			})
		}
		if ctx.Err() != nil {
			return nil, false, s.ended(ctx)
		}
		if err != nil && !s.waits(ctx, err) {
			return nil, false, err
		}
	}
}

// head reads the key of a queue that was created first.
func (s *Server) head(ctx context.Context, name []byte) (*pb.RangeResponse, error) {
	from, to := queue(name).Bounds()
	return s.Range(ctx, &pb.RangeRequest{Key: from, RangeEnd: to, Limit: 1, SortTarget: pb.RangeRequest_CREATE})
}

// upTo reads the keys of a queue up to a place, the last one first, without values: those of a long queue would exceed an
// answer.
func (s *Server) upTo(ctx context.Context, p *place) (*pb.RangeResponse, error) {
	from, to := queue(p.name).Bounds()
	return s.Range(ctx, &pb.RangeRequest{
		Key: from, RangeEnd: to, KeysOnly: true, MaxCreateRevision: p.created, SortTarget: pb.RangeRequest_CREATE, SortOrder: pb.RangeRequest_DESCEND,
	})
}

// changes calls f for each event in a span after a revision, until it returns io.EOF.
func (s *Server) changes(ctx context.Context, in coord.Span, after int64, f func(*apiv1.KeyEvent, *pb.ResponseHeader) error) error {
	ended := false
	w := coord.Watch{Span: in, From: coord.Revision(after + 1)}
	err := s.Service.Watch(ctx, w.Request(), func(b *apiv1.WatchKeysResponse) error {
		for _, e := range b.GetEvents() {
			if err := f(e, header(b.GetHeader())); err != nil {
				ended = err == io.EOF
				return err
			}
		}
		return nil
	})
	if ended {
		return nil
	}
	return err
}

// leave deletes the key of a place, unless it is of another turn.
func (s *Server) leave(ctx context.Context, p *place) (*pb.TxnResponse, error) {
	return s.Txn(ctx, &pb.TxnRequest{
		Compare: []*pb.Compare{p.unchanged()},
		Success: []*pb.RequestOp{{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: &pb.DeleteRangeRequest{Key: p.key}}}},
	})
}

// unchanged compares the create revision of a key with that of the place.
func (p *place) unchanged() *pb.Compare {
	return &pb.Compare{Key: p.key, Target: pb.Compare_CREATE, TargetUnion: &pb.Compare_CreateRevision{CreateRevision: p.created}}
}

func putOp(key, value []byte, lease int64) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: key, Value: value, Lease: lease}}}
}

// Lock implements v3lockpb.LockServer.
func (s *Server) Lock(ctx context.Context, req *v3lockpb.LockRequest) (*v3lockpb.LockResponse, error) {
	p, err := s.enter(ctx, req.GetName(), req.GetLease(), nil)
	if err != nil {
		return nil, err
	}
	now, there, err := s.first(ctx, p)
	switch {
	case err != nil:
		return nil, err
	case !there:
		return nil, status.Error(codes.Unknown, "mutex: session is expired")
	}
	return &v3lockpb.LockResponse{Header: now, Key: p.key}, nil
}

// Unlock implements v3lockpb.LockServer.
func (s *Server) Unlock(ctx context.Context, req *v3lockpb.UnlockRequest) (*v3lockpb.UnlockResponse, error) {
	r, err := s.DeleteRange(ctx, &pb.DeleteRangeRequest{Key: req.GetKey()})
	return &v3lockpb.UnlockResponse{Header: r.GetHeader()}, err
}

// Campaign implements v3electionpb.ElectionServer.
func (s *Server) Campaign(ctx context.Context, req *v3electionpb.CampaignRequest) (*v3electionpb.CampaignResponse, error) {
	p, err := s.enter(ctx, req.GetName(), req.GetLease(), req.GetValue())
	if err == nil && !bytes.Equal(p.value, req.GetValue()) { // it has campaigned before
		_, err = s.proclaim(ctx, p, req.GetValue())
	}
	if err != nil {
		return nil, err
	}
	now, _, err := s.first(ctx, p)
	if err != nil {
		return nil, err
	}
	return &v3electionpb.CampaignResponse{Header: now, Leader: &v3electionpb.LeaderKey{Name: p.name, Key: p.key, Rev: p.created, Lease: p.lease}}, nil
}

// Proclaim implements v3electionpb.ElectionServer.
func (s *Server) Proclaim(ctx context.Context, req *v3electionpb.ProclaimRequest) (*v3electionpb.ProclaimResponse, error) {
	p, err := leading(req.GetLeader())
	if err != nil {
		return nil, err
	}
	now, err := s.proclaim(ctx, p, req.GetValue())
	return &v3electionpb.ProclaimResponse{Header: now}, err
}

func (s *Server) proclaim(ctx context.Context, p *place, value []byte) (*pb.ResponseHeader, error) {
	r, err := s.Txn(ctx, &pb.TxnRequest{Compare: []*pb.Compare{p.unchanged()}, Success: []*pb.RequestOp{putOp(p.key, value, p.lease)}})
	if err == nil && !r.GetSucceeded() {
		err = status.Error(codes.Unknown, "election: not leader")
	}
	return r.GetHeader(), err
}

// Resign implements v3electionpb.ElectionServer. Who leads no more resigns too.
func (s *Server) Resign(ctx context.Context, req *v3electionpb.ResignRequest) (*v3electionpb.ResignResponse, error) {
	p, err := leading(req.GetLeader())
	if err != nil {
		return nil, err
	}
	r, err := s.leave(ctx, p)
	return &v3electionpb.ResignResponse{Header: r.GetHeader()}, err
}

func leading(l *v3electionpb.LeaderKey) (*place, error) {
	if l == nil {
		return nil, status.Error(codes.Unknown, `"leader" field must be provided`)
	}
	return &place{name: l.GetName(), key: l.GetKey(), lease: l.GetLease(), created: l.GetRev()}, nil
}

// Leader implements v3electionpb.ElectionServer.
func (s *Server) Leader(ctx context.Context, req *v3electionpb.LeaderRequest) (*v3electionpb.LeaderResponse, error) {
	r, err := s.head(ctx, req.GetName())
	switch {
	case err != nil:
		return nil, err
	case len(r.GetKvs()) == 0:
		return nil, status.Error(codes.Unknown, "election: no leader")
	}
	return &v3electionpb.LeaderResponse{Header: r.GetHeader(), Kv: r.Kvs[0]}, nil
}

// Observe implements v3electionpb.ElectionServer. It sends each leader with all that it proclaims from then on.
func (s *Server) Observe(req *v3electionpb.LeaderRequest, stream grpc.ServerStreamingServer[v3electionpb.LeaderResponse]) error {
	release, err := s.watches.TakeWithin(stream.Context(), "etcdapi.Observe", waitBytes, 0)
	if err != nil {
		return err
	}
	defer release()
	ctx, cancel := s.untilClosing(stream.Context())
	defer cancel()
	var last *mvccpb.KeyValue
	send := func(kv *mvccpb.KeyValue, at *pb.ResponseHeader) error {
		last = kv
		return stream.Send(&v3electionpb.LeaderResponse{Header: at, Kv: kv})
	}
	for {
		now, err := s.head(ctx, req.GetName())
		leads, in := len(now.GetKvs()) > 0, coord.Span{}
		if leads {
			in = s.keys.span(now.Kvs[0].GetKey(), nil)
			kv := now.Kvs[0]
			told := kv.GetModRevision() == last.GetModRevision() && bytes.Equal(kv.GetKey(), last.GetKey())
			if !told { // before an outage
				err = send(kv, now.GetHeader())
			}
		} else {
			in = coord.Under(string(s.keys) + string(req.GetName()) + "/")
		}
		if err == nil {
			err = s.changes(ctx, in, now.GetHeader().GetRevision(), func(e *apiv1.KeyEvent, at *pb.ResponseHeader) error {
				if put := e.GetType() == apiv1.KeyEvent_PUT; put != leads { // the leader is another one now
					return io.EOF
				} else if put {
					return send(s.keys.kv(e.GetKv()), at)
				}
				return nil
			})
		}
		if ctx.Err() != nil {
			return s.ended(ctx)
		}
		if err != nil && !s.waits(ctx, err) {
			return err
		}
	}
}
