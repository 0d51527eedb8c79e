// Package answer gives the results and the state of the machine in the messages of the contract.
package answer

import (
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/machine"
)

// Header returns the header of a message.
func Header(h coord.Header) *apiv1.Header {
	return &apiv1.Header{ClusterId: h.Group, MemberId: h.Member, Revision: int64(h.Revision), RaftTerm: h.Term}
}

// KeepAlive answers a keepalive with its renewals, in order.
func KeepAlive(all []machine.Renewal, at coord.Header) *coordv1.Result {
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
		out := &apiv1.KeyEvent{Kv: machine.Message(e.KV), PrevKv: machine.Message(e.Prev)}
		if e.Deletes() {
			out.Type, out.Kv = apiv1.KeyEvent_DELETE, &apiv1.KeyVal{Key: []byte(e.Key), ModRevision: int64(e.Revision)}
		}
		return out
	})}
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
