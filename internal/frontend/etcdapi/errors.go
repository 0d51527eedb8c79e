package etcdapi

import (
	"errors"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

// toStatus turns an error of the plane into the one of etcd, with its text, which clients compare. An error that etcd does not
// have keeps its own text. A status and nil stay unchanged.
func toStatus(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	if compacted := new(coord.Compacted); errors.As(err, &compacted) {
		return rpctypes.ErrGRPCCompacted
	}
	field := fault.FieldOf(err)
	switch fault.KindOf(err) {
	case fault.Invalid:
		if field == "at" || strings.HasSuffix(field, "revision") { // of a read, and of one in a transaction
			return rpctypes.ErrGRPCFutureRev
		}
		return own(codes.InvalidArgument, err)
	case fault.NotFound, fault.Gone:
		if strings.HasSuffix(field, "keep_value") || strings.HasSuffix(field, "keep_lease") {
			return rpctypes.ErrGRPCKeyNotFound
		}
		return rpctypes.ErrGRPCLeaseNotFound
	case fault.Exists:
		return rpctypes.ErrGRPCLeaseExist
	case fault.TooLarge:
		return rpctypes.ErrGRPCRequestTooLarge
	case fault.PoolExhausted:
		if pool, _ := fault.PoolOf(err); strings.Contains(pool, "keys") || strings.HasSuffix(pool, "bytes") {
			return rpctypes.ErrGRPCNoSpace
		}
		return rpctypes.ErrGRPCRequestTooManyRequests
	case fault.LimitReached:
		return own(codes.ResourceExhausted, err)
	case fault.Unauthentic:
		return rpctypes.ErrGRPCInvalidAuthToken
	case fault.Forbidden:
		if strings.HasSuffix(field, "lease") { // it belongs to another owner, which is nobody's business
			return rpctypes.ErrGRPCLeaseNotFound
		}
		return rpctypes.ErrGRPCPermissionDenied
	case fault.Timeout:
		return rpctypes.ErrGRPCTimeout
	case fault.Unavailable:
		return rpctypes.ErrGRPCNoLeader
	case fault.Conflict, fault.Unprocessable:
		return own(codes.FailedPrecondition, err)
	case fault.Unsupported:
		return own(codes.Unimplemented, err)
	case fault.Canceled:
		return rpctypes.ErrGRPCCanceled
	}
	return own(codes.Internal, err)
}

// own is an error that etcd does not have.
func own(code codes.Code, err error) error {
	text := fault.Message(err)
	if field := fault.FieldOf(err); field != "" {
		text = field + " " + text
	}
	return status.Error(code, "etcdserver: "+text)
}
