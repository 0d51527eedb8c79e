package calls

import (
	"google.golang.org/protobuf/proto"

	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// MethodOf returns the gRPC method of the request in a command, and the request; "" for a command that only members
// propose. Rights, counters and spans know a call by its method, whether it comes by itself or on a stream.
func MethodOf(cmd *coordv1.Command) (string, proto.Message) {
	switch r := cmd.GetRequest().(type) {
	case *coordv1.Command_Lock:
		return apiv1.LockService_Lock_FullMethodName, r.Lock
	case *coordv1.Command_TryLock:
		return apiv1.LockService_TryLock_FullMethodName, r.TryLock
	case *coordv1.Command_Unlock:
		return apiv1.LockService_Unlock_FullMethodName, r.Unlock
	case *coordv1.Command_LeaseGrant:
		return apiv1.LockService_LeaseGrant_FullMethodName, r.LeaseGrant
	case *coordv1.Command_LeaseRevoke:
		return apiv1.LockService_LeaseRevoke_FullMethodName, r.LeaseRevoke
	case *coordv1.Command_KeepAlive:
		return apiv1.LockService_LeaseKeepAlive_FullMethodName, r.KeepAlive
	case *coordv1.Command_Txn:
		return apiv1.CoordinationService_Txn_FullMethodName, r.Txn
	case *coordv1.Command_PublishInstances:
		return apiv1.CoordinationService_PublishInstances_FullMethodName, r.PublishInstances
	case *coordv1.Command_SetRequirement:
		return apiv1.CoordinationService_SetRequirement_FullMethodName, r.SetRequirement
	case *coordv1.Command_DeleteRequirement:
		return apiv1.CoordinationService_DeleteRequirement_FullMethodName, r.DeleteRequirement
	case *coordv1.Command_OpenClient:
		return apiv1.CoordinationService_OpenClient_FullMethodName, r.OpenClient
	case *coordv1.Command_CloseClient:
		return apiv1.CoordinationService_CloseClient_FullMethodName, r.CloseClient
	}
	return "", nil
}

// MethodOfQuestion is MethodOf for a question; "" for an unknown one.
func MethodOfQuestion(q *coordv1.Question) (string, proto.Message) {
	switch r := q.GetRequest().(type) {
	case *coordv1.Question_LockInfo:
		return apiv1.LockService_LockInfo_FullMethodName, r.LockInfo
	case *coordv1.Question_ListLocks:
		return apiv1.LockService_ListLocks_FullMethodName, r.ListLocks
	case *coordv1.Question_LeaseTimeToLive:
		return apiv1.LockService_LeaseTimeToLive_FullMethodName, r.LeaseTimeToLive
	case *coordv1.Question_ListLeases:
		return apiv1.LockService_ListLeases_FullMethodName, r.ListLeases
	case *coordv1.Question_Range:
		return apiv1.CoordinationService_Range_FullMethodName, r.Range
	}
	return "", nil
}
