package coordination

import (
	"bytes"
	"context"
	"math/rand/v2"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/coordination/announce"
	"github.com/blackhole/blackhole/internal/coordination/pause"
	groupv1 "github.com/blackhole/blackhole/proto/blackhole/group/v1"
)

const (
	announcing = 30 * time.Second // between two announcements without a change
	boardTime  = 8 * time.Second  // for one access to the DHT store
	glance     = time.Second      // between two checks of the lookup schedule
)

// leaderAnnouncer announces and publishes the group while this peer leads.
type leaderAnnouncer struct {
	plane    *Plane
	last     []byte // last announcement, without fields that always move; nil while this peer does not lead
	at       time.Time
	schedule announce.PublishSchedule
	jitter   *rand.Rand
}

// announce sends changes at once, the loss of the leadership included, and repeats an unchanged state from time to time.
func (c *leaderAnnouncer) announce(l *local) {
	if !l.leads() {
		if info := c.plane.inquiry.info(); c.last != nil && info.GetLeader() == 0 {
			c.send(info) // clients would ask for their leader only seconds later
		}
		c.last = nil
		c.schedule.End()
		return
	}
	info := c.plane.inquiry.info()
	news := gist(info)
	c.publish(info, news)
	if bytes.Equal(news, c.last) && time.Since(c.at) < announcing {
		return
	}
	c.last, c.at = news, time.Now()
	c.send(info)
}

// send sends an announcement by GossipSub.
func (c *leaderAnnouncer) send(info *groupv1.GroupInfo) {
	if c.plane.announcer == nil {
		return
	}
	ctx, cancel := context.WithTimeout(c.plane.life, askTime)
	defer cancel()
	if err := c.plane.announcer.Announce(ctx, info); err != nil {
		c.plane.config.Logger.Debug("announcing the group failed", "error", err)
	}
}

// publish writes to the DHT store for peers outside the gossip. The schedule keeps two publications further
// apart than the time of one.
func (c *leaderAnnouncer) publish(info *groupv1.GroupInfo, news []byte) {
	p := c.plane
	if p.dhtStore == nil || !c.schedule.Due(time.Now(), news, c.jitter.Float64()) {
		return
	}
	p.life.start(func() {
		ctx, cancel := context.WithTimeout(p.life, boardTime)
		defer cancel()
		if err := p.dhtStore.Publish(ctx, info); err != nil {
			p.config.Logger.Debug("publishing the group in the DHT failed", "error", err)
		}
	})
}

// watchDHT reads the DHT store after some time without a known leader.
func (p *Plane) watchDHT() {
	board := p.dhtStore
	if board == nil {
		return
	}
	var (
		looking announce.LookupSchedule
		from    peer.ID
		held    *groupv1.GroupInfo // read before its membership made the group known
		jitter  = newRand()
	)
	for pause.For(p.life, glance) {
		if held != nil && p.ID() != "" {
			p.inquiry.recall(from, held)
			held = nil
		}
		if _, leader, _ := p.Leading(); !looking.Due(time.Now(), leader != "", jitter.Float64()) {
			continue
		}
		ctx, cancel := context.WithTimeout(p.life, boardTime)
		by, info, err := board.Lookup(ctx)
		cancel()
		if err != nil {
			p.config.Logger.Debug("the DHT has no new announcement of the group", "error", err)
			continue
		}
		p.config.Logger.Info("found the coordination group in the DHT", "by", by, "term", info.GetTerm())
		if p.inquiry.recall(by, info); p.ID() == "" {
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
