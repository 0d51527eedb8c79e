package grpcapi

import (
	"errors"

	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/pkg/coord"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// pageBytes is the size after which a message ends: most clients of gRPC take 4 MiB.
const pageBytes = 2 << 20

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
