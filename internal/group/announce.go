package group

import (
	"bytes"
	"context"
	"time"

	"google.golang.org/protobuf/proto"

	groupv1 "github.com/blackhole/blackhole/proto/blackhole/group/v1"
)

const announcing = 30 * time.Second // between two announcements of what has not changed

// crier announces how the group stands, while this peer leads.
type crier struct {
	plane *Plane
	said  []byte // last, without what always moves; nil while this peer does not lead
	at    time.Time
}

// cry announces what has changed since, and from time to time what has not.
func (c *crier) cry(l *local) {
	if c.plane.herald == nil {
		return
	}
	if !l.leads() {
		c.said = nil
		return
	}
	info := c.plane.info()
	news := gist(info)
	if bytes.Equal(news, c.said) && time.Since(c.at) < announcing {
		return
	}
	c.said, c.at = news, time.Now()
	ctx, cancel := context.WithTimeout(c.plane.life, askTime)
	defer cancel()
	if err := c.plane.herald.Announce(ctx, info); err != nil {
		c.plane.Logger.Debug("the group was not announced", "error", err)
	}
}

// gist is what is worth telling at once: who leads in which term, and who is a member.
func gist(info *groupv1.GroupInfo) []byte {
	g := proto.CloneOf(info)
	g.ConfigIndex, g.Applied, g.Revision = 0, 0, 0
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(g)
	if err != nil {
		return nil // it holds no text
	}
	return b
}
