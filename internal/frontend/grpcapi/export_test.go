package grpcapi

import (
	"google.golang.org/grpc/codes"

	"github.com/blackhole/blackhole/pkg/fault"
)

// Code is the table of codes, exported to the test of its completeness.
func Code(k fault.Kind) codes.Code { return code(k) }

// Methods returns the full names of all served methods.
func (s *Server) Methods() []string {
	var all []string
	for service, info := range s.grpc.GetServiceInfo() {
		for _, m := range info.Methods {
			all = append(all, "/"+service+"/"+m.Name)
		}
	}
	return all
}
