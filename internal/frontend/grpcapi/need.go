package grpcapi

import (
	"slices"
	"strings"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	agentv1 "github.com/blackhole/blackhole/proto/blackhole/agent/v1"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// Roles that calls need, by the names of package access.
const (
	needNone    = "none"
	needRead    = "read-only"
	needService = "service"
	needAdmin   = "admin"
)

// Need is the least role that a caller of a method must have, by the full name of the method. It
// is "admin" for methods that are not known. A caller with the role "service" has its own
// services only: that is asked of Config.May.
func Need(fullMethod string) string {
	path := strings.TrimPrefix(fullMethod, "/")
	service, method, _ := strings.Cut(path, "/")
	switch service {
	case healthpb.Health_ServiceDesc.ServiceName:
		return needNone // probes have no credentials
	case "grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection":
		return needRead
	case agentv1.DiscoveryService_ServiceDesc.ServiceName:
		return least(method, []string{"Discover", "ListServices", "ListInstances", "Watch"},
			[]string{"Register", "Deregister", "Heartbeat", "HeartbeatStream", "SetStatus", "RegisterStream"})
	case api.RecordService_ServiceDesc.ServiceName:
		return least(method, []string{"Get", "List", "Resolve", "Query", "Watch"}, nil)
	case api.PeerService_ServiceDesc.ServiceName:
		return least(method, []string{"Status", "ListPeers"}, nil)
	case api.LockService_ServiceDesc.ServiceName:
		return least(method, []string{"LockInfo", "ListLocks", "LeaseTimeToLive", "ListLeases", "Watch"},
			[]string{"Lock", "TryLock", "Unlock", "LeaseGrant", "LeaseRevoke", "LeaseKeepAlive"})
	case api.CoordinationService_ServiceDesc.ServiceName:
		return least(method, []string{"Range", "Group", "Bundle"}, // each call in a bundle is asked about by itself
			[]string{"Write", "OpenClient", "CloseClient", "SetRequirement", "DeleteRequirement"})
	}
	return needAdmin
}

// least is the role for a method that only reads, that a service may call, or neither.
func least(method string, reads, services []string) string {
	switch {
	case slices.Contains(reads, method):
		return needRead
	case slices.Contains(services, method):
		return needService
	}
	return needAdmin
}
