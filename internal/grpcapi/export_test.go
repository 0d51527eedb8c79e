package grpcapi

import (
	"google.golang.org/grpc/codes"

	"github.com/blackhole/blackhole/pkg/fault"
)

// Code is the table, for the test that it is complete.
func Code(k fault.Kind) codes.Code { return code(k) }
