package grpcapi

import (
	"errors"
	"math"

	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// Bounds of one answer.
const (
	maxListed = 10_000  // keys, locks or leases
	pageBytes = 2 << 20 // after which a page ends: most clients of gRPC take 4 MiB
)

func convert[From, To any](list []From, one func(From) To) []To {
	out := make([]To, len(list))
	for i, v := range list {
		out[i] = one(v)
	}
	return out
}

// fitting gives how many of a list fit a page; one always does.
func fitting[M proto.Message](list []M) int {
	size := 0
	for i, m := range list {
		if size += proto.Size(m); i > 0 && size > pageBytes {
			return i
		}
	}
	return len(list)
}

// toLimit gives every list an end.
func toLimit(n uint32) int {
	if n == 0 {
		return 1000
	}
	return int(min(n, maxListed))
}

func fromHeader(h coord.Header) *api.Header {
	return &api.Header{ClusterId: h.Group, MemberId: h.Member, Revision: int64(h.Revision), RaftTerm: h.Term}
}

func fromLease(l coord.LeaseState) *api.LeaseState {
	return &api.LeaseState{
		Id: int64(l.ID), GrantedTtlMs: l.TTL, RemainingMs: l.Remaining, ClientId: l.Owner, Keys: l.Keys,
		Application: l.Application, Tag: l.Tag, Granted: l.Granted,
	}
}

func fromLock(l coord.LockState) *api.LockState {
	return &api.LockState{Name: l.Name, Holding: convert(l.Holding, fromClaim), Waiting: convert(l.Waiting, fromClaim), LeftOut: uint32(l.LeftOut)}
}

func fromClaim(c coord.ClaimState) *api.LockClaim {
	return &api.LockClaim{
		Key: c.Key, HolderId: c.Holder, LeaseId: int64(c.Lease), FencingToken: int64(c.Token),
		ModRevision: int64(c.ModRevision), Version: c.Version, Metadata: c.Metadata, Application: c.Application,
		Mode: api.ShareMode(c.Mode), Permits: c.Permits, Count: c.Count, AgeMs: c.Age.Milliseconds(),
	}
}

func fromKeyValue(kv *coord.KeyValue) *api.KeyVal {
	if kv == nil {
		return nil
	}
	return &api.KeyVal{
		Key: []byte(kv.Key), Value: kv.Value, CreateRevision: int64(kv.CreateRevision),
		ModRevision: int64(kv.ModRevision), Version: kv.Version, Lease: int64(kv.Lease),
	}
}

func fromKeyEvent(e coord.Event) *api.KeyEvent {
	out := &api.KeyEvent{Kv: fromKeyValue(e.KV), PrevKv: fromKeyValue(e.Prev)}
	if e.Deletes() {
		out.Type = api.KeyEvent_DELETE
		out.Kv = &api.KeyVal{Key: []byte(e.Key), ModRevision: int64(e.Revision)}
	}
	return out
}

func fromMember(m coord.Member) *api.GroupMember {
	return &api.GroupMember{
		PeerId: m.Peer, MemberId: m.ID, Applied: m.Applied, Active: m.Active,
		Name: m.Name, Address: m.Address, Lag: m.Lag, SilentMs: uint64(max(m.Silent, 0)),
	}
}

func toSpan(req *api.RangeRequest) (coord.Span, error) {
	switch key := string(req.GetKey()); {
	case req.GetPrefix() && len(req.GetRangeEnd()) > 0:
		return coord.Span{}, fault.Invalidf("range_end", nil, "does not go with prefix")
	case req.GetPrefix():
		return coord.Under(key), nil
	case len(req.GetRangeEnd()) > 0:
		return coord.SpanOf(req.GetKey(), req.GetRangeEnd()), nil
	case key == "":
		return coord.Span{}, fault.Invalidf("key", nil, "is missing")
	default:
		return coord.Exactly(key), nil
	}
}

// toOrder gives an order. One beyond the range of its type stays unknown.
func toOrder(o api.TxnRange_Order) coord.Order { return coord.Order(min(uint32(o), math.MaxUint8)) }

// toWatch gives the watch that a request asks for.
func toWatch(req *api.WatchKeysRequest) coord.Watch {
	w := coord.Watch{Span: coord.Exactly(req.GetKey()), From: coord.Revision(req.GetStartRevision()), Prev: req.GetPrevKv()}
	if req.GetPrefix() {
		w.Span = coord.Under(req.GetKey())
	}
	return w
}

// fromCompacted returns a compaction in the form of a watch's answer, or nil.
func fromCompacted(err error) *api.WatchKeysResponse {
	var c *coord.Compacted
	if !errors.As(err, &c) {
		return nil
	}
	return &api.WatchKeysResponse{Header: &api.Header{Revision: int64(c.Current)}, CompactRevision: int64(c.Revision)}
}
