package join

import (
	"context"
	"log/slog"
	"time"

	"github.com/libp2p/go-libp2p/core/event"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/host/eventbus"

	"github.com/blackhole/blackhole/pkg/fault"
	names "github.com/blackhole/blackhole/pkg/network"
)

const (
	// farewell is the time between the refusal of a peer and the end of its connections. Both sides read the other
	// one's network from it, and can say why they part.
	farewell = 2 * time.Second
	// maxParting bounds the refused peers that are still connected. Beyond it a refused peer is disconnected at once.
	maxParting = 256
	// refusalPause is the time between two log lines about refused peers.
	refusalPause = time.Minute
)

// Border keeps peers of other networks out. Two networks share no protocol but those of libp2p itself, so a
// connection between them is of no use. A peer names its network in identify. A program of
// another project names none: it is let in, and never becomes a member.
type Border struct {
	host    host.Host
	name    names.Name
	log     *slog.Logger
	refused func()             // is called for each refused peer
	seen    event.Subscription // to peers that identified themselves

	// The goroutine of Run owns the fields below.
	logged  time.Time // of the last line
	count   int       // refused peers since the last line
	parting []parting // in order of their end
}

// parting is a refused peer and the end of its connections.
type parting struct {
	peer peer.ID
	end  time.Time
}

// NewBorder follows the peers that identify themselves to a host. The caller runs Run.
func NewBorder(h host.Host, name names.Name, log *slog.Logger, refused func()) (*Border, error) {
	sub, err := h.EventBus().Subscribe(new(event.EvtPeerIdentificationCompleted), eventbus.BufSize(256), eventbus.Name("blackhole/border"))
	return &Border{host: h, name: name, log: log, refused: refused, seen: sub}, err
}

// Run refuses peers until ctx ends.
func (b *Border) Run(ctx context.Context) {
	defer b.seen.Close()
	tick := time.NewTicker(farewell)
	defer tick.Stop()
	for {
		select {
		case e := <-b.seen.Out():
			if e, ok := e.(event.EvtPeerIdentificationCompleted); ok {
				b.examine(e, time.Now())
			}
		case now := <-tick.C:
			b.part(now)
		case <-ctx.Done():
			return
		}
	}
}

// examine refuses the peer of another network.
func (b *Border) examine(e event.EvtPeerIdentificationCompleted, now time.Time) {
	other, ok := names.Identified(e.ProtocolVersion)
	if !ok || other == b.name {
		return
	}
	b.refused()
	b.count++
	if now.Sub(b.logged) >= refusalPause {
		b.log.Warn("refused a peer of another network: it names a network other than this peer's", "network", b.name.String(),
			"other", other.String(), "peer", e.Peer, "address", e.Conn.RemoteMultiaddr().String(), "refused", b.count)
		b.logged, b.count = now, 0
	}
	if len(b.parting) < maxParting {
		b.parting = append(b.parting, parting{e.Peer, now.Add(farewell)})
		return
	}
	_ = b.host.Network().ClosePeer(e.Peer) // it fails for a connection that has ended
}

// part ends the connections of refused peers whose time has come.
func (b *Border) part(now time.Time) {
	due := 0
	for due < len(b.parting) && !b.parting[due].end.After(now) {
		due++
	}
	ended := b.parting[:due]
	b.parting = b.parting[due:]
	for _, p := range ended {
		if b.check(p.peer) != nil { // it may have come back under another name
			_ = b.host.Network().ClosePeer(p.peer)
		}
	}
}

// otherNetwork is the error for a peer of another network.
type otherNetwork struct{ theirs, ours names.Name }

func (e *otherNetwork) Error() string {
	return "the peer belongs to the network " + e.theirs.String() + ", this one to " + e.ours.String()
}

// check returns an error with an otherNetwork for a connected peer that named another network, and nil for all others.
func (b *Border) check(id peer.ID) error {
	said, err := b.host.Peerstore().Get(id, "ProtocolVersion")
	version, ok := said.(string)
	if err != nil || !ok {
		return nil
	}
	if other, ok := names.Identified(version); ok && other != b.name {
		return fault.As("join.border", fault.Conflict, &otherNetwork{theirs: other, ours: b.name})
	}
	return nil
}
