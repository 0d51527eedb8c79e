package etcdapi

import (
	"errors"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/status"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/frontend/grpcapi"
	"github.com/blackhole/blackhole/internal/platform/clean"
	"github.com/blackhole/blackhole/pkg/fault"
)

// toStatus turns an error of the plane into the one of etcd, with its text, which clients compare. An error that etcd
// does not have keeps its own text. A status and nil stay unchanged.
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
	field, kind := fault.FieldOf(err), fault.KindOf(err)
	switch kind {
	case fault.Invalid:
		if field == "at" || strings.HasSuffix(field, "revision") { // of a read, and of one in a transaction
			return rpctypes.ErrGRPCFutureRev
		}
		if strings.HasSuffix(field, ".put") || strings.HasSuffix(field, ".delete") { // two changes of one key
			return rpctypes.ErrGRPCDuplicateKey
		}
	case fault.NotFound, fault.Gone:
		if strings.HasSuffix(field, "revision") { // of a read in a transaction, and of a compaction
			return rpctypes.ErrGRPCCompacted
		}
		if strings.HasSuffix(field, "keep_value") || strings.HasSuffix(field, "keep_lease") {
			return rpctypes.ErrGRPCKeyNotFound
		}
		return rpctypes.ErrGRPCLeaseNotFound
	case fault.Exists:
		return rpctypes.ErrGRPCLeaseExist
	case fault.TooLarge:
		return rpctypes.ErrGRPCRequestTooLarge
	case fault.PoolExhausted:
		if pool, _ := fault.PoolOf(err); pool == "keys" || pool == "bytes" { // those of the group
			return rpctypes.ErrGRPCNoSpace
		}
		return rpctypes.ErrGRPCRequestTooManyRequests
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
	case fault.Canceled:
		return rpctypes.ErrGRPCCanceled
	}
	text := fault.Message(err)
	if field != "" {
		text = field + " " + text
	}
	return status.Error(grpcapi.Code(kind), clean.Message("etcdserver: "+text))
}
