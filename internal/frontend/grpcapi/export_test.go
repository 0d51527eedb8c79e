package grpcapi

import (
	"google.golang.org/grpc/codes"

	"github.com/blackhole/blackhole/pkg/fault"
)

// Code is the table, for the test that it is complete.
func Code(k fault.Kind) codes.Code { return code(k) }

// Methods are the full names of all methods that are served.
func (s *Server) Methods() []string {
	var all []string
	for service, info := range s.grpc.GetServiceInfo() {
		for _, m := range info.Methods {
			all = append(all, "/"+service+"/"+m.Name)
		}
	}
	return all
}
