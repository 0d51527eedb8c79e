package announce

import (
	"bytes"
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/platform/pause"
	groupv1 "github.com/blackhole/blackhole/proto/blackhole/group/v1"
)

const (
	repeating = 30 * time.Second // between two announcements without a change
	sendTime  = 2 * time.Second  // for one announcement
	storeTime = 8 * time.Second  // for one access to the DHT store
	checking  = time.Second      // between two checks of the lookup schedule
)

// Leader announces and publishes the group while this peer leads. It is for one goroutine.
type Leader struct {
	Announcer *Announcer                // nil: no gossip
	Store     *DHTStore                 // nil: no DHT
	Info      func() *groupv1.GroupInfo // describes the group now
	Start     func(work func()) bool    // runs work in a goroutine that its owner waits for
	Logger    *slog.Logger

	last     []byte // last announcement, without fields that always move; nil while this peer does not lead
	at       time.Time
	schedule PublishSchedule
}

// Announce sends changes at once, the loss of the leadership included, and repeats an unchanged state from time to time.
func (c *Leader) Announce(ctx context.Context, leads bool) {
	info := c.Info()
	if !leads {
		if c.last != nil && info.GetLeader() == 0 {
			c.send(ctx, info) // clients would ask for their leader only seconds later
		}
		c.last = nil
		c.schedule.End()
		return
	}
	news := gist(info)
	c.publish(ctx, info, news)
	if bytes.Equal(news, c.last) && time.Since(c.at) < repeating {
		return
	}
	c.last, c.at = news, time.Now()
	c.send(ctx, info)
}

// send sends an announcement by GossipSub.
func (c *Leader) send(ctx context.Context, info *groupv1.GroupInfo) {
	if c.Announcer == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, sendTime)
	defer cancel()
	if err := c.Announcer.Announce(ctx, info); err != nil {
		c.Logger.Debug("announcing the group failed", "error", err)
	}
}

// publish writes to the DHT store for peers outside the gossip. The schedule keeps two publications further
// apart than the time of one.
func (c *Leader) publish(ctx context.Context, info *groupv1.GroupInfo, news []byte) {
	if c.Store == nil || !c.schedule.Due(time.Now(), news, rand.Float64()) {
		return
	}
	c.Start(func() {
		ctx, cancel := context.WithTimeout(ctx, storeTime)
		defer cancel()
		if err := c.Store.Publish(ctx, info); err != nil {
			c.Logger.Debug("publishing the group in the DHT failed", "error", err)
		}
	})
}

// Reader reads the DHT store after some time without a known leader.
type Reader struct {
	Known    func() bool // the group is known
	Led      func() bool // a leader is known
	Received func(from peer.ID, info *groupv1.GroupInfo)
	Logger   *slog.Logger
}

// Run reads until ctx ends. A description that made the group known is received twice: before, and after.
func (r *Reader) Run(ctx context.Context, store *DHTStore) {
	var (
		looking LookupSchedule
		from    peer.ID
		held    *groupv1.GroupInfo // read before its membership made the group known
	)
	for pause.For(ctx, checking) {
		if held != nil && r.Known() {
			r.Received(from, held)
			held = nil
		}
		if !looking.Due(time.Now(), r.Led(), rand.Float64()) {
			continue
		}
		bounded, cancel := context.WithTimeout(ctx, storeTime)
		by, info, err := store.Lookup(bounded)
		cancel()
		if err != nil {
			r.Logger.Debug("the DHT has no new announcement of the group", "error", err)
			continue
		}
		r.Logger.Info("found the coordination group in the DHT", "by", by, "term", info.GetTerm())
		if r.Received(by, info); !r.Known() {
			from, held = by, info
		}
	}
}

// gist extracts the facts worth an immediate announcement: leader, term, members, and the end of the group.
func gist(info *groupv1.GroupInfo) []byte {
	g := proto.CloneOf(info)
	g.ConfigIndex, g.Applied, g.Revision = 0, 0, 0
	if g.Standing != nil {
		g.Standing.UserData, g.Standing.Reached = false, 0
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(g)
	if err != nil {
		return nil // impossible: it holds no text
	}
	return b
}
