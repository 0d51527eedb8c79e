package client

import (
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

func toMember(m *api.GroupMember) coord.Member {
	return coord.Member{
		Peer: m.GetPeerId(), ID: m.GetMemberId(), Applied: m.GetApplied(), Active: m.GetActive(),
		Name: m.GetName(), Address: m.GetAddress(), Lag: m.GetLag(), Silent: int64(m.GetSilentMs()),
	}
}
