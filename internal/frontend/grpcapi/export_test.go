package grpcapi

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
