package client

import (
	"time"

	"github.com/blackhole/blackhole/pkg/coord"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// convert gives a list in another form; an empty one is nil.
func convert[From, To any](list []From, one func(From) To) []To {
	if len(list) == 0 {
		return nil
	}
	out := make([]To, len(list))
	for i, v := range list {
		out[i] = one(v)
	}
	return out
}

func toHeader(h *api.Header) coord.Header {
	return coord.Header{
		Group: h.GetClusterId(), Member: h.GetMemberId(), Revision: coord.Revision(h.GetRevision()), Term: h.GetRaftTerm(),
	}
}

func toLease(l *api.LeaseState) coord.LeaseState {
	return coord.LeaseState{
		Lease: coord.Lease{
			ID: coord.LeaseID(l.GetId()), TTL: l.GetGrantedTtlMs(), Owner: l.GetClientId(), Application: l.GetApplication(), Granted: l.GetGranted(),
		},
		Tag:       l.GetTag(),
		Remaining: l.GetRemainingMs(), Keys: l.GetKeys(),
	}
}

func toLock(l *api.LockState) coord.LockState {
	claim := func(c *api.LockClaim) coord.ClaimState {
		return coord.ClaimState{
			Claim: coord.Claim{
				Lock: l.GetName(), Holder: c.GetHolderId(), Mode: coord.Mode(c.GetMode()), Permits: c.GetPermits(),
				Count: c.GetCount(), Metadata: c.GetMetadata(),
			},
			Key: c.GetKey(), Lease: coord.LeaseID(c.GetLeaseId()), Token: coord.Token(c.GetFencingToken()),
			Application: c.GetApplication(), ModRevision: coord.Revision(c.GetModRevision()), Version: c.GetVersion(),
			Age: time.Duration(c.GetAgeMs()) * time.Millisecond,
		}
	}
	return coord.LockState{Name: l.GetName(), Holding: convert(l.GetHolding(), claim), Waiting: convert(l.GetWaiting(), claim), LeftOut: int(l.GetLeftOut())}
}

// toKeyValue gives a version of a key; what is not there is nil.
func toKeyValue(kv *api.KeyVal) *coord.KeyValue {
	if kv == nil {
		return nil
	}
	return &coord.KeyValue{
		Key: string(kv.GetKey()), Value: kv.GetValue(), CreateRevision: coord.Revision(kv.GetCreateRevision()),
		ModRevision: coord.Revision(kv.GetModRevision()), Version: kv.GetVersion(), Lease: coord.LeaseID(kv.GetLease()),
	}
}

func toTxn(r *api.TxnResponse) coord.TxnResult {
	return coord.TxnResult{
		Succeeded: r.GetSucceeded(), Failed: int(r.GetFailed()), Reason: r.GetReason(), Forgotten: r.GetForgotten(),
		Steps: convert(r.GetResults(), func(s *api.TxnStepResult) coord.StepResult {
			return coord.StepResult{Count: int(s.GetCount()), Keys: convert(s.GetKvs(), toKeyValue)}
		}),
	}
}

// toEvents gives those of the events that a span contains.
func toEvents(list []*api.KeyEvent, span coord.Span) []coord.Event {
	out := make([]coord.Event, 0, len(list))
	for _, e := range list {
		kv := toKeyValue(e.GetKv())
		if kv == nil || !span.Contains(kv.Key) {
			continue
		}
		ev := coord.Event{Revision: kv.ModRevision, Key: kv.Key, Prev: toKeyValue(e.GetPrevKv())}
		if e.GetType() == api.KeyEvent_PUT {
			ev.KV = kv
		}
		out = append(out, ev)
	}
	return out
}

func toMember(m *api.GroupMember) coord.Member {
	return coord.Member{
		Peer: m.GetPeerId(), ID: m.GetMemberId(), Applied: m.GetApplied(), Active: m.GetActive(),
		Name: m.GetName(), Address: m.GetAddress(), Lag: m.GetLag(), Silent: int64(m.GetSilentMs()),
	}
}
