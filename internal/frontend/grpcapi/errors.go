package grpcapi

import (
	"errors"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/blackhole/blackhole/internal/platform/access"
	"github.com/blackhole/blackhole/internal/platform/clean"
	"github.com/blackhole/blackhole/pkg/fault"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// Code is the table from kinds of faults to gRPC codes.
func Code(k fault.Kind) codes.Code {
	switch k {
	case fault.Invalid:
		return codes.InvalidArgument
	case fault.NotFound, fault.Gone:
		return codes.NotFound
	case fault.Exists:
		return codes.AlreadyExists
	case fault.LimitReached, fault.TooLarge, fault.PoolExhausted:
		return codes.ResourceExhausted
	case fault.Unauthentic:
		return codes.Unauthenticated
	case fault.Forbidden:
		return codes.PermissionDenied
	case fault.Timeout:
		return codes.DeadlineExceeded
	case fault.Unavailable:
		return codes.Unavailable
	case fault.Conflict, fault.Unprocessable, fault.PaymentRequired:
		return codes.FailedPrecondition
	case fault.Unsupported:
		return codes.Unimplemented
	case fault.Canceled:
		return codes.Canceled
	default:
		return codes.Internal
	}
}

// toStatus turns an error into a status with the kind, field and message as a detail. A second
// detail holds the compacted revisions, the time of a removal, the missing names, or the time to
// retry after. A status and nil stay unchanged.
func toStatus(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	e := toError(err)
	st := status.New(Code(fault.Kind(e.Kind)), clean.Message(err.Error()))
	details := []protoadapt.MessageV1{e}
	if gone := fromCompacted(err); gone != nil {
		details = append(details, gone)
	}
	if v := valueOf(err); v != nil {
		details = append(details, v)
	}
	if detailed, dErr := st.WithDetails(details...); dErr == nil {
		st = detailed
	}
	return st.Err()
}

func toError(err error) *api.Error {
	return &api.Error{
		Kind: uint32(fault.KindOf(err)), Field: clean.Message(fault.FieldOf(err)),
		Message: clean.Message(fault.Message(err)), Op: fault.OpOf(err),
	}
}

// valueOf returns the detail of a removal time, of missing names, of the terms of a payment or of a time to retry after, or nil.
func valueOf(err error) protoadapt.MessageV1 {
	if after, ok := access.RetryAfter(err); ok {
		return protoadapt.MessageV1Of(durationpb.New(after))
	}
	var e *fault.Error
	for errors.As(err, &e) {
		switch v := e.Value.(type) {
		case time.Time:
			return protoadapt.MessageV1Of(timestamppb.New(v))
		case []byte:
			return protoadapt.MessageV1Of(wrapperspb.Bytes(v))
		case []string:
			if list, err := structpb.NewList(convert(v, func(s string) any { return s })); err == nil {
				return protoadapt.MessageV1Of(list)
			}
		}
		err = e.Err
	}
	return nil
}
