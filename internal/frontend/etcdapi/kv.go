package etcdapi

import (
	"context"
	"errors"
	"slices"

	pb "github.com/blackhole/blackhole/internal/frontend/etcdapi/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/frontend/budget"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// header returns a header as etcd has it.
func header(h *apiv1.Header) *pb.ResponseHeader {
	return &pb.ResponseHeader{ClusterId: h.GetClusterId(), MemberId: h.GetMemberId(), Revision: h.GetRevision(), RaftTerm: h.GetRaftTerm()}
}

// readable returns the header of the present state. It refuses a revision that is compacted; 0 is the present. Errors:
// *coord.Compacted; Invalid for a future revision.
func (s *Server) readable(ctx context.Context, revision int64) (*pb.ResponseHeader, error) {
	none := s.keys.key([]byte{0}) // to itself: no key
	r, err := coord.Range(ctx, s.Service, &apiv1.RangeRequest{Key: none, RangeEnd: none, Revision: revision, CountOnly: true})
	return header(r.GetHeader()), err
}

// Range implements etcdserverpb.KVServer. A serializable read is of the nearest member's state, which may be old.
func (s *Server) Range(ctx context.Context, req *pb.RangeRequest) (*pb.RangeResponse, error) {
	if err := checkRange(req); err != nil {
		return nil, err
	}
	for {
		out, err := s.read(ctx, req, req.GetRevision(), 0)
		if err == nil || req.GetRevision() > 0 || !errors.As(err, new(*coord.Compacted)) || ctx.Err() != nil {
			return out, err
		} // compacted between two pages
	}
}

// RangeStream implements etcdserverpb.KVServer: a page in each answer, all of one revision. The last one has the header,
// the number of keys and whether there are more.
func (s *Server) RangeStream(req *pb.RangeRequest, stream grpc.ServerStreamingServer[pb.RangeStreamResponse]) error {
	switch err := checkRange(req); {
	case err != nil:
		return err
	case req.GetSortOrder() != pb.RangeRequest_NONE && (req.GetSortTarget() != pb.RangeRequest_KEY || req.GetSortOrder() != pb.RangeRequest_ASCEND):
		return status.Error(codes.Unimplemented, "RangeStream does not support custom sort orders")
	case bounded(req):
		return status.Error(codes.Unimplemented, "RangeStream does not support revision filters")
	}
	ctx := stream.Context()
	all := s.pages(req, req.GetRevision())
	for limit, sent := req.GetLimit(), int64(0); ; {
		if err := s.grow(ctx, req, 0); err != nil {
			return err
		}
		kvs, err := all.next(ctx, sent)
		if err != nil {
			return err
		}
		out := &pb.RangeResponse{Kvs: kvs}
		if limit > 0 && sent+int64(len(kvs)) > limit {
			out.Kvs, out.More = kvs[:limit-sent], true
		}
		sent += int64(len(out.Kvs))
		last := all.ended || out.More
		if last {
			if out.Header, out.Count, err = all.header, sent, nil; out.More || req.GetCountOnly() {
				out.Count, err = all.count(ctx)
			}
		}
		if err == nil {
			err = stream.Send(&pb.RangeStreamResponse{RangeResponse: out})
		}
		if err != nil || last {
			return err
		}
	}
}

// pages are the keys of a checked range at one revision.
type pages struct {
	s      *Server
	req    *pb.RangeRequest
	ask    apiv1.RangeRequest
	header *pb.ResponseHeader // of the state in which the first page was read
	counts int64              // keys so far, before the bounds of revisions leave some out; with CountOnly all
	ended  bool
}

// pages returns the keys of a range at a revision, 0: the present at the first page.
func (s *Server) pages(req *pb.RangeRequest, revision int64) *pages {
	from, to := s.keys.bounds(req.GetKey(), req.GetRangeEnd())
	return &pages{s: s, req: req, ask: apiv1.RangeRequest{
		Key: from, RangeEnd: to, Revision: max(revision, 0), KeysOnly: req.GetKeysOnly(), CountOnly: req.GetCountOnly(),
		Order: order(req.GetSortTarget()), Descending: req.GetSortOrder() == pb.RangeRequest_DESCEND, Local: req.GetSerializable(),
	}}
}

// next reads a page, with one key more than the limit of the range lets it have. had is how many keys came before.
func (p *pages) next(ctx context.Context, had int64) ([]*mvccpb.KeyValue, error) {
	if limit := p.req.GetLimit(); limit > 0 && !bounded(p.req) {
		p.ask.Limit = uint32(min(limit+1-had, 1000))
	}
	page, err := coord.Range(ctx, p.s.Service, &p.ask)
	if err != nil {
		return nil, err
	}
	if p.header == nil {
		p.header = header(page.GetHeader())
	}
	found := page.GetKvs()
	p.ask.From, p.ask.Revision, p.counts = page.GetNext(), page.GetRevision(), p.counts+page.GetCount()+int64(len(found))
	p.ended = len(p.ask.From) == 0 || p.req.GetCountOnly()
	return p.s.keys.kvs(slices.DeleteFunc(found, func(kv *apiv1.KeyVal) bool { return !within(p.req, kv) })), nil
}

// count returns the number of keys in the whole range, without its limit and its bounds of revisions.
func (p *pages) count(ctx context.Context) (int64, error) {
	if p.ended {
		return p.counts, nil
	}
	all, err := coord.Range(ctx, p.s.Service, &apiv1.RangeRequest{
		Key: p.ask.Key, RangeEnd: p.ask.RangeEnd, Revision: p.ask.Revision, CountOnly: true, Local: p.ask.Local,
	})
	return all.GetCount(), err
}

const (
	pageBytes = 2 << 20 // about as much as a page of a range has
	kvBytes   = 64      // about as much as a version takes beside its key and value
)

// grow takes room for the next page of a range behind what was read.
func (s *Server) grow(ctx context.Context, req *pb.RangeRequest, read int) error {
	if !many(req) && read == 0 {
		return nil
	}
	return budget.Grow(ctx, read+pageBytes)
}

// many reports whether a range may have many keys. A single one needs no room before: there is at most one value.
func many(r *pb.RangeRequest) bool {
	return len(r.GetRangeEnd()) > 0 && !r.GetCountOnly() && (r.GetLimit() != 1 || bounded(r))
}

// read reads a checked range at a revision, 0: the present. The call has read some bytes before.
func (s *Server) read(
	ctx context.Context, req *pb.RangeRequest, revision int64, before int,
) (*pb.RangeResponse, error) {
	out, limit, size := &pb.RangeResponse{}, int(req.GetLimit()), 0
	all := s.pages(req, revision)
	enough := func() bool { return limit > 0 && len(out.Kvs) > limit && !bounded(req) }
	for !all.ended && !enough() {
		if err := s.grow(ctx, req, before+size); err != nil {
			return nil, err
		}
		kvs, err := all.next(ctx, int64(len(out.Kvs)))
		if err != nil {
			return nil, err
		}
		for _, kv := range kvs {
			size += kvBytes + len(kv.GetKey()) + len(kv.GetValue())
		}
		if out.Kvs == nil {
			out.Kvs = kvs
		} else {
			out.Kvs = append(out.Kvs, kvs...)
		}
		if before+size > maxAnswer {
			return nil, status.Errorf(codes.ResourceExhausted, "etcdserver: the answer exceeds %d bytes: ask for fewer keys, or with a limit", maxAnswer)
		}
	}
	if limit > 0 && len(out.Kvs) > limit {
		out.Kvs, out.More = out.Kvs[:limit], true
	}
	var err error
	if out.Header, out.Count = all.header, int64(len(out.Kvs)); out.More || bounded(req) || req.GetCountOnly() {
		out.Count, err = all.count(ctx)
	}
	return out, err
}

// bounded reports whether a range leaves out keys by their revisions. The front reads all of them.
func bounded(r *pb.RangeRequest) bool {
	return r.GetMinModRevision() > 0 || r.GetMaxModRevision() > 0 || r.GetMinCreateRevision() > 0 || r.GetMaxCreateRevision() > 0
}

// within reports whether a version lies in the bounds of revisions of a range.
func within(r *pb.RangeRequest, kv *apiv1.KeyVal) bool {
	in := func(revision, least, most int64) bool { return revision >= least && (most == 0 || revision <= most) }
	return in(kv.GetModRevision(), r.GetMinModRevision(), r.GetMaxModRevision()) &&
		in(kv.GetCreateRevision(), r.GetMinCreateRevision(), r.GetMaxCreateRevision())
}

// order translates the checked property by which keys are sorted. It has etcd's numbers.
func order(by pb.RangeRequest_SortTarget) apiv1.TxnRange_Order { return apiv1.TxnRange_Order(by) }

// Put implements etcdserverpb.KVServer.
func (s *Server) Put(ctx context.Context, req *pb.PutRequest) (*pb.PutResponse, error) {
	r, err := s.Txn(ctx, &pb.TxnRequest{Success: []*pb.RequestOp{{Request: &pb.RequestOp_RequestPut{RequestPut: req}}}})
	if err != nil {
		return nil, err
	}
	out := r.GetResponses()[0].GetResponsePut()
	out.Header = r.GetHeader()
	return out, nil
}

// DeleteRange implements etcdserverpb.KVServer.
func (s *Server) DeleteRange(ctx context.Context, req *pb.DeleteRangeRequest) (*pb.DeleteRangeResponse, error) {
	r, err := s.Txn(ctx, &pb.TxnRequest{Success: []*pb.RequestOp{{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: req}}}})
	if err != nil {
		return nil, err
	}
	out := r.GetResponses()[0].GetResponseDeleteRange()
	out.Header = r.GetHeader()
	return out, nil
}

// Compact implements etcdserverpb.KVServer. It hides the history below a revision from the clients of this front, and
// removes nothing: other users of the group need it. A caller needs the right to change all keys of the front.
func (s *Server) Compact(ctx context.Context, req *pb.CompactionRequest) (*pb.CompactionResponse, error) {
	from, to := coord.Under(string(s.keys)).Bounds()
	hide := &apiv1.TxnHide{Key: from, RangeEnd: to, Revision: req.GetRevision()}
	a, err := s.Service.Execute(ctx, coord.CommandOf("", &apiv1.TxnRequest{Then: []*apiv1.TxnStep{{Step: &apiv1.TxnStep_Hide{Hide: hide}}}}))
	if err != nil {
		return nil, err
	}
	return &pb.CompactionResponse{Header: header(a.GetTxn().GetHeader())}, nil
}

// checkRange refuses a range as etcd does.
func checkRange(r *pb.RangeRequest) error {
	if len(r.GetKey()) == 0 {
		return rpctypes.ErrGRPCEmptyKey
	}
	_, knownOrder := pb.RangeRequest_SortOrder_name[int32(r.GetSortOrder())]
	if _, known := pb.RangeRequest_SortTarget_name[int32(r.GetSortTarget())]; !known || !knownOrder {
		return rpctypes.ErrGRPCInvalidSortOption
	}
	return nil
}

func checkPut(r *pb.PutRequest) error {
	switch {
	case len(r.GetKey()) == 0:
		return rpctypes.ErrGRPCEmptyKey
	case r.GetIgnoreValue() && len(r.GetValue()) > 0:
		return rpctypes.ErrGRPCValueProvided
	case r.GetIgnoreLease() && r.GetLease() != 0:
		return rpctypes.ErrGRPCLeaseProvided
	}
	return nil
}

// isRange reports whether an operation only reads.
func isRange(op *pb.RequestOp) bool { return op.GetRequestRange() != nil }

// readOnly reports whether a transaction can be answered by reads alone.
func readOnly(r *pb.TxnRequest) bool {
	return len(r.GetCompare()) == 0 && !slices.ContainsFunc(slices.Concat(r.GetSuccess(), r.GetFailure()), func(op *pb.RequestOp) bool { return !isRange(op) })
}
