package coordination

import (
	"context"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/coordination/transport"
	"github.com/blackhole/blackhole/internal/platform/condition"
	groupv1 "github.com/blackhole/blackhole/proto/blackhole/group/v1"
)

const (
	rivalInterval = 15 * time.Second // between two looks for other groups
	rivalMemory   = time.Minute      // an other group that was not seen for so long is gone
)

// watchRivals keeps the condition other_group of a peer in a network without founders: a trusted peer with another
// group shares neither locks nor instances with this one.
func (q *inquiry) watchRivals(conditions *condition.Set) {
	if len(q.plane.config.Network.Founders) > 1 {
		return
	}
	var seen time.Time
	for pause(q.plane.life, rivalInterval) {
		rival, found := q.rival()
		switch now := time.Now(); {
		case found:
			seen = now
			conditions.Raise(condition.OtherGroup, "this peer and %s belong to separate coordination groups: a lock of one does not exclude the other, and each lists its own instances; keep one of the two groups", rival)
		case now.Sub(seen) > rivalMemory:
			conditions.Clear(condition.OtherGroup)
		}
	}
}

// rival asks connected peers for their group, and returns one with another group than this peer's.
func (q *inquiry) rival() (peer.ID, bool) {
	ctx, cancel := context.WithTimeout(q.plane.life, askTime)
	defer cancel()
	connected := q.plane.ask.ConnectedPeers()
	question, err := proto.Marshal(&groupv1.InfoRequest{})
	if err != nil {
		return "", false // impossible: the message is empty
	}
	for _, p := range connected[:min(len(connected), maxAsked)] {
		answer, err := q.plane.ask.Ask(ctx, p, transport.Information, question)
		resp := new(groupv1.InfoResponse)
		if err != nil || proto.Unmarshal(answer, resp) != nil {
			continue
		}
		if id := resp.GetInfo().GetGroupId(); len(id) > 0 && q.plane.view.differs(id) && q.plane.roster.trusts(ctx, p) == nil {
			return p, true
		}
	}
	return "", false
}
