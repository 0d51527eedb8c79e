// Package answer gives the results and the state of the machine in the messages of the contract.
package answer

import (
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"

	"github.com/blackhole/blackhole/pkg/coord"
)

// Header returns the header of a message.
func Header(h coord.Header) *apiv1.Header {
	return &apiv1.Header{ClusterId: h.Group, MemberId: h.Member, Revision: int64(h.Revision), RaftTerm: h.Term}
}

// Result answers a command that the group has applied. The header has the revision of the result, an older one for a
// repeated command.
func Result(cmd *coordv1.Command, r coord.Result, at coord.Header) *coordv1.Result {
	at.Revision = r.Revision
	h, out := Header(at), &coordv1.Result{}
	switch q := cmd.GetRequest().(type) {
	case *coordv1.Command_Lock:
		out.Response = &coordv1.Result_Lock{Lock: &apiv1.LockResponse{
			Header: h, Key: r.Lock.Key, FencingToken: int64(r.Lock.Token), Acquired: r.Lock.Granted, Count: r.Lock.Count,
		}}
	case *coordv1.Command_TryLock:
		out.Response = &coordv1.Result_TryLock{TryLock: &apiv1.TryLockResponse{
			Header: h, Key: r.Lock.Key, FencingToken: int64(r.Lock.Token), Acquired: r.Lock.Granted, Count: r.Lock.Count,
		}}
	case *coordv1.Command_Unlock:
		out.Response = &coordv1.Result_Unlock{Unlock: &apiv1.UnlockResponse{Header: h, Count: r.Lock.Count}}
	case *coordv1.Command_LeaseGrant:
		out.Response = &coordv1.Result_LeaseGrant{LeaseGrant: &apiv1.LeaseGrantResponse{Header: h, Id: int64(r.Lease), Ttl: r.TTL / 1000, TtlMs: r.TTL}}
	case *coordv1.Command_LeaseRevoke:
		out.Response = &coordv1.Result_LeaseRevoke{LeaseRevoke: &apiv1.LeaseRevokeResponse{Header: h}}
	case *coordv1.Command_Txn:
		out.Response = &coordv1.Result_Txn{Txn: txn(r, h)}
	case *coordv1.Command_PublishInstances:
		out.Response = &coordv1.Result_PublishInstances{PublishInstances: published(q.PublishInstances, r, h)}
	case *coordv1.Command_SetRequirement:
		out.Response = &coordv1.Result_SetRequirement{SetRequirement: &apiv1.SetRequirementResponse{Header: h, Changed: uint32(r.Changed)}}
	case *coordv1.Command_DeleteRequirement:
		out.Response = &coordv1.Result_DeleteRequirement{DeleteRequirement: &apiv1.DeleteRequirementResponse{Header: h}}
	case *coordv1.Command_OpenClient:
		out.Response = &coordv1.Result_OpenClient{OpenClient: &apiv1.OpenClientResponse{Header: h, Client: uint64(r.Client)}}
	case *coordv1.Command_CloseClient:
		out.Response = &coordv1.Result_CloseClient{CloseClient: &apiv1.CloseClientResponse{}}
	default:
		out.Response = &coordv1.Result_Done{Done: &coordv1.Done{
			Header: h, Granted: r.Lock.Granted, Changed: uint32(r.Changed), Ended: each(r.Ended, func(id coord.LeaseID) int64 { return int64(id) }),
		}}
	}
	return out
}

func txn(r coord.Result, h *apiv1.Header) *apiv1.TxnResponse {
	return &apiv1.TxnResponse{
		Header: h, Succeeded: r.Txn.Succeeded, Changed: uint32(r.Changed), Failed: uint32(r.Txn.Failed), Reason: r.Txn.Reason,
		Forgotten: r.Txn.Forgotten, Results: each(r.Txn.Steps, func(s coord.StepResult) *apiv1.TxnStepResult {
			return &apiv1.TxnStepResult{Count: int64(s.Count), Kvs: each(s.Keys, keyVal)}
		}),
	}
}

func published(q *apiv1.PublishInstancesRequest, r coord.Result, h *apiv1.Header) *apiv1.PublishInstancesResponse {
	resp := &apiv1.PublishInstancesResponse{
		Header: h, Changed: uint32(r.Changed), Foreign: each(r.Foreign, func(key string) []byte { return []byte(key) }),
		Since: make([]int64, len(q.GetPuts())),
	}
	for i, e := range q.GetPuts() {
		resp.Since[i] = int64(r.SinceOf(i, coord.Entry{Adopt: e.GetAdopt(), Since: coord.Revision(e.GetSince())}))
	}
	return resp
}

// KeepAlive answers a keepalive with its renewals, in order.
func KeepAlive(all []coord.Renewal, at coord.Header) *coordv1.Result {
	resp := &apiv1.LeaseKeepAliveResponse{Header: Header(at), Id: int64(all[0].ID), Ttl: all[0].TTL / 1000, TtlMs: all[0].TTL}
	for i, r := range all {
		if i > 0 {
			resp.TtlsMs = append(resp.TtlsMs, r.TTL)
		}
		if p := r.Published; p != nil {
			resp.Published = append(resp.Published, &apiv1.Publication{
				LeaseId: int64(r.ID), Generation: p.Generation, Count: uint32(p.Count), High: p.High, Low: p.Low,
			})
		}
	}
	return &coordv1.Result{Response: &coordv1.Result_KeepAlive{KeepAlive: resp}}
}

// Events answers a watch with a batch.
func Events(b coord.Batch, at coord.Header) *apiv1.WatchKeysResponse {
	return &apiv1.WatchKeysResponse{Header: Header(at), NextRevision: int64(b.Next), Events: each(b.Events, func(e coord.Event) *apiv1.KeyEvent {
		out := &apiv1.KeyEvent{Kv: keyVal(e.KV), PrevKv: keyVal(e.Prev)}
		if e.Deletes() {
			out.Type, out.Kv = apiv1.KeyEvent_DELETE, &apiv1.KeyVal{Key: []byte(e.Key), ModRevision: int64(e.Revision)}
		}
		return out
	})}
}

func keyVal(kv *coord.KeyValue) *apiv1.KeyVal {
	if kv == nil {
		return nil
	}
	return &apiv1.KeyVal{
		Key: []byte(kv.Key), Value: kv.Value, CreateRevision: int64(kv.CreateRevision),
		ModRevision: int64(kv.ModRevision), Version: kv.Version, Lease: int64(kv.Lease),
	}
}

func each[From, To any](list []From, one func(From) To) []To {
	if len(list) == 0 {
		return nil
	}
	out := make([]To, len(list))
	for i, v := range list {
		out[i] = one(v)
	}
	return out
}
