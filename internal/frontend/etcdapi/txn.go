package etcdapi

import (
	"context"
	"slices"

	pb "github.com/blackhole/blackhole/internal/frontend/etcdapi/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/frontend/budget"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// maxOps bounds the comparisons and the operations of each branch of a transaction, as etcd does. One within it has
// what is left.
const maxOps = 128

// Txn implements etcdserverpb.KVServer. A transaction without comparisons that only reads costs no entry of the log.
func (s *Server) Txn(ctx context.Context, req *pb.TxnRequest) (*pb.TxnResponse, error) {
	if err := checkTxn(req, maxOps); err != nil {
		return nil, err
	}
	if readOnly(req) {
		return s.readAll(ctx, req.GetSuccess())
	}
	if ranges(req) {
		if err := budget.Grow(ctx, 2*pageBytes); err != nil { // of what it reads the group gives no more
			return nil, err
		}
	}
	t := s.branches(req)
	a, err := s.Service.Execute(ctx, coord.CommandOf("", &apiv1.TxnRequest{Compare: t.GetCompare(), Then: t.GetThen(), Else: t.GetElse()}))
	if err != nil {
		return nil, err
	}
	r := a.GetTxn()
	return s.answer(req, r.GetSucceeded(), r.GetResults(), header(r.GetHeader())), nil
}

// ranges reports whether a transaction may answer with many keys.
func ranges(req *pb.TxnRequest) bool {
	return slices.ContainsFunc(slices.Concat(req.GetSuccess(), req.GetFailure()), func(op *pb.RequestOp) bool {
		return many(op.GetRequestRange()) || op.GetRequestDeleteRange().GetPrevKv() || ranges(op.GetRequestTxn())
	})
}

// branches translates a checked transaction, or one within it.
func (s *Server) branches(req *pb.TxnRequest) *apiv1.TxnBranch {
	t := &apiv1.TxnBranch{Then: s.steps(req.GetSuccess()), Else: s.steps(req.GetFailure())}
	for _, c := range req.GetCompare() {
		t.Compare = append(t.Compare, s.compare(c))
	}
	return t
}

// answer translates the results of a transaction, or of one within it.
func (s *Server) answer(req *pb.TxnRequest, succeeded bool, results []*apiv1.TxnStepResult, at *pb.ResponseHeader) *pb.TxnResponse {
	taken := req.GetSuccess()
	if !succeeded {
		taken = req.GetFailure()
	}
	out := &pb.TxnResponse{Header: at, Succeeded: succeeded}
	for i, result := range results {
		out.Responses = append(out.Responses, s.response(taken[i], result, at))
	}
	return out
}

// readAll answers reads at one revision.
func (s *Server) readAll(ctx context.Context, ops []*pb.RequestOp) (*pb.TxnResponse, error) {
	now, err := s.readable(ctx, 0)
	if err != nil {
		return nil, err
	}
	out, size := &pb.TxnResponse{Header: now, Succeeded: true}, 0
	for _, op := range ops {
		req := op.GetRequestRange()
		at := req.GetRevision()
		if at <= 0 {
			at = now.GetRevision()
		}
		r, err := s.read(ctx, req, at, size)
		if err != nil {
			return nil, err
		}
		size += proto.Size(r)
		r.Header = now
		out.Responses = append(out.Responses, &pb.ResponseOp{Response: &pb.ResponseOp_ResponseRange{ResponseRange: r}})
	}
	return out, nil
}

// checkTxn refuses a transaction as etcd does. The group refuses two changes of one key.
func checkTxn(req *pb.TxnRequest, most int) error {
	ops := max(len(req.GetCompare()), len(req.GetSuccess()), len(req.GetFailure()))
	if ops > most {
		return rpctypes.ErrGRPCTooManyOps
	}
	for _, c := range req.GetCompare() {
		if len(c.GetKey()) == 0 {
			return rpctypes.ErrGRPCEmptyKey
		}
	}
	for _, op := range slices.Concat(req.GetSuccess(), req.GetFailure()) {
		if err := checkOp(op, most-ops); err != nil {
			return err
		}
	}
	return nil
}

// checkOp refuses an operation, and in a transaction within more operations than are left.
func checkOp(op *pb.RequestOp, left int) error {
	switch r := op.GetRequest().(type) {
	case *pb.RequestOp_RequestRange:
		return checkRange(r.RequestRange)
	case *pb.RequestOp_RequestPut:
		return checkPut(r.RequestPut)
	case *pb.RequestOp_RequestDeleteRange:
		if len(r.RequestDeleteRange.GetKey()) == 0 {
			return rpctypes.ErrGRPCEmptyKey
		}
		return nil
	case *pb.RequestOp_RequestTxn:
		return checkTxn(r.RequestTxn, left)
	}
	return rpctypes.ErrGRPCKeyNotFound // of etcd for an operation that is empty
}

// compare translates a comparison.
func (s *Server) compare(c *pb.Compare) *apiv1.Compare {
	from, to := s.keys.bounds(c.GetKey(), c.GetRangeEnd())
	out := &apiv1.Compare{Key: from, RangeEnd: to}
	switch c.GetResult() {
	case pb.Compare_EQUAL:
		out.Operator = apiv1.Compare_EQUAL
	case pb.Compare_NOT_EQUAL:
		out.Operator = apiv1.Compare_NOT_EQUAL
	case pb.Compare_LESS:
		out.Operator = apiv1.Compare_LESS
	case pb.Compare_GREATER:
		out.Operator = apiv1.Compare_GREATER
	default:
		out.Operator = -1 // the group refuses it
	}
	switch c.GetTarget() {
	case pb.Compare_VERSION:
		out.Target, out.Number = apiv1.Compare_VERSION, c.GetVersion()
	case pb.Compare_CREATE:
		out.Target, out.Number = apiv1.Compare_CREATE_REVISION, c.GetCreateRevision()
	case pb.Compare_MOD:
		out.Target, out.Number = apiv1.Compare_MOD_REVISION, c.GetModRevision()
	case pb.Compare_LEASE:
		out.Target, out.Number = apiv1.Compare_LEASE, c.GetLease()
	case pb.Compare_VALUE:
		out.Target, out.Value = apiv1.Compare_VALUE, c.GetValue()
	default:
		out.Target = -1 // the group refuses it
	}
	return out
}

// steps translates the checked operations of a branch.
func (s *Server) steps(ops []*pb.RequestOp) []*apiv1.TxnStep {
	steps := make([]*apiv1.TxnStep, len(ops))
	for i, op := range ops {
		steps[i] = &apiv1.TxnStep{}
		switch r := op.GetRequest().(type) {
		case *pb.RequestOp_RequestPut:
			p := r.RequestPut
			steps[i].Step = &apiv1.TxnStep_Put{Put: &apiv1.TxnPut{
				Key: s.keys.key(p.GetKey()), Value: p.GetValue(), Lease: p.GetLease(), PrevKv: p.GetPrevKv(), KeepValue: p.GetIgnoreValue(), KeepLease: p.GetIgnoreLease(),
			}}
		case *pb.RequestOp_RequestDeleteRange:
			d := r.RequestDeleteRange
			from, to := s.keys.bounds(d.GetKey(), d.GetRangeEnd())
			steps[i].Step = &apiv1.TxnStep_Delete{Delete: &apiv1.TxnDelete{Key: from, RangeEnd: to, PrevKv: d.GetPrevKv()}}
		case *pb.RequestOp_RequestRange:
			q := r.RequestRange
			from, to := s.keys.bounds(q.GetKey(), q.GetRangeEnd())
			steps[i].Step = &apiv1.TxnStep_Range{Range: &apiv1.TxnRange{
				Key: from, RangeEnd: to, Revision: max(q.GetRevision(), 0), Limit: uint32(min(max(q.GetLimit(), 0), 1<<30)), Order: order(q.GetSortTarget()),
				Descending: q.GetSortOrder() == pb.RangeRequest_DESCEND, KeysOnly: q.GetKeysOnly(), CountOnly: q.GetCountOnly(),
				MinModRevision: q.GetMinModRevision(), MaxModRevision: q.GetMaxModRevision(),
				MinCreateRevision: q.GetMinCreateRevision(), MaxCreateRevision: q.GetMaxCreateRevision(),
			}}
		case *pb.RequestOp_RequestTxn:
			steps[i].Step = &apiv1.TxnStep_Txn{Txn: s.branches(r.RequestTxn)}
		}
	}
	return steps
}

// response translates the result of an operation.
func (s *Server) response(op *pb.RequestOp, r *apiv1.TxnStepResult, at *pb.ResponseHeader) *pb.ResponseOp {
	kvs := s.keys.kvs(r.GetKvs())
	switch op.GetRequest().(type) {
	case *pb.RequestOp_RequestPut:
		put := &pb.PutResponse{Header: at}
		if len(kvs) > 0 {
			put.PrevKv = kvs[0]
		}
		return &pb.ResponseOp{Response: &pb.ResponseOp_ResponsePut{ResponsePut: put}}
	case *pb.RequestOp_RequestDeleteRange:
		return &pb.ResponseOp{Response: &pb.ResponseOp_ResponseDeleteRange{ResponseDeleteRange: &pb.DeleteRangeResponse{Header: at, Deleted: r.GetCount(), PrevKvs: kvs}}}
	case *pb.RequestOp_RequestTxn:
		return &pb.ResponseOp{Response: &pb.ResponseOp_ResponseTxn{ResponseTxn: s.answer(op.GetRequestTxn(), r.GetSucceeded(), r.GetResults(), at)}}
	}
	return &pb.ResponseOp{Response: &pb.ResponseOp_ResponseRange{ResponseRange: &pb.RangeResponse{
		Header: at, Kvs: kvs, Count: r.GetCount(), More: r.GetMore(),
	}}}
}
