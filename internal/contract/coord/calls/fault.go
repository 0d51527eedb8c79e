package calls

import (
	"errors"
	"io"
	"math"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// Fault converts the error of a call of gRPC to the fault that the server sent, or to a fault
// with the kind of the gRPC code.
func Fault(op string, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, io.EOF) { // a stream ended without a cause
		return fault.As(op, fault.Unavailable, err)
	}
	st, ok := status.FromError(err)
	if !ok {
		return fault.Wrap(op, err)
	}
	for _, d := range st.Details() {
		if e, ok := d.(*apiv1.Error); ok {
			return Restored(op, e, valueOf(st))
		}
	}
	return fault.As(op, kind(st.Code()), errors.New(st.Message()))
}

// Restored returns the peer's fault, with a value that came with it, inside a fault of the
// client, so that the templates of package discovery match. A kind out of range is Internal.
func Restored(op string, e *apiv1.Error, value any) error {
	inner := &fault.Error{Op: e.GetOp(), Field: e.GetField(), Value: value, Err: errors.New(e.GetMessage())}
	if past, ok := value.(*coord.Compacted); ok { // where errors.As finds it
		inner.Value, inner.Err = nil, past
	}
	if k := e.GetKind(); k <= math.MaxUint8 {
		inner.Kind = fault.Kind(k)
	}
	return fault.Wrap(op, inner)
}

// valueOf returns the value beside the error of a status: a time of removal, missing dependencies, terms of a payment, a delay before the
// next attempt, or a compaction.
func valueOf(st *status.Status) any {
	for _, d := range st.Details() {
		switch v := d.(type) {
		case *apiv1.WatchKeysResponse:
			if v.GetCompactRevision() > 0 {
				return CompactedOf(v)
			}
		case *timestamppb.Timestamp:
			return v.AsTime()
		case *durationpb.Duration:
			return v.AsDuration()
		case *wrapperspb.BytesValue:
			return v.GetValue()
		case *structpb.ListValue:
			var list []string
			for _, one := range v.GetValues() {
				list = append(list, one.GetStringValue())
			}
			return list
		}
	}
	return nil
}

// CompactedOf returns what the end of a watch says of dropped history.
func CompactedOf(resp *apiv1.WatchKeysResponse) *coord.Compacted {
	return &coord.Compacted{Revision: coord.Revision(resp.GetCompactRevision()), Current: coord.Revision(resp.GetHeader().GetRevision())}
}

// kind returns the kind of a status that gRPC itself made: only these lack a detail.
func kind(c codes.Code) fault.Kind {
	switch c {
	case codes.Unavailable:
		return fault.Unavailable
	case codes.DeadlineExceeded:
		return fault.Timeout
	case codes.Canceled:
		return fault.Canceled
	case codes.ResourceExhausted:
		return fault.TooLarge
	case codes.Unimplemented:
		return fault.Unsupported
	default:
		return fault.Internal
	}
}
