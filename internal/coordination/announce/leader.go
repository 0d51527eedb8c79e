package announce

import (
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
	storeTime = 8 * time.Second // for one access to the DHT store
	checking  = time.Second     // between two checks of the lookup schedule
)

// Leader publishes the group while this peer leads. It is for one goroutine.
type Leader struct {
	Store  *DHTStore                 // nil: no DHT
	Info   func() *groupv1.GroupInfo // describes the group now
	Start  func(work func()) bool    // runs work in a goroutine that its owner waits for
	Logger *slog.Logger

	schedule PublishSchedule
}

// Announce publishes changes at once, and repeats an unchanged state from time to time. The schedule keeps two
// publications further apart than the time of one.
func (c *Leader) Announce(ctx context.Context, leads bool) {
	if !leads {
		c.schedule.End()
		return
	}
	if c.Store == nil {
		return
	}
	info := c.Info()
	if !c.schedule.Due(time.Now(), gist(info), rand.Float64()) {
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
