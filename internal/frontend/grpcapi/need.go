package grpcapi

import (
	"slices"
	"strings"

	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/blackhole/blackhole/internal/frontend/xdsapi"
	"github.com/blackhole/blackhole/internal/platform/access"
	agentv1 "github.com/blackhole/blackhole/proto/blackhole/agent/v1"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// Need returns the role that a method, given by its full name, needs: RoleAdmin for unknown
// methods. Config.May restricts callers with RoleService to their own services.
func Need(fullMethod string) access.Role {
	path := strings.TrimPrefix(fullMethod, "/")
	service, method, _ := strings.Cut(path, "/")
	switch service {
	case healthpb.Health_ServiceDesc.ServiceName:
		return access.RoleNone // probes have no credentials
	case "grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection":
		return access.RoleReadOnly
	case agentv1.DiscoveryService_ServiceDesc.ServiceName, discoveryAlone:
		return least(method, []string{"Discover", "ListServices", "ListInstances", "ListRemoved", "Watch"},
			[]string{"Register", "Deregister", "Heartbeat", "SetStatus", "RegisterStream"})
	case api.RecordService_ServiceDesc.ServiceName:
		return least(method, []string{"Get", "List", "Resolve", "Query", "Watch"}, nil)
	case api.PeerService_ServiceDesc.ServiceName:
		return least(method, []string{"Status", "ListPeers", "OpenPage"}, nil)
	case api.TradeService_ServiceDesc.ServiceName:
		return least(method, []string{"Quote"}, []string{"Reserve", "Extend", "Release", "ListGrants", "Connect"})
	case xdsapi.Service:
		return access.RoleReadOnly
	case api.EventService_ServiceDesc.ServiceName:
		return least(method, []string{"Follow"}, nil)
	case api.LockService_ServiceDesc.ServiceName, lockAlone:
		return least(method, []string{"LockInfo", "ListLocks", "LeaseTimeToLive", "ListLeases", "Watch"},
			[]string{"Lock", "TryLock", "Unlock", "LeaseGrant", "LeaseRevoke", "LeaseKeepAlive"})
	case api.CoordinationService_ServiceDesc.ServiceName:
		return least(method, []string{"Range", "Group"},
			[]string{"Txn", "OpenClient", "CloseClient", "SetRequirement", "DeleteRequirement"})
	case coordv1.CallService_ServiceDesc.ServiceName:
		return access.RoleReadOnly // each call of a stream is checked by itself
	}
	return access.RoleAdmin
}

// Names of services without a package. The specifications name no package, so a client made from their text calls them like that.
const (
	discoveryAlone = "DiscoveryService"
	lockAlone      = "LockService"
)

// renamed is a service under another name.
func renamed(desc grpc.ServiceDesc, name string) *grpc.ServiceDesc {
	desc.ServiceName = name
	return &desc
}

// least returns the role for a method that only reads, for a method of services, or for others.
func least(method string, reads, services []string) access.Role {
	switch {
	case slices.Contains(reads, method):
		return access.RoleReadOnly
	case slices.Contains(services, method):
		return access.RoleService
	}
	return access.RoleAdmin
}
