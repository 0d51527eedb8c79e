package grpcapi

import (
	"cmp"
	"errors"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/contract/coord"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// pageBytes is the size after which a message ends: most clients of gRPC take 4 MiB.
const pageBytes = 2 << 20

// most returns about the most bytes that a list of the group has. What has one key, lock or lease needs no room before:
// it is read as a whole.
func most(q *coordv1.Question) int {
	const leaseBytes = 512
	switch r := q.GetRequest().(type) {
	case *coordv1.Question_ListLocks:
		return pageBytes
	case *coordv1.Question_ListLeases:
		return min(pageBytes, leaseBytes*cmp.Or(int(r.ListLeases.GetLimit()), 1000))
	case *coordv1.Question_Range:
		if one := !r.Range.GetPrefix() && len(r.Range.GetRangeEnd()) == 0; !one && !r.Range.GetCountOnly() {
			return pageBytes
		}
	}
	return 0
}

// lists reports whether steps of a transaction may answer with many keys.
func lists(steps []*api.TxnStep) bool {
	return slices.ContainsFunc(steps, func(s *api.TxnStep) bool {
		r := s.GetRange()
		many := len(r.GetRangeEnd()) > 0 && !r.GetCountOnly() && r.GetLimit() != 1 || s.GetDelete().GetPrevKv()
		return many || lists(s.GetTxn().GetThen()) || lists(s.GetTxn().GetElse())
	})
}

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

func fromMember(m coord.Member) *api.GroupMember {
	return &api.GroupMember{
		PeerId: m.Peer, MemberId: m.ID, Applied: m.Applied, Active: m.Active,
		Name: m.Name, Address: m.Address, Lag: m.Lag, SilentMs: uint64(max(m.Silent, 0)), EtcdUrl: m.Etcd,
	}
}

// fromCompacted returns a compaction in the form of a watch's answer, or nil.
func fromCompacted(err error) *api.WatchKeysResponse {
	var c *coord.Compacted
	if !errors.As(err, &c) {
		return nil
	}
	return &api.WatchKeysResponse{Header: &api.Header{Revision: int64(c.Current)}, CompactRevision: int64(c.Revision)}
}
