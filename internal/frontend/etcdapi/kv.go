package etcdapi

import (
	"context"
	"slices"
	"strconv"

	pb "github.com/blackhole/blackhole/internal/frontend/etcdapi/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
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

// present returns the header of the present state.
func (s *Server) present(ctx context.Context) (*pb.ResponseHeader, error) {
	r, err := coord.Range(ctx, s.Service, &apiv1.RangeRequest{Key: []byte(s.keys.compacted()), Limit: 1})
	return header(r.GetHeader()), err
}

// horizon returns the revision of the last compaction through this front, 0 without one, and when its key was last
// changed.
func (s *Server) horizon(
	ctx context.Context, local bool,
) (compacted, changed int64, now *pb.ResponseHeader, err error) {
	r, err := coord.Range(ctx, s.Service, &apiv1.RangeRequest{Key: []byte(s.keys.compacted()), Limit: 1, Local: local})
	if err != nil {
		return 0, 0, nil, err
	}
	if kvs := r.GetKvs(); len(kvs) > 0 {
		compacted, _ = strconv.ParseInt(string(kvs[0].GetValue()), 10, 64) // another program may have written text, which counts as 0
		changed = kvs[0].GetModRevision()
	}
	return compacted, changed, header(r.GetHeader()), nil
}

// readable refuses a revision that was compacted through this front. Errors: *coord.Compacted.
func (s *Server) readable(ctx context.Context, revision int64, local bool) error {
	if revision <= 0 {
		return nil
	}
	compacted, _, now, err := s.horizon(ctx, local)
	if err == nil && revision < compacted {
		return &coord.Compacted{Revision: coord.Revision(compacted - 1), Current: coord.Revision(now.GetRevision())}
	}
	return err
}

// Range implements etcdserverpb.KVServer. A serializable read is of the nearest member's state, which may be old.
func (s *Server) Range(ctx context.Context, req *pb.RangeRequest) (*pb.RangeResponse, error) {
	if err := checkRange(req); err != nil {
		return nil, err
	}
	if err := s.readable(ctx, req.GetRevision(), req.GetSerializable()); err != nil {
		return nil, err
	}
	return s.read(ctx, req, req.GetRevision(), 0)
}

const (
	pageBytes = 2 << 20 // about as much as a page of a range has
	kvBytes   = 64      // about as much as a version takes beside its key and value
)

// grow takes room for the next page of a range behind what was read. A single key needs none before: there is at most
// one value.
func (s *Server) grow(ctx context.Context, req *pb.RangeRequest, read int) error {
	if req.GetCountOnly() || len(req.GetRangeEnd()) == 0 && read == 0 {
		return nil
	}
	return budget.Grow(ctx, read+pageBytes)
}

// read reads a checked range at a revision, 0: the present. The call has read some bytes before.
func (s *Server) read(
	ctx context.Context, req *pb.RangeRequest, revision int64, before int,
) (*pb.RangeResponse, error) {
	from, to := s.keys.span(req.GetKey(), req.GetRangeEnd()).Bounds()
	order := orders()[req.GetSortTarget()]
	ask := &apiv1.RangeRequest{
		Key: from, RangeEnd: to, Revision: max(revision, 0), KeysOnly: req.GetKeysOnly(), CountOnly: req.GetCountOnly(),
		Order: order, Descending: req.GetSortOrder() == pb.RangeRequest_DESCEND, Local: req.GetSerializable(),
	}
	out := &pb.RangeResponse{}
	limit, size := int(req.GetLimit()), 0
	for {
		if err := s.grow(ctx, req, before+size); err != nil {
			return nil, err
		}
		if limit > 0 && !bounded(req) {
			ask.Limit = uint32(min(limit+1-len(out.Kvs), 1000))
		}
		page, err := coord.Range(ctx, s.Service, ask)
		if err != nil {
			return nil, err
		}
		out.Header, out.Count = header(page.GetHeader()), page.GetCount()
		if req.GetCountOnly() {
			return out, nil
		}
		for _, kv := range page.GetKvs() {
			if within(req, kv) {
				out.Kvs, size = append(out.Kvs, s.keys.kv(kv)), size+kvBytes+len(kv.GetKey())+len(kv.GetValue())
			}
		}
		if before+size > maxAnswer {
			return nil, status.Errorf(codes.ResourceExhausted, "etcdserver: the answer exceeds %d bytes: ask for fewer keys, or with a limit", maxAnswer)
		}
		ask.From, ask.Revision = page.GetNext(), page.GetRevision()
		if len(ask.From) == 0 || limit > 0 && len(out.Kvs) > limit && !bounded(req) {
			return s.limited(ctx, req, out, ask)
		}
	}
}

// limited cuts an answer to its limit, and counts the keys in the whole range.
func (s *Server) limited(ctx context.Context, req *pb.RangeRequest, out *pb.RangeResponse, ask *apiv1.RangeRequest) (*pb.RangeResponse, error) {
	if limit := int(req.GetLimit()); limit > 0 && len(out.Kvs) > limit {
		out.Kvs, out.More = out.Kvs[:limit], true
	}
	if !out.More && !bounded(req) {
		out.Count = int64(len(out.Kvs))
		return out, nil
	}
	all, err := coord.Range(ctx, s.Service, &apiv1.RangeRequest{
		Key: ask.Key, RangeEnd: ask.RangeEnd, Revision: ask.Revision, CountOnly: true, Local: ask.Local,
	})
	out.Count = all.GetCount()
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

// orders translates the property by which keys are sorted.
func orders() map[pb.RangeRequest_SortTarget]apiv1.TxnRange_Order {
	return map[pb.RangeRequest_SortTarget]apiv1.TxnRange_Order{
		pb.RangeRequest_KEY: apiv1.TxnRange_KEY, pb.RangeRequest_VERSION: apiv1.TxnRange_VERSION, pb.RangeRequest_CREATE: apiv1.TxnRange_CREATE_REVISION,
		pb.RangeRequest_MOD: apiv1.TxnRange_MOD_REVISION, pb.RangeRequest_VALUE: apiv1.TxnRange_VALUE,
	}
}

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
// removes nothing: other users of the group need it. A caller needs the right to change the key with the revision. Of
// two compactions at once the later one stands.
func (s *Server) Compact(ctx context.Context, req *pb.CompactionRequest) (*pb.CompactionResponse, error) {
	for {
		compacted, changed, now, err := s.horizon(ctx, false)
		switch {
		case err != nil:
			return nil, err
		case req.GetRevision() <= compacted:
			return nil, rpctypes.ErrGRPCCompacted
		case req.GetRevision() > now.GetRevision():
			return nil, rpctypes.ErrGRPCFutureRev
		}
		key := s.keys.compacted()
		a, err := s.Service.Execute(ctx, coord.CommandOf("", &apiv1.TxnRequest{
			Compare: []*apiv1.Compare{coord.WhileAt(key, coord.Revision(changed))},
			Then:    []*apiv1.TxnStep{coord.PutStep(key, strconv.AppendInt(nil, req.GetRevision(), 10), 0)},
		}))
		if err != nil {
			return nil, err
		}
		if a.GetTxn().GetSucceeded() {
			return &pb.CompactionResponse{Header: header(a.GetTxn().GetHeader())}, nil
		}
	}
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
